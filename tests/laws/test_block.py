"""A block is the block of a real Transformer, as a layer; and its velocity is the derivative of that layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import attractor as at
from attractor.errors import InputError
from attractor.laws import MLP, Affine, Attention, Block, LayerNorm, Norm, RMSNorm, Schedule
from attractor.spaces import Ellipsoid, Euclidean, Sphere
from attractor.states import Tokens

DIM, HEADS, HIDDEN, N = 12, 3, 20, 7


def torch_layer(
    norm_first: bool, activation: str | Callable[[Tensor], Tensor] = "gelu"
) -> torch.nn.TransformerEncoderLayer:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(
        DIM,
        HEADS,
        HIDDEN,
        dropout=0.0,
        activation=activation,
        batch_first=True,
        norm_first=norm_first,
        dtype=torch.float64,
    )
    for parameter in layer.parameters():  # norms start at gain one and biases at zero, which would hide errors
        torch.nn.init.normal_(parameter, mean=0.1, std=0.4)
    return layer.train()  # no fused path


def heads_of(attention: torch.nn.MultiheadAttention, **options: Any) -> Attention:
    """The weights of torch's attention, head by head, output projection factored."""
    assert attention.in_proj_weight is not None
    k = DIM // HEADS
    query, key, value = (part.reshape(HEADS, k, DIM) for part in attention.in_proj_weight.detach().chunk(3))
    biases = (part.reshape(HEADS, k) for part in attention.in_proj_bias.detach().chunk(3))
    output = attention.out_proj.weight.detach().reshape(DIM, HEADS, k).permute(1, 0, 2)
    names = ("query_bias", "key_bias", "value_bias")
    bias = attention.out_proj.bias.detach()
    return Attention(
        query,
        key,
        value,
        output=output,
        scale=k**-0.5,
        **dict(zip(names, biases, strict=True)),
        output_bias=bias,
        **options,
    )


def norm_of(norm: torch.nn.LayerNorm) -> LayerNorm:
    return LayerNorm(norm.weight.detach(), norm.bias.detach(), norm.eps)


def block_of(layer: torch.nn.TransformerEncoderLayer, placement: Any, **options: Any) -> Block:
    one, two = layer.linear1, layer.linear2
    mlp = MLP(one.weight.detach(), one.bias.detach(), two.weight.detach(), two.bias.detach(), "gelu")
    return Block(heads_of(layer.self_attn, **options), mlp, placement, (norm_of(layer.norm1), norm_of(layer.norm2)))


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(("placement", "norm_first"), [("pre", True), ("post", False)])
def test_the_layer_is_torchs_encoder_layer(placement: str, norm_first: bool, causal: bool) -> None:
    layer = torch_layer(norm_first)
    block = block_of(layer, placement, mask="causal" if causal else None)
    x = torch.randn(2, N, DIM, dtype=torch.float64)
    mask = torch.ones(N, N, dtype=torch.bool).triu(1) if causal else None
    with torch.no_grad():
        expected = layer(x, src_mask=mask)
    got = block.layer(Tokens(x), 1.0, Euclidean())
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_a_window_is_torchs_attention_mask() -> None:
    layer = torch_layer(True)
    x = torch.randn(N, DIM, dtype=torch.float64)
    i, j = torch.arange(N)[:, None], torch.arange(N)
    hidden = ((i - j).abs() >= 3) | (j > i)
    with torch.no_grad():
        expected = layer(x.unsqueeze(0), src_mask=hidden)[0]
    got = block_of(layer, "pre", mask="window:3").layer(Tokens(x), 1.0, Euclidean())
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def parts(seed: int = 0, d: int = 6) -> tuple[Attention, MLP]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return 0.5 * torch.randn(shape, generator=generator, dtype=torch.float64)

    return Attention(draw(2, 3, d), draw(2, 3, d), draw(2, d, d)), MLP(draw(9, d), draw(9), draw(d, 9), draw(d), "tanh")


def norms(count: int, d: int = 6) -> tuple[Norm, ...]:
    generator = torch.Generator().manual_seed(5)
    drawn = [torch.randn(2, d, generator=generator, dtype=torch.float64) for _ in range(count)]
    return tuple(
        LayerNorm(1 + 0.3 * pair[0], pair[1], 1e-5) if i % 2 else RMSNorm(1 + 0.3 * pair[0], None, 1e-6)
        for i, pair in enumerate(drawn)
    )


def points(n: int = 5, d: int = 6, seed: int = 9) -> Tensor:
    return torch.randn(2, n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_peri_normalises_before_and_after() -> None:
    a, f = parts()
    n1, n2, n3, n4 = norms(4)
    block, x, h = Block(a, f, "peri", (n1, n2, n3, n4)), points(), 0.3
    middle = x + h * n3(a.velocity(Tokens(n1(x))))
    expected = middle + h * n4(f.velocity(Tokens(n2(middle))))
    torch.testing.assert_close(block.layer(Tokens(x), h, Euclidean()), expected, rtol=0, atol=1e-13)
    velocity = n3(a.velocity(Tokens(n1(x)))) + n4(f.velocity(Tokens(n2(x))))
    torch.testing.assert_close(block.velocity(Tokens(x)), velocity, rtol=0, atol=1e-13)


@pytest.mark.parametrize("placement", ["none", "pre", "peri"])
def test_parallel_parts_read_the_same_input(placement: Any) -> None:
    a, f = parts()
    given = norms({"none": 0, "pre": 2, "peri": 4}[placement])
    block, x, h = Block(a, f, placement, given, parallel=True), points(), 0.4
    one, two = (given[0](x), given[1](x)) if given else (x, x)
    moved = [a.velocity(Tokens(one)), f.velocity(Tokens(two))]
    if placement == "peri":
        moved = [given[2](moved[0]), given[3](moved[1])]
    torch.testing.assert_close(block.layer(Tokens(x), h, Euclidean()), x + h * sum(moved), rtol=0, atol=1e-13)
    torch.testing.assert_close(block.velocity(Tokens(x)), moved[0] + moved[1], rtol=0, atol=1e-13)


def test_no_norm_is_a_plain_sum_and_the_space_normalises_each_part() -> None:
    """Placement none on a sphere: N(x + h a), then N(. + h f): the normalised Transformer of the theory."""
    a, f = parts()
    block, sphere, h = Block(a, f), Sphere(), 0.7
    x = sphere.retract(points())
    torch.testing.assert_close(block.velocity(Tokens(x)), (a + f).velocity(Tokens(x)), rtol=0, atol=1e-14)
    middle = sphere.retract(x + h * a.velocity(Tokens(x)))
    expected = sphere.retract(middle + h * f.velocity(Tokens(middle)))
    torch.testing.assert_close(block.layer(Tokens(x), h, sphere), expected, rtol=0, atol=1e-14)


@pytest.mark.theorem
@pytest.mark.parametrize("kind", [RMSNorm, LayerNorm])
@pytest.mark.parametrize("with_bias", [False, True])
def test_post_velocity_is_tangent_to_the_image_of_the_norm(kind: type[Norm], with_bias: bool) -> None:
    """For any gain and bias: moving along the velocity keeps the root mean square and the mean of (x - b)/g."""
    a, f = parts()
    gain = torch.linspace(0.5, 2.0, 6, dtype=torch.float64)
    bias = torch.linspace(-1.0, 1.0, 6, dtype=torch.float64) if with_bias else None
    norm = kind(gain, bias)
    x = norm(points())
    velocity = Block(a, f, "post", norm).velocity(Tokens(x)) / gain
    u = (x if bias is None else x - bias) / gain
    assert (u * velocity).sum(-1).abs().max() < 1e-13
    if kind is LayerNorm:
        assert velocity.sum(-1).abs().max() < 1e-13
    torch.testing.assert_close(norm.tangent(x, velocity * gain), velocity * gain, rtol=0, atol=1e-13)


@pytest.mark.theorem
@pytest.mark.parametrize("kind", [RMSNorm, LayerNorm])
@pytest.mark.parametrize("both", [False, True], ids=["attention", "attention and feed-forward"])
def test_post_velocity_is_the_derivative_of_the_layer_at_unit_gain(kind: type[Norm], both: bool) -> None:
    a, f = parts()
    block = Block(a, f if both else None, "post", kind())
    x = kind()(points())
    torch.testing.assert_close(block.layer(Tokens(x), 0.0, Euclidean()), x, rtol=0, atol=1e-14)
    h = torch.zeros((), dtype=torch.float64, requires_grad=True)
    derivative = torch.autograd.functional.jacobian(lambda t: block.layer(Tokens(x), t, Euclidean()), h)
    torch.testing.assert_close(derivative, block.velocity(Tokens(x)), rtol=0, atol=1e-13)


@pytest.mark.theorem
@pytest.mark.parametrize("placement", ["none", "pre", "peri"])
def test_velocity_is_the_derivative_of_the_layer(placement: Any) -> None:
    a, f = parts()
    block = Block(a, f, placement, norms({"none": 0, "pre": 2, "peri": 4}[placement]))
    x = points()
    derivative = torch.autograd.functional.jacobian(
        lambda t: block.layer(Tokens(x), t, Euclidean()), torch.zeros((), dtype=torch.float64)
    )
    torch.testing.assert_close(derivative, block.velocity(Tokens(x)), rtol=0, atol=1e-12)


@pytest.mark.theorem
def test_the_image_of_rmsnorm_is_an_ellipsoid() -> None:
    """W = diag(g)^-2 / d: the norm maps to it, and both project alike."""
    gain = torch.linspace(0.4, 1.8, 6, dtype=torch.float64)
    norm, ellipsoid = RMSNorm(gain), Ellipsoid(torch.diag(gain**-2) / 6)
    x, v = norm(points()), points(seed=3)
    assert bool(ellipsoid.contains(x, 1e-14).all())
    torch.testing.assert_close(norm.tangent(x, v), ellipsoid.tangent(x, v), rtol=0, atol=1e-13)


@pytest.mark.parametrize("placement", ["none", "pre", "post", "peri"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_skipping_the_self_term_changes_no_tangent(placement: Any, with_bias: bool) -> None:
    d = 6
    count = {"none": 0, "pre": 2, "post": 2, "peri": 4}[placement]
    bias = torch.linspace(-1.0, 1.0, d, dtype=torch.float64) if with_bias else None
    for norm in (RMSNorm(None, bias), LayerNorm(None, bias)):
        block = Block(Attention.isotropic(d, 2.0), parts()[1], placement, (norm,) * count)
        space = Sphere(6**0.5)
        x = norm(points()) if placement == "post" else space.retract(points())
        whole, rest = (block.velocity(Tokens(x), skip_self=skip) for skip in (False, True))
        if placement != "post":
            whole, rest = space.tangent(x, whole), space.tangent(x, rest)
        torch.testing.assert_close(rest, whole, rtol=0, atol=1e-12)


def test_a_block_of_attention_alone() -> None:
    a, _ = parts()
    x = points()
    assert Block(a).dim == 6
    torch.testing.assert_close(Block(a).velocity(Tokens(x)), a.velocity(Tokens(x)), rtol=0, atol=0)


def test_a_block_follows_its_parts_in_time() -> None:
    a, f = parts()
    still = Block(a, f)
    assert still.autonomous
    assert still.breaks(-1.0, 9.0) == []
    assert still.between(0.0, 1.0) is still
    moving = Schedule.interpolate([0.0, 1.0, 2.0], [a, parts(1)[0], a])
    block = Block(moving, f)
    assert not block.autonomous
    assert block.breaks(0.5, 3.0) == [1.0, 2.0]
    x = Tokens(points())
    for time in (0.0, 0.25, 1.5, 5.0):
        expected = moving.at(time).velocity(x) + f.velocity(x)
        torch.testing.assert_close(block.velocity(x, time), expected, rtol=0, atol=0)
        torch.testing.assert_close(block.between(0.9, 1.6).velocity(x, time), expected, rtol=0, atol=0)


def test_a_block_refuses_what_does_not_fit() -> None:
    a, f = parts()
    norm = LayerNorm()
    with pytest.raises(InputError, match="placement 'sandwich' is not known; the placements are none, pre, post, peri"):
        Block(a, f, "sandwich")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"'peri' needs 4 norms \(or one for all\), got 2"):
        Block(a, f, "peri", (norm, norm))
    with pytest.raises(InputError, match="'none' needs 0 norms"):
        Block(a, f, "none", (norm, norm))
    with pytest.raises(InputError, match=r"different dimensions: \[2, 6\]"):
        Block(a, Affine(torch.eye(2)))
    with pytest.raises(InputError, match="parallel block has no post placement"):
        Block(a, f, "post", norm, parallel=True)
    with pytest.raises(InputError, match=r"norm of the block has dimension 4, its laws move tokens of dimension 6"):
        Block(a, f, "pre", LayerNorm(torch.ones(4)))
    with pytest.raises(InputError, match="dimension 6, the state has dimension 3"):
        Block(a, f).check(Tokens(torch.ones(2, 3)))


def make_full_block(placement: str, norms: int) -> tuple[at.Block, at.Attention, at.MLP, list[at.RMSNorm]]:
    rng = np.random.default_rng(3)
    attention = at.Attention(*rng.standard_normal((3, 5, 5)))
    feed = at.MLP(*(torch.from_numpy(rng.standard_normal(shape)) for shape in ((7, 5), (7,), (5, 7), (5,))))
    made = [at.RMSNorm(torch.from_numpy(rng.uniform(0.5, 1.5, 5))) for _ in range(norms)]
    return at.Block(attention, feed, placement, tuple(made)), attention, feed, made


@pytest.mark.parametrize("placement", ["ngpt:0.3", "sqrt", "mix:2"])
@pytest.mark.parametrize("time", [0.0, 3.0])
def test_further_placements_of_full_blocks(placement: str, time: float) -> None:
    """The layers by their definitions, attention first and then the feed-forward part."""
    block, attention, feed, norms = make_full_block(placement, 4 if "ngpt" in placement else 2)
    x, step = torch.from_numpy(np.random.default_rng(4).standard_normal((6, 5))), 0.5
    expected = x
    for law, norm, inner in zip((attention, feed), norms[:2], norms[2:] or norms, strict=False):
        if placement == "mix:2" and time >= 2:
            expected = expected + step * law.velocity(at.Tokens(norm(expected)))
            continue
        moved = law.velocity(at.Tokens(expected))
        if placement == "ngpt:0.3":
            expected = norm(expected + 0.3 * step * (inner(moved) - expected))
        elif placement == "sqrt":
            expected = norm(expected + step * moved / (1 + time) ** 0.5)
        else:
            expected = norm(expected + step * moved)
    assert torch.allclose(block.layer(at.Tokens(x), step, at.Euclidean(), time), expected, atol=1e-13)


@pytest.mark.parametrize("placement", ["ngpt:0.7", "sqrt", "mix:2"])
def test_velocities_are_the_limit_of_layers(placement: str) -> None:
    _, attention, feed, _ = make_full_block("none", 0)
    norm = at.RMSNorm(torch.full((5,), 1.2, dtype=torch.float64))
    block = at.Block(attention, feed, placement, norm)
    x = norm(torch.from_numpy(np.random.default_rng(4).standard_normal((6, 5))))
    for time in (0.5, 2.5):
        velocity = block.velocity(at.Tokens(x), time)
        step = 1e-6
        moved = (block.layer(at.Tokens(x), step, at.Euclidean(), time) - x) / step
        assert torch.allclose(velocity, moved, atol=2e-4)


def test_mixed_placements_change_at_a_step() -> None:
    _, attention, feed, _ = make_full_block("none", 0)
    law = at.Block(attention, feed, "mix:0.35", at.RMSNorm())
    assert law.breaks(0.0, 1.0) == [0.35]
    assert not law.autonomous
    tokens = at.Tokens(at.RMSNorm()(torch.from_numpy(np.random.default_rng(4).standard_normal((6, 5)))))
    run = at.flow(law, tokens, until=0.6, save=[0.35, 0.6], rtol=1e-10)
    first = at.flow(at.Block(attention, feed, "post", at.RMSNorm()), tokens, until=0.35, rtol=1e-10)
    then = at.flow(at.Block(attention, feed, "pre", at.RMSNorm()), first.final, until=0.25, rtol=1e-10)
    assert torch.allclose(run.points[0], first.final.points, atol=1e-8)
    assert torch.allclose(run.final.points, then.final.points, atol=1e-8)


@pytest.mark.parametrize(
    ("placement", "why"),
    [
        ("mix", "takes a positive number"),
        ("mix:-1", "takes a positive number"),
        ("ngpt:x", "takes a positive number"),
        ("ngpt:0", "takes a positive number"),
        ("post:2", "takes no number"),
        ("nqpt", "did you mean 'ngpt'"),
    ],
)
def test_placements_that_are_none(placement: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        at.Block(at.Attention.isotropic(3, 1.0), placement=placement, norms=at.RMSNorm())


def test_a_parallel_block_has_one_input() -> None:
    with pytest.raises(InputError, match="parallel"):
        at.Block(at.Attention.isotropic(3, 1.0), placement="ngpt", norms=at.RMSNorm(), parallel=True)
