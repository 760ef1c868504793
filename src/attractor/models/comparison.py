r"""Two audits side by side: what fine-tuning, quantisation or another seed changed, head by head.

Beside the differences of numbers stands how far the maps themselves moved, :math:`\|W_B - W_A\|_F/\|W_A\|_F` and the same for the value,
from inner products of the factors; it is known to about 1e-8.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attractor.models.audits import Audit, laws
from attractor.models.checkpoints import Checkpoint
from attractor.weights import NAMES

LAYER = ("value_abscissa", "value_radius", "residual", "interaction_index", "metric_index", "growth_consensus")
KNOWN = 2e-8  # relative: distances are roots of differences of inner products


@dataclass(frozen=True)
class Comparison:
    """The second model against the first. ``reason`` says why heads cannot be compared one by one, None if they can: then ``heads``
    has a row for each, ``layers`` for each layer. ``summary`` has medians over all heads of both."""

    first: str
    second: str
    reason: str | None
    heads: tuple[dict[str, Any], ...]
    layers: tuple[dict[str, Any], ...]
    summary: dict[str, dict[str, Any]]

    @property
    def most_moved(self) -> list[dict[str, Any]]:
        """Heads that moved, farthest first; by less than is known of them is not at all."""
        return sorted((row for row in self.heads if row["moved"] > KNOWN), key=lambda row: -row["moved"])

    def row(self) -> dict[str, Any]:
        """Ready for JSON."""
        return vars(self)

    def __repr__(self) -> str:
        if self.reason is not None:
            return f"Comparison({self.first!r}, {self.second!r}: {self.reason})"
        top = self.most_moved
        most = f"most moved {top[0]['name']} head {top[0]['head']}" if top else "no head moved"
        return f"Comparison({self.first!r}, {self.second!r}: {len(self.heads)} heads, {most})"


def compare(first: Audit, second: Audit, checkpoints: tuple[Checkpoint, Checkpoint] | None = None) -> Comparison:
    """The second audit against the first; with the checkpoints at hand also how far their maps moved."""
    reason = different(first, second)
    summary = {name: _summary(name, first.heads, second.heads) for name in NAMES}
    if reason is not None:
        return Comparison(first.model, second.model, reason, (), (), summary)
    spreads = {name: _spread(_present(first.heads, name)) for name in NAMES}
    distances = None if checkpoints is None else _distances(first, *checkpoints)
    heads = []
    for index, (one, other) in enumerate(zip(first.heads, second.heads, strict=True)):
        row = {"layer": one["layer"], "name": one["name"], "head": one["head"], "label": [one["label"], other["label"]]}
        changes = {name: _difference(one[name], other[name]) for name in NAMES}
        sized = [
            abs(change) / spreads[name] for name, change in changes.items() if change is not None and spreads[name]
        ]
        row |= {"changes": changes, "standardised": statistics.fmean(sized) if sized else 0.0}
        row |= {} if distances is None else distances[index]
        # maps where they are at hand: numbers of a head may stay while it turns
        row["moved"] = row["standardised"] if distances is None else max(row["interaction_moved"], row["value_moved"])
        heads.append(row)
    layers = [
        {
            "layer": one["layer"],
            "name": one["name"],
            **{name: _difference(one.get(name), other.get(name)) for name in LAYER},
        }
        for one, other in zip(first.layers, second.layers, strict=True)
    ]
    return Comparison(first.model, second.model, None, tuple(heads), tuple(layers), summary)


def different(first: Audit, second: Audit) -> str | None:
    """Why the heads of two models do not correspond, or None."""
    sizes = {"layers": "layers", "heads": "heads in a layer", "dim": "dimensions"}
    found = [
        f"{first.card.get(name)} and {second.card.get(name)} {title}"
        for name, title in sizes.items()
        if first.card.get(name) != second.card.get(name)
    ]
    ranks = {(row["layer"], row["head"], row["dim"]) for row in first.heads} ^ {
        (row["layer"], row["head"], row["dim"]) for row in second.heads
    }
    if found:
        return f"the models have {', '.join(found)}, so their heads do not correspond"
    if first.folded != second.folded:
        return "one audit has the norms folded in and the other has not"
    return "not the same layers were audited, or some have no bilinear scores" if ranks else None


def _present(rows: Sequence[dict[str, Any]], name: str) -> list[float]:
    return [row[name] for row in rows if row.get(name) is not None]


def _spread(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _difference(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else other - one


def _summary(name: str, first: Sequence[dict[str, Any]], second: Sequence[dict[str, Any]]) -> dict[str, Any]:
    both = [_present(rows, name) for rows in (first, second)]
    medians = [statistics.median(values) if values else None for values in both]
    return {"first": medians[0], "second": medians[1], "change": _difference(*medians)}


def _distances(audit: Audit, first: Checkpoint, second: Checkpoint) -> list[dict[str, float]]:
    """How far W and V of every head moved, relative to what they were."""
    found = []
    for index in dict.fromkeys(row["layer"] for row in audit.heads):
        pairs = zip(
            laws(first.layers[index], audit.folded, False), laws(second.layers[index], audit.folded, False), strict=True
        )
        for (_, one), (_, other) in pairs:
            scores = _moved(one.scale * one.query, one.key, other.scale * other.query, other.key)
            assert one.output is not None
            assert other.output is not None
            values = _moved(one.output.mT, one.value, other.output.mT, other.value)
            found += [
                {"interaction_moved": w, "value_moved": v}
                for w, v in zip(scores.tolist(), values.tolist(), strict=True)
            ]
    return found


def _moved(left: Tensor, right: Tensor, new_left: Tensor, new_right: Tensor) -> Tensor:
    """The Frobenius norm of new_left' new_right - left' right over that of left' right, for (h, m, d) factors."""
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
