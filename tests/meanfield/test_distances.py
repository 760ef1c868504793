"""Distances against independent solvers: POT, scipy, brute force over permutations, quadrature."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import ot
import pytest
import torch
from scipy import stats

from attractor import Gaussian, Tokens
from attractor.errors import InputError, MissingExtraError, UnsupportedError
from attractor.meanfield import (
    bures_wasserstein,
    energy_distance,
    sample,
    sinkhorn_distance,
    sliced_wasserstein,
    wasserstein,
)
from attractor.meanfield import distances as module


def clouds(dim: int, seed: int = 0, n: int = 14, m: int = 19) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    a, b = generator.random(n), generator.random(m)
    return generator.standard_normal((n, dim)), generator.standard_normal((m, dim)) + 0.3, a / a.sum(), b / b.sum()


def covariance(dim: int, seed: int, rank: int | None = None) -> np.ndarray:
    root = np.random.default_rng(seed).standard_normal((dim, rank or dim))
    return root @ root.T


def square_root(matrix: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(np.clip(values, 0.0, None))) @ vectors.T


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_the_line_by_quantiles(p: float) -> None:
    x, y, a, b = clouds(1)
    wanted = ot.wasserstein_1d(x[:, 0], y[:, 0], a, b, p=p) ** (1 / p)
    assert float(wasserstein(Tokens(x, a), Tokens(y, b), p)) == pytest.approx(wanted, rel=1e-13)
    if p == 1.0:
        assert float(wasserstein(Tokens(x, a), Tokens(y, b), p)) == pytest.approx(
            stats.wasserstein_distance(x[:, 0], y[:, 0], a, b), rel=1e-13
        )


@pytest.mark.parametrize("p", [1.0, 2.0, 2.5])
def test_weighted_transport_is_that_of_pot(p: float) -> None:
    x, y, a, b = clouds(3)
    wanted = ot.emd2(a, b, ot.dist(x, y, metric="euclidean") ** p) ** (1 / p)
    assert float(wasserstein(Tokens(x, 7 * a), Tokens(y, b), p)) == pytest.approx(wanted, rel=1e-12)


def test_equal_masses_are_an_assignment() -> None:
    x, y = np.random.default_rng(1).standard_normal((2, 6, 2))
    costs = [np.sum((x - y[list(order)]) ** 2) / 6 for order in itertools.permutations(range(6))]
    assert float(wasserstein(Tokens(x), Tokens(y))) == pytest.approx(np.sqrt(min(costs)), rel=1e-13)


def test_tokens_of_no_mass_take_no_part() -> None:
    x, y, a, b = clouds(2)
    padded = Tokens(np.concatenate((x, [[50.0, 0.0]])), np.append(a, 0.0))
    assert float(wasserstein(padded, Tokens(y, b))) == pytest.approx(float(wasserstein(Tokens(x, a), Tokens(y, b))))


def test_an_ensemble_is_its_members() -> None:
    x, y = (Tokens.gaussian(9, 2, seed=seed, ensemble=(2, 3)) for seed in (0, 1))
    for distance in (wasserstein, sliced_wasserstein, energy_distance, bures_wasserstein):
        values = distance(x, y)
        assert values.shape == (2, 3)
        alone = distance(Tokens(x.points[1, 2]), Tokens(y.points[1, 2]))
        torch.testing.assert_close(values[1, 2], alone, rtol=1e-13, atol=1e-15)


def test_the_line_against_a_normal_law() -> None:
    """W2 to N(m, s^2) by quadrature over quantiles, weighted points."""
    x, _, a, _ = clouds(1)
    order = np.argsort(x[:, 0])
    levels = np.concatenate(([0.0], np.cumsum(a[order])))
    nodes, weights = np.polynomial.legendre.leggauss(400)
    total = 0.0
    for low, high, place in zip(levels, levels[1:], x[order, 0], strict=False):
        # u = sin^2: the quantile function is singular at 0 and 1
        inner = np.arcsin(np.sqrt([low, min(high, 1.0)]))
        angle = inner[0] + (nodes + 1) / 2 * (inner[1] - inner[0])
        u, jacobian = np.sin(angle) ** 2, np.sin(2 * angle) * (inner[1] - inner[0]) / 2
        total += np.sum(weights * jacobian * (place - 0.4 - 1.3 * stats.norm.ppf(u)) ** 2)
    law = Gaussian(np.array([0.4]), np.array([[1.69]]))
    assert float(wasserstein(Tokens(x, a), law)) == pytest.approx(np.sqrt(total), rel=1e-6)
    assert float(wasserstein(law, Tokens(x, a))) == float(wasserstein(Tokens(x, a), law))


@pytest.mark.parametrize("dim", [2, 3])
def test_slices_are_those_of_pot(dim: int) -> None:
    x, y, a, b = clouds(dim)
    directions = module._directions(dim, 64, 0).numpy()
    wanted = ot.sliced_wasserstein_distance(x, y, a, b, projections=directions.T, p=2)
    assert float(sliced_wasserstein(Tokens(x, a), Tokens(y, b), directions=64)) == pytest.approx(wanted, rel=1e-12)


def test_slices_of_gaussians() -> None:
    """Very many tokens of a Gaussian come near its exact slices, and two Gaussians have closed slices."""
    first, second = Gaussian(np.zeros(2), covariance(2, 0)), Gaussian(np.ones(2), covariance(2, 1))
    exact = float(sliced_wasserstein(first, second))
    mixed = float(sliced_wasserstein(sample(first, 40_000, whitened=True), second))
    assert mixed == pytest.approx(exact, rel=5e-3)


def test_energy_distance_is_scipys_on_the_line_and_brute_force_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, a, b = clouds(1)
    assert float(energy_distance(Tokens(x, a), Tokens(y, b))) == pytest.approx(
        stats.energy_distance(x[:, 0], y[:, 0], a, b), rel=1e-12
    )
    x, y, a, b = clouds(3)
    both = [(x, a, y, b), (x, a, x, a), (y, b, y, b)]
    means = [u @ np.linalg.norm(p[:, None] - q[None], axis=-1) @ v for p, u, q, v in both]
    wanted = np.sqrt(2 * means[0] - means[1] - means[2])
    monkeypatch.setattr(module, "PAIRS", 40)  # many blocks
    assert float(energy_distance(Tokens(x, a), Tokens(y, b))) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("ranks", [(3, 3), (2, 3), (1, 1), (2, 1)])
def test_bures_is_the_closed_form(ranks: tuple[int, int]) -> None:
    first, second = (covariance(3, 10 * k + r, r) for k, r in enumerate(ranks))
    root = square_root(first)
    cross = square_root(root @ second @ root)
    wanted = np.sqrt(1.0 + np.trace(first + second - 2 * cross))
    found = bures_wasserstein(Gaussian(np.zeros(3), first), Gaussian(np.array([1.0, 0.0, 0.0]), second))
    assert float(found) == pytest.approx(wanted, rel=1e-6)
    if ranks == (3, 3):
        exact = ot.gaussian.bures_wasserstein_distance(np.zeros(3), np.eye(3)[0], first, second)
        assert float(found) == pytest.approx(float(exact), rel=1e-12)


def test_bures_keeps_its_digits_between_close_gaussians() -> None:
    """A change of the covariance by 1e-10 is seen; a difference of traces would drown it in rounding."""
    shape = np.diag([1.0, 4.0])
    close = bures_wasserstein(Gaussian(np.zeros(2), shape), Gaussian(np.zeros(2), shape + np.diag([0, 1e-10])))
    assert float(close) == pytest.approx(0.25e-10, rel=1e-4)


@pytest.mark.theorem
@pytest.mark.parametrize("seed", range(4))
def test_gelbrich(seed: int) -> None:
    """Bures of the moments is at most W2, any clouds, any masses."""
    x, y, a, b = clouds(2, seed)
    first, second = Tokens(x**3, a), Tokens(y, b)
    assert float(bures_wasserstein(first, second)) <= float(wasserstein(first, second)) * (1 + 1e-12)


def test_the_sinkhorn_divergence() -> None:
    x, y, a, b = clouds(2)

    def transport(x: np.ndarray, a: np.ndarray, y: np.ndarray, b: np.ndarray, eps: float) -> float:
        costs = ot.dist(x, y)
        plan = ot.sinkhorn(a, b, costs, eps, stopThr=1e-13, numItermax=20_000)
        return float(np.sum(plan * costs) + eps * np.sum(plan * np.log(plan / np.outer(a, b))))

    wanted = transport(x, a, y, b, 0.5) - transport(x, a, x, a, 0.5) / 2 - transport(y, b, y, b, 0.5) / 2
    found = float(sinkhorn_distance(Tokens(x, a), Tokens(y, b), eps=0.5, tolerance=1e-9))
    assert found**2 == pytest.approx(wanted, rel=1e-8)
    fine = float(sinkhorn_distance(Tokens(x, a), Tokens(y, b), eps=0.01))
    assert fine == pytest.approx(float(wasserstein(Tokens(x, a), Tokens(y, b))), rel=0.02)
    assert float(sinkhorn_distance(Tokens(x, a), Tokens(x, a))) < 1e-6
    assert float(sinkhorn_distance(Tokens(np.ones((3, 2))), Tokens(np.ones((4, 2))))) < 1e-7


def test_a_whitened_sample_has_the_moments_of_its_gaussian() -> None:
    law = Gaussian(np.array([1.0, -2.0, 0.5]), covariance(3, 4, 2))
    tokens = sample(law, 7, seed=3, whitened=True, ensemble=2)
    assert tokens.points.shape == (2, 7, 3)
    torch.testing.assert_close(
        bures_wasserstein(tokens, _twice(law)), torch.zeros(2, dtype=torch.float64), atol=1e-7, rtol=0
    )


def _twice(law: Gaussian) -> Gaussian:
    return Gaussian(law.mean.expand(2, -1), law.covariance.expand(2, -1, -1))


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    plane, line, gaussian = Tokens.gaussian(5, 2), Tokens.gaussian(5, 1), Gaussian(np.zeros(2), np.eye(2))
    with pytest.raises(InputError, match="one dimension, got 2 and 1"):
        wasserstein(plane, line)
    with pytest.raises(InputError, match="at least 1"):
        wasserstein(plane, plane, 0.5)
    with pytest.raises(UnsupportedError, match="sliced_wasserstein"):
        wasserstein(plane, gaussian)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="more tokens than dimensions"):
        sample(gaussian, 2, whitened=True)
    with pytest.raises(InputError, match="eps > 0"):
        sinkhorn_distance(plane, plane, eps=0.0)
    monkeypatch.setattr(module, "REACH", 20)
    with pytest.raises(UnsupportedError, match="sinkhorn_distance"):
        wasserstein(plane, plane)


def test_without_pot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ot", None)
    x, y, a, b = clouds(2)
    with pytest.raises(MissingExtraError, match=r"POT.*attractor\[meanfield\]"):
        wasserstein(Tokens(x, a), Tokens(y, b))
