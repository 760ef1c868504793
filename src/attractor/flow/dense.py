r"""Dense output without extra evaluations, for methods without an interpolant of their own.

Through k step ends with values and slopes goes one polynomial of degree 2k - 1; its error is of order 2k in the step. Three
ends serve RK4 (order 6), two serve Euler. The interpolant is retracted to the space.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


def hermite_weights(nodes: np.ndarray, valid: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Weights of values and of slopes at time t, for each member: nodes, valid (k, members), t (members,).

    :math:`p(t) = \sum_i [1 - 2(t-t_i)\ell_i'(t_i)]\,\ell_i(t)^2 y_i + (t-t_i)\,\ell_i(t)^2 f_i` with Lagrange's
    :math:`\ell_i`.
    """
    count = len(nodes)
    values, slopes = np.zeros(nodes.shape), np.zeros(nodes.shape)
    for i in range(count):
        basis, derivative = np.ones(len(t)), np.zeros(len(t))
        for j in range(count):
            use = valid[i] & valid[j] & (j != i)
            gap = np.where(use, nodes[i] - nodes[j], 1.0)
            basis = np.where(use, basis * (t - nodes[j]) / gap, basis)
            derivative = np.where(use, derivative + 1.0 / gap, derivative)
        square = np.where(valid[i], basis**2, 0.0)
        values[i] = (1.0 - 2.0 * (t - nodes[i]) * derivative) * square
        slopes[i] = (t - nodes[i]) * square
    return values, slopes


class History:
    """The last step ends of every member: times (k, members), points and slopes (k, members, n, d), newest last.

    Times are counted back from the newest end, so that steps far below the spacing of floating numbers at a late time (1 at
    1e16) are still told apart.
    """

    _fold: tuple[Tensor, Tensor] | None = None

    def __init__(self, nodes: int, y: Tensor, f: Tensor) -> None:
        self.size = nodes
        self.restart(y, f)

    def restart(self, y: Tensor, f: Tensor) -> None:
        """Forget the past: the field is not smooth across this time."""
        self.times = np.zeros((self.size, len(y)))
        self.count = np.ones(len(y), dtype=np.int64)
        self._fold = (y, f)
        for name in ("points", "slopes"):
            self.__dict__.pop(name, None)

    def __getattr__(self, name: str) -> Tensor:
        """Points and slopes unfold when first asked for: a run of the native loop may end before anyone asks."""
        if name not in ("points", "slopes") or self._fold is None:
            raise AttributeError(name)
        shape, (y, f) = (self.size, *self._fold[0].shape), self._fold
        self.points, self.slopes, self._fold = y.expand(shape), f.expand(shape), None
        return self.__dict__[name]

    def push(self, accepted: np.ndarray, h: np.ndarray, y: Tensor, f: Tensor) -> None:
        """A new step end for the members that accepted a step of length h."""
        times = np.concatenate([self.times[1:] - h, np.zeros((1, len(h)))])
        points, slopes = torch.cat([self.points[1:], y[None]]), torch.cat([self.slopes[1:], f[None]])
        if accepted.all():
            self.times, self.points, self.slopes = times, points, slopes
        else:
            chosen = torch.from_numpy(accepted).to(y.device).view(1, -1, 1, 1)
            self.times = np.where(accepted, times, self.times)
            self.points, self.slopes = (
                torch.where(chosen, points, self.points),
                torch.where(chosen, slopes, self.slopes),
            )
        self.count = np.minimum(self.count + accepted, self.size)

    def merge(
        self, shrink: Callable[[Tensor], Tensor], retract: Callable[[Tensor], Tensor], y: Tensor, f: Tensor
    ) -> None:
        """The same after a merge of rows at the newest end, which is now y with slope f."""
        self.points = torch.stack([*(retract(shrink(points)) for points in self.points[:-1]), y])
        self.slopes = torch.stack([*(shrink(slopes) for slopes in self.slopes[:-1]), f])

    @property
    def full(self) -> np.ndarray:
        """Which members have as many ends as the method wants."""
        return self.count >= self.size

    def at(self, members: np.ndarray, t: np.ndarray) -> Tensor:
        """Points of some members at times (<= 0) before their newest end, (len(members), n, d), not retracted."""
        nodes = self.times[:, members]
        valid = np.arange(self.size)[:, None] >= self.size - self.count[members]
        values, slopes = hermite_weights(nodes, valid, t)
        index = torch.from_numpy(members).to(self.points.device)
        column = torch.from_numpy(values).to(self.points)[..., None, None]
        slope_column = torch.from_numpy(slopes).to(self.points)[..., None, None]
        newest = self.points[-1, index]  # weights of values add up to one: a token at rest stays, to the bit
        moved = (column * (self.points[:, index] - newest)).sum(0) + (slope_column * self.slopes[:, index]).sum(0)
        return newest + moved

    def keep(self, index: Tensor | slice) -> None:
        """Go on with some members only."""
        chosen = index if isinstance(index, slice) else index.cpu().numpy()
        self.times, self.count = self.times[:, chosen], self.count[chosen]
        if "points" in self.__dict__:
            self.points, self.slopes = self.points[:, index], self.slopes[:, index]
        elif self._fold is not None:
            self._fold = (self._fold[0][index], self._fold[1][index])
