"""Scores, values and sums near the end of the numbers, in the fused engine: no NaN where the reference has none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attractor.engines import attend, fused
from attractor.engines import fused as kernels

SETS = fused.instruction_sets()

pytestmark = pytest.mark.skipif(not SETS, reason=f"the fused engine does not work here: {fused.reason}")


@pytest.fixture(params=SETS)
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(kernels.VARIABLE, request.param)
    return request.param


@pytest.mark.parametrize(
    ("dtype", "d", "factor"),
    [
        (torch.float32, 3, 1e10),
        (torch.float32, 64, 1e8),
        (torch.float32, 256, 1e7),
        (torch.float32, 1000, 5e5),
        (torch.float64, 64, 1e17),
        (torch.float64, 1000, 1e15),
    ],
)
@pytest.mark.parametrize("masked", [False, True])
def test_scores_whose_rounding_is_many_powers_of_two(
    instruction_set: str, dtype: torch.dtype, d: int, factor: float, masked: bool
) -> None:
    """Every token lies at a corner of a cube; in these many dimensions its own, in three shared with others, has all the weight."""
    x = torch.from_numpy(np.random.default_rng(13).choice([-0.3, 0.3], (600, d))).to(dtype)
    output, logsumexp = attend(factor * x, x, x, engine="fused", causal=masked)
    assert output is not None
    assert logsumexp is not None
    torch.testing.assert_close(output, x, rtol=1e-5, atol=0.0)
    torch.testing.assert_close(logsumexp, factor * (x * x).sum(-1), rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("n", "d"), [(300, 3), (700, 48)])
def test_large_values_do_not_overflow(instruction_set: str, dtype: torch.dtype, n: int, d: int) -> None:
    """Moderate scores need no shift, but weights of e^30 times such values would leave the numbers."""
    rng = np.random.default_rng(21)
    q, k, v = (torch.from_numpy(rng.standard_normal((n, d))).to(dtype) for _ in range(3))
    k = k / k.norm(dim=-1, keepdim=True)
    q, v = 30.0 * q / q.norm(dim=-1, keepdim=True), v * (1e30 if dtype == torch.float32 else 1e300)
    output, logsumexp = attend(q, k, v, engine="fused")
    wanted, level = attend(q, k, v, engine="reference")
    torch.testing.assert_close(output, wanted, rtol=1e-4, atol=1e-5 * float(v.abs().max()))
    torch.testing.assert_close(logsumexp, level, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("values", [True, False])
def test_gradients_of_logarithms_of_sums_that_overflow(dtype: torch.dtype, values: bool) -> None:
    rng = np.random.default_rng(22)
    parts = [torch.from_numpy(rng.standard_normal((40, 3))).to(dtype) for _ in range(3)]
    found = []
    for engine in ("fused", "reference"):
        q, k, v = ((40.0 if part is parts[0] else 30.0) * part for part in parts)
        q, k, v = (part.detach().requires_grad_() for part in (q, k, v))
        _, logsumexp = attend(q, k, v if values else None, mode="exponential", engine=engine)
        assert logsumexp is not None
        *slopes, unasked = torch.autograd.grad(logsumexp.sum(), (q, k, v), allow_unused=True)
        assert unasked is None or not unasked.any()  # and no number that is none
        found.append(slopes)
    size = float(logsumexp.detach().max())
    assert size > 700.0
    for one, other in zip(*found, strict=True):
        bound = 4 * size * torch.finfo(dtype).eps  # scores are known to rounding of their size
        torch.testing.assert_close(one, other, rtol=0.0, atol=bound * float(other.abs().max()))


def test_second_derivatives_of_logsumexp_alone() -> None:
    """Nobody asks for the output, so nothing comes back to the values."""
    rng = np.random.default_rng(23)
    parts = [torch.from_numpy(rng.standard_normal((6, 3))) for _ in range(3)]
    found = []
    for engine in ("fused", "reference"):
        q, k, v = (part.clone().requires_grad_() for part in parts)
        _, logsumexp = attend(q, k, v, engine=engine)
        assert logsumexp is not None
        first = torch.autograd.grad(logsumexp.sum(), (q, k, v), create_graph=True, materialize_grads=True)
        assert not first[2].any()
        found.append(torch.autograd.grad(first[0].square().sum() + first[1].square().sum(), (q, k)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
