"""Numbers of statements about noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import integrate

import attractor as at
from attractor.errors import InputError, UnsupportedError
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


def test_predictions_with_noise() -> None:
    """Theorems about noise are evaluated with their numbers, and those about motion without it are left out."""
    law = at.Attention.isotropic(2, 4.0)
    below, above = (at.predict(law, at.Density.uniform(48), noise=at.Noise(noise)) for noise in (0.1, 0.3))
    for found, words in ((below, "subcritical noise"), (above, "supercritical noise")):
        assert {item.theorem.key for item in found.applicable} == {"meanfield.N1", "meanfield.N2"}
        scale = next(item.scale for item in found.applicable if item.theorem.key == "meanfield.N1")
        assert scale is not None
        assert words in scale.rate
        assert "0.215881" in scale.rate  # A9
        assert "continuous" in repr(found)
    gaussian = at.Gaussian(torch.zeros(1), torch.eye(1))
    found = at.predict(at.Attention.isotropic(1, 1.0), gaussian, noise=at.Noise(0.1))
    assert found.fates == {"blow-up": ["meanfield.N3"]}
    scale = found.find_scale("blow-up")
    assert scale is not None
    assert scale.time == pytest.approx(0.48426704, abs=1e-8)  # A15
    tokens = at.Tokens.uniform(6, 3, seed=1)
    quiet, noisy = (
        at.predict(at.Attention.isotropic(3, 1.0), tokens, "sphere", noise=noise) for noise in (None, at.Noise(0.2))
    )
    assert "consensus" in quiet.fates
    assert not noisy.fates
    assert "consensus.N1" in [item.theorem.key for item in noisy.applicable]
    excluded = next(item for item in noisy.findings if item.theorem.key == "consensus.T2")
    assert [condition.name for condition in excluded.missing] == ["no noise"]
    assert "left out" in noisy.note
    assert at.predict(at.Attention.isotropic(3, 1.0), tokens, "sphere", noise=at.Noise(0.0)).fates == quiet.fates
    pair = at.Tokens.orthonormal(2, 4)
    found = at.predict(at.Attention.isotropic(4, 2.0), pair, "sphere", noise=at.Redrawn(1.0))
    scale = next(item.scale for item in found.applicable if item.theorem.key == "consensus.N2")
    assert scale is not None
    assert "0.2474" in scale.rate  # A17
    with pytest.raises(InputError, match="noise must be"):
        at.predict(law, None, noise=0.3)


def test_predictions_of_equiangular_tokens() -> None:
    """They are those of the written-out tokens, also where the law has fewer dimensions than there are tokens."""
    state, law = at.Equiangular(0.1, 6), at.Attention.isotropic(6, 2.0)
    found = at.predict(law, state, "sphere")
    assert found.row() == at.predict(law, state.tokens(), "sphere").row()
    assert at.predict(at.Attention.isotropic(2, 2.0), state, "sphere").row() == found.row()
    assert "consensus" in found.fates
    scale = next(item.scale for item in found.applicable if item.theorem.key == "consensus.T6-equiangular")
    assert scale is not None
    assert scale.time is not None
    run = at.flow(law, state, space="sphere", until=scale.time, stop=())
    assert float(run.final.rho.acos()) == pytest.approx(1e-3, rel=1e-5)  # type: ignore[union-attr]
    with pytest.raises(UnsupportedError, match="up to 512"):
        at.predict(law, at.Equiangular(0.1, 5000), "sphere")
    with pytest.raises(UnsupportedError, match="not keep tokens equiangular"):
        at.predict(at.Attention.random(6, seed=0), state, "sphere")
