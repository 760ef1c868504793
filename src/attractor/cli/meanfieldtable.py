"""Results of the mean-field studies: as one object, and as tables for people."""

from __future__ import annotations

import math
from functools import singledispatch
from typing import TYPE_CHECKING, Any

from attractor.cli.printing import print_rows
from attractor.meanfield.rates import Rates
from attractor.meanfield.rates_picture import LABELS

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


def print_found(found: Any, question: Question, picture: str | None, command: str) -> None:
    """A table, what is worth a warning, and where things are."""
    table(found, question)
    notes = {f"note {number}" if number > 1 else "note": note for number, note in enumerate(found.notes, 1)}
    if notes:
        print_rows("", notes)
    print_rows("Results", {**({"picture": picture} if picture else {}), "again": command})


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


def _errors(found: Rates) -> dict[str, str]:
    head = "".join(f"{size:>12,}" for size in found.sizes)
    rows = {"tokens": head}
    for name in found.errors:
        rows[LABELS[name]] = "".join(f"{value:>12.3e}" for value in found.rms(name))
    return rows


def _slope(slope: Any) -> str:
    if not math.isfinite(slope.value):
        return "none: exact at some n"
    interval = f"   {slope.low:.2f} to {slope.high:.2f}" if math.isfinite(slope.low) else ""
    return f"{slope.value:.2f}{interval}"
