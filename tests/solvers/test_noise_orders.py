"""Weak orders of the schemes for noise, without sampling: expectations over one step are sums over quadrature nodes.

The expectation of G after a step of length h is :math:`G + hLG + h^2L^2G/2 + O(h^3)` with the generator L of the process, which is
written here in the coordinates :math:`y = W^{1/2}x` of the unit sphere for functions of :math:`y/|y|`, and differentiated by autograd.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
import torch
from numpy.polynomial import hermite_e, legendre
from torch import Tensor
from torch.func import grad, hessian, jvp

import attractor as at
from attractor.solvers.noise import Source
from attractor.solvers.steppers import fixed_step
from attractor.solvers.steppers.stepper import Field, stepper_named

BETA, STRENGTHS, COMMON = 1.3, torch.tensor([0.3, 0.2]), 0.25
MATRIX = torch.tensor([[1.5, 0.3], [0.3, 0.8]], dtype=torch.float64)
TOKENS = torch.tensor([[0.6, 0.8], [-0.9, 0.35]], dtype=torch.float64)

pytestmark = [pytest.mark.theorem, pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")]


@dataclass(frozen=True)
class Nodes(Source):
    """Noise whose normal numbers are quadrature nodes."""

    nodes: Tensor | None = None
    shared: Tensor | None = None

    def normals(self, step: int) -> Tensor:
        assert self.nodes is not None
        return self.nodes

    def common_normals(self, step: int) -> Tensor:
        assert self.shared is not None
        return self.shared


def gauss_hermite(axes: int, count: int) -> tuple[Tensor, Tensor]:
    """Nodes (count^axes, axes) and weights for expectations of standard normal vectors."""
    nodes, weights = hermite_e.hermegauss(count)
    weights = weights / weights.sum()
    points = np.array(list(product(nodes, repeat=axes)))
    return torch.from_numpy(points), torch.from_numpy(np.array([math.prod(w) for w in product(weights, repeat=axes)]))


def observable(x: Tensor) -> Tensor:
    """A function of two tokens (..., 2, d) without symmetry."""
    first, second = x[..., 0, :], x[..., 1, :]
    return (
        (first * second).sum(-1) + first[..., 0] ** 2 * second[..., 1] + torch.sin(first[..., 1] + 0.5 * second[..., 0])
    )


def length(y: Tensor) -> Tensor:
    return (y**2).sum(-1, keepdim=True).sqrt()


class Process:
    """The generator on functions of two tokens of a space, in coordinates y."""

    def __init__(self, space: at.Space) -> None:
        self.curved = space.is_curved
        self.inverse = space.sphere_matrix(2, inverse=True)
        self.root = space.sphere_matrix(2)

    def lift(self, y: Tensor) -> Tensor:
        return (y / length(y) if self.curved else y) @ self.inverse

    def drift(self, y: Tensor) -> Tensor:
        x = self.lift(y)
        velocity = torch.softmax(BETA * x @ x.mT, -1) @ x @ self.root
        if not self.curved:
            return velocity
        unit = y / length(y)
        # functions have degree 0, so that the length of y does not matter, but the drift is that at |y|
        return length(y) * (velocity - unit * (unit * velocity).sum(-1, keepdim=True))

    def transport(self, function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda y: (self.drift(y) * grad(function)(y)).sum()

    def diffuse(self, function: Callable[[Tensor], Tensor], matrix: Tensor) -> Callable[[Tensor], Tensor]:
        """sum_i eps_i tr(M Hess_i); on functions of degree 0, with |y|^2 for the Laplacian of the unit sphere."""

        def apply(y: Tensor) -> Tensor:
            curvatures = hessian(function)(y)
            sizes = (y**2).sum(-1) if self.curved else torch.ones(2)
            return sum(STRENGTHS[i] * sizes[i] * (matrix * curvatures[i, :, i, :]).sum() for i in range(2))  # type: ignore[return-value]

        return apply

    def share(self, function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """eps_c sum_k A_k^2 with the fields A_k, the projections of a unit vector at all tokens."""

        def field(k: int, inner: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
            def along(y: Tensor) -> Tensor:
                e = torch.zeros(2, dtype=torch.float64)
                e[k] = 1.0
                sizes = length(y)
                unit = y / sizes
                push = sizes * (e - unit * (unit * e).sum(-1, keepdim=True)) if self.curved else e.expand(2, 2)
                return jvp(inner, (y,), (push,))[1]

            return along

        return lambda y: sum(COMMON * field(k, field(k, function))(y) for k in range(2))  # type: ignore[return-value]


SPACES = {"euclidean": at.Euclidean(), "sphere": at.Sphere(), "ellipsoid": at.Ellipsoid(MATRIX)}
KINDS = (("strang2", "independent"), ("euler", "independent"), ("euler", "common"), ("euler", "layer"))
CASES = [(method, kind, name) for method, kind in KINDS for name in SPACES]


@pytest.mark.parametrize(("method", "kind", "name"), CASES)
def test_weak_order_of_one_step(method: str, kind: str, name: str) -> None:
    space, process = SPACES[name], Process(SPACES[name])
    law = at.Attention.isotropic(2, BETA)
    tokens = at.Tokens(space.retract(space.from_sphere(TOKENS)) if space.is_curved else TOKENS)
    start = tokens.points @ process.root

    def value(y: Tensor) -> Tensor:
        return observable(process.lift(y))

    def generator(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        if kind == "common":
            noise = process.share(function)
        else:
            noise = process.diffuse(function, process.root @ process.root if kind == "layer" else torch.eye(2))
        drift = process.transport(function)
        return lambda y: drift(y) + noise(y)

    once = generator(value)
    terms = [value(start), once(start)] + ([generator(once)(start)] if method == "strang2" else [])
    noise = at.Noise(
        0.0 if kind == "common" else STRENGTHS,
        COMMON if kind == "common" else 0.0,
        kind="layer" if kind == "layer" else "space",
    )
    points, weights = gauss_hermite(2 if kind == "common" else 4, 9)
    count = len(points)
    nodes, shared = (None, points.view(-1, 1, 2)) if kind == "common" else (points.view(-1, 2, 2), None)
    source = Nodes(noise, torch.arange(count), 2, 2, nodes=nodes, shared=shared)
    field = Field(law, space, tokens)
    x = tokens.points.expand(count, 2, 2)
    time = np.zeros(count)
    errors, steps = [], (0.04, 0.02, 0.01)
    for h in steps:
        end = stepper_named(method).noisy_step(field, time, h, x, field.lifted_velocity(time, x), source, 0)
        expected = sum(h**power / math.factorial(power) * term for power, term in enumerate(terms))
        errors.append(abs(float((weights * observable(end)).sum() - expected)))
    assert min(errors) > 1e-12
    measured = float(np.polyfit(np.log(steps), np.log(errors), 1)[0])
    assert measured == pytest.approx(3 if method == "strang2" else 2, abs=0.15), errors


def rotated(c: Tensor) -> Tensor:
    """Points of the sphere (members, 1, 3) with the first coordinate c."""
    return torch.stack((c, (1 - c**2).clamp_min(0).sqrt(), torch.zeros_like(c)), -1).unsqueeze(-2)


class Pull(at.Law):
    """The velocity e_1 everywhere."""

    def velocity(self, tokens: at.Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor:
        return torch.eye(tokens.dim, dtype=torch.float64)[0].expand(tokens.points.shape)


def stationary_mean(step: Callable[[Tensor, Nodes], Tensor], noise: at.Noise, order: int = 40) -> float:
    """E <x, e_1> of the stationary law of a Markov step on the sphere in R^3, by its matrix in the Legendre basis."""
    c, weights = legendre.leggauss(order + 20)
    points, chances = gauss_hermite(3, 16)
    start = rotated(torch.from_numpy(c)).repeat_interleave(len(points), 0)
    source = Nodes(noise, torch.arange(len(start)), 1, 3, nodes=points.repeat(len(c), 1).view(-1, 1, 3))
    ends = step(start, source)[:, 0, 0].reshape(len(c), len(points)).numpy().clip(-1, 1)
    after = np.einsum("ckl,k->cl", legendre.legvander(ends, order), chances.numpy())  # E P_l(c') from c
    scale = np.arange(order + 1) + 0.5
    matrix = (legendre.legvander(c, order) * weights[:, None]).T @ after * scale[:, None]  # P_l -> its coefficients
    values, vectors = np.linalg.eig(matrix.T)  # of the adjoint: moments of the stationary law
    moments = vectors[:, np.argmin(abs(values - 1))].real
    return float(moments[1] / moments[0])


@pytest.mark.parametrize(("h", "error"), [(0.1, 2.27e-4), (0.05, 5.69e-5)])
def test_geodesic_step_with_the_exact_drift(h: float, error: float, monkeypatch: pytest.MonkeyPatch) -> None:
    # acceptance number A2: one token with the drift of a constant vector e, strength 0.4, E<x, e> = coth(2.5) - 0.4
    def flow(field: Field, t: np.ndarray, time: float, x: Tensor, f: Tensor) -> Tensor:
        shift = math.tanh(time)
        c = (x[..., 0] + shift) / (1 + shift * x[..., 0])
        return rotated(c.squeeze(-1).clamp(-1, 1))

    monkeypatch.setattr(fixed_step, "_heun", flow)
    noise = at.Noise(0.4)
    field = Field(Pull(), at.Sphere(), at.Tokens(rotated(torch.zeros(1))))

    def step(x: Tensor, source: Nodes) -> Tensor:
        return fixed_step.Strang2().noisy_step(field, np.zeros(len(x)), h, x, torch.zeros_like(x), source, 0)

    exact = 1 / math.tanh(2.5) - 0.4
    assert exact == pytest.approx(0.6135673098, abs=1e-10)
    assert abs(stationary_mean(step, noise) - exact) == pytest.approx(error, rel=0.05)


@pytest.mark.parametrize(("h", "error"), [(0.1, 2.56e-3), (0.05, 6.29e-4)])
def test_projected_step_with_the_exact_drift(h: float, error: float) -> None:
    """A2 for the other Brownian step, N(x + sqrt(2 eps h F) xi) with tangent xi and F = 1 + (d + 2) eps h, written out here."""

    def drift(x: Tensor, time: float) -> Tensor:
        shift = math.tanh(time)
        along = x[..., :1]
        ends = (along + shift) / (1 + shift * along)
        side = x[..., 1:] * ((1 - ends.square()) / (1 - along.square()).clamp_min(1e-300)).clamp_min(0).sqrt()
        return torch.cat((ends, side), -1)

    def step(x: Tensor, source: Nodes) -> Tensor:
        y = drift(x, h / 2)
        xi = source.normals(0)
        tangent = xi - (xi * y).sum(-1, keepdim=True) * y
        moved = y + math.sqrt(2 * 0.4 * h * (1 + 5 * 0.4 * h)) * tangent
        return drift(moved / moved.norm(dim=-1, keepdim=True), h / 2)

    exact = 1 / math.tanh(2.5) - 0.4
    assert abs(stationary_mean(step, at.Noise(0.4)) - exact) == pytest.approx(error, rel=0.05)


@pytest.mark.parametrize(("method", "order"), [("strang2", 2), ("euler", 1)])
def test_order_of_the_stationary_law(method: str, order: int) -> None:
    noise, field = at.Noise(0.4), Field(Pull(), at.Sphere(), at.Tokens(rotated(torch.zeros(1))))

    def error(h: float) -> float:
        def step(x: Tensor, source: Nodes) -> Tensor:
            time = np.zeros(len(x))
            return stepper_named(method).noisy_step(field, time, h, x, field.lifted_velocity(time, x), source, 0)

        return abs(stationary_mean(step, noise) - (1 / math.tanh(2.5) - 0.4))

    h = 0.1 if order == 2 else 0.025
    assert math.log2(error(h) / error(h / 2)) == pytest.approx(order, abs=0.15)


def test_without_its_factor_the_geodesic_step_has_order_one() -> None:
    noise, h = at.Noise(0.4), 0.1
    field = Field(Pull(), at.Sphere(), at.Tokens(rotated(torch.zeros(1))))

    def error(h: float, scaled: bool) -> float:
        def step(x: Tensor, source: Nodes) -> Tensor:
            factor = 1.0 if scaled else 1.0 / (1.0 - 0.4 * h / 3.0)
            wider = replace(source, nodes=source.nodes * math.sqrt(factor))  # type: ignore[operator]
            time = np.zeros(len(x))
            return fixed_step.Strang2().noisy_step(field, time, h, x, field.lifted_velocity(time, x), wider, 0)

        return abs(stationary_mean(step, noise) - (1 / math.tanh(2.5) - 0.4))

    assert math.log2(error(h, False) / error(h / 2, False)) == pytest.approx(1, abs=0.15)
    assert error(h, False) > 5 * error(h, True)
