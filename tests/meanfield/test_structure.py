"""Gradient-flow structure: the energy changes by the squared speed, on tokens and on Gaussians; and when it does not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attractor import L2, Affine, Attention, Gaussian, Sigmoid, Sinkhorn, Tokens, energy, flow
from attractor.errors import UnsupportedError
from attractor.meanfield import energy_and_rate, gradient_structures, sample
from attractor.observables.energies import gaussian_energy
from attractor.states.arrays import to_float_tensor

RNG = np.random.default_rng(0)
ROOT = RNG.standard_normal((3, 3)) / 2
SYMMETRIC = (ROOT + ROOT.T) / 2
SKEW = ROOT - ROOT.T
SHAPE = np.diag([0.5, 0.3, 0.1]) + 0.02


def law_of(A: np.ndarray, V: np.ndarray, kernel: object, scale: float = 0.8) -> Attention:
    """K'Q = A: the query is A, the key the identity."""
    return Attention(A, np.eye(3), V, kernel=kernel, scale=scale)  # type: ignore[arg-type]


def cases() -> dict[str, tuple[Attention, Tokens | Gaussian, list[str]]]:
    masses = RNG.random(7)
    tokens = Tokens(RNG.standard_normal((7, 3)) / 2, masses / masses.sum())
    gaussian = Gaussian(np.array([0.3, -0.2, 0.1]), SHAPE)
    flat = Gaussian(np.array([0.3, -0.2, 0.1]), np.diag([0.5, 0.3, 0.0]))
    two = np.stack((SYMMETRIC, np.diag([0.4, -0.2, 0.1])))
    heads = Attention(two, np.stack((np.eye(3),) * 2), -0.7 * two, scale=0.8)
    K = RNG.standard_normal((2, 3)) / 2
    return {
        "exponential": (law_of(SYMMETRIC, 1.3 * SYMMETRIC, "exponential"), tokens, ["wasserstein"]),
        "softmax": (law_of(SYMMETRIC, SYMMETRIC, "softmax"), tokens, ["twisted"]),
        "softmax descends": (law_of(SYMMETRIC, -0.5 * SYMMETRIC, "softmax"), tokens, ["twisted"]),
        "sigmoid": (law_of(SYMMETRIC, SYMMETRIC, Sigmoid(-0.3)), tokens, ["wasserstein"]),
        "linear": (law_of(SYMMETRIC, SYMMETRIC, "linear"), tokens, ["wasserstein"]),
        "sinkhorn": (law_of(SYMMETRIC, 2 * SYMMETRIC, Sinkhorn(0.7)), tokens, ["wasserstein"]),
        "gaussian softmax": (law_of(SYMMETRIC, 0.6 * SYMMETRIC, "softmax"), gaussian, ["bures"]),
        "gaussian softmax, skew": (law_of(SKEW, SKEW.T, "softmax"), gaussian, ["bures"]),
        "gaussian softmax, two heads": (heads, gaussian, ["bures"]),
        "gaussian softmax, V = I": (law_of(ROOT, 1.7 * np.eye(3), "softmax"), gaussian, ["affine-invariant"]),
        "gaussian softmax, V = A = I": (
            law_of(np.eye(3), np.eye(3), "softmax"),
            gaussian,
            ["bures", "affine-invariant"],
        ),
        "singular covariance, V = -I": (law_of(ROOT, -np.eye(3), "softmax"), flat, ["affine-invariant"]),
        "gaussian sinkhorn": (law_of(SYMMETRIC, SYMMETRIC, Sinkhorn(0.7)), gaussian, ["bures"]),
        "gaussian l2": (Attention(K, K, 1.5 * K.T @ K, kernel="l2", scale=0.8), gaussian, ["bures"]),
        "gaussian linear": (law_of(SYMMETRIC, SYMMETRIC, "linear"), gaussian, ["bures"]),
    }


CASES = cases()


@pytest.mark.theorem
@pytest.mark.parametrize("name", CASES)
def test_the_energy_changes_by_the_squared_speed(name: str) -> None:
    """The identity at one state to rounding, and along the flow by finite differences of the energy to 1e-8."""
    law, state, wanted = CASES[name]
    found = gradient_structures(law, state)
    assert [structure.metric for structure in found] == wanted
    run = flow(law, state, save=[0.0, 0.1, 0.299, 0.2995, 0.3, 0.3005, 0.301, 0.4], rtol=1e-12, atol=1e-14, stop=())
    for structure in found:
        assert structure.defect(state) < 1e-11
        energies, rates = energy_and_rate(structure, run)
        assert bool((energies.diff() * structure.factor > 0).all())
        a, b, _, c, d = energies[2:7]
        difference = (a - 8 * b + 8 * c - d) / (6 * 0.001)  # fourth order, steps of 0.0005
        assert float(difference) == pytest.approx(float(rates[4]), rel=1e-8)


def test_the_energy_of_a_gaussian_is_that_of_very_many_tokens() -> None:
    """Linear: equal at any n with the same moments. Sinkhorn: the value of the entropic problem, by quadrature tokens."""
    law, gaussian = CASES["gaussian linear"][0], CASES["gaussian linear"][1]
    assert isinstance(gaussian, Gaussian)
    tokens = sample(gaussian, 9, whitened=True)
    closed = gaussian_energy(gaussian.mean, gaussian.factor, law)
    assert float(energy(tokens, law)) == pytest.approx(float(closed), rel=1e-12)
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    weights = weights / weights.sum()
    keep = weights > 1e-14
    line = Attention([[1.3]], [[1.0]], [[1.0]], kernel=Sinkhorn(0.6))
    points = Tokens(0.4 + 0.9 * nodes[keep, None], weights[keep] / weights[keep].sum())
    mean, factor = to_float_tensor([0.4], "mean"), to_float_tensor([[0.9]], "factor")
    assert float(energy(points, line)) == pytest.approx(float(gaussian_energy(mean, factor, line)), rel=1e-8)


def test_the_softmax_energy_is_the_quadratic_form_of_the_field() -> None:
    """F = 1/4 tr(ASAS): B = 2 grad F by numerical differentiation in the covariance."""
    law = CASES["gaussian softmax"][0]
    A, shape = 0.8 * SYMMETRIC, SHAPE
    direction = np.diag([0.1, -0.2, 0.3]) + 0.05

    def value(t: float) -> float:
        root = np.linalg.cholesky(shape + t * direction)
        return float(gaussian_energy(torch.zeros(3, dtype=torch.float64), torch.from_numpy(root), law))

    slope = (value(1e-4) - value(-1e-4)) / 2e-4
    assert 2 * slope == pytest.approx(float(np.sum(direction * (A @ shape @ A))), rel=1e-8)


@pytest.mark.parametrize(
    ("law", "gaussian", "message"),
    [
        (law_of(ROOT, ROOT, "softmax"), False, "not symmetric"),
        (law_of(SYMMETRIC, np.eye(3), "softmax"), False, "not one multiple"),
        (law_of(ROOT, ROOT.T, "softmax"), True, "not symmetric"),
        (law_of(ROOT, ROOT, "softmax"), True, "neither one multiple"),
        (law_of(SYMMETRIC, SYMMETRIC, "l2"), False, "no known energy"),
        (law_of(SYMMETRIC, SYMMETRIC, L2()), True, "Q = K"),
        (law_of(SYMMETRIC, SYMMETRIC, "sigmoid"), True, "not affine"),
        (Attention(SYMMETRIC, np.eye(3), SYMMETRIC, mask="causal"), False, "mask"),
        (Affine(np.eye(3)), False, "not of Affine"),
    ],
)
def test_a_law_without_the_structure_says_why(law: Attention, gaussian: bool, message: str) -> None:
    state = Gaussian(np.zeros(3), SHAPE) if gaussian else Tokens.gaussian(5, 3)
    with pytest.raises(UnsupportedError, match=message):
        gradient_structures(law, state)


def test_the_hypothesis_is_needed() -> None:
    """V = A' with A neither symmetric nor skew: the energy that would be it changes otherwise than by the squared speed."""
    A = 0.8 * torch.from_numpy(ROOT)
    law, gaussian = law_of(ROOT, 0.8 * ROOT.T, "softmax"), Gaussian(np.zeros(3), SHAPE)
    shape = gaussian.covariance
    B = A.T @ shape @ A
    rate = torch.trace((A.T @ shape @ A + A @ shape @ A.T) / 4 @ (B @ shape + shape @ B.T))
    assert abs(float(rate / torch.trace(B @ shape @ B.T)) - 1) > 1e-2
    with pytest.raises(UnsupportedError):
        gradient_structures(law, gaussian)
