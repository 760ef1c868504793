"""Decay fits of an iteration, and their figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from attractor.plotting import Curve, Panel, draw_panels

if TYPE_CHECKING:
    from attractor.models.iteration import Iteration

LEAST = 6  # points below which nothing is said
CLEAR = 6.0  # difference of the criterion from which one law is preferred
GOOD = 0.3  # residual, as a share of the spread of log m, from which neither law describes the curve


@dataclass(frozen=True)
class Fit:
    """One law: ``rate`` is r or p, ``log_scale`` is a, ``residual`` the root mean square of log m about the line.

    ``halves`` are the rates of the first and the second half of the window alone: they agree where the law is right.
    """

    law: Literal["exponential", "power"]
    rate: float
    log_scale: float
    residual: float
    criterion: float
    halves: tuple[float, float]

    def at(self, k: np.ndarray) -> np.ndarray:
        """m_k of the law."""
        place = k if self.law == "exponential" else np.log(k)
        return np.exp(self.log_scale - self.rate * place)


@dataclass(frozen=True)
class Decay:
    """The law of a curve. ``name`` is exponential, power, undecided (the two fits are alike), neither (both are poor), none (it does
    not fall) or reached (it was below the floor before a law could show)."""

    name: str
    message: str
    window: tuple[int, int]
    fits: dict[str, Fit] = field(default_factory=dict)
    floor: float = 0.0

    @property
    def rate(self) -> float | None:
        return self.fits[self.name].rate if self.name in self.fits else None


def decay(values: Sequence[float] | np.ndarray, floor: float = 0.0, first: int | None = None) -> Decay:
    """The law of m_0, m_1, ...: fitted from a tenth of the passes (or ``first``) to the last one above ``floor``, where rounding rules."""
    m = np.asarray(values, dtype=np.float64)
    below = np.flatnonzero(~(m > floor))
    last = int(below[0]) - 1 if below.size else len(m) - 1
    start = max(1, math.ceil(last / 10)) if first is None else max(1, first)
    if last - start + 1 < LEAST:
        if below.size:
            return Decay(
                "reached", f"below {floor:.1e} from pass {last + 1} on, too soon for a law", (start, last), {}, floor
            )
        return Decay("undecided", f"{max(0, last - start + 1)} passes are too few for a law", (start, last), {}, floor)
    k, log_m = np.arange(start, last + 1, dtype=float), np.log(m[start : last + 1])
    places: dict[Literal["exponential", "power"], np.ndarray] = {"exponential": k, "power": np.log(k)}
    fits: dict[str, Fit] = {law: _line(law, place, log_m) for law, place in places.items()}
    best, other = sorted(fits.values(), key=lambda fit: fit.criterion)
    spread, ahead = float(log_m.std()), other.criterion - best.criterion
    window = (start, last)
    where = f"passes {start} to {last}"
    if best.rate <= 0 or log_m[0] - log_m[-1] < math.log(1.5):
        return Decay("none", f"it falls by less than a factor of 1.5 over {where}", window, fits, floor)
    if best.residual > GOOD * spread:
        return Decay("neither", f"{where} fit neither, {_words(best)} and {_words(other)}", window, fits, floor)
    if ahead < CLEAR:
        return Decay("undecided", f"both laws fit {where} alike: {_words(best)}, {_words(other)}", window, fits, floor)
    message = f"{_words(best)} over {where}; {other.law} would leave {other.residual:.2g}, AIC {ahead:.0f} worse"
    return Decay(best.law, message, window, fits, floor)


def _line(law: Literal["exponential", "power"], place: np.ndarray, log_m: np.ndarray) -> Fit:
    slope, scale = np.polyfit(place, log_m, 1)
    squares = float(((log_m - scale - slope * place) ** 2).mean())
    middle = len(place) // 2
    halves = tuple(-float(np.polyfit(place[part], log_m[part], 1)[0]) for part in (slice(middle), slice(middle, None)))
    criterion = len(place) * math.log(max(squares, 1e-300)) + 6
    return Fit(law, -float(slope), float(scale), math.sqrt(squares), criterion, halves)  # type: ignore[arg-type]


def _words(fit: Fit) -> str:
    formula = f"exp(-{fit.rate:.3g} k)" if fit.law == "exponential" else f"k^-{fit.rate:.3g}"
    return f"{formula} with residual {fit.residual:.2g} in log m"


def draw_iteration(found: Iteration, path: str | Path | None = None) -> Any:
    """The figure, or the path it was written to (.png, .pdf or .svg)."""
    k, metric, law = np.arange(len(found.metric)), found.metric, found.law
    shown = (k >= 1) & (metric > 0)
    first, last = law.window
    fits = [
        Curve(span.tolist(), fit.at(span).tolist(), f"{fit.law}, residual {fit.residual:.2g}", dashed=True)
        for fit in law.fits.values()
        for span in [np.geomspace(first, max(last, first + 1), 200)]
    ]
    curve = Curve(k[shown].tolist(), metric[shown].tolist(), "measured")
    named = {"cosine_min": "smallest", "cosine": "mean"}
    cosines = [Curve(k.tolist(), found.curves[name].mean(0).tolist(), label) for name, label in named.items()]
    words = "1 - mean |cos(x₁, xⱼ)|"
    panels = [
        Panel((curve, *fits[:1]), "pass", words, "straight if exponential", log_y=True),
        Panel((curve, *fits[1:]), "pass", "", "straight if a power", log_x=True, log_y=True),
        Panel(tuple(cosines), "pass", "", "signed cosines of pairs"),
    ]
    return draw_panels(
        panels,
        f"{'/'.join(Path(found.model).parts[-2:])}: tokens through {found.layers} blocks, again and again",
        _caption(found),
        path,
    )


def _caption(found: Iteration) -> str:
    protocol, law = found.protocol, found.law
    parts = ["with feed-forward" if protocol.feedforward else "without feed-forward"]
    parts.append("the final norm between passes" if protocol.final_norm else "no final norm between passes")
    if protocol.redraw:
        parts.append("weights drawn anew before every pass")
    elif protocol.random:
        parts.append("random weights")
    many = f"Mean over {len(found.prompts)} prompts. " if len(found.prompts) > 1 else ""
    return f"{protocol.passes} passes, {', '.join(parts)}, seed {protocol.seed}. {many}Law: {law.name}, {law.message}."
