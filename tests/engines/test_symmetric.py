"""Attention whose queries are a multiple of the keys: each pair is computed once, for both of its rows (``cpp/symmetric.h``,
and of more than four features ``cpp/wide.h``)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attractor.engines import Problem, attend, fused, reference
from attractor.engines import fused as kernels

SETS = fused.instruction_sets()
EPSILON = {torch.float64: 2.0**-52, torch.float32: 2.0**-23}

pytestmark = pytest.mark.skipif(not SETS, reason=f"the fused engine does not work here: {fused.reason}")


@pytest.fixture(params=SETS)
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(kernels.VARIABLE, request.param)
    return request.param


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def on_the_sphere(rng: np.random.Generator, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    x = torch.from_numpy(rng.standard_normal(shape))
    return (x / x.norm(dim=-1, keepdim=True)).to(dtype)


def asked(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, mode: Any = "softmax", skip_self: bool = False
) -> Problem:
    return Problem(q, k, v, bias, mode, causal=False, window=None, visible=None, skip_self=skip_self)


def exact(problem: Problem) -> tuple[Tensor, Tensor]:
    parts = (problem.q, problem.k, problem.v, problem.key_bias)
    q, k, v, bias = (None if part is None else part.double() for part in parts)
    output, logsumexp = reference.run(asked(q, k, v, bias, problem.mode, problem.skip_self))  # type: ignore[arg-type]
    assert output is not None
    assert logsumexp is not None
    return output, logsumexp


def agree(problem: Problem, size: float, found: tuple[Tensor | None, Tensor | None] | None = None) -> None:
    """Scores of that size are known to as many rounding errors; and the reference adds up one by one."""
    unit = EPSILON[problem.q.dtype] * (20 + 4 * size) + EPSILON[torch.float64] * problem.keys**0.5
    for got, wanted in zip(found or fused.run(problem), exact(problem), strict=True):
        assert got is not None
        assert float((got.double() - wanted).abs().max() / wanted.abs().max().clamp_min(1e-30)) <= unit


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("n", "batch"), [(24, (2, 3)), (33, ()), (64, (5,)), (97, ()), (512, ()), (1543, ())])
def test_agreement_with_the_reference(
    instruction_set: str, dtype: torch.dtype, n: int, batch: tuple[int, ...], threads: Callable[[int], None]
) -> None:
    compared(n, batch, dtype, (2, 3, 4), threads, thin=5 if n > 500 else 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("n", "batch"), [(192, (2, 4)), (241, (8,)), (401, (2, 4)), (512, ()), (900, (2,)), (1000, (8,)), (1543, ())]
)
def test_many_features(
    instruction_set: str, dtype: torch.dtype, n: int, batch: tuple[int, ...], threads: Callable[[int], None]
) -> None:
    compared(n, batch, dtype, (5, 8, 16, 23, 64, 95), threads, thin=11)


def compared(
    n: int,
    batch: tuple[int, ...],
    dtype: torch.dtype,
    features: tuple[int, ...],
    threads: Callable[[int], None],
    thin: int,
) -> None:
    rng = np.random.default_rng(n)
    cases = itertools.product(features, (1.0, 9.0, -2.0), (False, True), ("softmax", "exponential"))
    for number, (d, factor, weighted, mode) in enumerate(cases):
        if number % thin != n % thin:
            continue
        x = on_the_sphere(rng, *batch, n, d, dtype=dtype)
        round_ones, own, same, skip_self, two = rng.random(5) < (0.5, 0.3, 0.7, 0.4, 0.5)
        x = x if round_ones else x * torch.from_numpy(rng.uniform(0.9, 1.1, (*batch, n, 1))).to(dtype)
        v = torch.from_numpy(rng.standard_normal(x.shape)).to(dtype) if own else x
        bias = torch.from_numpy(rng.normal(0, 2, (*batch, n))).to(dtype) if weighted else None
        q = x if factor == 1.0 and same else factor * x
        problem = asked(q, x, v, bias, mode, skip_self=bool(skip_self))
        threads(2 if two else 1)
        found = fused.run(problem)
        threads(1)
        agree(problem, 1.3 * abs(factor), found)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("d", [3, 16])
def test_extreme_scores(dtype: torch.dtype, d: int) -> None:
    """On the sphere one shift serves any scores; elsewhere rows may be too far apart for it, and another way is taken."""
    rng = np.random.default_rng(5)
    x = on_the_sphere(rng, 900, d, dtype=dtype)
    spread = x * torch.logspace(-3, 1, 900, dtype=dtype).unsqueeze(-1)
    for points, factor in ((x, 1e4), (x, -1e4), (x, 300.0), (spread, 100.0), (spread, 0.1), (spread, -1.0)):
        agree(asked(factor * points, points, x), abs(factor) * float(points.norm(dim=-1).max()) ** 2)
    assert fused.partial_sums(asked(1e4 * x, x, x), 0, 2) is not None
    assert fused.partial_sums(asked(-1e4 * x, x, x), 0, 2) is None
    assert fused.partial_sums(asked(100.0 * spread, spread, x), 0, 2) is None


@pytest.mark.parametrize("d", [3, 16])
def test_what_is_not_of_this_kind(d: int) -> None:
    x = on_the_sphere(np.random.default_rng(6), 600, d)
    close = x.clone()
    close[400, 1] *= 1 + 1e-12
    large = torch.zeros(600, dtype=torch.float64)
    large[7] = 1e4
    hole = torch.zeros(600, dtype=torch.float64)
    hole[3] = -torch.inf
    assert fused.partial_sums(asked(x, x, x), 0, 2) is not None
    assert fused.partial_sums(asked(x * 3, x, x), 0, 2) is not None
    others = {
        "nearly the keys": asked(close, x, x),
        "a large bias": asked(x, x, x, large),
        "a hidden key": asked(x, x, x, hole),
        "linear": asked(x, x, x, mode="linear"),
        "other dimensions": asked(x, x, x[:, :2]),
        "some of the rows": asked(x, x, x).take_rows(slice(0, 100)),
        "nothing": asked(0 * x, 0 * x, x),
        "one query apart": asked(x + (torch.arange(600) == 599).unsqueeze(-1), x, x),
    }
    for name, problem in others.items():
        assert fused.partial_sums(problem, 0, 2) is None, name
    for name in ("nearly the keys", "a large bias", "a hidden key", "nothing"):
        agree(others[name], 1.0)


@pytest.mark.parametrize("spoiled", [0, 5, 599])
@pytest.mark.parametrize("d", [3, 16])
def test_what_is_no_number_reaches_the_caller(spoiled: int, d: int) -> None:
    x = on_the_sphere(np.random.default_rng(7), 600, d)
    x[spoiled, 1] = torch.nan
    output, _ = attend(x, x, x.nan_to_num(), engine="fused")
    assert output is not None
    assert bool(torch.isnan(output).all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("d", [3, 47])
def test_bits_do_not_depend_on_threads_or_parts(
    dtype: torch.dtype, weighted: bool, d: int, threads: Callable[[int], None]
) -> None:
    rng = np.random.default_rng(8)
    x = on_the_sphere(rng, 2, 2100, d, dtype=dtype)
    bias = torch.from_numpy(rng.standard_normal((2, 2100))).to(dtype) if weighted else None
    problem = asked(9 * x, x, x, bias, skip_self=True)
    found = []
    for count in (1, 2, 3):
        threads(count)
        found.append(fused.run(problem))
    for parts in (2, 3, 5):
        shares = [fused.partial_sums(problem, part, parts) for part in range(parts)]
        assert all(share is not None for share in shares)
        total = sum(share[0] for share in shares if share is not None)
        assert shares[0] is not None
        settled = shares[0][1](total)  # type: ignore[arg-type]
        if parts == 2:
            found.append(settled)
        for one, other in zip(settled, found[0], strict=True):
            torch.testing.assert_close(one, other, rtol=20 * EPSILON[dtype], atol=20 * EPSILON[dtype])
    for results in found[1:]:
        for one, other in zip(results, found[0], strict=True):
            assert one is not None
            assert other is not None
            assert torch.equal(one, other)


def test_values_that_are_the_keys_of_some_members_only() -> None:
    """They then stand in memory once; a stride of 0 makes them the keys of the first member alone."""
    x = on_the_sphere(np.random.default_rng(10), 9, 200, 12)
    problem = asked(x, x, x[:1].expand(9, 200, 12))
    agree(problem, 1.0)
    strided = torch.cat([x, torch.ones_like(x)], dim=-1)[..., :12]
    agree(asked(2 * strided, strided, strided), 2.0)


@pytest.mark.parametrize("d", [5, 64, 300])
def test_where_pairs_of_many_features_are_computed_once(d: int) -> None:
    x = on_the_sphere(np.random.default_rng(11), 600, d)
    assert fused.partial_sums(asked(x, x, x), 0, 2) is not None
    assert fused.partial_sums(asked(x[:500], x[:500], x[:500]), 0, 2) is None
    agree(asked(3 * x, x, x), 3.0)


def test_where_that_would_not_pay() -> None:
    """Vectors of float32 that would be mostly empty, keys too wide to lie near, and no features at all."""
    rng = np.random.default_rng(12)
    for dtype, d, once in ((torch.float32, 16, True), (torch.float32, 9, False), (torch.float64, 1000, False)):
        x = on_the_sphere(rng, 900, d, dtype=dtype)
        assert (fused.partial_sums(asked(x, x, x), 0, 2) is not None) == once
        agree(asked(3 * x, x, x), 3.0)
    nothing = torch.zeros(900, 0, dtype=torch.float64)
    assert fused.partial_sums(asked(nothing, nothing, x), 0, 2) is None
    assert fused.partial_sums(asked(nothing, nothing, nothing), 0, 2) is None
    agree(asked(nothing, nothing, x), 1.0)


@pytest.mark.parametrize("d", [3, 16])
def test_many_tokens_in_float32(d: int) -> None:
    """Sums at several levels: the error does not grow with the number of tokens."""
    x = on_the_sphere(np.random.default_rng(9), 12000, d, dtype=torch.float32)
    output, logsumexp = fused.run(asked(x, x, x))
    rows = torch.arange(0, 12000, 61)
    wanted, level = exact(asked(x[rows], x, x))
    assert output is not None
    assert logsumexp is not None
    assert float((output[rows].double() - wanted).abs().max()) < 3e-7
    assert float((logsumexp[rows].double() - level).abs().max()) < 2e-6


def test_logarithms(instruction_set: str) -> None:
    """One key of weight e^b: the logsumexp is b, whatever the size of e^b."""
    for dtype, reach in ((torch.float32, 30.0), (torch.float64, 250.0)):
        b = torch.linspace(-reach, reach, 4001, dtype=dtype).unsqueeze(-1)
        zero = torch.zeros(len(b), 8, 1, dtype=dtype)
        _, logsumexp = attend(zero, zero[:, :1], None, b, engine="fused")
        assert logsumexp is not None
        error = (logsumexp - b).abs() / b.abs().clamp_min(0.5)
        assert float(error.max()) < 3 * EPSILON[dtype]
