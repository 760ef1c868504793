r"""What the weights of a layer promise: numbers that the theory names, none of which looks at data.

All are of the law that acts on what attention adds to: with the norm folded in where one stands before attention. M is the sum of the
value maps, W the sum of interactions, A stands for the metric form :math:`\sum V_h^\top W_h`. "reduced" are means over the lone heads.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attractor.attention import Attention
from attractor.checkpoints import Checkpoint
from attractor.experiments.practice.growth import folds
from attractor.theory import regime

# name: (group, words); the first of each group and of the value are what the question is about
PREDICTORS: dict[str, tuple[str, str]] = {
    "value_abscissa": ("value", "largest real part of the spectrum of M"),
    "value_radius": ("value", "discrete radius, of I + M"),
    "value_mean": ("value", "mean eigenvalue of M, tr M / d"),
    "interaction_index": ("W", "definiteness index of W"),
    "interaction_high": ("W", "largest eigenvalue of sym W"),
    "reduced_interaction": ("W", "index of the reduced W, mean over heads"),
    "metric_index": ("A", "definiteness index of the metric form"),
    "shared_index": ("A", "index of the best common metric"),
    "reduced_metric": ("A", "index of the reduced metric, mean over heads"),
    "growing": ("A", "share of growing directions of the heads"),
    "size": ("size", "Frobenius norm of M (control)"),
}
THEOREMS = {
    "collapse": ("regimes.T1", "regimes.T2", "regimes.T8"),
    "divergence": ("regimes.T3", "regimes.T4", "regimes.T8.converse"),
}


@dataclass(frozen=True)
class Promised:
    """``predictors`` (name to one number a layer), and the ``heads`` of the model and of random heads of the same shapes, as counts."""

    predictors: dict[str, list[float]]
    heads: dict[str, Any]
    random: dict[str, Any]


def promise(checkpoint: Checkpoint, seed: int) -> Promised:
    """Everything that is said of a model's weights."""
    table: dict[str, list[float]] = {name: [] for name in PREDICTORS}
    own, random = [], []
    draw = torch.Generator().manual_seed(seed)
    for layer in checkpoint.layers.ahead(range(len(checkpoint.layers))):
        law = layer.law(fold=folds(layer))
        assert isinstance(law, Attention)
        for name, number in predictors(law, own).items():
            table[name].append(number)
        random += [head.row() for head in regime(gaussian(law, draw), sums=False, offsets=()).heads]
    return Promised(table, tally(own), tally(random))


def predictors(law: Attention, rows: list[dict[str, Any]]) -> dict[str, float]:
    """The numbers of one layer; the rows of its heads are added to ``rows``."""
    found = regime(law, offsets=())
    assert found.layer is not None
    heads = [head.row() for head in found.heads]
    rows += heads
    mean = lambda name: sum(row[name] for row in heads) / len(heads)  # noqa: E731
    total = value_sum(law)
    whole = found.layer
    return {
        "value_abscissa": whole.value.abscissa,
        "value_radius": whole.value.radius,
        "value_mean": float(total.diagonal().mean()),
        "interaction_index": whole.interaction.index,
        "interaction_high": whole.interaction.high,
        "reduced_interaction": mean("reduced_interaction_index"),
        "metric_index": whole.metric.index,
        "shared_index": whole.shared_metric.index,
        "reduced_metric": mean("reduced_metric_index"),
        "growing": mean("growing"),
        "size": float(torch.linalg.matrix_norm(total)) / law.dim**0.5,
    }


def value_sum(law: Attention) -> Tensor:
    """M, (d, d)."""
    maps = law.value_map.double()
    return maps if maps.ndim == 2 else maps.sum(0)


def gaussian(law: Attention, draw: torch.Generator) -> Attention:
    """A law of the same shape, mask and positions with normal weights."""
    names = [name for name in ("query", "key", "value", "output") if getattr(law, name) is not None]
    fresh = {
        name: torch.randn(getattr(law, name).shape, generator=draw, dtype=torch.float64) / law.dim**0.5
        for name in names
    }
    return dataclasses.replace(law, **fresh)


def tally(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How many heads meet which hypothesis, and how near the nearest come."""
    proofs = Counter(row["certificate"] for row in rows)
    share = lambda name, *words: sum(row[name] in words for row in rows)  # noqa: E731
    return {
        "heads": len(rows),
        "W positive": share("reduced_interaction_sign", "positive"),
        "W negative": share("reduced_interaction_sign", "negative"),
        "A positive": share("reduced_metric_sign", "positive"),
        "A negative": share("reduced_metric_sign", "negative"),
        "value stable": share("value_stability", "stable"),
        "collapse proved": sum(proofs[key] for key in THEOREMS["collapse"]),
        "divergence proved": sum(proofs[key] for key in THEOREMS["divergence"]),
        "divergence proved by the value under a causal mask": proofs["regimes.T8.converse"],
        "labels": dict(Counter(row["label"] for row in rows)),
        "largest W index": max(row["reduced_interaction_index"] for row in rows),
        "smallest A index": min(row["reduced_metric_index"] for row in rows),
        "largest A index": max(row["reduced_metric_index"] for row in rows),
        "smallest asymmetry of A": min(
            (row["metric_asymmetry"] for row in rows if row["metric_asymmetry"] is not None), default=None
        ),
    }
