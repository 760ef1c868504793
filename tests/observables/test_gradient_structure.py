"""The theorems on energy: consensus T1, meanfield T11, regimes T2."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm

from attractor.laws import Attention
from attractor.laws.kernels.sigmoid import Sigmoid
from attractor.laws.kernels.sinkhorn import Sinkhorn
from attractor.observables import energy, energy_rate, partition
from attractor.spaces import Ellipsoid, Euclidean, Space, Sphere
from attractor.states import Tokens

pytestmark = pytest.mark.theorem
SEEDS = range(5)


def symmetric(generator: np.random.Generator, dim: int, kind: str) -> np.ndarray:
    basis = np.linalg.qr(generator.standard_normal((dim, dim)))[0]
    values = generator.uniform(0.3, 2.0, dim)
    if kind == "indefinite":
        values[: dim // 2] *= -1
    matrix = (basis * values) @ basis.T
    return (matrix + matrix.T) / 2


def case(name: str, seed: int, dim: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """(P, U, W, c) with W U = c P."""
    generator = np.random.default_rng(seed)
    identity = np.eye(dim)
    definite, indefinite = symmetric(generator, dim, "definite"), symmetric(generator, dim, "indefinite")
    W = symmetric(generator, dim, "definite")
    beta = generator.uniform(0.5, 3.0)
    return {
        "W = P, U = I": (definite, identity, definite, 1.0),
        "W = I, U = P definite": (definite, definite, identity, 1.0),
        "W = I, U = P indefinite": (indefinite, indefinite, identity, 1.0),
        "P = beta W, U = I": (beta * W, identity, W, 1.0 / beta),
        "U = c W^-1 P indefinite": (indefinite, 1.7 * np.linalg.solve(W, indefinite), W, 1.7),
    }[name]


CASES = [
    "W = P, U = I",
    "W = I, U = P definite",
    "W = I, U = P indefinite",
    "P = beta W, U = I",
    "U = c W^-1 P indefinite",
]


def space_of(W: np.ndarray) -> Space:
    return Sphere() if np.array_equal(W, np.eye(len(W))) else Ellipsoid(W)


def law_of(P: np.ndarray, U: np.ndarray, **options: object) -> Attention:
    return Attention(np.eye(len(P)), P, U, **options)


@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_check_a_the_energy_grows_by_the_squared_speed(name: str, seed: int, scale: float) -> None:
    """dE/dt = (scale/c) sum_i Z_i |x_i'|_W^2."""
    P, U, W, c = case(name, seed)
    space, law = space_of(W), law_of(P, U, scale=scale)
    tokens = Tokens(space.random(7, 4, seed=seed))
    speed = space.tangent(tokens.points, law.velocity(tokens))
    Z = partition(tokens, law, total=True).squeeze(-2)
    wanted = scale / c * (Z * space.norm(speed) ** 2).sum()
    rate = energy_rate(tokens, law, space, total=True)
    assert abs(float(rate - wanted)) <= 1e-13 * float(wanted)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_check_b_the_gradient_is_the_velocity_up_to_the_normal(name: str, seed: int) -> None:
    """dE_i - Z_i W x_i'/c is parallel to the normal W x_i."""
    P, U, W, c = case(name, seed)
    space, law = space_of(W), law_of(P, U)
    tokens = Tokens(space.random(7, 4, seed=seed))
    points = tokens.points.clone().requires_grad_()
    energy(tokens.with_points(points), law, total=True).backward()
    assert points.grad is not None
    matrix = torch.from_numpy(W)
    Z = partition(tokens, law, total=True).squeeze(-2).unsqueeze(-1)
    covector = points.grad - Z / c * (space.tangent(tokens.points, law.velocity(tokens)) @ matrix)
    normal = tokens.points @ matrix
    normal = normal / normal.norm(dim=-1, keepdim=True)
    tangential = covector - normal * (covector * normal).sum(-1, keepdim=True)
    assert float((tangential.norm(dim=-1) / points.grad.norm(dim=-1)).max()) <= 1e-13


@pytest.mark.parametrize("seed", range(20))
def test_check_c_layers_raise_the_energy(seed: int) -> None:
    """P = beta W, U = I: E does not decrease along discrete layers of any step between 0.1 and 1000."""
    generator = np.random.default_rng(seed)
    W, beta = symmetric(generator, 3, "definite"), generator.uniform(0.2, 5.0)
    space, law, step = Ellipsoid(W), law_of(beta * W, np.eye(3)), float(10 ** generator.uniform(-1, 3))
    states = [Tokens(space.random(6, 3, seed=seed))]
    for _ in range(10):
        states.append(Tokens(law.layer(states[-1], step, space)))
    values = energy(Tokens(torch.stack([state.points for state in states])), law, log=True)
    assert float(values.diff().min()) >= -1e-13


def test_the_hypothesis_is_needed() -> None:
    """Surprise 1: W = I, U = I, P definite but not proportional to I; E can decrease."""
    P = np.diag([0.29, 12.8])
    law, space = law_of(P, np.eye(2)), Sphere()
    angles = np.random.default_rng(0).uniform(0, 2 * np.pi, (2000, 2))
    tokens = Tokens(np.stack((np.cos(angles), np.sin(angles)), -1))
    rate = energy_rate(tokens, law, space, total=True)
    speed = space.tangent(tokens.points, law.velocity(tokens))
    identity = (partition(tokens, law, total=True).squeeze(-2) * (speed**2).sum(-1)).sum(-1)
    assert float((rate / identity).min()) < -0.1
    assert float((rate / identity).max()) > 4.0


@pytest.mark.parametrize("space", [Euclidean(), Sphere()], ids=lambda space: space.name)
@pytest.mark.parametrize("kind", ["definite", "indefinite"])
@pytest.mark.parametrize("kernel", ["softmax", "exponential", Sigmoid(-0.3), "linear", Sinkhorn(0.8)], ids=str)
def test_mean_field_gradient_flows(kernel: object, kind: str, space: Space) -> None:
    """Meanfield T11: with V = A = A', dE/dt is the integral of |Gamma|^2, weighted by G for softmax; any masses."""
    generator = np.random.default_rng(3)
    A, masses = symmetric(generator, 3, kind), generator.random(6)
    law = law_of(A, A, kernel=kernel)
    tokens = Tokens(space.random(6, 3, seed=1, ensemble=2), masses)
    weight = partition(tokens, law).squeeze(-2) if kernel == "softmax" else torch.ones(2, 6, dtype=torch.float64)
    speed = space.tangent(tokens.points, law.velocity(tokens))
    wanted = (tokens.weights * weight * (speed**2).sum(-1)).sum(-1)
    tolerance = 1e-11 if isinstance(kernel, Sinkhorn) else 1e-13
    torch.testing.assert_close(energy_rate(tokens, law, space), wanted, rtol=tolerance, atol=0.0)


def test_negative_values_descend() -> None:
    A = symmetric(np.random.default_rng(0), 3, "definite")
    tokens = Tokens.gaussian(8, 3)
    assert float(energy_rate(tokens, law_of(A, A))) > 0
    assert float(energy_rate(tokens, law_of(A, -A))) < 0


@pytest.mark.parametrize("seed", SEEDS)
def test_the_metric_gives_the_rate_in_flat_space(seed: int) -> None:
    """Regimes T2: W symmetric, A = W inv(V): E' = sum_l Z_l x_l'^T A_sym x_l'."""
    generator = np.random.default_rng(seed)
    P, V = symmetric(generator, 4, "definite"), generator.standard_normal((4, 4))
    law, tokens = law_of(P, V), Tokens.gaussian(6, 4, seed=seed)
    speed = law.velocity(tokens)
    Z = partition(tokens, law, total=True).squeeze(-2)
    wanted = (Z * torch.einsum("ia,ab,ib->i", speed, law.metric, speed)).sum()
    torch.testing.assert_close(energy_rate(tokens, law, total=True), wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_ellipsoid_is_a_sphere_in_other_coordinates(seed: int) -> None:
    """y = W^(1/2) x: the same energy and the same rate with P' = W^-1/2 P W^-1/2 and U' = W^1/2 U W^-1/2."""
    generator = np.random.default_rng(seed)
    W, P, U = symmetric(generator, 3, "definite"), *generator.standard_normal((2, 3, 3))
    root = np.real(sqrtm(W))
    inverse = np.linalg.inv(root)
    tokens = Tokens(Ellipsoid(W).random(6, 3, seed=seed))
    image = Tokens(tokens.points @ torch.from_numpy(root))
    here, there = law_of(P, U), law_of(inverse @ P @ inverse, root @ U @ inverse)
    torch.testing.assert_close(energy(tokens, here), energy(image, there), rtol=1e-12, atol=0.0)
    rates = energy_rate(tokens, here, Ellipsoid(W)), energy_rate(image, there, Sphere())
    torch.testing.assert_close(*rates, rtol=1e-10, atol=1e-12)
