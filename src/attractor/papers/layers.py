"""Discrete layers against continuous time: the error of the flow, and the time that one layer is worth."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

from attractor.laws import Attention
from attractor.papers.figure import (
    SEED,
    Data,
    Figure,
    Parameter,
    Settings,
    Update,
    draw_answer,
    judge_answer,
    summarise_answer,
)
from attractor.plotting import Curve, Panel
from attractor.solvers import flow
from attractor.spaces import Sphere
from attractor.states import Tokens
from attractor.theory import fit_decay_rate, max_distance

UNTIL = 8.0
ERROR = f"largest error by t = {UNTIL:g}"


def compute(settings: Settings, progress: Update) -> Data:
    """Compare layers of every step size with the flow on the sphere, with Q'K = V = I."""
    dim, steps = settings["dim"], settings["steps"]
    eye, rows = torch.eye(dim, dtype=torch.float64), []
    start = Tokens.uniform(settings["tokens"], dim, seed=settings["seed"])
    for mask, flow_rate in ((None, 1.0), ("causal", 0.5)):
        law = Attention(eye, eye, eye, mask=mask)
        for step in steps:
            progress(len(rows), 2 * len(steps))
            times = [step * k for k in range(round(UNTIL / step) + 1)]
            exact = flow(law, start, space=Sphere(), save=times, rtol=1e-10, stop=(), merge=False)
            layers = flow(law, start, space=Sphere(), save=times, method="layers", step=step, stop=(), merge=False)
            error = float((exact.points - layers.points).norm(dim=-1).max())
            count = round((60 if mask is None else 130) / min(step, 1.0))
            grid = [step * k for k in range(0, count + 1, max(1, count // 200))]
            far = flow(law, start, space=Sphere(), save=grid, method="layers", step=step, stop=(), merge=False)
            exponent = -fit_decay_rate(far.times, max_distance(far.points), 1e-10, 1e-5) * step
            predicted = math.log((1 + step) / (1 + (0 if mask is None else step / 2)))
            row = {"mask": mask or "full", "step": step, ERROR: error, "exponent of a layer": exponent}
            rows.append({**row, "predicted": predicted, "time of a layer": exponent / flow_rate})
    first = {row["mask"]: row for row in rows if row["step"] == steps[0]}
    full, causal = first["full"], first["causal"]
    worst = float(np.max([abs(row["exponent of a layer"] / row["predicted"] - 1) for row in rows]))
    unit = steps[0] == 1.0
    answer = (
        f"with h = {steps[0]:g} tokens are up to {full[ERROR]:.2g} (full) and {causal[ERROR]:.2g} (causal) from the flow; near "
        f"consensus such a layer has the exponent {full['exponent of a layer']:.3f}{' = ln 2' if unit else ''} or "
        f"{causal['exponent of a layer']:.3f}{' = ln 4/3' if unit else ''}, worth "
        f"{full['time of a layer']:.3f} or {causal['time of a layer']:.3f} of time; predictions are "
        f"met to {worst:.1g} for all steps"
    )
    limits = "One start, V = I, Q'K = I; the exponents do not depend on these (consensus.T2-layer-rate, T3-layer-rate), the errors do."
    return {"answer": answer, "limits": limits, "rows": rows}


def draw(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw the errors against the step, beside first order."""
    panels = []
    for mask in ("full", "causal"):
        rows = [row for row in data["rows"] if row["mask"] == mask]
        steps, errors = [row["step"] for row in rows], [row[ERROR] for row in rows]
        first_order = [errors[-1] * step / steps[-1] for step in steps]
        curves = (Curve(steps, errors), Curve(steps, first_order, "first order", dashed=True))
        panels.append(Panel(curves, "step h", ERROR, mask, log_x=True, log_y=True))
    return draw_answer(data, tuple(panels), path)


FIGURE = Figure(
    key="layers",
    title="Layers and time",
    question="How far are discrete layers from continuous time, and how much time is a layer worth?",
    source="abella2024asymptotic",
    parameters=(
        SEED,
        Parameter("steps", (1.0, 0.5, 0.25, 0.125, 0.0625), "step sizes of the layers, the largest first"),
        Parameter("tokens", 10, "tokens", minimum=2),
        Parameter("dim", 6, "dimension", minimum=2),
    ),
    cost=6.0,
    compute=compute,
    draw=draw,
    summarise=summarise_answer,
    verdict=judge_answer,
    small={"steps": (1.0, 0.5)},
)
