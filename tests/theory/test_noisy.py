"""Numbers of statements about noise."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate

import attractor as at
from attractor.theory.theorems.consensus.antipodes import antipodal_probability, antipodal_threshold
from attractor.theory.theorems.meanfield.noisy_blow_up import singular_time


@pytest.mark.theorem
def test_where_opposite_tokens_attract():
    """A16."""
    found = [antipodal_threshold(dim) for dim in (4, 8, 768)]
    assert found == pytest.approx([0.6584789485, 1.238944365, 3.667164462], abs=1e-8)
    assert antipodal_threshold(3) == 0.0


@pytest.mark.theorem
@pytest.mark.parametrize(
    ("dim", "beta", "expected"), [(3, 1.0, 0.22242258), (3, 3.0, 0.38331688), (4, 2.0, 0.24744327)]
)
def test_the_probability_of_opposite_ends(dim, beta, expected):
    """A17, and by nested adaptive quadrature; the number of the specification for (3, 1) differs from it by 2e-8."""

    def spread(turn: float) -> float:
        p = 1 / (1 + np.exp(-beta * (1 - np.tanh(turn))))
        return p**2 + (1 - p) ** 2

    def slope(turn: float) -> float:
        A = spread(turn)
        return ((dim - 2) * (1 - A) - A * np.tanh(turn)) / A

    def density(turn: float) -> float:
        return float(np.exp(-integrate.quad(slope, 0, turn, epsabs=1e-12)[0]) / np.cosh(turn) ** 2)

    right, left = (integrate.quad(density, a, b, epsabs=1e-11, limit=300)[0] for a, b in ((0, 40), (-40, 0)))
    assert antipodal_probability(beta, dim) == pytest.approx(right / (left + right), abs=1e-8)
    assert antipodal_probability(beta, dim) == pytest.approx(expected, abs=3e-8)


def test_below_the_threshold_consensus_is_sure():
    assert antipodal_probability(0.5, 4) == 0.0
    assert antipodal_probability(0.7, 4) > 0.0


@pytest.mark.theorem
def test_noise_brings_blow_up_forward():
    """A15."""
    one = np.ones((1, 1))
    assert singular_time(one, one, 0.1) == pytest.approx(0.48426704, abs=1e-8)
    assert singular_time(one, one, 1.0) == pytest.approx(np.pi / 8, abs=1e-10)
    for dim in (2, 3):  # of even multiplicity too, where the determinant keeps its sign
        assert singular_time(np.eye(dim), np.eye(dim), 0.1) == pytest.approx(0.48426704, abs=1e-8)
    law = at.Attention([[1.0]], [[1.0]], [[1.0]])
    run = at.flow(law, at.Gaussian([0.0], [[1.0]]), until=5.0, noise=at.Noise(0.1), save=[0.45])
    assert run.outcome.name == "blow_up"
    assert run.outcome.time == pytest.approx(0.48426704, abs=1e-8)
    assert float(run.covariances[0]) == pytest.approx(14.5889956783, rel=1e-8)
