"""Numbers of consensus theory against independent computations: quadrature by mpmath, brute force, published values."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch

import attractor as at
from attractor.theory import Case, find_theorem
from attractor.theory.theorems.consensus import (
    bipartite,
    bipartite_full,
    common_value,
    equiangular,
    hemisphere,
    pair,
    rank_collapse,
)

EYE = torch.eye(3, dtype=torch.float64)


@pytest.mark.parametrize(("beta", "time"), [(1.0, 3.464763), (4.0, 10.021878), (8.0, 195.902787)])
def test_merging_time_of_two_tokens(beta: float, time: float) -> None:
    """From a right angle to 0.1."""
    found = pair.merging_time(beta, math.pi / 2, 0.1)
    assert found == pytest.approx(time, abs=2e-6)
    oracle = mpmath.quad(
        lambda u: (1 + mpmath.exp(beta * (1 - mpmath.cos(u)))) / (2 * mpmath.sin(u)), [0.1, mpmath.pi / 2]
    )
    assert found == pytest.approx(float(oracle), rel=1e-10)


def test_equal_angles_at_time_six() -> None:
    times = np.array([0.0, 6.0])
    assert equiangular.solve_cosine(3, 1.0, 1.0, 0.0, times)[-1] == pytest.approx(0.999961, abs=1e-6)
    run = at.flow(
        at.Attention.isotropic(3, 1.0),
        at.Tokens(EYE),
        space=at.Sphere(),
        save=[0.0, 6.0],
        rtol=1e-11,
        merge=False,
        stop=(),
    )
    assert float(run.points[-1, 0] @ run.points[-1, 1]) == pytest.approx(
        equiangular.solve_cosine(3, 1.0, 1.0, 0.0, times)[-1], abs=1e-9
    )


def poles(p: float, mask: str | None) -> Case:
    value = torch.diag(torch.tensor([1.0, 0.2, 0.0], dtype=torch.float64))
    law = at.Attention(p * EYE, EYE, value, mask=mask)
    return Case(law, at.Tokens([[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]), at.Sphere())


@pytest.mark.parametrize(("mask", "threshold"), [("causal", 0.11157), (None, math.atanh(0.2))])
def test_bipartite_thresholds(mask: str | None, threshold: float) -> None:
    module = bipartite if mask else bipartite_full
    for p, stable in ((threshold - 0.02, False), (threshold + 0.02, True)):
        case = poles(p, mask)
        assert (module.predict_abscissa(case) < 0) == stable
        assert bipartite.abscissa(case) == pytest.approx(module.predict_abscissa(case), abs=1e-10)
        margin = find_theorem(f"consensus.T4-bipartite-{'causal' if mask else 'full'}").examine(case)[-1].margin
        assert (margin.value > 0) == stable


def test_the_common_value_bound_is_sharper_than_the_root() -> None:
    """(lambda - mu) m (1 - m^2) is at least m (lambda - sqrt(lambda^2 m^2 + mu^2 (1 - m^2)))."""
    m, mu = np.meshgrid(np.linspace(0.01, 0.99, 50), np.linspace(0.0, 0.99, 50))
    assert ((1 - mu) * (1 - m**2) >= 1 - np.sqrt(m**2 + mu**2 * (1 - m**2)) - 1e-15).all()


def test_the_dominant_eigenvector_of_a_value_that_is_not_symmetric() -> None:
    value = torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.3, -1.2], [0.0, 1.2, 0.3]], dtype=torch.float64)
    found = common_value.find_dominant(Case(at.Attention(EYE, EYE, value), None, at.Sphere()))
    assert found.value == pytest.approx(2.0)
    assert found.others == pytest.approx(math.hypot(0.3, 1.2))
    assert found.residual < 1e-12


def test_the_least_weight_is_below_every_weight() -> None:
    draw = np.random.default_rng(0)
    for seed in range(20):
        law = at.Attention(torch.from_numpy(draw.standard_normal((3, 3))), EYE, EYE)
        tokens = at.Tokens.uniform(5, 3, seed=seed)
        assert hemisphere.smallest_weight(Case(law, tokens, at.Sphere())) <= float(law.weights(tokens).min())


def test_the_constant_of_rank_collapse_sums_over_heads() -> None:
    law = at.Attention(
        torch.stack((2 * EYE, EYE)), torch.stack((EYE, 3 * EYE)), torch.stack((EYE, -2 * EYE)), scale=0.5
    )
    assert rank_collapse.constant(Case(law)) == pytest.approx((1 * 1 + 2 * 1.5) / math.sqrt(8))
