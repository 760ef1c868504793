"""Figures of training runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attractor.plotting import Curve, Panel, draw_panels
from attractor.training.run_folder import SCORES, History


def draw_runs(runs: Sequence[History], path: str | Path | None = None) -> Any:
    """One figure for runs that differ in their seeds (.png, .pdf or .svg), or the figure itself without a path."""
    first = runs[0]
    score = first.score
    losses = [Curve(*map(tuple, run.losses(60)), name=run.name if len(runs) > 1 else "") for run in runs]
    scores = [
        Curve([row["step"] for row in run.evaluations], [row[score] for row in run.evaluations], dots=False)
        for run in runs
    ]
    ends = (first.evaluations[0], first.evaluations[-1])
    norms = [_along(row, "norm") for row in ends]
    cosines = [_along(row, "cosine") for row in ends]
    panels = [
        Panel(tuple(losses), "step", "nats", "training loss"),
        Panel(tuple(scores), "step", SCORES[score], "validation"),
        Panel(tuple(norms), "depth (blocks)", "mean norm", "norm of tokens"),
        Panel(tuple(cosines), "depth (blocks)", "mean cosine", "cosine of tokens"),
    ]
    return draw_panels(panels, title(first), caption(runs), path)


def _along(row: dict[str, Any], name: str) -> Curve:
    values = row["dynamics"][name]
    return Curve(range(len(values)), values, f"step {row['step']}")


def title(run: History) -> str:
    """What was trained."""
    config = run.config
    kind = "A vision Transformer" if config["task"] == "images" else f"A language model of {config['tokens']}"
    attention = "plain" if config["attention"] == "plain" else config["attention"]
    return f"{kind}: {config['layers']} layers, {config['dim']} dimensions, {attention} attention"


def caption(runs: Sequence[History]) -> str:
    """What is to be seen."""
    first, seeds = runs[0], ", ".join(str(run.config["seed"]) for run in runs)
    said = f"{'Seeds' if len(runs) > 1 else 'Seed'} {seeds}; losses are means over neighbouring steps"
    tokens = f"; tokens of four validation samples before every block and after the last ({first.name})"
    return f"{said}{tokens}."
