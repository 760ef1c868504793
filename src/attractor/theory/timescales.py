"""When a predicted fate is to be expected: times and rates as numbers, in logarithms where they are beyond floating point."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from attractor.solvers import LogTime, log_of

Kind = Literal["exact", "at the latest", "not before", "order of magnitude"]
NEAR = 1e-3  # distances, and shares of the start, at which a fate counts as reached
FACTOR = 10.0  # growth at which a divergence counts as seen


@dataclass(frozen=True)
class TimeScale:
    """When a fate is to be expected.

    ``event`` says what happens at the time whose natural logarithm is ``log_time`` (None where no time is known); ``kind`` says how it is
    known; ``rate`` states the rate near the fate with its number. Times count from the start.
    """

    event: str = ""
    log_time: float | None = None
    kind: Kind = "order of magnitude"
    rate: str = ""

    @property
    def time(self) -> float | None:
        """The time; infinite beyond the range of numbers."""
        return None if self.log_time is None else exponentiate(self.log_time)

    def is_beyond(self, until: float | LogTime | None) -> bool:
        """Whether the time is known to be after the end of a run; an order of magnitude has to exceed it tenfold."""
        if until is None or self.log_time is None or self.kind == "at the latest":
            return False
        slack = math.log(10.0) if self.kind == "order of magnitude" else 0.0
        return self.log_time - slack > log_of(until)

    def describe(self, until: float | LogTime | None = None) -> str:
        """Say when, what happens then, and at which rate."""
        parts = [self.rate] if self.rate else []
        if self.log_time is not None:
            when = format_time(self.log_time)
            words = {
                "exact": f"at t = {when}",
                "at the latest": f"at t = {when} at the latest",
                "not before": f"not before t = {when}",
                "order of magnitude": f"at about t = {when} (order of magnitude)",
            }
            parts.insert(0, f"{self.event} {words[self.kind]}")
        if self.is_beyond(until):
            assert until is not None
            assert self.log_time is not None
            far = "far " if self.log_time - log_of(until) > math.log(10.0) else ""
            end = until if isinstance(until, LogTime) else f"{until:g}"
            parts.append(f"{far}beyond the run, which ends at t = {end}")
        return "; ".join(parts)

    def row(self, until: float | LogTime | None = None) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "event": self.event,
            "time": self.time if self.time is not None and math.isfinite(self.time) else None,
            "log_time": self.log_time,
            "kind": None if self.log_time is None else self.kind,
            "rate": self.rate,
            "beyond": self.is_beyond(until),
            "text": self.describe(until),
        }


def format_time(log_time: float) -> str:
    """Return e^log_time with three digits, as a power of ten where it is huge."""
    return f"{math.exp(log_time):.3g}" if log_time < 200 else f"10^{log_time / math.log(10):.1f}"


def exponentiate(value: float) -> float:
    return math.exp(value) if value < 709 else math.inf


def add_logs(first: float, second: float) -> float:
    """Return log(e^first + e^second)."""
    high, low = max(first, second), min(first, second)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


def take_log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def log_integral(log_integrand: Callable[[np.ndarray], np.ndarray], low: float, high: float) -> float:
    """Return the logarithm of the integral of a positive function that is given by its logarithm and is steep at the ends."""
    nodes, weights = np.polynomial.legendre.leggauss(20)
    half = (high - low) / 2
    steps = np.concatenate(([0.0], np.geomspace(1e-14, 1.0, 120)))
    edges = np.concatenate((low + half * steps, high - half * steps[-2::-1]))
    widths = np.diff(edges) / 2
    places = (edges[:-1] + widths)[:, None] + widths[:, None] * nodes
    return float(np.logaddexp.reduce((log_integrand(places) + np.log(widths[:, None] * weights)).ravel()))


def log_merging_time(
    beta: float,
    start: float,
    end: float,
    weight: float = 1.0,
    masses: tuple[float, float] = (0.5, 0.5),
    normalised: bool = True,
) -> float:
    r"""Return the logarithm of the time in which the angle of two clusters with P = beta I, V = weight I falls from ``start`` to ``end``.

    With :math:`M = m_1/m_2 + m_2/m_1`, :math:`u = 1 - \cos\theta` and c the weight it is, under softmax, 1/c times the difference
    between both ends of

    .. math:: \frac{\mathrm{Ei}(\beta u) - e^{2\beta}\mathrm{Ei}(-\beta(2-u))}{2M}
        + \Big(1 - \frac2{M^2}\Big)\log\tan\frac\theta2
        + \int\frac{4/M^2 - 1}{(Me^{\beta u} + 2)\sin\theta}\,d\theta,

    so :math:`T \approx e^{\beta(1-\cos\theta)}/(cM\beta\sin^2\theta)` at large beta. Under the exponential kernel only the first term
    remains, times :math:`e^{-\beta}` and with :math:`m_1 + m_2` for M.

    Parameters
    ----------
    beta : positive or negative; a negative one has no barrier.
    start, end : angles, pi > start > end > 0.
    masses : of the two clusters.
    normalised : softmax; False is the exponential kernel.
    """
    if not start > end:
        return -math.inf
    first, second = masses
    ratio = first / second + second / first if normalised else first + second
    barrier = _log_barrier(beta, start, end) - math.log(2.0 * ratio * weight)
    if not normalised:
        return barrier - beta
    # log tan(start / 2) - log tan(end / 2), and the rest, which vanishes for equal masses
    logarithms = math.log(math.tan(start / 2)) - math.log(math.tan(end / 2))
    rest = (1.0 - 2.0 / ratio**2) * logarithms
    if ratio > 2.0:
        rest += (4.0 / ratio**2 - 1.0) * _slow_integral(beta, start, end, ratio)
    return add_logs(barrier, take_log(rest / weight))


def _slow_integral(beta: float, start: float, end: float, ratio: float) -> float:
    r"""The integral of :math:`1/((Me^{\beta(1-\cos\theta)} + 2)\sin\theta)` between two angles."""
    from scipy.integrate import quad

    def integrand(log_angle: float) -> float:
        angle = math.exp(log_angle)
        barrier = 2.0 * beta * math.sin(angle / 2) ** 2
        return angle / ((ratio * math.exp(min(barrier, 700.0)) + 2.0) * math.sin(angle))

    return quad(integrand, math.log(end), math.log(start), epsabs=0.0, epsrel=1e-13, limit=400)[0]


def _log_barrier(beta: float, start: float, end: float) -> float:
    r"""The logarithm of twice the integral of :math:`e^{\beta(1-\cos\theta)}/\sin\theta` between two angles."""
    from scipy.integrate import quad

    if beta <= 0.0:

        def integrand(log_angle: float) -> float:
            angle = math.exp(log_angle)
            return angle * math.exp(2.0 * beta * math.sin(angle / 2) ** 2) / math.sin(angle)

        return math.log(2.0 * quad(integrand, math.log(end), math.log(start), epsabs=0.0, epsrel=1e-13, limit=400)[0])
    high, low = (2.0 * beta * math.sin(angle / 2) ** 2 for angle in (start, end))
    parts = []
    for u, angle in ((high, start), (low, end)):
        rest = 2.0 * beta * math.cos(angle / 2) ** 2  # 2 beta - u, without cancellation
        parts.append(_scaled_ei(u) + _scaled_e1(rest))
    return high + math.log(parts[0] - math.exp(low - high) * parts[1])


def _scaled_ei(x: float) -> float:
    """e^-x Ei(x), for x > 0."""
    from scipy.special import expi

    return float(expi(x)) * math.exp(-x) if x < 50.0 else _asymptotic(x, 1.0)


def _scaled_e1(x: float) -> float:
    """e^x E_1(x), for x > 0."""
    from scipy.special import exp1

    return float(exp1(x)) * math.exp(x) if x < 50.0 else _asymptotic(x, -1.0)


def _asymptotic(x: float, sign: float) -> float:
    """The sum of (sign)^k k! / x^(k + 1), up to its smallest term."""
    term = total = 1.0 / x
    for k in range(1, 60):
        following = sign * term * k / x
        if abs(following) >= abs(term) or abs(following) < 1e-18 * abs(total):
            break
        term, total = following, total + following
    return total


def merge_share(beta: float, angle: float, masses: tuple[float, float], normalised: bool = True) -> float:
    r"""Return the part of their angle that the first of two clusters travels until they merge.

    Under softmax :math:`\frac1{\theta_0}\int_0^{\theta_0}\frac{w_{12}}{w_{12}+w_{21}}\,d\theta`, which tends to
    :math:`m_2^2/(m_1^2 + m_2^2)` as beta grows; under the exponential kernel :math:`m_2/(m_1+m_2)`, as the centre of mass.
    """
    from scipy.integrate import quad

    first, second = masses
    if not normalised:
        return second / (first + second)

    def share(theta: float) -> float:
        weight = math.exp(-2.0 * beta * math.sin(theta / 2) ** 2)
        own = second * (second + first * weight)
        return own / (own + first * (first + second * weight))

    width = 1.0 / math.sqrt(max(abs(beta), 1.0))
    edges = [edge for edge in (0.5 * width, 2 * width, 4 * width, 8 * width) if edge < angle]
    places = [0.0, *edges, angle]
    parts = [quad(share, a, b, epsabs=1e-14, epsrel=1e-13)[0] for a, b in pairwise(places)]
    return sum(parts) / angle


def estimate_gathering(points: Tensor, masses: Tensor, beta: float, weight: float) -> float:
    """Return the logarithm of the time in which tokens of the unit sphere gather, by its order of magnitude.

    The closest pair merges first, after the time and at the point of two clusters alone, and the longest of these times counts.
    """
    points, masses, longest = points.clone().double(), masses.double() / masses.sum(), -math.inf
    kept = masses > 0
    points, masses = points[kept], masses[kept]
    while len(points) > 1:
        cosines = (points @ points.mT).clamp(-1.0, 1.0)
        cosines.fill_diagonal_(-2.0)
        first, second = divmod(int(cosines.argmax()), len(points))
        angle = min(math.acos(float(cosines[first, second])), math.pi * (1 - 1e-9))
        pair = (float(masses[first]), float(masses[second]))
        share = pair[1] / (pair[0] + pair[1])
        if angle > NEAR:
            longest = max(longest, log_merging_time(beta, angle, NEAR, weight, pair))
            share = merge_share(beta, angle, pair)
            centre = math.sin((1 - share) * angle) * points[first] + math.sin(share * angle) * points[second]
        else:
            centre = (1 - share) * points[first] + share * points[second]
        points[first] = centre / centre.norm().clamp_min(1e-300)
        masses[first] = masses[first] + masses[second]
        rows = [row for row in range(len(points)) if row != second]
        points, masses = points[rows], masses[rows]
    return longest


def fall_exponentially(what: str, rate: float, ratio: float, kind: Kind = "order of magnitude") -> TimeScale:
    """Return the time scale of something that falls like e^(-rate t) from ``ratio`` times NEAR to NEAR."""
    words = f"{what} fall like e^(-{rate:.4g} t)"
    if not (rate > 0 and ratio > 1 and math.isfinite(ratio)):
        return TimeScale(rate=words)
    return TimeScale(f"{what} reach {NEAR:g}", math.log(math.log(ratio) / rate), kind, words)


def grow_exponentially(what: str, rate: float, ratio: float, kind: Kind = "order of magnitude") -> TimeScale:
    """Return the time scale of something that grows like e^(rate t) by a ``ratio``."""
    words = f"{what} grows like e^({rate:.4g} t)"
    if not rate > 0:
        return TimeScale(rate=words)
    event = f"{what} has grown by the factor {FACTOR:g}"
    return TimeScale(event, math.log(max(math.log(ratio), 1e-300) / rate), kind, words)


def fall_algebraically(case: Any) -> TimeScale:
    r"""Return the time scale of collapse with a definite metric: near zero :math:`\dot x = VCW^\top x` with a covariance C of size
    :math:`|x|^2`, so norms fall like :math:`(2\|V\|\|W\|t)^{-1/2}` at the fastest."""
    found, size = case.matrices, float(case.initial_tokens.points.norm(dim=-1).max())
    speed = float(torch.linalg.matrix_norm(found.value, 2) * torch.linalg.matrix_norm(found.interaction, 2))
    words = "norms fall like t^(-1/2)"
    if not (size > 0 and speed > 0):
        return TimeScale(rate=words)
    log_time = -2 * math.log(NEAR) - math.log(2 * speed) - 2 * math.log(size)
    return TimeScale(f"norms reach {NEAR:g} of the start", log_time, "order of magnitude", words)
