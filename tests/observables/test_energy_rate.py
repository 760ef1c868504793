"""dE/dt against the chain rule by autograd, for every kernel, mask, position and space."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attractor.laws import Absolute, Attention, Rotary
from attractor.laws.kernels.sigmoid import Sigmoid
from attractor.laws.kernels.sinkhorn import Sinkhorn
from attractor.observables import energy, energy_rate
from attractor.spaces import Ellipsoid, Euclidean, Space, Sphere
from attractor.states import Tokens

W = np.array([[2.0, 0.3, 0.0, 0.1], [0.3, 1.0, 0.1, 0.0], [0.0, 0.1, 0.7, 0.2], [0.1, 0.0, 0.2, 1.5]])
SPACES = [Euclidean(), Sphere(1.3), Ellipsoid(W)]


def law_of(rng: np.random.Generator, **options: object) -> Attention:
    query, key = rng.standard_normal((2, 2, 2, 4)) / 2
    return Attention(query, key, rng.standard_normal((2, 4, 4)), scale=0.8, **options)


def chain_rule(tokens: Tokens, law: Attention, space: Space, **options: bool) -> torch.Tensor:
    """Gradient of the energy by autograd, times the velocity."""
    points = tokens.points.clone().requires_grad_()
    energy(tokens.with_points(points), law, **options).sum().backward()
    assert points.grad is not None
    return (points.grad * space.tangent(tokens.points, law.velocity(tokens))).sum((-2, -1))


@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.name)
@pytest.mark.parametrize("kernel", ["softmax", "exponential", Sigmoid(-0.5), "linear", Sinkhorn(0.8)], ids=str)
def test_against_the_chain_rule(rng: np.random.Generator, kernel: object, space: Space) -> None:
    law = law_of(rng, kernel=kernel)
    tokens = Tokens(space.enter(torch.tensor(rng.standard_normal((3, 6, 4)))), rng.random((3, 6)))
    torch.testing.assert_close(energy_rate(tokens, law, space), chain_rule(tokens, law, space), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("options", [{"total": True}, {"log": True}, {"total": True, "log": True}], ids=str)
@pytest.mark.parametrize("kernel", ["softmax", "exponential", Sigmoid(-0.5), "linear"], ids=str)
def test_totals_and_logarithms(rng: np.random.Generator, kernel: object, options: dict[str, bool]) -> None:
    law, space = law_of(rng, kernel=kernel), Sphere()
    tokens = Tokens(space.random(6, 4, ensemble=2), rng.random(6))
    rate = energy_rate(tokens, law, space, **options)
    torch.testing.assert_close(rate, chain_rule(tokens, law, space, **options), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mask", ["causal", "window:2"])
@pytest.mark.parametrize("kernel", ["softmax", "linear", "sigmoid"])
def test_under_a_mask(rng: np.random.Generator, kernel: str, mask: str) -> None:
    law, space = law_of(rng, kernel=kernel, mask=mask), Sphere()
    tokens = Tokens(space.random(6, 4))
    torch.testing.assert_close(energy_rate(tokens, law, space), chain_rule(tokens, law, space), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "positions", [Rotary(), Absolute(np.random.default_rng(1).standard_normal((6, 4)))], ids=["rotary", "absolute"]
)
def test_with_positions_and_biases(rng: np.random.Generator, positions: Rotary | Absolute) -> None:
    law = law_of(rng, positions=positions, query_bias=rng.standard_normal(2), key_bias=rng.standard_normal(2))
    tokens = Tokens(Sphere().random(6, 4))
    torch.testing.assert_close(
        energy_rate(tokens, law, Sphere()), chain_rule(tokens, law, Sphere()), rtol=1e-10, atol=1e-12
    )


def test_no_space_is_flat_space(rng: np.random.Generator) -> None:
    law, tokens = law_of(rng), Tokens(rng.standard_normal((6, 4)))
    assert torch.equal(energy_rate(tokens, law), energy_rate(tokens, law, Euclidean()))


def test_no_overflow_in_the_logarithm() -> None:
    law = Attention.isotropic(3, 2e3)
    close = Tokens(Sphere().retract(torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.01, 0.0]], dtype=torch.float64)))
    rate = energy_rate(close, law, Sphere(), log=True)
    # two tokens at the angle t: (log E)' = 2 beta w^2 sin^2 t with w = 1/(1 + e^{beta (1 - cos t)})
    angle = np.arctan(0.01)
    far = np.exp(-2e3 * 2 * np.sin(angle / 2) ** 2)
    wanted = 2 * 2e3 * (far / (1 + far)) ** 2 * np.sin(angle) ** 2
    assert float(rate) == pytest.approx(wanted, rel=1e-9)
