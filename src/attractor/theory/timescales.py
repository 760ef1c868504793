"""When a predicted fate is to be expected: times and rates as numbers, in logarithms where they are beyond floating point."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from attractor.solvers import LogTime, log_of

Kind = Literal["exact", "at the latest", "not before", "order of magnitude"]
NEAR = 1e-3  # distances, and shares of the start, at which a fate counts as reached
FACTOR = 10.0  # growth at which a divergence counts as seen
NEGLIGIBLE = 50.0  # e^-50 of an integral


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


def log_merging_time(beta: float, start: float, end: float, weight: float = 1.0) -> float:
    r"""Return the logarithm of the time in which the angle of two tokens with P = beta I, V = weight I falls from ``start`` to ``end``.

    The integral of :math:`(1 + e^{\beta(1-\cos u)})/(2c\sin u)`. With :math:`v = \beta(1-\cos u)` its second part is a quarter of that of
    :math:`e^v(1/v + 1/(2\beta - v))` over c, which is dominated by the largest v.
    """
    from scipy.integrate import quad

    if not start > end:
        return -math.inf
    logarithms = math.log(math.tan(start / 2)) - math.log(math.tan(end / 2))
    slow = math.log(logarithms / (2 * weight))
    low, high = beta * (1 - math.cos(end)), beta * (1 - math.cos(start))
    if high - low < NEGLIGIBLE:
        part, _ = quad(lambda u: math.exp(beta * (1 - math.cos(u))) / math.sin(u), end, start, epsrel=1e-11, limit=200)
        return add_logs(slow, take_log(part / (2 * weight)))
    rest = beta * 2 * math.cos(start / 2) ** 2  # 2 beta - v at the start, without cancellation
    part, _ = quad(
        lambda s: math.exp(-s) * (1 / (high - s) + 1 / (rest + s)),
        0.0,
        min(NEGLIGIBLE, high - low),
        epsrel=1e-11,
        limit=200,
    )
    return add_logs(slow, high + math.log(part / (4 * weight)))


def estimate_gathering(points: Tensor, masses: Tensor, beta: float, weight: float) -> float:
    """Return the logarithm of the time in which tokens of the unit sphere gather, by its order of magnitude.

    The closest pair merges first, at its centre of mass; the time of a merge is that of two tokens alone, shorter by the ratio of masses,
    and the longest of these times counts.
    """
    points, masses, longest = points.clone().double(), masses.double() / masses.sum(), -math.inf
    while len(points) > 1:
        cosines = (points @ points.mT).clamp(-1.0, 1.0)
        cosines.fill_diagonal_(-2.0)
        first, second = divmod(int(cosines.argmax()), len(points))
        angle = min(math.acos(float(cosines[first, second])), math.pi * (1 - 1e-9))
        if angle > NEAR:
            ratio = float(masses[first] / masses[second])
            longest = max(longest, log_merging_time(beta, angle, NEAR, weight) - math.log((ratio + 1 / ratio) / 2))
        centre = masses[first] * points[first] + masses[second] * points[second]
        points[first] = centre / centre.norm().clamp_min(1e-300)
        masses[first] = masses[first] + masses[second]
        kept = [row for row in range(len(points)) if row != second]
        points, masses = points[kept], masses[kept]
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
