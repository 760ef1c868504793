"""Every layer: gradients, the plain formula, compilation, low precision, state dicts, export."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import attractor as at
from attractor.errors import InputError
from attractor.nn import (
    AttentionLayer,
    DefiniteAttention,
    MetricSlice,
    PlainAttention,
    Shift,
    Slice,
    TransformerBlock,
    spectral,
)

DIM, HEADS, N = 8, 2, 5
Make = Callable[[], AttentionLayer]
LAYERS: dict[str, Make] = {
    "convergent": lambda: DefiniteAttention(DIM, HEADS, "convergent"),
    "divergent, diagonal, causal": lambda: DefiniteAttention(DIM, HEADS, "divergent", metric="diagonal", causal=True),
    "intermediate, rotary": lambda: DefiniteAttention(DIM, HEADS, "intermediate", positions="rotary", skew="both"),
    "relaxed": lambda: DefiniteAttention(DIM, HEADS, "convergent", relaxed=True),
    "wide heads": lambda: DefiniteAttention(DIM, HEADS, "divergent", head_dim=6),
    "official": lambda: DefiniteAttention(DIM, HEADS, "convergent", orientation="official"),
    "scattered signs": lambda: DefiniteAttention(
        DIM, HEADS, "convergent", signs=[-1, 1] * 4, interaction=[[1, 1, -1, -1], [-1, 1, 1, -1]]
    ),
    "plain": lambda: PlainAttention(DIM, HEADS, bias=True),
    "spectral": lambda: spectral(PlainAttention(DIM, HEADS)).eval(),  # in training the power method moves at every call
    "temperature and gain": lambda: PlainAttention(DIM, HEADS, temperature="learned", gain="learned", bias=True),
    "cold": lambda: PlainAttention(DIM, HEADS, temperature=0.5, gain=-2.0, causal=True),
    "l2": lambda: PlainAttention(DIM, HEADS, kernel="l2", temperature="learned"),
    "sinkhorn": lambda: PlainAttention(DIM, HEADS, kernel=at.Sinkhorn(eps=0.7), bias=True),
    "sinkhorn, causal": lambda: PlainAttention(DIM, HEADS, kernel="sinkhorn", causal=True),
    "sigmoid": lambda: PlainAttention(DIM, HEADS, kernel=at.Sigmoid(bias=-0.5), causal=True, positions="rotary"),
    "shift": lambda: PlainAttention(DIM, HEADS, refinement=Shift(DIM, HEADS, value=0.7), bias=True),
    "shift, rotary": lambda: PlainAttention(
        DIM, HEADS, refinement=Shift(DIM, HEADS, value=-0.7), positions="rotary", causal=True
    ),
    "shift, sigmoid": lambda: PlainAttention(
        DIM, HEADS, refinement=Shift(DIM, HEADS, value=0.7), kernel="sigmoid", bias=True
    ),
    "slice": lambda: PlainAttention(DIM, HEADS, refinement=Slice(DIM, HEADS, sign="-"), positions="rotary"),
    "part of a slice": lambda: PlainAttention(DIM, HEADS, refinement=Slice(DIM, HEADS, channels=2), causal=True),
    "metric": lambda: DefiniteAttention(
        DIM, HEADS, "intermediate", metric="diagonal", refinement=MetricSlice(DIM, HEADS, value=0.3)
    ),
}


@pytest.fixture(params=LAYERS, ids=list(LAYERS))
def layer(request: pytest.FixtureRequest) -> AttentionLayer:
    torch.manual_seed(5)
    made = LAYERS[request.param]()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return made


def tokens(dtype: torch.dtype = torch.float64, *batch: int) -> Tensor:
    return torch.randn(*batch, N, DIM, dtype=dtype, generator=torch.Generator().manual_seed(1))


def test_gradients(layer: AttentionLayer) -> None:
    layer = layer.double()
    names, parameters = zip(*layer.named_parameters(), strict=True)
    x = tokens().requires_grad_()

    def output(x: Tensor, *given: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, given, strict=True)), (x,))

    inputs = (x, *(parameter.detach().clone().requires_grad_() for parameter in parameters))
    # random directions instead of one evaluation for every entry
    assert torch.autograd.gradcheck(output, inputs, fast_mode=True, rtol=1e-3, atol=1e-6)


def test_the_dynamics_agree(layer: AttentionLayer) -> None:
    """The layer's output is the velocity that its law gives tokens."""
    layer = layer.double()
    x = tokens(torch.float64, 3)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), at.velocity(layer.law(), at.Tokens(x)), rtol=1e-11, atol=1e-12)


def test_export(layer: AttentionLayer) -> None:
    layer = layer.double()
    plain, x = layer.plain(), tokens(torch.float64, 2)
    assert type(plain) is PlainAttention
    assert plain.refinement is None
    with torch.no_grad():
        torch.testing.assert_close(plain(x), layer(x), rtol=1e-12, atol=1e-13)


def test_state_dict(layer: AttentionLayer, request: pytest.FixtureRequest) -> None:
    torch.manual_seed(99)
    other = LAYERS[request.node.callspec.params["layer"]]()
    x = tokens(torch.float32)
    with torch.no_grad():
        assert not torch.equal(other(x), layer(x))
        other.load_state_dict(layer.state_dict())
        assert torch.equal(other(x), layer(x))


def test_low_precision(layer: AttentionLayer) -> None:
    """bfloat16 parameters, and autocast over float32 ones: 8 bits of mantissa, errors of some units of it."""
    x = tokens(torch.float32, 2)
    with torch.no_grad():
        exact = layer(x)
        with torch.autocast("cpu", torch.bfloat16):
            mixed = layer(x)
        low = layer.bfloat16()(x.bfloat16())
    size = float(exact.abs().max())
    assert mixed.dtype == low.dtype == torch.bfloat16
    assert float((mixed.float() - exact).abs().max()) < 0.06 * size
    assert float((low.float() - exact).abs().max()) < 0.06 * size


def test_low_precision_trains(layer: AttentionLayer) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        loss = layer(tokens(torch.float32)).float().square().sum()
    loss.backward()
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert bool(parameter.grad.isfinite().all())


BY_ENGINE = ("l2", "sinkhorn", "sinkhorn, causal", "sigmoid", "shift, sigmoid")
WITH_BACKWARD = ("convergent", "intermediate, rotary", "shift, rotary", "plain")


@pytest.mark.parametrize("name", WITH_BACKWARD)
def test_compile(name: str) -> None:
    """The whole graph, traced with its backward."""
    torch.manual_seed(5)
    layer = LAYERS[name]()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x = tokens(torch.float32, 2)
    torch.testing.assert_close(compiled(x), layer(x), rtol=1e-5, atol=1e-6)
    compiled(x).square().sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())


@pytest.mark.parametrize("name", [name for name in LAYERS if name not in (*BY_ENGINE, *WITH_BACKWARD)])
def test_compile_without_breaks(name: str) -> None:
    """One graph for every other layer, too."""
    torch.compiler.reset()  # or layers of one class would be taken for one that changes all the time
    torch.manual_seed(5)
    layer, x = LAYERS[name](), tokens(torch.float32, 2)
    with torch.no_grad():
        compiled = torch.compile(layer, backend="eager", fullgraph=True)(x)
        torch.testing.assert_close(compiled, layer(x), rtol=1e-5, atol=1e-6)


# the compiler looks at .grad of what enters the graph after the break
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("name", ["l2", "sinkhorn", "sigmoid"])
def test_compile_around_an_engine(name: str) -> None:
    """Kernels of the dynamics choose their engine while they run, so that the graph is broken there."""
    torch.manual_seed(5)
    layer = LAYERS[name]()
    x = tokens(torch.float32, 2)
    torch.testing.assert_close(torch.compile(layer, backend="aot_eager")(x), layer(x), rtol=1e-4, atol=1e-5)


def test_plain_formula() -> None:
    """Softmax attention written out, with a mask of padding."""
    layer = PlainAttention(DIM, HEADS, bias=True, causal=True).double()
    x, k = tokens(torch.float64, 2), DIM // HEADS
    seen = torch.ones(2, 1, 1, N, dtype=torch.bool)
    seen[1, ..., -2:] = False
    with torch.no_grad():
        q, key, v = (part(x).view(2, N, HEADS, k).transpose(1, 2) for part in (layer.query, layer.key, layer.value))
        scores = q @ key.mT / math.sqrt(k)
        scores = scores.masked_fill(~(seen & torch.ones(N, N).tril().bool()), -torch.inf)
        wanted = layer.output((scores.softmax(-1) @ v).transpose(1, 2).reshape(2, N, DIM))
        torch.testing.assert_close(layer(x, seen), wanted, rtol=1e-12, atol=1e-13)


def test_masks_of_other_kernels() -> None:
    seen = torch.ones(N, N).tril().bool()
    for kernel in ("l2", "sinkhorn", "sigmoid"):
        torch.manual_seed(0)
        layer = PlainAttention(DIM, HEADS, kernel=kernel).double()
        x = tokens()
        law = at.Attention(*_parts(layer), kernel=kernel, mask=seen, scale=layer.scale, output=layer.weights().output)
        with torch.no_grad():
            torch.testing.assert_close(layer(x, seen), at.velocity(law, at.Tokens(x)).detach(), rtol=1e-11, atol=1e-12)


def _parts(layer: PlainAttention) -> tuple[Tensor, Tensor, Tensor]:
    weights = layer.weights().detach()
    return weights.query, weights.key, weights.value


def test_causal_sinkhorn_is_not_autoregressive() -> None:
    """The coupling is made of all tokens before the mask drops some: a later token moves an earlier one, softmax's does not."""
    moved = {}
    for kernel in ("softmax", "sinkhorn"):
        torch.manual_seed(0)
        layer = PlainAttention(DIM, HEADS, kernel=kernel, causal=True).double()
        x, y = tokens(), tokens()
        y[-1] += 3.0
        with torch.no_grad():
            moved[kernel] = float((layer(x) - layer(y))[:-1].abs().max())
    assert moved["softmax"] < 1e-14
    assert moved["sinkhorn"] > 1e-4


def test_dropout_is_for_training() -> None:
    torch.manual_seed(0)
    layer, x = PlainAttention(DIM, HEADS, dropout=0.5), tokens(torch.float32)
    assert not torch.equal(layer(x), layer(x))
    assert torch.equal(layer.eval()(x), layer(x))


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("placement", ["none", "pre", "post", "peri", "sandwich"])
def test_block_is_a_layer_of_its_law(placement: Any, norm: Any) -> None:
    torch.manual_seed(0)
    block = TransformerBlock(PlainAttention(DIM, HEADS, bias=True), 12, placement=placement, norm=norm).double()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        x = tokens(torch.float64, 2)
        layered = block.law().layer(at.Tokens(x), 1.0, at.Euclidean())
        torch.testing.assert_close(block(x), layered, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("placement", ["pre", "post", "peri"])
def test_block_learns_compiles_and_is_kept(placement: Any) -> None:
    """Gradients in float64, a compiled graph, bfloat16, and the state dict, as for single layers."""
    torch.manual_seed(0)
    block = TransformerBlock(DefiniteAttention(DIM, HEADS, "divergent"), 12, placement=placement).double()
    names, parameters = zip(*block.named_parameters(), strict=True)
    x = tokens().requires_grad_()

    def output(x: Tensor, *given: Tensor) -> Tensor:
        return torch.func.functional_call(block, dict(zip(names, given, strict=True)), (x,))

    inputs = (x, *(parameter.detach().clone().requires_grad_() for parameter in parameters))
    assert torch.autograd.gradcheck(output, inputs, fast_mode=True, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(torch.compile(block, backend="eager", fullgraph=True)(x), block(x))
    other = TransformerBlock(DefiniteAttention(DIM, HEADS, "divergent"), 12, placement=placement).double()
    other.load_state_dict(block.state_dict())
    with torch.no_grad():
        assert torch.equal(other(x), block(x))
        low = block.bfloat16()(x.bfloat16())
    assert float((low.double() - other(x)).detach().abs().max()) < 0.06 * float(other(x).detach().abs().max())


def test_dropped_paths_keep_the_mean() -> None:
    """A sequence is moved whole or not at all, and by as much more as it is moved less often; in evaluation nothing is dropped."""
    torch.manual_seed(0)
    block = TransformerBlock(PlainAttention(DIM, HEADS), 0, placement="none", drop_path=0.25)
    x = tokens(torch.float32).expand(4000, N, DIM)
    with torch.no_grad():
        moved, whole = block(x) - x, (block.eval()(x) - x)[0]
    kept = moved.flatten(1).norm(dim=1) > 0
    torch.testing.assert_close(moved[kept][0], whole / 0.75, rtol=1e-4, atol=1e-5)
    assert abs(float(kept.float().mean()) - 0.75) < 0.03
    with pytest.raises(at.AttractorError, match="drop_path must be at least 0 and below 1"):
        TransformerBlock(PlainAttention(DIM, HEADS), drop_path=1.0)


def test_block_without_feedforward() -> None:
    block, x = TransformerBlock(DefiniteAttention(DIM, HEADS), 0, placement="none").double(), tokens()
    with torch.no_grad():
        torch.testing.assert_close(block(x), x + at.velocity(block.law().attention, at.Tokens(x)))


def test_spectral_norm_of_the_value_stays_at_one() -> None:
    torch.manual_seed(0)
    layer = spectral(PlainAttention(DIM, HEADS), iterations=3)
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.05)
    x = tokens(torch.float32, 4)
    for _ in range(30):
        optimiser.zero_grad()
        (layer(x) + 5 * x).square().mean().backward()
        optimiser.step()
    free = float(torch.linalg.matrix_norm(layer.value.parametrizations.weight.original.detach(), 2))  # type: ignore[union-attr]
    kept = float(torch.linalg.matrix_norm(layer.weights().v.detach(), 2))
    assert abs(kept - 1) < 0.02
    assert abs(free - 1) > 0.1
    assert layer.plain()(x).shape == x.shape


def test_a_look_at_a_normalised_layer_leaves_it_as_it_is() -> None:
    """Only a training forward moves the vectors of the power method, once for each."""
    torch.manual_seed(0)
    layer = spectral(PlainAttention(DIM, HEADS), "query").train()
    vectors = [part for name, part in layer.named_buffers() if name.endswith("_u")]
    before, x = vectors[0].clone(), tokens(torch.float32)
    for look in (layer.plain, layer.law, lambda: at.regime(layer)):
        look()
    assert torch.equal(vectors[0], before)
    assert layer.query.training
    weight = layer.query.parametrizations.weight.original.detach()  # type: ignore[union-attr]
    left = next(part for name, part in layer.named_buffers() if name.endswith("_v")).clone()
    layer(x)
    torch.testing.assert_close(vectors[0], torch.nn.functional.normalize(weight @ left, dim=0))


def test_kept_turns_follow_the_tokens() -> None:
    """Rotary tables are kept between calls: other lengths, precisions and inference must not meet old ones."""
    torch.manual_seed(0)
    layer = PlainAttention(DIM, HEADS, positions="rotary", causal=True).double()
    x = tokens(torch.float64, 2)
    with torch.no_grad():
        whole = layer(x)
        torch.testing.assert_close(layer(x[:, :3]), whole[:, :3], rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(layer.float()(x.float()), whole.float(), rtol=1e-4, atol=1e-5)
    with torch.inference_mode():
        layer(x.float())
    layer(x.float()).sum().backward()


def test_masks_that_could_be_misread_are_rejected() -> None:
    """Numbers 0 and 1 would be added to the scores, so later tokens would be seen; a mask of padding has a shape of its own."""
    layer, x = at.nn.PlainAttention(16, 2, causal=True), torch.randn(3, 5, 16)
    for mask in (torch.ones(5, 5).tril(), torch.ones(5, 5, dtype=torch.long).tril()):
        with pytest.raises(InputError, match=r"a mask is a boolean tensor.*convert 0 and 1 with mask\.bool\(\)"):
            layer(x, mask)
    seen = torch.ones(3, 5, dtype=torch.bool)
    seen[:, 4] = False
    with pytest.raises(InputError, match=r"got \(3, 5\): give a mask of padding as mask\[\.\.\., None, None, :\]"):
        layer(x, seen)
    with pytest.raises(
        InputError, match=r"a mask for tokens of shape \(3, 5, 16\) is \(5, 5\) or broadcasts to \(3, 2, 5, 5\)"
    ):
        layer(x, torch.ones(4, 4, dtype=torch.bool))
    torch.testing.assert_close(layer(x, seen[:, None, None])[:, :4], layer(x[:, :4]))


def test_large_strengths() -> None:
    """The logarithm of expm1 would overflow."""
    assert float(at.nn.Shift(8, 2, "+", 1e3).strength.detach()[0]) == 1e3
