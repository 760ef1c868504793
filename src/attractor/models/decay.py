"""Fits of exponential and power-law decay to a curve.

Both are straight lines in log m: :math:`\\log m_k = a - r k` (exponential) and :math:`\\log m_k = a - p \\log k` (power), fitted by least
squares and compared by Akaike's criterion.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

LEAST = 6  # points below which no law is fitted
CLEAR = 6.0  # difference of the criterion from which one law is preferred
GOOD = 0.3  # residual, as a share of the spread of log m, above which neither law describes the curve


@dataclass(frozen=True)
class Fit:
    """One fitted law.

    Attributes
    ----------
    law : "exponential" or "power".
    rate : r or p.
    log_scale : a.
    residual : root mean square of log m about the line.
    criterion : Akaike's criterion, n log(RSS/n) + 6.
    halves : the rates of the first and the second half of the window alone; they agree where the law holds.
    """

    law: Literal["exponential", "power"]
    rate: float
    log_scale: float
    residual: float
    criterion: float
    halves: tuple[float, float]

    def at(self, k: np.ndarray) -> np.ndarray:
        """m_k of the fitted law."""
        place = k if self.law == "exponential" else np.log(k)
        return np.exp(self.log_scale - self.rate * place)

    def describe(self) -> str:
        formula = f"exp(-{self.rate:.3g} k)" if self.law == "exponential" else f"k^-{self.rate:.3g}"
        return f"{formula} with residual {self.residual:.2g} in log m"


@dataclass(frozen=True)
class Decay:
    """The law of decay of a curve.

    Attributes
    ----------
    name : "exponential", "power", "undecided" (both fit alike), "neither" (both fit poorly), "none" (no decay) or "reached" (below
        the floor before a law could be fitted).
    message : the reason, in a sentence.
    window : first and last pass of the fit.
    fits : the fits by name.
    floor : values below this are dominated by rounding.
    """

    name: str
    message: str
    window: tuple[int, int]
    fits: dict[str, Fit] = field(default_factory=dict)
    floor: float = 0.0

    @property
    def rate(self) -> float | None:
        """The rate of the law that holds; None if neither does."""
        return self.fits[self.name].rate if self.name in self.fits else None


def fit_decay(values: Sequence[float] | np.ndarray, floor: float = 0.0, first: int | None = None) -> Decay:
    """Fit the law of decay of m_0, m_1, ...

    Parameters
    ----------
    values : the curve, (passes + 1,).
    floor : the fit ends at the last pass above this value, below which rounding dominates.
    first : first pass of the fit; a tenth of the passes by default.
    """
    m = np.asarray(values, dtype=np.float64)
    below = np.flatnonzero(~(m > floor))
    last = int(below[0]) - 1 if below.size else len(m) - 1
    start = max(1, math.ceil(last / 10)) if first is None else max(1, first)
    if last - start + 1 < LEAST:
        if below.size:
            return Decay(
                "reached", f"below {floor:.1e} from pass {last + 1} on, too soon for a fit", (start, last), {}, floor
            )
        return Decay("undecided", f"{max(0, last - start + 1)} passes are too few for a fit", (start, last), {}, floor)
    k, log_m = np.arange(start, last + 1, dtype=float), np.log(m[start : last + 1])
    places: dict[Literal["exponential", "power"], np.ndarray] = {"exponential": k, "power": np.log(k)}
    fits: dict[str, Fit] = {law: _fit_line(law, place, log_m) for law, place in places.items()}
    best, other = sorted(fits.values(), key=lambda fit: fit.criterion)
    spread, ahead = float(log_m.std()), other.criterion - best.criterion
    window = (start, last)
    where = f"passes {start} to {last}"
    if best.rate <= 0 or log_m[0] - log_m[-1] < math.log(1.5):
        return Decay("none", f"it falls by less than a factor of 1.5 over {where}", window, fits, floor)
    if best.residual > GOOD * spread:
        return Decay("neither", f"{where} fit neither, {best.describe()} and {other.describe()}", window, fits, floor)
    if ahead < CLEAR:
        return Decay(
            "undecided", f"both laws fit {where} alike: {best.describe()}, {other.describe()}", window, fits, floor
        )
    message = f"{best.describe()} over {where}; {other.law} would leave {other.residual:.2g}, AIC {ahead:.0f} worse"
    return Decay(best.law, message, window, fits, floor)


def _fit_line(law: Literal["exponential", "power"], place: np.ndarray, log_m: np.ndarray) -> Fit:
    slope, scale = np.polyfit(place, log_m, 1)
    squares = float(((log_m - scale - slope * place) ** 2).mean())
    middle = len(place) // 2
    halves = tuple(-float(np.polyfit(place[part], log_m[part], 1)[0]) for part in (slice(middle), slice(middle, None)))
    criterion = len(place) * math.log(max(squares, 1e-300)) + 6
    return Fit(law, -float(slope), float(scale), math.sqrt(squares), criterion, halves)  # type: ignore[arg-type]
