"""Results of the mean-field studies: as one object, and as tables for people."""

from __future__ import annotations

import math
from functools import singledispatch
from typing import TYPE_CHECKING, Any

import numpy as np

from attractor.cli.printing import print_rows
from attractor.cli.written import Written
from attractor.meanfield.beyond import Beyond
from attractor.meanfield.rates import Rates
from attractor.meanfield.rates_picture import LABELS
from attractor.meanfield.stability import Stability

if TYPE_CHECKING:
    from attractor.cli.meanfield import Question


def finite(value: float) -> float | None:
    """For JSON, which has no NaN and no infinity."""
    return float(value) if math.isfinite(value) else None


@singledispatch
def document(found: Any) -> dict[str, Any]:
    """The result, ready for JSON."""
    raise NotImplementedError


@document.register(Rates)
def _rates_document(found: Rates) -> dict[str, Any]:
    slopes = {
        name: {"value": finite(slope.value), "low": finite(slope.low), "high": finite(slope.high), "level": slope.level}
        for name, slope in found.slopes.items()
    }
    return {
        "sizes": list(found.sizes),
        "repeats": found.repeats,
        "until": found.until,
        "against": found.against,
        "errors": {name: values.tolist() for name, values in found.errors.items()},
        "rms": {name: found.rms(name).tolist() for name in found.errors},
        "slopes": slopes,
        "tilt": {"times": found.tilt_times.tolist(), "values": found.tilt.tolist()},
        "notes": list(found.notes),
    }


@document.register(Stability)
def _stability_document(found: Stability) -> dict[str, Any]:
    constants = found.constants
    return {
        "order": found.order,
        "times": found.times.tolist(),
        "distance": found.distance.tolist(),
        "ratio": found.ratio.tolist(),
        "log_bound": [[finite(value) for value in row] for row in found.log_bound],
        "radius": found.radius.tolist(),
        "radius_bound": found.radius_bound.tolist(),
        "constants": {
            "radius": constants.radius,
            "point": constants.point,
            "influence": None if constants.influence is None else finite(constants.influence),
            "hardy": constants.hardy,
        },
        "explicit": found.explicit,
        "holds": found.holds,
        "notes": list(found.notes),
    }


@document.register(Beyond)
def _beyond_document(found: Beyond) -> dict[str, Any]:
    return {
        "blow_up": found.blow_up,
        "times": found.times.tolist(),
        "sizes": list(found.sizes),
        "variance": found.variance.tolist(),
        "median": found.median.tolist(),
        "gaussian": [finite(value) for value in found.gaussian],
        "notes": list(found.notes),
    }


def print_found(found: Any, question: Question, written: Written, command: str) -> None:
    """A table, what is worth a warning, and where things are."""
    table(found, question)
    notes = {f"note {number}" if number > 1 else "note": note for number, note in enumerate(found.notes, 1)}
    if notes:
        print_rows("", notes)
    written.tell(command)


@singledispatch
def table(found: Any, question: Question) -> None:
    raise NotImplementedError


@table.register(Rates)
def _rates_table(found: Rates, question: Question) -> None:
    against = {"closure": "the Gaussian closure", "pair": "an independent system of the same size"}
    reference = against.get(str(found.against), f"{found.against} tokens")
    print_rows(
        f"Root mean square errors at t = {found.until:g} against {reference}, {found.repeats} runs each.",
        {"law": str(question.law), "start": question.start, **_errors(found)},
    )
    rows = {LABELS[name]: _slope(slope) for name, slope in found.slopes.items()}
    print_rows("Slopes in n, with 95% intervals", rows)
    if len(found.tilt):
        print_rows("", {"tilt": f"{found.tilt[0]:.3g} at the start, {found.tilt.max():.3g} at most"})


@table.register(Stability)
def _stability_table(found: Stability, question: Question) -> None:
    constants, last = found.constants, found.times[-1]
    kind = "bound" if found.explicit else "estimate"
    influence = "no formula" if constants.influence is None else f"{constants.influence:.4g}"
    factor = f" times {constants.hardy:.3g} (Hardy)" if constants.hardy != 1.0 else ""
    distance = "conditional W" if question.law.mask is not None else "W"
    ends = found.distance[0].mean(), found.distance[-1].mean()
    rows = {
        "law": str(question.law),
        "start": f"{question.start}, {found.radius.shape[1]} pairs of {question.sizes[0]:,} tokens",
        f"{distance}{found.order:g}": f"{ends[0]:.4g} at the start, {ends[1]:.4g} at t = {last:g} (means)",
        "ratio": f"{found.ratio.max():.4g} at most, logarithm {np.log(found.ratio.max()):.4g}",
        f"{kind} of log": f"{found.log_bound[-1].max():.4g} at t = {last:g}",
        "constants": f"L_x = {constants.point:.4g}, L_mu = {influence}{factor} in the ball of radius {constants.radius:.4g}",
        "radius": f"{found.radius.max():.4g} at most, bound {found.radius_bound[-1].max():.4g}",
    }
    below = "Every distance and radius is below its bound."
    if not found.explicit:
        below = "Every radius is below its bound, and every distance below an estimate of one."
    print_rows(below if found.holds else "A distance or a radius is ABOVE its bound.", rows)


@table.register(Beyond)
def _beyond_table(found: Beyond, question: Question) -> None:
    shown = [int(np.abs(found.times / found.blow_up - share).argmin()) for share in (0.0, 0.5, 0.9, 1.0, 1.2)]
    shown = list(dict.fromkeys(shown))
    rows = {
        "t / T*": "".join(f"{found.times[k] / found.blow_up:>12.4g}" for k in shown),
        "Gaussian": "".join(f"{found.gaussian[k]:>12.4g}" for k in shown),
    }
    for index, n in enumerate(found.sizes):
        rows[f"n = {n:,}"] = "".join(f"{found.median[index, k]:>12.4g}" for k in shown)
        low, high = found.variance[index].min(0), found.variance[index].max(0)
        rows[f"  range, {n:,}"] = "".join(f"{f'{low[k]:.3g}-{high[k]:.3g}':>12}" for k in shown)
    title = f"The Gaussian blows up at T* = {found.blow_up:.8g}; total variance of tokens (median of {found.variance.shape[1]} draws)."
    print_rows(title, {"law": str(question.law), **rows})


def _errors(found: Rates) -> dict[str, str]:
    head = "".join(f"{size:>12,}" for size in found.sizes)
    rows = {"tokens": head}
    for name in found.errors:
        rows[LABELS[name]] = "".join(f"{value:>12.3e}" for value in found.rms(name))
    return rows


def _slope(slope: Any) -> str:
    if not math.isfinite(slope.value):
        return "none: exact at some n"
    interval = f"   {slope.low:+.2f} to {slope.high:+.2f}" if math.isfinite(slope.low) else ""
    return f"{slope.value:+.2f}{interval}"
