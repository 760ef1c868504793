"""Figures of training runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attractor.plotting import Curve, Panel, draw_panels
from attractor.training.run_folder import SCORES, History


def draw_runs(runs: Sequence[History], path: str | Path | None = None) -> Any:
    """Draw losses, scores and tokens along depth of runs that differ in their seeds; return the figure without a path."""
    first = runs[0]
    measure = first.measure
    losses = [Curve(*map(tuple, run.losses(60)), name=run.name if len(runs) > 1 else "") for run in runs]
    scores = [
        Curve(
            [step.step for step, _ in run.evaluations],
            [step.scores[measure] for step, _ in run.evaluations],
            dots=False,
        )
        for run in runs
    ]
    ends = (first.evaluations[0], first.evaluations[-1])
    norms = [Curve(range(len(found.norm)), found.norm, f"step {step.step}") for step, found in ends]
    cosines = [Curve(range(len(found.cosine)), found.cosine, f"step {step.step}") for step, found in ends]
    panels = [
        Panel(tuple(losses), "step", "nats", "training loss"),
        Panel(tuple(scores), "step", SCORES[measure], "validation"),
        Panel(tuple(norms), "depth (blocks)", "mean norm", "norm of tokens"),
        Panel(tuple(cosines), "depth (blocks)", "mean cosine", "cosine of tokens"),
    ]
    return draw_panels(panels, describe_run(first), _caption(runs), path)


def describe_run(run: History) -> str:
    """Return one line on the model of a run."""
    config = run.config
    kind = "A vision Transformer" if config.task == "images" else f"A language model of {config.tokens}"
    return f"{kind}: {config.layers} layers, {config.dim} dimensions, {config.attention} attention"


def _caption(runs: Sequence[History]) -> str:
    seeds = ", ".join(str(run.config.seed) for run in runs)
    return (
        f"{'Seeds' if len(runs) > 1 else 'Seed'} {seeds}; losses are means over neighbouring steps; "
        f"tokens of four validation samples before every block and after the last ({runs[0].name})."
    )
