r"""Comparison of two audits, head by head: the effect of fine-tuning, quantisation or another seed.

With both checkpoints at hand the comparison also has the relative distances of the maps themselves,
:math:`\|W_B - W_A\|_F/\|W_A\|_F` and the same for the value, from inner products of the factors; they are accurate to about 1e-8.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from attractor.models.audit_results import Audit, AuditHead, Quantities, median, name_label
from attractor.models.audits import select_heads, split_heads
from attractor.models.checkpoints import Checkpoint
from attractor.serialization import to_frame
from attractor.weights import NAMES

LAYER = ("value_abscissa", "value_radius", "residual", "interaction_index", "metric_index", "growth_consensus")
ACCURACY = 2e-8  # relative: distances are roots of differences of inner products


@dataclass(frozen=True)
class HeadChange:
    """Change of one head from the first model to the second.

    Attributes
    ----------
    layer, name, head : index and name of the layer, index of the head.
    label, label_random_rate : the labels before and after, and the shares of random heads that have them.
    changes : second minus first for each quantity; None where one of them is undefined.
    standardised : mean absolute change, each quantity in units of its standard deviation over the first model's heads.
    moved : the larger of the two relative distances, or ``standardised`` where the checkpoints were not given.
    interaction_moved, value_moved : relative Frobenius distances of W and V; None without checkpoints.
    """

    layer: int
    name: str
    head: int
    label: tuple[str, str]
    label_random_rate: tuple[float | None, float | None]
    changes: Quantities
    standardised: float
    moved: float
    interaction_moved: float | None = None
    value_moved: float | None = None

    @property
    def labels(self) -> tuple[str, str]:
        """The labels before and after, each with the share of random heads that have it."""
        before, after = (name_label(*pair) for pair in zip(self.label, self.label_random_rate, strict=True))
        return before, after

    def row(self) -> dict[str, Any]:
        """The change as a JSON object; distances that were not computed are left out."""
        row = asdict(self)
        return row if self.value_moved is not None else {name: row[name] for name in row if not name.endswith("_moved")}


@dataclass(frozen=True)
class LayerChange:
    """Change of the quantities of one layer; None where one of them is undefined."""

    layer: int
    name: str
    changes: Quantities

    def row(self) -> dict[str, Any]:
        return {"layer": self.layer, "name": self.name, **self.changes}


@dataclass(frozen=True)
class MedianChange:
    """Medians of a quantity over all heads of both models, and their difference."""

    first: float | None
    second: float | None
    change: float | None


@dataclass(frozen=True)
class Comparison:
    """The second model against the first.

    Attributes
    ----------
    first, second : names of the models.
    reason : why heads cannot be compared one by one, None if they can.
    heads, layers : changes of heads and layers; empty if there is a ``reason``.
    summary : medians of every quantity over all heads of both models.
    """

    first: str
    second: str
    reason: str | None
    heads: tuple[HeadChange, ...]
    layers: tuple[LayerChange, ...]
    summary: dict[str, MedianChange]

    @property
    def most_moved(self) -> list[HeadChange]:
        """Heads that moved by more than the accuracy of the distances, farthest first."""
        return sorted((head for head in self.heads if head.moved > ACCURACY), key=lambda head: -head.moved)

    @property
    def relabelled(self) -> list[HeadChange]:
        """Heads whose label changed, farthest moved first."""
        return sorted((head for head in self.heads if head.label[0] != head.label[1]), key=lambda head: -head.moved)

    def describe(self) -> str:
        """What changed, in one or two sentences."""
        if self.reason is not None:
            return f"{self.reason[0].upper()}{self.reason[1:]}."
        top, count = self.most_moved, len(self.heads)
        if not top:
            return f"{count} heads, no head moved."
        first = top[0]
        labels = f"{len(self.relabelled)} labels changed" if self.relabelled else "no label changed"
        by = (
            f"by {first.moved:.3g} spreads of the numbers"
            if first.value_moved is None
            else f"W by {first.interaction_moved:.3g} and V by {first.value_moved:.3g} of their size"
        )
        return f"{len(top)} of {count} heads moved, {labels}. Farthest moved {first.name} head {first.head}, {by}."

    def row(self) -> dict[str, Any]:
        """The comparison as a JSON object, what changed first."""
        summary = {name: asdict(medians) for name, medians in self.summary.items()}
        rows = {name: [row.row() for row in getattr(self, name)] for name in ("heads", "layers")}
        places = [
            {"layer": head.layer, "head": head.head, "label": head.label, "label_random_rate": head.label_random_rate}
            for head in self.relabelled
        ]
        names = {"first": self.first, "second": self.second, "changed": self.describe()}
        moved = {"moved_heads": len(self.most_moved), "relabelled": places}
        return {**names, **moved, **vars(self), **rows, "summary": summary}

    def frame(self) -> Any:
        """A pandas DataFrame with one row for each head."""
        rows = []
        for head in self.heads:
            row = head.row()
            changes, (before, after) = row.pop("changes"), row.pop("label")
            rates = dict(
                zip(("label_before_random_rate", "label_after_random_rate"), row.pop("label_random_rate"), strict=True)
            )
            rows.append({**row, "label_before": before, "label_after": after, **rates, **changes})
        return to_frame(rows)

    def __repr__(self) -> str:
        if self.reason is not None:
            return f"Comparison({self.first!r}, {self.second!r}: {self.reason})"
        top = self.most_moved
        most = f"most moved {top[0].name} head {top[0].head}" if top else "no head moved"
        return f"Comparison({self.first!r}, {self.second!r}: {len(self.heads)} heads, {most})"


def compare(first: Audit, second: Audit, checkpoints: tuple[Checkpoint, Checkpoint] | None = None) -> Comparison:
    """Compare two audits; with the checkpoints also the distances of the maps W and V themselves."""
    reason = explain_mismatch(first, second)
    summary = {name: _compare_medians(name, first.heads, second.heads) for name in NAMES}
    if reason is not None:
        return Comparison(first.model, second.model, reason, (), (), summary)
    spreads = {name: _standard_deviation(first.heads, name) for name in NAMES}
    distances = None if checkpoints is None else _measure_distances(first, *checkpoints)
    heads = []
    for index, (one, other) in enumerate(zip(first.heads, second.heads, strict=True)):
        changes = {name: _subtract(one.quantities[name], other.quantities[name]) for name in NAMES}
        sized = [
            abs(change) / spreads[name] for name, change in changes.items() if change is not None and spreads[name]
        ]
        standardised = statistics.fmean(sized) if sized else 0.0
        # distances are preferred: the quantities of a head may stay while it rotates
        interaction, value = (None, None) if distances is None else distances[index]
        moved = standardised if interaction is None or value is None else max(interaction, value)
        place, labels = (one.layer, one.name, one.head), (one.label.name, other.label.name)
        rates = one.label_random_rate, other.label_random_rate
        heads.append(HeadChange(*place, labels, rates, changes, standardised, moved, interaction, value))
    layers = []
    for before, after in zip(first.layers, second.layers, strict=True):
        rows = before.row(), after.row()
        changes = {name: _subtract(*(row.get(name) for row in rows)) for name in LAYER}
        layers.append(LayerChange(before.layer, before.name, changes))
    return Comparison(first.model, second.model, None, tuple(heads), tuple(layers), summary)


def explain_mismatch(first: Audit, second: Audit) -> str | None:
    """The reason why the heads of two models do not correspond, or None."""
    sizes = {"layers": "layers", "heads": "heads in a layer", "dim": "dimensions"}
    pairs = {title: (getattr(first.card, name), getattr(second.card, name)) for name, title in sizes.items()}
    found = [f"{one} and {other} {title}" for title, (one, other) in pairs.items() if one != other]
    if found:
        return f"the models have {', '.join(found)}, so their heads do not correspond"
    if first.folded != second.folded:
        return "one audit has the norms folded in and the other has not"
    places = [{(head.layer, head.head, head.dim) for head in audit.heads} for audit in (first, second)]
    same = places[0] == places[1]
    return None if same else "not the same layers were audited, or some have no bilinear scores"


def _standard_deviation(heads: Sequence[AuditHead], name: str) -> float:
    values = [value for head in heads if (value := head.quantities[name]) is not None]
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _subtract(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else other - one


def _compare_medians(name: str, first: Sequence[AuditHead], second: Sequence[AuditHead]) -> MedianChange:
    before, after = (median(head.quantities[name] for head in heads) for heads in (first, second))
    return MedianChange(before, after, _subtract(before, after))


def _measure_distances(audit: Audit, first: Checkpoint, second: Checkpoint) -> list[tuple[float, float]]:
    """Relative Frobenius distances of W and of V for every head."""
    found: list[tuple[float, float]] = []
    for index in dict.fromkeys(head.layer for head in audit.heads):
        layers = first.layers[index], second.layers[index]
        for members in split_heads(layers[0], False):
            one, other = (select_heads(layer, members, audit.folded) for layer in layers)
            assert one.output is not None
            assert other.output is not None
            scores = _relative_distance(one.scale * one.query, one.key, other.scale * other.query, other.key)
            values = _relative_distance(one.output.mT, one.value, other.output.mT, other.value)
            found += zip(scores.tolist(), values.tolist(), strict=True)
    return found


def _relative_distance(left: Tensor, right: Tensor, new_left: Tensor, new_right: Tensor) -> Tensor:
    """The Frobenius norm of new_left' new_right - left' right over that of left' right, for (h, m, d) factors; (h,)."""
    before, after = (left, right), (new_left, new_right)
    inner = [_inner(*one, *other) for one, other in ((before, before), (after, after), (before, after))]
    squared = (inner[0] + inner[1] - 2 * inner[2]).clamp_min(0.0) / inner[0].clamp_min(1e-300)
    same = (left == new_left).flatten(-2).all(-1) & (right == new_right).flatten(-2).all(-1)
    return torch.where(same, 0.0, squared.sqrt())


def _inner(left: Tensor, right: Tensor, other_left: Tensor, other_right: Tensor) -> Tensor:
    """The inner products of left' right and other_left' other_right."""
    shape = (-1, *left.shape[-2:])
    one, two = left.reshape(shape).double(), right.reshape(-1, *right.shape[-2:]).double()
    three, four = other_left.reshape(shape).double(), other_right.reshape(-1, *other_right.shape[-2:]).double()
    return ((one @ three.mT) * (two @ four.mT)).sum((-2, -1))
