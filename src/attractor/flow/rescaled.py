r"""The closed dynamics of a Gaussian in variables that stay of order one, whatever the covariance does.

Write :math:`\alpha = e^m a`, :math:`L = e^s\ell` and :math:`t = t_0 + c(e^\theta - 1)`, and let depth run with :math:`d\tau = \rho\,dt`,
:math:`\rho^2 = \rho_0^2 + |BL|^2/|L|^2` (:math:`|B|` itself where L = 0, and for an implicit method, which wants it smooth). Where
:math:`\Sigma = LL^\top` blows up, :math:`\rho \to \infty`: the shape
:math:`\ell` settles, s grows steadily and t converges, so a solver takes steady steps in :math:`\tau` and reads the blow-up time off t
(for softmax attention, whose right side is homogeneous of degree two, :math:`\tau` is the shape's own time).

The factor is moved by :math:`\dot L = BL` at first, and in a long run (``lifted``) by :math:`\dot L = BL + L\Omega`, with the skew
:math:`\Omega` that makes :math:`|\dot L|` least: any skew one gives the same :math:`\dot\Sigma = B\Sigma + \Sigma B^\top`, and this
one (the horizontal lift of Bures' metric) rests where :math:`\Sigma` does,
also if tokens turn there. With :math:`L = UsW^\top` and :math:`N = U^\top BU` it is
:math:`\Omega_{ij} = -s_is_j(N_{ij} - N_{ji})/(s_i^2 + s_j^2)` in the basis W.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

Field = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
TINY = 1e-300
LARGEST = 300.0  # logarithm of a size that is still computed with
DIFFERENCE = 1e-5
STIFF = 1e-3  # change of a step below which accuracy cannot be what limits it
PARALLEL = 0.9  # cosine of columns above which they are made orthogonal
CALM = 20  # steps in a row that must look so


class Rescaled:
    """The vector (l, s, a, m, theta) of a Gaussian and its derivative along tau; all of it wants the same absolute accuracy."""

    def __init__(self, field: Field, rank: int, dim: int, start: float, until: float) -> None:
        self.field, self.rank, self.dim = field, rank, dim
        self.start, self.slowest, self.unit = start, 1.0 / (until - start), until - start
        self.evaluations, self.strength = 0, 0.0  # strength is |B| at the last rest
        self.lifted = self.implicit = False

    def pack(self, mean: np.ndarray, factor: np.ndarray) -> np.ndarray:
        """The vector of a Gaussian at the start; its own rate there is the unit of time."""
        self.unit = 1.0 / self.velocity(mean, factor)[2]
        size, length = max(float(np.linalg.norm(factor)), TINY), float(np.linalg.norm(mean))
        size, length = (size if size > TINY else 1.0), (length if length > 0 else 1.0)
        return np.concatenate(
            ((factor / size).ravel(), [np.log(size)], mean / length, [np.log(length), 0.0]), dtype=np.float64
        )

    def unpack(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and factor."""
        cut = self.rank * self.dim
        return math.exp(z[-2]) * z[cut + 1 : -2], math.exp(z[cut]) * z[:cut].reshape(self.dim, self.rank)

    def time(self, z: np.ndarray) -> float:
        return self.start + self.unit * math.expm1(z[-1])

    def clock(self, time: float) -> float:
        """theta at a time."""
        return math.log1p((time - self.start) / self.unit)

    def rate(self, slope: np.ndarray, factor: np.ndarray, pushed: np.ndarray) -> float:
        """d tau / dt, given B, L and B L."""
        size = float(np.vdot(factor, factor))
        plain = self.implicit or size == 0
        own = float(np.vdot(slope, slope)) if plain else float(np.vdot(pushed, pushed)) / size
        return math.sqrt(self.slowest**2 + own)

    def velocity(self, mean: np.ndarray, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """Velocities of mean and factor in t, and the rate d tau / dt."""
        self.evaluations += 1
        slope, drift = self.field(mean, factor)
        pushed = slope @ factor
        return drift, horizontal(slope, factor) if self.lifted else pushed, self.rate(slope, factor, pushed)

    def rest(self, mean: np.ndarray, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """The same, with the least velocity of the factor: it is zero where the covariance rests."""
        self.evaluations += 1
        slope, drift = self.field(mean, factor)
        self.strength = float(np.linalg.norm(slope))
        return drift, horizontal(slope, factor), self.rate(slope, factor, slope @ factor)

    def __call__(self, tau: float, z: np.ndarray) -> np.ndarray:
        cut = self.rank * self.dim
        if not (z[cut] < LARGEST and z[-2] < LARGEST and np.isfinite(z).all()):
            return np.full(len(z), np.nan)  # a trial far off; the solver tries a shorter step
        shape, a = z[:cut], z[cut + 1 : -2]
        mean, factor = self.unpack(z)
        drift, turned, rate = self.velocity(mean, factor)
        y = (math.exp(-z[cut]) / rate) * turned.ravel()
        growth = float(shape @ y) / max(float(shape @ shape), TINY)
        b = (math.exp(-z[-2]) / rate) * drift
        # the part of the growth of the mean that its logarithm takes over: all of it where the mean is large
        lift = float(a @ b) / (1.0 + float(a @ a))
        tick = math.exp(-z[-1]) / (rate * self.unit)
        return np.concatenate((y - growth * shape, [growth], b - lift * a, [lift, tick]))

    def jacobian(self, tau: float, z: np.ndarray) -> np.ndarray:
        """Derivatives of the derivative, by central differences; components are of order one, so one step serves all."""
        cut, columns = self.rank * self.dim, np.zeros((len(z), len(z)))
        still = not z[cut + 1 : -2].any() and not self(tau, z)[cut + 1 : -2].any()
        for index in range(cut + 1) if still else range(len(z)):
            above, below = z.copy(), z.copy()
            above[index] += DIFFERENCE
            below[index] -= DIFFERENCE
            columns[:, index] = (self(tau, above) - self(tau, below)) / (above[index] - below[index])
        return columns


def horizontal(slope: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """B L + L Omega: the shortest velocity of the factor that moves the covariance by B."""
    U, s, Wt = np.linalg.svd(factor, full_matrices=False)
    N = U.T @ slope @ U
    pairs = s[:, None] * s[None, :]
    squares = s[:, None] ** 2 + s[None, :] ** 2
    omega = -pairs * (N - N.T) / np.where(squares > TINY, squares, 1.0)
    return slope @ factor + (U * s) @ omega @ Wt


class Stiffness:
    """Notices steps that stability limits: they change next to nothing, and still do not grow. And that this is over."""

    def __init__(self) -> None:
        self.calm = self.brisk = 0

    def seen(self, change: np.ndarray, step: float, ahead: float) -> bool:
        """After a step that changed all but time by ``change``, with ``ahead`` of tau left."""
        small = float(np.abs(change).max(initial=0.0)) < STIFF and ahead > 50.0 * step
        self.calm = self.calm + 1 if small else 0
        return self.calm >= CALM

    def over(self, change: np.ndarray, step: float) -> bool:
        """After a step of the implicit method: whether an explicit one would take longer steps."""
        large = float(np.abs(change).max(initial=0.0)) > 10.0 * STIFF and step < 1.0
        self.brisk = self.brisk + 1 if large else 0
        return self.brisk >= CALM


def parallel(factor: np.ndarray) -> bool:
    """Whether columns of a factor point in nearly the same direction, where small eigenvalues would drown."""
    lengths = np.linalg.norm(factor, axis=0)
    # a column far below the rounding of another has no direction that could be told
    unit = (factor / np.maximum(lengths, TINY))[:, lengths > 1e-10 * lengths.max(initial=0.0)]
    gram = np.abs(unit.T @ unit)
    np.fill_diagonal(gram, 0.0)
    return bool(gram.max(initial=0.0) > PARALLEL)


def straightened(factor: np.ndarray) -> np.ndarray:
    """Another factor of the same covariance, with orthogonal columns."""
    U, s, _ = np.linalg.svd(factor, full_matrices=False)
    return U * s
