"""The time axis: linear, or logarithmic when the saved times span many decades."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class TimeAxis:
    """Map of times to a line: u = t, or u = log10 t with a short linear piece from 0 to the first positive time."""

    logarithmic: bool
    first: float
    last: float
    start: float

    @staticmethod
    def of(times: np.ndarray, linear: bool = False) -> TimeAxis:
        """Return a logarithmic axis if positive times span two decades and most are in the first tenth, otherwise a linear one.

        With ``linear`` it is linear in any case.
        """
        positive = times[times > 0]
        start, last = float(times.min()), float(times.max())
        if linear or positive.size < 3 or start < 0:
            return TimeAxis(False, start, last, start)
        first = float(positive.min())
        crowded = float(np.median(positive)) < last / 10
        return TimeAxis(bool(crowded and last / first > 100), first, last, start)

    @property
    def gap(self) -> float:
        """Width of the linear piece, in decades."""
        return max(0.05 * math.log10(self.last / self.first), 0.3)

    def place(self, times: np.ndarray | float) -> np.ndarray:
        """Return positions u of times; times before the first saved one are at the left end."""
        values = np.clip(np.asarray(times, dtype=float), self.start, None)
        if not self.logarithmic:
            return values
        decades = np.log10(np.maximum(values, self.first))
        return np.where(values < self.first, decades - self.gap * (1 - values / self.first), decades)

    @property
    def limits(self) -> tuple[float, float]:
        low, high = float(self.place(self.start)), float(self.place(self.last))
        return (low, high) if high > low else (low - 0.5, high + 0.5)

    def ticks(self, most: int = 6) -> tuple[list[float], list[str]]:
        """Return positions and labels of the ticks of a logarithmic axis."""
        low, high = math.ceil(math.log10(self.first) - 1e-9), math.floor(math.log10(self.last) + 1e-9)
        stride = max(1, math.ceil((high - low + 1) / most))
        powers = [power for power in range(low, high + 1) if power % stride == 0]
        positions, labels = [float(power) for power in powers], [power_of_ten(power) for power in powers]
        if self.start == 0:
            origin = float(self.place(0.0))
            # the label of a decade next to the origin would overlap
            while positions and positions[0] - origin < 0.1 * (float(self.place(self.last)) - origin):
                positions, labels = positions[1:], labels[1:]
            return [origin, *positions], ["0", *labels]
        return positions, labels


def power_of_ten(power: int) -> str:
    return {0: "1", 1: "10"}.get(power, "10" + str(power).translate(SUPERSCRIPTS))


def format_quantity(value: float) -> str:
    """Format a number: 0.25, 12.3, 1.5×10⁶."""
    if not math.isfinite(value):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    mantissa, exponent = f"{value:.1e}".split("e")
    power = "10" + str(int(exponent)).translate(SUPERSCRIPTS)
    return power if mantissa == "1.0" else f"{mantissa.removesuffix('.0')}×{power}"


def log_ticks(low: float, high: float, most: int = 4) -> list[float]:
    """Return a few round numbers between two positive ones, for a logarithmic scale."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits, stride in [((1, 2, 5), 1), ((1, 3), 1), *(((1,), stride) for stride in range(1, 400))]:
        ticks = [digit * 10.0**power for power in powers if power % stride == 0 for digit in digits]
        ticks = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
        if len(ticks) <= most:
            return ticks
    return []
