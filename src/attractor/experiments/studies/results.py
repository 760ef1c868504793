r"""Finished runs of a study from its file, and what tokens do in the trained models of each arm.

Theory speaks of attention alone. Where the value map of a causal layer has :math:`\max \mathrm{Re}\,\lambda < 0`, all tokens tend to zero
in its flow; where it is positive the first token leaves every ball. A trained model has norms and feed-forward parts besides, so what its
tokens do is measured and put beside the sign.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attractor.errors import InputError, StoreError
from attractor.experiments.studies.arms import Study, study_named
from attractor.experiments.training.history import summary

Row = dict[str, Any]
NEEDED = ("study", "arm", "seed", "parameters", "dynamics")


def read_results(path: str | Path) -> tuple[Study, list[Row]]:
    """The study and the runs of a file ``runs.jsonl`` or of the folder that has one; a line that was cut short at the end is left out."""
    place = Path(path)
    place = place / "runs.jsonl" if place.is_dir() else place
    if not place.is_file():
        raise InputError(f"{place} does not exist; give a file or a folder that attractor study has written")
    try:
        lines = place.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{place} cannot be read as text: {error}") from None
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except ValueError:
            if number == len(lines):
                break
            raise StoreError(f"line {number} of {place} is no JSON object; attractor study writes one a line") from None
    return _checked(place, rows), rows


def _checked(place: Path, rows: list[Row]) -> Study:
    if not rows:
        raise StoreError(f"{place} has no finished run in it")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or any(name not in row for name in NEEDED):
            raise StoreError(f"line {number} of {place} is no run of a study: it must have {', '.join(NEEDED)}")
    names = sorted({row["study"] for row in rows})
    if len(names) > 1:
        raise StoreError(f"{place} has runs of several studies, {', '.join(names)}; give one file for each")
    study = study_named(names[0])
    if any(study.measure not in row for row in rows):
        raise StoreError(f"{place} has runs without {study.measure}, by which the study {study.name} is judged")
    seen = [(row["arm"], row["seed"]) for row in rows]
    if len(set(seen)) < len(seen):
        raise StoreError(f"{place} has a run twice; one line for each arm and seed is expected")
    return study


def dynamics_table(study: Study, rows: Sequence[Row]) -> list[Row]:
    """For every arm: log growth of norms from the embedding and from the first block to the end, cosine at the end, each with its interval
    over seeds; the range of growth over layers and seeds, and in how many layers it is negative."""
    found = []
    for arm in study.arms:
        traces = [row["dynamics"] for row in rows if row["arm"] == arm and row["dynamics"] is not None]
        if not traces:
            continue
        growth = [value for trace in traces for value in trace["growth"] if value is not None]
        measures = {
            "norm": summary([math.log(trace["norm"][-1] / trace["norm"][0]) for trace in traces]),
            "later_norm": summary([math.log(trace["norm"][-1] / trace["norm"][1]) for trace in traces]),
            "cosine": summary([trace["cosine"][-1] for trace in traces]),
        }
        counted = {
            "layers": len(growth),
            "negative": sum(math.copysign(1.0, value) < 0 for value in growth),
        }  # also -0.0, rounded
        ends = {"growth_low": min(growth, default=None), "growth_high": max(growth, default=None)}
        found.append({"arm": arm, **measures, **counted, **ends})
    return found


def depth_curves(rows: Sequence[Row], arm: str) -> dict[str, list[float]]:
    """Means over seeds of what was traced along depth."""
    traces = [row["dynamics"] for row in rows if row["arm"] == arm and row["dynamics"] is not None]
    names = ("norm", "distance", "cosine", "growth")
    return {
        name: [float(value) for value in np.mean([trace[name] for trace in traces], axis=0, dtype=float)]
        for name in names
    }
