"""The closed forms of mean squared distance and sharpness against the n x n table."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attractor.observables import pairwise_distance, sharpness
from attractor.spaces import Ellipsoid
from attractor.states import Tokens


def table(points: np.ndarray, masses: np.ndarray) -> float:
    """The weighted mean of squared distances over pairs i != j, pair by pair."""
    n = len(points)
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    total = sum(masses[i] * masses[j] for i, j in pairs)
    return sum(masses[i] * masses[j] * ((points[i] - points[j]) ** 2).sum() for i, j in pairs) / total


def test_against_the_table(rng: np.random.Generator) -> None:
    points, masses = rng.standard_normal((7, 3)) + 3.0, rng.random(7)
    assert float(pairwise_distance(Tokens(points))) == pytest.approx(table(points, np.ones(7)), rel=1e-14)
    assert float(pairwise_distance(Tokens(points, masses))) == pytest.approx(table(points, masses), rel=1e-14)
    root = pairwise_distance(Tokens(points, masses), root=True)
    assert float(root) == pytest.approx(np.sqrt(table(points, masses)), rel=1e-14)


def test_the_formula_of_the_papers(rng: np.random.Generator) -> None:
    x, n = rng.standard_normal((9, 4)), 9
    wanted = 2 * (n * (x**2).sum() - (x.sum(0) ** 2).sum()) / (n * (n - 1))
    assert float(pairwise_distance(Tokens(x))) == pytest.approx(wanted, rel=1e-13)


def test_in_the_norm_of_an_ellipsoid(rng: np.random.Generator) -> None:
    points, W = rng.standard_normal((6, 3)), np.diag([1.0, 2.0, 5.0])
    wanted = table(points @ np.sqrt(W), np.ones(6))
    assert float(pairwise_distance(Tokens(points), space=Ellipsoid(W))) == pytest.approx(wanted, rel=1e-13)


@pytest.mark.parametrize(
    ("dtype", "offset", "tolerance"), [(torch.float64, 1e9, 1e-13), (torch.float32, 2.0**14, 1e-5)]
)
def test_far_from_the_origin_nothing_cancels(dtype: torch.dtype, offset: float, tolerance: float) -> None:
    cloud = np.random.default_rng(0).integers(-64, 64, (8, 3)) / 64.0
    far = Tokens(cloud + offset, dtype=dtype)
    assert float(pairwise_distance(far)) == pytest.approx(table(cloud, np.ones(8)), rel=tolerance)


@given(light=st.floats(1e-300, 1e-3), seed=st.integers(0, 1000))
def test_one_heavy_token_leaves_the_pairs_their_digits(light: float, seed: int) -> None:
    points = np.random.default_rng(seed).standard_normal((2, 3))
    value = pairwise_distance(Tokens(points, [1.0, light]))
    assert float(value) == pytest.approx(((points[0] - points[1]) ** 2).sum(), rel=1e-13)


def test_degenerate_clouds() -> None:
    assert float(pairwise_distance(Tokens([[1.0, 2.0]]))) == 0.0
    assert float(pairwise_distance(Tokens([[1.0, 2.0]] * 5))) == 0.0
    assert float(pairwise_distance(Tokens([[1.0, 2.0], [3.0, 4.0]], [1.0, 0.0]))) == 0.0
    assert float(pairwise_distance(Tokens([[1.0, 0.0], [-1.0, 0.0]]))) == 4.0


def test_sharpness(rng: np.random.Generator) -> None:
    x, n = rng.standard_normal((8, 3)) + 0.5, 8
    wanted = (2 * n * (x**2).sum() - 2 * (x.sum(0) ** 2).sum()) / ((x**2).sum() * 2 * (n - 1))
    assert float(sharpness(Tokens(x))) == pytest.approx(wanted, rel=1e-13)
    assert float(sharpness(Tokens(x - x.mean(0)))) == pytest.approx(n / (n - 1), rel=1e-13)
    assert float(sharpness(Tokens([[1.0, 2.0]] * 4))) == 0.0
    assert float(sharpness(Tokens([[0.0, 0.0]] * 4))) == 0.0
    masses = rng.random(8)
    wanted = table(x, masses) / (2 * masses @ (x**2).sum(-1) / masses.sum())
    assert float(sharpness(Tokens(x, masses))) == pytest.approx(wanted, rel=1e-13)


def test_gradient() -> None:
    points = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: pairwise_distance(Tokens.unchecked(x)), (points,))
    assert torch.autograd.gradcheck(lambda x: sharpness(Tokens.unchecked(x)), (points,))
    alone = torch.ones(1, 2, dtype=torch.float64, requires_grad=True)
    pairwise_distance(Tokens.unchecked(alone)).backward()
    assert alone.grad is not None
    assert bool(torch.isfinite(alone.grad).all())
