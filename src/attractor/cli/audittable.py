"""An audit for people."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import TYPE_CHECKING, Any

from attractor.cli.printing import number, print_rows

if TYPE_CHECKING:
    from attractor.checkpoints import Audit

COLUMNS = {"W index": "reduced_interaction_index", "metric index": "reduced_metric_index", "value": "value_abscissa"}
WIDTH = 14


def print_audit(found: list[Audit], command: str) -> None:
    """For every model a line a layer: medians over heads, and the labels."""
    for model in found:
        how = "norms folded in" if model.folded else "norms left out"
        notes = {f"note {index + 1}": note for index, note in enumerate(model.notes)}
        print_rows(f"{model.model}: {len(model.heads)} heads of family {model.family}, {how}", notes)
        if model.heads:
            print_rows("medians over the heads of a layer (spectra of weights alone), and labels", _layers(model))
        print_rows("", {row["name"]: f"undefined: {row['reason']}" for row in model.undefined})
    print_rows("", {"again": command})


def _layers(model: Audit) -> dict[str, str]:
    by_layer: dict[str, list[dict[str, Any]]] = {}
    for row in model.heads:
        by_layer.setdefault(row["name"], []).append(row)
    rows = {"": "".join(f"{name:>{WIDTH}}" for name in COLUMNS) + "   labels (certified by a theorem)"}
    for name, heads in by_layer.items():
        middle = (statistics.median(head[column] for head in heads) for column in COLUMNS.values())
        rows[name] = "".join(f"{number(float(f'{value:.3g}')):>{WIDTH}}" for value in middle) + f"   {_labels(heads)}"
    return rows


def _labels(heads: list[dict[str, Any]]) -> str:
    counts = Counter(head["label"] for head in heads)
    certified = Counter(head["label"] for head in heads if head["certificate"] is not None)
    return ", ".join(f"{count} {label} ({certified[label]})" for label, count in counts.most_common())
