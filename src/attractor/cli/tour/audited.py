"""An audit of a real model: what its weights say, head by head, before it has read a word."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import Any

from attractor.cli.tour.model import name_of, opened
from attractor.cli.tour.stop import Say, Settings, Skipped
from attractor.report import Measure, Section

WORDS = {
    "regime": "What the weights alone suggest, a label for each head; no theorem certifies it unless the panel names "
    "one.",
    "index of V'W": "From -1 (every direction contracts) to 1 (every direction expands).",
    "index of W": "From -1 to 1: whether a token is pulled towards tokens that are like it (positive) or unlike it "
    "(negative).",
    "growth of the value": "Largest real part of an eigenvalue of the value map: positive where something grows.",
}


def audited(section: Section, settings: Settings, say: Say) -> tuple[str, dict[str, Any]]:
    """Every head as a law: definiteness of its interaction and metric, growth of its value."""
    from attractor.checkpoints import audit

    found = opened(settings.model)
    total = len(found.layers)
    say(f"{name_of(found)}: {total} layers")
    result = audit(found, sums=False, progress=lambda done: say(f"layer {done} of {total}"))
    if not result.heads:
        raise Skipped(f"{name_of(found)} has no heads whose scores are bilinear: {result.undefined[0]['reason']}")
    layers = sorted({row["layer"] for row in result.heads})
    heads = max(row["head"] for row in result.heads) + 1
    rows = {(row["layer"], row["head"]): row for row in result.heads}
    labels = Counter(row["label"] for row in result.heads)
    section.command = shlex.join(["attractor", "audit", found.name])
    section.text(
        f"The same mathematics on real weights: every head of {name_of(found)} is a law of motion. From its weights "
        "alone one reads whether it "
        r"pulls tokens together or apart: the signs of \(W = Q^\top K\) and of \(V^\top W\), and the growth of \(V\)."
    )
    section.card({"heads": len(result.heads), "layers": len(layers), "width": found.dim}, name_of(found))
    section.card(dict(labels.most_common(4)), "Heads by regime")

    def values(name: str) -> list[list[Any]]:
        return [
            [rows[layer, head][name] if (layer, head) in rows else None for head in range(heads)] for layer in layers
        ]

    measures = {
        "index of V'W": Measure(values("reduced_metric_index"), "diverging", WORDS["index of V'W"], limits=(-1, 1)),
        "index of W": Measure(values("reduced_interaction_index"), "diverging", WORDS["index of W"], limits=(-1, 1)),
        "growth of the value": Measure(values("value_abscissa"), "sequential", WORDS["growth of the value"]),
        "regime": Measure(values("label"), "category", WORDS["regime"]),
    }
    section.heatmap(
        measures,
        rows=layers,
        columns=range(heads),
        caption=f"Every head of {name_of(found)}, by what its weights say.",
        alt=f"A grid of {len(layers)} layers by {heads} heads, coloured by regime or by an index.",
        detail=lambda layer, head: panel(rows.get((layers[layer], head))),
    )
    words = f"{len(result.heads)} heads of {name_of(found)}: " + ", ".join(
        f"{count} {label}" for label, count in labels.most_common()
    )
    return words, {"model": found.name, "heads": len(result.heads), "labels": dict(labels)}


def panel(row: dict[str, Any] | None) -> dict[str, Any]:
    """What is known about one head."""
    if row is None:
        return {"head": "none"}
    return {
        "regime": row["label"],
        "certified by": row["certificate"] or "no theorem",
        "why": row["why"],
        "signs of W (+, −)": f"{row['interaction_positive']}, {row['interaction_negative']}",
        "index of W": row["reduced_interaction_index"],
        "signs of V'W (+, −)": f"{row['reduced_metric_positive']}, {row['reduced_metric_negative']}",
        "index of V'W": row["reduced_metric_index"],
        "growth of V": row["value_abscissa"],
        "norm of V": row["value_norm"],
    }
