"""The Gaussian closure is the field of the Gaussian: against quadrature, where the tokens are Gauss-Hermite nodes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from numpy.polynomial.hermite_e import hermegauss

from attractor.errors import UnsupportedError
from attractor.laws import MLP, Affine, Attention, Block, Kernel, Linear, RMSNorm, Rotary, Sinkhorn
from attractor.laws.closure import Closure, moment_rates
from attractor.states import Tokens

MEAN = np.array([0.4, -0.3])
FACTOR = np.array([[0.6, 0.0], [0.25, 0.4]])
EXACT: dict[str, Kernel | str] = {"softmax": "softmax", "l2": "l2", "sinkhorn": Sinkhorn(1.5), "linear": Linear()}


def nodes(order: int) -> tuple[np.ndarray, np.ndarray]:
    """Points and masses that integrate polynomials against N(MEAN, FACTOR FACTOR') exactly."""
    x, w = hermegauss(order)
    grid = np.array(list(product(x, x)))
    return MEAN + grid @ FACTOR.T, np.outer(w, w).ravel() / w.sum() ** 2


def law(kernel: Kernel | str, scale: float = 0.6) -> Attention:
    rng = np.random.default_rng(1)
    return Attention(*(0.6 * rng.standard_normal((2, size, 2)) for size in (2, 2, 2)), kernel=kernel, scale=scale)


@pytest.mark.theorem
@pytest.mark.parametrize("kernel", EXACT)
def test_the_field_of_a_gaussian_is_affine(kernel: str) -> None:
    """Gamma(x) = B x + b at any x: passengers of mass zero feel the quadrature measure (mean field 3)."""
    attention = law(EXACT[kernel])
    points, masses = nodes(22)
    probes = np.random.default_rng(2).standard_normal((4, 2))
    tokens = Tokens(np.concatenate((points, probes)), masses=np.concatenate((masses, np.zeros(4))))
    field = attention.velocity(tokens)
    B, drift = moment_rates(attention, torch.from_numpy(MEAN), torch.from_numpy(FACTOR))
    expected = torch.from_numpy(probes - MEAN) @ B.mT + drift
    torch.testing.assert_close(field[-4:], expected, rtol=0, atol=1e-8)
    torch.testing.assert_close(torch.from_numpy(masses) @ field[:-4], drift, rtol=0, atol=1e-9)


@pytest.mark.theorem
def test_linear_attention_closes_for_any_measure() -> None:
    """Only the second moment enters, so five tokens obey the closure of their own moments."""
    attention = law(Linear())
    points = torch.from_numpy(np.random.default_rng(3).standard_normal((5, 2)))
    mean = points.mean(0)
    factor = (points - mean).mT / 5**0.5
    B, drift = moment_rates(attention, mean, factor)
    torch.testing.assert_close(attention.velocity(Tokens(points)), points @ B.mT, rtol=0, atol=1e-14)
    torch.testing.assert_close(drift, B @ mean, rtol=0, atol=1e-14)


@pytest.mark.parametrize("kernel", EXACT)
def test_the_closure_is_a_law_on_mean_and_factor(kernel: str) -> None:
    """Rows are the mean and the columns of L: mean' = drift, L' = B L; ensembles are loops, laws add."""
    attention, feed = law(EXACT[kernel]), Affine([[0.1, 0.2], [0.3, -0.4]], [1.0, -1.0])
    rng = np.random.default_rng(4)
    states = rng.standard_normal((3, 3, 2))
    closure = Closure(attention + feed)
    assert closure.dim == 2
    assert closure.autonomous
    together = closure.velocity(Tokens(states))
    for lane in range(3):
        mean, factor = torch.from_numpy(states[lane, 0]), torch.from_numpy(states[lane, 1:].T)
        B, drift = moment_rates(attention, mean, factor)
        B, drift = B + feed.matrix, drift + feed.matrix @ mean + feed.offset
        torch.testing.assert_close(together[lane, 0], drift, rtol=0, atol=1e-13)
        torch.testing.assert_close(together[lane, 1:].mT, B @ factor, rtol=0, atol=1e-13)


def test_laws_that_are_not_closed_say_why() -> None:
    identity = np.eye(2)
    refused = {
        "the sigmoid kernel gives a field that is not affine": Attention(
            identity, identity, identity, kernel="sigmoid"
        ),
        "the exponential kernel": Attention(identity, identity, identity, kernel="exponential"),
        "the sigmoid kernel gives a field that is not affine; its moments alone": Attention(
            identity, identity, identity, kernel="sigmoid"
        ),
        "a window mask sees single tokens": Attention(identity, identity, identity, mask="window:4"),
        "linear attention under a causal mask": Attention(identity, identity, identity, kernel="linear", mask="causal"),
        "with a negative scale": Attention(identity, identity, identity, kernel="l2", scale=-1.0),
        "positions single out tokens": Attention(identity, identity, identity, positions=Rotary()),
        "a block with pre normalisation": Block(
            Attention(identity, identity, identity), placement="pre", norms=RMSNorm()
        ),
        "biases are not part": Attention(identity, identity, identity, value_bias=[1.0, 2.0]),
        "MLP is not affine": Attention(identity, identity, identity) + MLP(identity, None, identity),
    }
    for message, one in refused.items():
        with pytest.raises(UnsupportedError, match=f"a Gaussian does not stay Gaussian under this law: {message}"):
            Closure(one)
