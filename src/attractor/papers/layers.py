"""Discrete layers against continuous time: the error of the model, and how much time a layer is worth."""

from __future__ import annotations

import math

import numpy as np
import torch

from attractor.laws import Attention
from attractor.papers.figure import Answer, Question, Row
from attractor.plotting import Curve, Panel
from attractor.solvers import flow
from attractor.spaces import Sphere
from attractor.states import Tokens
from attractor.theory import fit_decay_rate, max_distance

DIM, TOKENS, UNTIL = 6, 10, 8.0
STEPS = (1.0, 0.5, 0.25, 0.125, 0.0625)


def run(seed: int) -> Answer:
    eye, rows = torch.eye(DIM, dtype=torch.float64), []
    start = Tokens.uniform(TOKENS, DIM, seed=seed)
    panels = []
    for mask, flow_rate in ((None, 1.0), ("causal", 0.5)):
        law, errors = Attention(eye, eye, eye, mask=mask), []
        for step in STEPS:
            times = [step * k for k in range(round(UNTIL / step) + 1)]
            exact = flow(law, start, space=Sphere(), save=times, rtol=1e-10, stop=(), merge=False)
            layers = flow(law, start, space=Sphere(), save=times, method="layers", step=step, stop=(), merge=False)
            errors.append(float((exact.points - layers.points).norm(dim=-1).max()))
            count = round((60 if mask is None else 130) / min(step, 1.0))
            grid = [step * k for k in range(0, count + 1, max(1, count // 200))]
            far = flow(law, start, space=Sphere(), save=grid, method="layers", step=step, stop=(), merge=False)
            exponent = -fit_decay_rate(far.times, max_distance(far.points), 1e-10, 1e-5) * step
            promised = math.log((1 + step) / (1 + (0 if mask is None else step / 2)))
            row: Row = {
                "mask": mask or "full",
                "step": step,
                "largest error by t = 8": errors[-1],
                "exponent of a layer": exponent,
            }
            rows.append({**row, "predicted": promised, "time of a layer": exponent / flow_rate})
        panels.append(
            Panel(
                (
                    Curve(list(STEPS), errors),
                    Curve(list(STEPS), [errors[-1] * s / STEPS[-1] for s in STEPS], "first order", dashed=True),
                ),
                "step h",
                "largest error by t = 8",
                mask or "full",
                log_x=True,
                log_y=True,
            )
        )
    one = {str(row["mask"]): row for row in rows if row["step"] == 1.0}
    worst = float(
        np.max([abs(float(row["exponent of a layer"] or 0) / float(row["predicted"] or 1) - 1) for row in rows])
    )
    sentence = (
        f"with h = 1 tokens are up to {one['full']['largest error by t = 8']:.2g} (full) and "
        f"{one['causal']['largest error by t = 8']:.2g} (causal) from the flow; near "
        f"consensus such a layer has the exponent {one['full']['exponent of a layer']:.3f} = ln 2 or "
        f"{one['causal']['exponent of a layer']:.3f} = ln 4/3, worth "
        f"{one['full']['time of a layer']:.3f} or {one['causal']['time of a layer']:.3f} of time; predictions are "
        f"met to {worst:.1g} for all steps"
    )
    limits = "One start, V = I, Q'K = I; the exponents do not depend on these (consensus.T2-layer-rate, T3-layer-rate), the errors do."
    return Answer(tuple(rows), sentence, limits, tuple(panels))


QUESTION = Question(
    "layers",
    "Layers and time",
    "How far are discrete layers from continuous time, and how much time is a layer worth?",
    "abella2024asymptotic",
    run,
)
