"""The distance from the origin to the hull against closed forms, linear programs and least squares."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize, nnls
from scipy.spatial import ConvexHull

from attractor.laws import Attention
from attractor.observables import hemisphere_margin
from attractor.observables.consensus import nearest_hull_point
from attractor.spaces import Ellipsoid, Sphere
from attractor.states import Tokens


def margin(points: np.ndarray) -> float:
    return float(hemisphere_margin(Tokens(points)))


def by_facets(points: np.ndarray) -> float:
    """Distance to the hull in the plane: to its nearest edge, or 0 inside."""
    hull = ConvexHull(points)
    if (hull.equations[:, -1] <= 0).all():
        return 0.0
    distances = []
    for i, j in hull.simplices:
        a, b = points[i], points[j]
        share = np.clip(-a @ (b - a) / ((b - a) @ (b - a)), 0.0, 1.0)
        distances.append(np.linalg.norm(a + share * (b - a)))
    return min(distances)


@given(seed=st.integers(0, 10**6), n=st.integers(3, 12), shift=st.floats(0.0, 4.0))
def test_in_the_plane_against_the_edges_of_the_hull(seed: int, n: int, shift: float) -> None:
    points = np.random.default_rng(seed).standard_normal((n, 2))
    points[:, 0] += shift
    assert margin(points) == pytest.approx(by_facets(points), abs=2e-14)


@given(seed=st.integers(0, 10**6), n=st.integers(1, 10), dim=st.integers(1, 6), shift=st.floats(0.0, 3.0))
def test_against_a_quadratic_program(seed: int, n: int, dim: int, shift: float) -> None:
    points = np.random.default_rng(seed).standard_normal((n, dim))
    points[:, 0] += shift
    gram = points @ points.T
    solution = minimize(
        lambda weights: weights @ gram @ weights,
        np.full(n, 1 / n),
        jac=lambda weights: 2 * gram @ weights,
        bounds=[(0, 1)] * n,
        constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-15, "maxiter": 500},
        method="SLSQP",
    )
    assert margin(points) == pytest.approx(math.sqrt(max(solution.fun, 0.0)), abs=1e-5)


@given(seed=st.integers(0, 10**6), n=st.integers(1, 30), dim=st.integers(1, 6))
def test_its_sign_against_a_linear_program(seed: int, n: int, dim: int) -> None:
    """Open hemisphere: some e has <e, x_i> >= 1 for all i."""
    points = np.random.default_rng(seed).standard_normal((n, dim))
    feasible = linprog(np.zeros(dim), A_ub=-points, b_ub=-np.ones(n), bounds=(None, None)).status == 0
    assert (margin(points) > 0) == feasible


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 60),
    dim=st.integers(1, 12),
    spread=st.sampled_from([1.0, 1e-2, 1e-5, 1e-8, 1e-11]),
    height=st.sampled_from([1.0, 1e-3, 1e-7, 1e-11, 0.0]),
)
def test_the_answer_proves_itself(seed: int, n: int, dim: int, spread: float, height: float) -> None:
    """The weights show rho from above, the direction from below; also near 0 and near consensus."""
    generator = np.random.default_rng(seed)
    points = spread * generator.standard_normal((n, dim))
    points[:, 0] = height * (1 + spread * generator.random(n))
    weights, direction = nearest_hull_point(points)
    size = np.linalg.norm(points, axis=1).max()
    above = np.linalg.norm(weights @ points)
    below = max(0.0, (points @ direction).min())
    assert (weights >= 0).all()
    assert weights.sum() == pytest.approx(1.0, rel=1e-14)
    assert above - below <= 2e-14 * size
    assert below <= margin(points) + 1e-14 * size <= above + 2e-14 * size


@pytest.mark.parametrize("angle", [1.0, 1e-2, 1e-4, 1e-6, 1e-9])
def test_a_cone_around_an_axis(angle: float) -> None:
    """Tokens on a cone of half-angle a: rho = cos a, to rounding."""
    turns = np.linspace(0, 2 * math.pi, 7)[:-1]
    ring = np.stack((np.sin(angle) * np.cos(turns), np.sin(angle) * np.sin(turns), np.full(6, np.cos(angle))), -1)
    assert margin(ring) == pytest.approx(math.cos(angle), rel=4e-16)
    assert 1 - margin(ring) == pytest.approx(2 * math.sin(angle / 2) ** 2, abs=4e-16)


@pytest.mark.parametrize("height", [1e-3, 1e-6, 1e-9, 1e-12])
def test_a_margin_close_to_zero_keeps_its_digits(height: float) -> None:
    points = np.random.default_rng(4).standard_normal((200, 4))
    points[:, 0] = height
    assert margin(points) == pytest.approx(height, abs=4e-15)
    points[0, 0] = -height
    assert margin(points) < height


@pytest.mark.parametrize(("n", "dim"), [(40, 60), (60, 40), (200, 120)])
def test_simplices_and_orthants(n: int, dim: int) -> None:
    """Orthonormal tokens: the nearest point is their mean, rho = 1/sqrt(n)."""
    rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((dim, dim)))[0]
    basis = rotation[: min(n, dim)]
    assert margin(basis) == pytest.approx(len(basis) ** -0.5, rel=1e-13)
    positive = np.abs(np.random.default_rng(1).standard_normal((n, dim)))
    weights, _ = nnls(np.vstack((positive.T, np.ones(n))), np.append(np.zeros(dim), 1.0))
    assert margin(positive) == pytest.approx(np.linalg.norm(weights @ positive) / weights.sum(), rel=1e-12)


@pytest.mark.slow
def test_many_tokens_of_a_large_model() -> None:
    generator = np.random.default_rng(2)
    points = generator.standard_normal((700, 1600))
    weights, direction = nearest_hull_point(points)
    heights = points @ direction
    assert np.linalg.norm(weights @ points) - heights.min() <= 1e-12
    many = generator.standard_normal((10_000, 8)) + 2.2
    weights, direction = nearest_hull_point(many)
    assert abs(np.linalg.norm(weights @ many) - max(0.0, (many @ direction).min())) <= 1e-12


def test_degenerate_hulls() -> None:
    assert margin(np.array([[3.0, 4.0]])) == 5.0
    assert margin(np.array([[0.0, 0.0]])) == 0.0
    assert margin(np.zeros((5, 3))) == 0.0
    assert margin(np.ones((20, 4))) == pytest.approx(2.0, rel=1e-15)
    assert margin(np.array([[1.0, 0.0], [-1.0, 0.0]])) == 0.0  # an antipodal pair lies in no open hemisphere
    assert margin(np.array([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])) == 0.0
    assert margin(np.array([[1.0, 1e-3], [-1.0, 1e-3]])) == pytest.approx(1e-3, rel=1e-13)
    assert margin(np.array([[0.0, 0.0], [1.0, 1.0]])) == 0.0


def test_tokens_without_mass_do_not_count() -> None:
    tokens = Tokens([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]], [1.0, 1.0, 0.0])
    assert float(hemisphere_margin(tokens)) == pytest.approx(0.5**0.5, rel=1e-15)


def test_in_the_norm_of_the_space(rng: np.random.Generator) -> None:
    W = np.diag([1.0, 4.0, 9.0])
    points = np.abs(rng.standard_normal((6, 3)))
    wanted = margin(points @ np.sqrt(W))
    assert float(hemisphere_margin(Tokens(points), space=Ellipsoid(W))) == pytest.approx(wanted, rel=1e-13)
    together = Tokens(Ellipsoid(W).random(1, 3).expand(4, 3))
    assert float(hemisphere_margin(together, space=Ellipsoid(W))) == pytest.approx(1.0, rel=1e-14)
    assert float(hemisphere_margin(Tokens([[2.0, 0.0]] * 3), space=Sphere(2.0))) == 2.0


def test_gradient_is_the_weight_times_the_direction() -> None:
    points = torch.tensor([[1.0, 0.2], [0.9, -0.8], [3.0, 0.1]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: hemisphere_margin(Tokens.unchecked(x)), (points,))


@pytest.mark.theorem
@pytest.mark.parametrize("mask", [None, "causal"])
@pytest.mark.parametrize("seed", range(6))
def test_layers_with_value_identity_never_lower_the_margin(seed: int, mask: str | None) -> None:
    """Consensus T2, discrete version: N(x + h b) raises rho for any h > 0, any P, any heads of total weight one."""
    generator = np.random.default_rng(seed)
    heads, dim, n = int(generator.integers(1, 4)), int(generator.integers(2, 6)), int(generator.integers(3, 12))
    query, key = 2 * generator.standard_normal((2, heads, dim, dim))
    law = Attention(query, key, np.broadcast_to(np.eye(dim) / heads, (heads, dim, dim)).copy(), mask=mask)
    tokens = Tokens.hemisphere(n, dim, seed=seed)
    step = float(10 ** generator.uniform(-1, 2))
    states = [tokens]
    for _ in range(40):
        states.append(tokens.with_points(law.layer(states[-1], step, Sphere())))
    margins = hemisphere_margin(Tokens(torch.stack([state.points for state in states])))
    assert float(margins.diff().min()) >= -1e-14
    assert float(margins[0]) > 0
