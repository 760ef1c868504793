r"""The closed dynamics of a Gaussian in variables that stay of order one, whatever the covariance does.

Write :math:`\alpha = e^m a` and :math:`L = e^s\ell`, and let depth run with :math:`d\tau = \rho\,dt`,
:math:`\rho^2 = \rho_0^2 + |B|^2`. Where :math:`\Sigma = LL^\top` blows up, :math:`\rho \to \infty`: the shape
:math:`\ell` settles, s grows steadily and t converges, so a solver takes steady steps in :math:`\tau` and reads the blow-up time off t
(for softmax attention, whose right side is homogeneous of degree two, :math:`\tau` is the shape's own time).

The factor is moved by :math:`\dot L = BL` at first, and in a long run (``lifted``) by :math:`\dot L = BL + L\Omega`, with the skew
:math:`\Omega` that makes :math:`|\dot L|` least: any skew one gives the same :math:`\dot\Sigma = B\Sigma + \Sigma B^\top`, and this one (the horizontal lift of Bures' metric) rests where :math:`\Sigma` does,
also if tokens turn there. With :math:`L = UsW^\top` and :math:`N = U^\top BU` it is
:math:`\Omega_{ij} = -s_is_j(N_{ij} - N_{ji})/(s_i^2 + s_j^2)` in the basis W.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

Field = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
TINY = 1e-300
STIFF = 1e-3  # change of a step below which accuracy cannot be what limits it
CALM = 20  # steps in a row that must look so


class Rescaled:
    """The vector (l, s, a, m, t) of a Gaussian and its derivative along tau."""

    def __init__(self, field: Field, rank: int, dim: int, slowest: float) -> None:
        self.field, self.rank, self.dim, self.slowest = field, rank, dim, slowest
        self.evaluations = 0
        self.lifted = False

    def pack(self, mean: np.ndarray, factor: np.ndarray, time: float) -> np.ndarray:
        """The vector of a Gaussian at a time."""
        size, length = max(float(np.linalg.norm(factor)), TINY), float(np.linalg.norm(mean))
        size, length = (size if size > TINY else 1.0), (length if length > 0 else 1.0)
        return np.concatenate(
            ((factor / size).ravel(), [np.log(size)], mean / length, [np.log(length), time]), dtype=np.float64
        )

    def unpack(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and factor."""
        cut = self.rank * self.dim
        return math.exp(z[-2]) * z[cut + 1 : -2], math.exp(z[cut]) * z[:cut].reshape(self.dim, self.rank)

    def rate(self, slope: np.ndarray) -> float:
        """d tau / dt."""
        return math.sqrt(self.slowest**2 + float(np.vdot(slope, slope)))

    def velocity(self, mean: np.ndarray, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """Velocities of mean and factor in t, and the rate d tau / dt."""
        self.evaluations += 1
        slope, drift = self.field(mean, factor)
        return drift, horizontal(slope, factor) if self.lifted else slope @ factor, self.rate(slope)

    def rest(self, mean: np.ndarray, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """The same, with the least velocity of the factor: it is zero where the covariance rests."""
        self.evaluations += 1
        slope, drift = self.field(mean, factor)
        return drift, horizontal(slope, factor), self.rate(slope)

    def __call__(self, tau: float, z: np.ndarray) -> np.ndarray:
        cut = self.rank * self.dim
        shape, a = z[:cut], z[cut + 1 : -2]
        mean, factor = self.unpack(z)
        drift, turned, rate = self.velocity(mean, factor)
        y = (math.exp(-z[cut]) / rate) * turned.ravel()
        growth = float(shape @ y) / max(float(shape @ shape), TINY)
        b = (math.exp(-z[-2]) / rate) * drift
        # the part of the growth of the mean that its logarithm takes over: all of it where the mean is large
        lift = float(a @ b) / (1.0 + float(a @ a))
        return np.concatenate((y - growth * shape, [growth], b - lift * a, [lift, 1.0 / rate]))

    def tolerances(self, rtol: float, rate: float) -> tuple[np.ndarray, np.ndarray]:
        """Relative and absolute tolerances of every component: logarithms and shapes absolute, time relative."""
        size = self.rank * self.dim + self.dim + 3
        relative, absolute = np.full(size, 3e-14), np.full(size, rtol)
        relative[-1], absolute[-1] = rtol, 1e-3 * rtol / rate
        return relative, absolute


def horizontal(slope: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """B L + L Omega: the shortest velocity of the factor that moves the covariance by B."""
    U, s, Wt = np.linalg.svd(factor, full_matrices=False)
    N = U.T @ slope @ U
    pairs = s[:, None] * s[None, :]
    squares = s[:, None] ** 2 + s[None, :] ** 2
    omega = -pairs * (N - N.T) / np.where(squares > TINY, squares, 1.0)
    return slope @ factor + (U * s) @ omega @ Wt


class Stiffness:
    """Notices steps that stability limits: they change next to nothing, and still do not grow."""

    def __init__(self) -> None:
        self.calm = 0

    def seen(self, change: np.ndarray, step: float, ahead: float) -> bool:
        """After a step that changed all but time by ``change``, with ``ahead`` of tau left."""
        small = float(np.abs(change).max(initial=0.0)) < STIFF and ahead > 50.0 * step
        self.calm = self.calm + 1 if small else 0
        return self.calm >= CALM
