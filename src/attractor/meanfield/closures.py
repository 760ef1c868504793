"""Moment closure: a Gaussian with the right mean and covariance where the field is not affine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attractor.errors import InputError, UnsupportedError
from attractor.laws import Attention, Law
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
    """Integrate the Gaussian moment closure of sigmoid or exponential attention, which is not exact.

    Parameters
    ----------
    law : attention with a kernel that has a moment closure, without mask and positions.
    start : one Gaussian.
    until : time to reach.
    save : number of saved times, or the times.
    order : order of the quadrature in each axis.
    rtol : relative tolerance.

    Returns
    -------
    MomentRun
    """
    rows = start.rows()
    if start.batch_shape:
        raise InputError("a moment closure follows one Gaussian, not an ensemble")
    run = flow(MomentLaw(law, order), Tokens.unchecked(rows), until=until, save=save, rtol=rtol, merge=False, stop=())
    factors = run.points[:, 1:]
    return MomentRun(run.times, run.points[:, 0], factors.mT @ factors, run.outcome)


@dataclass(frozen=True, eq=False)
class MomentLaw(Law):
    """The moment closure as a law on rows: the mean, then the columns of the factor."""

    law: Attention
    order: int = 16

    def __post_init__(self) -> None:
        law = self.law
        if not isinstance(law, Attention) or not law.kernel.has_moment_closure:
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
        for query, key, value in zip(*map(_heads, (self.law.query, self.law.key, self.law.value_map)), strict=True):
            A = float(self.law.scale) * key.T @ query
            one, other = self.law.kernel.expected_field(A, mean, factor, self.order)
            moved, turned = moved + value @ one, turned + value @ other
        return np.vstack((moved[None], turned.T))


def _heads(part: Tensor) -> np.ndarray:
    array = part.detach().cpu().double().numpy()
    return array[None] if array.ndim == 2 else array
