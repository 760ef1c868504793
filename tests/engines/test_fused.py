"""The fused engine agrees with the reference, forward and backward, on every instruction set that this processor runs."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from attractor import engines
from attractor.engines import Problem, attend, choose, fused, reference, using
from attractor.engines import fused as kernels
from attractor.errors import InputError, UnsupportedError

MODES = ("softmax", "exponential", "sigmoid", "linear")
SETS = fused.instruction_sets()
TYPES = (torch.float64, torch.float32)

built = pytest.mark.skipif(not SETS, reason=f"the fused engine does not work here: {fused.reason}")


@pytest.fixture(params=SETS or ["none"])
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if not SETS:
        pytest.skip(f"the fused engine does not work here: {fused.reason}")
    monkeypatch.setenv(kernels.VARIABLE, request.param)
    return request.param


@pytest.fixture
def threads() -> Any:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def draw(rng: np.random.Generator, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype)


# q, k, v and the bias: leading axes that broadcast in different ways
LANES = (
    ((), (), (), ()),
    ((3,), (3,), (3,), (3,)),
    ((2, 3), (2, 3), (2, 1), (2, 1)),
    ((2, 1), (3,), (), ()),
    ((), (4,), (), (4,)),
    ((), (), (3,), ()),
)


def question(seed: int, dtype: torch.dtype, large: bool = False) -> tuple[list[Tensor | None], dict[str, Any], float]:
    """A random call: tensors, options, and the size of the scores."""
    rng = np.random.default_rng(seed)

    def one_of(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    sizes = (300, 511, 768, 1000, 1999) if large else (1, 2, 3, 5, 8, 15, 17, 31, 33, 64, 95, 96, 97, 100, 193)
    n, m = one_of(*sizes), one_of(*sizes)
    m = n if rng.random() < 0.4 else m
    e, c = one_of(1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 33, 64, 128), one_of(1, 2, 3, 4, 5, 6, 7, 12, 20, 64, 65)
    lanes = LANES[0] if large else one_of(*LANES)
    mode = one_of(*MODES)
    size = one_of(1e-3, 1.0, 8.0) if mode == "exponential" else one_of(1e-3, 1.0, 30.0, 1e3, 1e4)
    root = (size / e**0.5) ** 0.5
    bias = one_of(None, "finite", "holes")
    if mode == "linear" and bias == "holes":
        bias = "finite"
    tensors: list[Tensor | None] = [
        root * draw(rng, *lanes[0], n, e, dtype=dtype),
        root * draw(rng, *lanes[1], m, e, dtype=dtype),
        draw(rng, *lanes[2], m, c, dtype=dtype),
        None if bias is None else draw(rng, *lanes[3], m, dtype=dtype),
    ]
    if bias == "holes" and tensors[3] is not None:
        tensors[3] = torch.where(torch.from_numpy(rng.random(tensors[3].shape) < 0.4), -torch.inf, tensors[3])
    seen = one_of(None, None, (), lanes[0])
    options = {
        "mode": mode,
        "causal": bool(rng.random() < 0.4),
        "window": one_of(None, None, 1, 2, 9, 50, 10**6),
        "visible": None if seen is None else torch.from_numpy(rng.random((*seen, n, m)) < 0.7),
        "skip_self": bool(rng.random() < 0.4),
    }
    return tensors, options, size


def tolerance(size: float, features: int, dtype: torch.dtype) -> float:
    """A score of size s is known to s times the rounding unit, and so is the logarithm of a weight."""
    return 64 * torch.finfo(dtype).eps * (4 + size) * features**0.5


def close(got: Tensor, wanted: Tensor, bound: float, what: str) -> None:
    assert got.shape == wanted.shape, what
    assert got.dtype == wanted.dtype, what
    assert not bool(torch.isnan(got).any()), what
    largest = float(torch.where(torch.isfinite(wanted), wanted, 0.0).abs().max()) if wanted.numel() else 0.0
    torch.testing.assert_close(got, wanted, rtol=bound, atol=bound * largest + 1e-300, msg=lambda m: f"{what}: {m}")


def evaluate(name: str, tensors: list[Tensor | None], options: dict[str, Any], gradients: bool) -> list[Tensor]:
    """Output, logsumexp and the gradients of a random linear function of both."""
    leaves = [None if part is None else part.clone().requires_grad_(gradients) for part in tensors]
    output, logsumexp = attend(*leaves, engine=name, **options)  # type: ignore[arg-type]
    results = [part.detach() for part in (output, logsumexp) if part is not None]
    if not gradients:
        return results
    generator = torch.Generator().manual_seed(0)
    loss = torch.zeros((), dtype=results[0].dtype)
    for part in (output, logsumexp):
        if part is not None:
            direction = torch.randn(part.shape, generator=generator, dtype=part.dtype)
            loss = loss + (torch.where(part == -torch.inf, 0.0, part) * direction).sum()
    return results + list(torch.autograd.grad(loss, [leaf for leaf in leaves if leaf is not None]))


def agree(tensors: list[Tensor | None], options: dict[str, Any], size: float, gradients: bool, what: str) -> None:
    got = evaluate("fused", tensors, options, gradients)

    wanted = evaluate("reference", tensors, options, gradients)
    assert tensors[0] is not None
    bound = tolerance(size, tensors[0].shape[-1], tensors[0].dtype)
    assert len(got) == len(wanted)
    for index, (one, other) in enumerate(zip(got, wanted, strict=True)):
        close(one, other, bound, f"{what}, result {index}")


@pytest.mark.parametrize("dtype", TYPES)
def test_the_reference_and_the_kernels_agree(instruction_set: str, dtype: torch.dtype) -> None:
    for seed in range(120):
        tensors, options, size = question(seed, dtype)
        agree(tensors, options, size, seed % 2 == 0 and size <= 30, f"seed {seed}, {options['mode']}, size {size}")


@pytest.mark.parametrize("dtype", TYPES)
def test_large_awkward_sizes(instruction_set: str, dtype: torch.dtype) -> None:
    for seed in range(12):
        tensors, options, size = question(1000 + seed, dtype, large=True)
        agree(
            tensors, options, size, seed % 3 == 0 and size <= 30, f"seed {1000 + seed}, {options['mode']}, size {size}"
        )


@built
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("masks", [{}, {"causal": True}, {"window": 3}, {"skip_self": True}, {"visible": True}])
def test_gradients_are_those_of_the_function(mode: str, masks: dict[str, Any]) -> None:
    rng = np.random.default_rng(3)
    if "visible" in masks:
        masks = {"visible": torch.from_numpy(rng.random((7, 9)) < 0.6)}
    leaves = [0.5 * draw(rng, *shape).requires_grad_() for shape in ((2, 7, 3), (9, 3), (2, 9, 4), (2, 9))]
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]

    def function(*parts: Tensor) -> tuple[Tensor, ...]:
        output, logsumexp = attend(*parts, mode=mode, engine="fused", **masks)  # type: ignore[arg-type]
        assert output is not None
        if logsumexp is None:
            return (output,)
        return output, torch.where(logsumexp == -torch.inf, 0.0, logsumexp)

    assert torch.autograd.gradcheck(function, leaves)


@built
def test_only_the_gradients_that_are_asked_for() -> None:
    rng = np.random.default_rng(4)
    q, k, v = draw(rng, 6, 2), draw(rng, 5, 2), draw(rng, 5, 3)
    for leaf in (q, k, v):
        leaf.requires_grad_()
        output, logsumexp = attend(q, k, v, engine="fused")
        assert output is not None
        assert logsumexp is not None
        (got,) = torch.autograd.grad(logsumexp.sum() + output.square().sum(), leaf)
        output, logsumexp = attend(q, k, v, engine="reference")
        assert output is not None
        assert logsumexp is not None
        (wanted,) = torch.autograd.grad(logsumexp.sum() + output.square().sum(), leaf)
        torch.testing.assert_close(got, wanted)
        leaf.requires_grad_(False)
    q.requires_grad_()
    _, logsumexp = attend(q, k, None, engine="fused")
    assert logsumexp is not None
    (got,) = torch.autograd.grad(logsumexp.sum(), q)
    torch.testing.assert_close(got, torch.softmax(q @ k.T, -1) @ k)


@built
@pytest.mark.parametrize("mode", MODES)
def test_second_derivatives_go_through_another_engine(mode: str) -> None:
    x = draw(np.random.default_rng(8), 4, 2).requires_grad_()

    def function(points: Tensor) -> Tensor:
        output, logsumexp = attend(points, points, points, mode=mode, engine="fused")  # type: ignore[arg-type]
        assert output is not None
        return output if logsumexp is None else output + logsumexp.unsqueeze(-1)

    assert torch.autograd.gradgradcheck(function, (x,))


@pytest.mark.parametrize("dtype", TYPES)
def test_powers_of_two_are_as_accurate_as_documented(instruction_set: str, dtype: torch.dtype) -> None:
    """The bounds that cpp/exp2.h states, against mpmath, and the ends of the range."""
    double = dtype == torch.float64
    low, high, bound, tiny = (-1022, 1024, 3e-16, 2.0**-1022) if double else (-126, 128, 2e-7, 2.0**-126)
    rng = np.random.default_rng(0)
    inside = np.concatenate([rng.uniform(low, high, 4000), rng.uniform(-1, 1, 4000), np.arange(low, high, 0.5)])
    x = torch.from_numpy(inside).to(dtype)
    x = x[(x >= low) & (x < high)]
    with mpmath.workdps(40):
        exact = [mpmath.power(2, mpmath.mpf(value)) for value in x.double().tolist()]
        got = [mpmath.mpf(value) for value in powers(instruction_set, x).double().tolist()]
        worst = max(abs(one / other - 1) for one, other in zip(got, exact, strict=True))
    assert worst < bound
    edges = torch.tensor([-math.inf, -1e30, low - 200.0, high, high + 0.5, 1e30, math.inf, 0.0, math.nan], dtype=dtype)
    ends = powers(instruction_set, edges).tolist()
    assert ends[:8] == [0.0, 0.0, 0.0, math.inf, math.inf, math.inf, math.inf, 1.0]
    assert math.isnan(ends[8])
    below = torch.linspace(low - 30, low, 301, dtype=torch.float64)[:-1].to(dtype)
    error = (powers(instruction_set, below).double() - torch.exp2(below.double())).abs().max()
    assert float(error) <= tiny


def powers(instruction_set: str, x: Tensor) -> Tensor:
    result = torch.empty_like(x)
    kernels.module().exp2(instruction_set, x.dtype == torch.float64, x.data_ptr(), result.data_ptr(), len(x))
    return result


def test_the_number_of_threads_changes_no_bit(instruction_set: str, threads: Any) -> None:
    rng = np.random.default_rng(5)
    for dtype in TYPES:
        for shape, options in (((777, 3), {}), ((2, 300, 20), {"causal": True}), ((50, 33, 2), {"mode": "sigmoid"})):
            q, k, v = (draw(rng, *shape, dtype=dtype) for _ in range(3))
            bits = []
            for count in (1, 2, 3, 2):
                threads(count)
                bits.append(evaluate("fused", [q, k, v, None], options, gradients=True))
            for other in bits[1:]:
                assert all(torch.equal(one, two) for one, two in zip(bits[0], other, strict=True))


def test_many_keys_do_not_wear_float32_down(instruction_set: str) -> None:
    """Sums over 65536 keys keep the error of a few roundings: partial sums are flushed on several levels."""
    rng = np.random.default_rng(6)
    x = draw(rng, 65536, 3)
    x = x / x.norm(dim=-1, keepdim=True)
    for dtype, bound in ((torch.float32, 2e-6), (torch.float64, 2e-15)):
        y = x.to(dtype)
        for beta in (1.0, 9.0):
            got, logsumexp = attend(beta * y[:16], y, y, engine="fused")
            assert got is not None
            assert logsumexp is not None
            exact = y.numpy().astype(np.longdouble)
            powers = np.exp((beta * y[:16]).numpy().astype(np.longdouble) @ exact.T)
            total = powers.sum(-1, keepdims=True)
            assert np.abs(got.numpy() - powers @ exact / total).max() < bound
            assert np.abs(logsumexp.numpy() - np.log(total[:, 0])).max() < 4 * bound


def test_scores_that_climb_and_fall(instruction_set: str) -> None:
    """The running maximum follows keys whose scores rise, fall and vanish by thousands, without overflow."""
    for dtype in TYPES:
        for slope in (1e4, -1e4, 300.0, -300.0):
            climb = torch.linspace(-1, 1, 700, dtype=dtype).unsqueeze(-1)
            q = torch.tensor([[slope], [slope / 7], [0.0]], dtype=dtype)
            tensors: list[Tensor | None] = [q, climb, torch.cat([climb, climb**2], -1), None]
            agree(tensors, {}, abs(slope), False, f"slope {slope}")


def test_what_is_no_number_stays_none(instruction_set: str) -> None:
    """A NaN among the tokens must reach the caller, which stops there."""
    for dtype in TYPES:
        for mode in MODES:
            k = torch.ones(200, 3, dtype=dtype)
            k[77, 1] = torch.nan
            output, _ = attend(torch.ones(20, 3, dtype=dtype), k, k.nan_to_num(), mode=mode, engine="fused")  # type: ignore[arg-type]
            assert output is not None
            assert bool(torch.isnan(output).all())


@built
def test_strided_and_broadcast_tensors_are_read_in_place() -> None:
    rng = np.random.default_rng(7)
    x = draw(rng, 40, 4, 6)  # tokens, heads, features
    heads = x.transpose(0, 1)
    shared = draw(rng, 40, 3).expand(4, 40, 3)
    wide = draw(rng, 4, 6, 40).transpose(-1, -2)  # columns that are not adjacent
    bias = draw(rng, 40, 4).transpose(0, 1)
    for q in (heads, wide):
        got, log = attend(q, heads, shared, bias, engine="fused")
        wanted, wanted_log = attend(q, heads, shared, bias, engine="reference")
        torch.testing.assert_close(got, wanted, rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(log, wanted_log, rtol=1e-13, atol=1e-13)


@built
def test_nothing_to_do() -> None:
    empty = torch.zeros(0, 3)
    some = torch.ones(4, 3)
    output, logsumexp = attend(empty, some, some, engine="fused")
    assert output is not None
    assert output.shape == (0, 3)
    output, logsumexp = attend(some, empty, empty, engine="fused")
    assert output is not None
    assert logsumexp is not None
    assert output.tolist() == [[0.0] * 3] * 4
    assert bool((logsumexp == -torch.inf).all())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("rows", "n"), [(slice(0, 7), 500), (slice(93, 199), 500), (slice(400, 500), 500), (slice(3, 4), 9)]
)
def test_rows_of_a_larger_problem_leave_out_their_own_keys(
    mode: Any, rows: slice, n: int, instruction_set: str
) -> None:
    """Tiles without such a key take a shorter way, wherever the rows stand among the keys."""
    rng = np.random.default_rng(n + rows.start)
    q, k, v = draw(rng, n, 3), draw(rng, n, 3), draw(rng, n, 2)
    whole = Problem(q, k, v, draw(rng, n), mode, causal=False, window=None, visible=None, skip_self=True)
    (got, _), (expected, _) = fused.run(whole.take_rows(rows)), reference.run(whole)
    assert got is not None
    assert expected is not None
    torch.testing.assert_close(got, expected[rows], rtol=1e-12, atol=1e-12)


@built
def test_what_it_accepts() -> None:
    x = torch.ones(3, 2)

    def problem(q: Tensor, **changes: Any) -> Problem:
        given = {"k": q, "v": q, "key_bias": None, "mode": "softmax", "causal": False, "window": None} | changes
        return Problem(q=q, visible=None, skip_self=False, **given)

    assert fused.accepts(problem(x))
    assert choose(problem(x)).name == "fused"
    assert not fused.accepts(problem(x.half()))
    assert not fused.accepts(problem(x, k=x.double()))
    assert not fused.accepts(problem(x.to("meta")))
    with pytest.raises(UnsupportedError, match="'fused' cannot run this problem"):
        attend(x.half(), x.half(), x.half(), engine="fused")
    with using(None) as seen:
        torch.func.vmap(lambda row: attend(row, x, x)[0])(x.expand(2, 3, 2))
    assert "fused" not in seen


@built
def test_an_unknown_instruction_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernels.VARIABLE, "mmx")
    with pytest.raises(
        InputError, match=r"ATTRACTOR_ISA is 'mmx', but the instruction sets that run here are .*scalar"
    ):
        attend(torch.ones(2, 1), torch.ones(2, 1), None, engine="fused")


def test_without_the_extension_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing was compiled the engine says why, and the reference does the work."""
    gone = engines.Engine(
        "fused", fused.run, fused.accepts, fused.priority, reason="the compiled extension is not built: test"
    )
    monkeypatch.setitem(engines.dispatch._engines, "fused", gone)
    x = torch.ones(3, 2)
    with using(None) as seen:
        attend(x, x, x)
    assert seen == {"reference"}
    with pytest.raises(UnsupportedError, match="is not built"):
        attend(x, x, x, engine="fused")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_hidden_and_no_number_hides_no_large_score(instruction_set: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(16, 3, generator=generator, dtype=dtype) for _ in range(3))
    bias = torch.zeros(16, dtype=dtype)
    for spoiled, large in ((k.clone(), (0,)), (bias.clone(), (0,))):
        spoiled[large] = 1e4
        spoiled[8] = torch.nan
        keys, added = (spoiled, bias) if spoiled.ndim == 2 else (k, spoiled)
        for mode in ("softmax", "exponential"):
            found, wanted = (attend(q, keys, v, added, mode, True, engine=name) for name in ("fused", "reference"))
            for one, other in zip(found, wanted, strict=True):
                assert one is not None
                assert other is not None
                torch.testing.assert_close(
                    one[:8], other[:8], rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=1e-6
                )
