"""Moment closure: a Gaussian with the right mean and covariance where the field is not affine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attractor.errors import InputError, UnsupportedError
from attractor.laws import Attention, Exponential, Law, Sigmoid
from attractor.solvers import Outcome, flow
from attractor.states import Gaussian, Tokens

NODES = 200_000  # of the grid over z


@dataclass(frozen=True)
class MomentRun:
    """Times, means (S, d) and covariances (S, d, d) of a moment closure, which is not exact."""

    times: Tensor
    means: Tensor
    covariances: Tensor
    outcome: Outcome
    exact: bool = False


def moment_closure(
    law: Attention, start: Gaussian, until: float, *, save: int | list[float] = 50, order: int = 16, rtol: float = 1e-8
) -> MomentRun:
    """Follow the Gaussian moment closure of sigmoid or exponential attention; ``order`` is that of the quadrature in each axis."""
    rows = start.rows()
    if start.batch_shape:
        raise InputError("a moment closure follows one Gaussian, not an ensemble")
    run = flow(MomentLaw(law, order), Tokens.trusted(rows), until=until, save=save, rtol=rtol, merge=False, stop=())
    factors = run.points[:, 1:]
    return MomentRun(run.times, run.points[:, 0], factors.mT @ factors, run.outcome)


@dataclass(frozen=True, eq=False)
class MomentLaw(Law):
    """The moment closure as a law on rows: the mean, then the columns of the factor."""

    law: Attention
    order: int = 16

    def __post_init__(self) -> None:
        law = self.law
        if not isinstance(law, Attention) or not isinstance(law.kernel, (Sigmoid, Exponential)):
            raise UnsupportedError(
                "a moment closure is for sigmoid and exponential attention; other closures are exact: use flow"
            )
        if law.mask is not None or law.positions is not None:
            raise UnsupportedError("a moment closure has no masks and no positions: a Gaussian has no single tokens")
        if self.order < 2 or self.order**law.dim > NODES:
            raise InputError(
                f"order {self.order} in dimension {law.dim} is a grid of {self.order**law.dim} nodes; at most {NODES} fit"
            )

    @property
    def dim(self) -> int:
        return self.law.dim

    def velocity(self, tokens: Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor:
        rows = [self._one(point.numpy()) for point in tokens.points.reshape(-1, *tokens.points.shape[-2:])]
        return torch.from_numpy(np.stack(rows)).reshape(tokens.points.shape)

    def _one(self, rows: np.ndarray) -> np.ndarray:
        mean, factor = rows[0], rows[1:].T
        moved, turned = np.zeros_like(mean), np.zeros_like(factor)
        expected = _sigmoid if isinstance(self.law.kernel, Sigmoid) else _exponential
        for query, key, value in zip(*map(_heads, (self.law.query, self.law.key, self.law.value_map)), strict=True):
            one, other = expected(self.law, float(self.law.scale) * key.T @ query, mean, factor, self.order)
            moved, turned = moved + value @ one, turned + value @ other
        return np.vstack((moved[None], turned.T))


def _sigmoid(
    law: Attention, A: np.ndarray, mean: np.ndarray, factor: np.ndarray, order: int
) -> tuple[np.ndarray, np.ndarray]:
    """E of the field, before V, and of the field times z'."""
    from scipy.special import expit

    assert isinstance(law.kernel, Sigmoid)
    z, weights = grid(order, len(mean))
    u = (mean + z @ factor.T) @ A.T
    tilt = u @ factor
    nodes, inner = np.polynomial.hermite_e.hermegauss(max(order, 24))
    inner = inner / inner.sum()
    score = (u @ mean + law.kernel.bias)[:, None] + np.linalg.norm(tilt, axis=1)[:, None] * nodes
    s = expit(score)
    field = (s @ inner)[:, None] * mean + ((s * (1.0 - s)) @ inner)[:, None] * (tilt @ factor.T)
    return weights @ field, (field * weights[:, None]).T @ z


def _exponential(
    law: Attention, A: np.ndarray, mean: np.ndarray, factor: np.ndarray, order: int
) -> tuple[np.ndarray, np.ndarray]:
    moved, turned = A @ mean, A @ factor  # u = moved + turned z
    tilt, tilted = factor.T @ moved, factor.T @ turned
    H = np.eye(factor.shape[1]) - tilted.T @ tilted
    if np.linalg.eigvalsh(H)[0] <= 0:
        raise UnsupportedError(
            "the moments of exponential attention are infinite here: a singular value of L'AL has reached one; end the run earlier"
        )
    slope = turned.T @ mean + tilted.T @ tilt
    centre = np.linalg.solve(H, slope)
    mass = np.exp(mean @ moved + tilt @ tilt / 2.0 + slope @ centre / 2.0) / np.sqrt(np.linalg.det(H))
    level, gain = mean + factor @ tilt, factor @ tilted
    second = np.linalg.inv(H) + np.outer(centre, centre)
    return mass * (level + gain @ centre), mass * (np.outer(level, centre) + gain @ second)


def grid(order: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (n, d) and weights (n,) of Gauss-Hermite quadrature against a standard Gaussian."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    axes = np.meshgrid(*[nodes] * dim, indexing="ij")
    mass = np.ones(1)
    for _ in range(dim):
        mass = np.multiply.outer(mass, weights / weights.sum())
    return np.stack([axis.ravel() for axis in axes], axis=1), mass.ravel()


def _heads(part: Tensor) -> np.ndarray:
    array = part.detach().cpu().double().numpy()
    return array[None] if array.ndim == 2 else array
