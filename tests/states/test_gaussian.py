"""Gaussian measures: a symmetric positive semi-definite covariance, and a factor that keeps its rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attractor.errors import InputError
from attractor.states import Gaussian

REFUSED: list[tuple[Any, Any, str]] = [
    ([0.0, float("nan")], np.eye(2), r"the mean holds NaN at index \(1,\)"),
    ([0.0, 0.0], np.diag([1.0, np.inf]), r"the covariance holds an infinite value at index \(1, 1\)"),
    (1.0, np.eye(1), r"the mean must have shape \(..., d\), got \(\)"),
    ([], np.ones((0, 0)), r"the mean must have shape \(..., d\), got \(0,\)"),
    ([0.0, 0.0], np.eye(3), r"the covariance must have shape \(..., 2, 2\) like the mean, got \(3, 3\)"),
    ([0.0, 0.0], [1.0, 1.0], r"the covariance must have shape \(..., 2, 2\)"),
    (np.zeros((4, 2)), np.eye(2), r"mean \(4, 2\) and covariance \(2, 2\) have different ensemble axes"),
    ([0.0, 0.0], [[1.0, 0.5], [0.0, 1.0]], r"a covariance must be symmetric; this one is asymmetric by 0.5"),
    ([0.0, 0.0], np.diag([1.0, -0.25]), r"positive semi-definite; the smallest eigenvalue is -0.25"),
    ("mean", np.eye(2), r"the mean must be numbers in a rectangular array, got str"),
]


@pytest.mark.parametrize(("mean", "covariance", "message"), REFUSED, ids=[message[:40] for _, _, message in REFUSED])
def test_gaussians_refuse(mean: Any, covariance: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Gaussian(mean, covariance)


@pytest.mark.theorem
@given(seed=st.integers(0, 1000), dim=st.integers(1, 6), data=st.data())
def test_the_factor_squares_to_the_covariance_and_keeps_its_rank(seed: int, dim: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, dim))
    part = np.random.default_rng(seed).standard_normal((3, dim, rank))
    state = Gaussian(np.zeros((3, dim)), part @ part.transpose(0, 2, 1))
    assert (state.dim, state.batch_shape) == (dim, (3,))
    factor = state.factor
    torch.testing.assert_close(
        factor @ factor.mT, state.covariance, rtol=0, atol=1e-13 * float(1 + state.covariance.abs().max())
    )
    singular = torch.linalg.svdvals(factor)
    assert bool((singular[:, rank:] < 1e-6).all())


def test_rounding_is_forgiven_and_removed() -> None:
    covariance = np.array([[1.0, 0.3], [0.3 + 1e-14, 1.0]])
    state = Gaussian([1, 2], covariance)
    assert torch.equal(state.covariance, state.covariance.mT)
    assert state.mean.dtype == torch.float64
    assert Gaussian([0.0], [[0.0]]).factor.tolist() == [[0.0]]
    assert repr(state) == "Gaussian(dim=2, ensemble=())"


def test_gradients_reach_mean_and_covariance() -> None:
    mean = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    covariance = torch.eye(2, dtype=torch.float64, requires_grad=True)
    state = Gaussian(mean, covariance)
    (state.mean.sum() + state.covariance.sum()).backward()
    assert mean.grad is not None
    assert covariance.grad is not None
    assert covariance.grad.tolist() == [[1.0, 1.0], [1.0, 1.0]]
