"""Changes of attention that keep tokens from collapsing: temperature, spectral normalisation of V, shifts of the logits."""

from __future__ import annotations

from dataclasses import replace
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
from attractor.theory import Case, Rng, integrate

CHANGES = ("temperature", "spectral normalisation of V", "W + lambda I", "W - lambda I", "W + lambda V")


def change_law(kind: str, law: Attention, strength: float) -> Attention:
    """Return the law with one of ``CHANGES``."""
    eye = torch.eye(law.dim, dtype=torch.float64)
    if kind == "temperature":
        return replace(law, scale=1.0 / (1.0 + strength))
    if kind == "spectral normalisation of V":
        size = float(torch.linalg.matrix_norm(law.value, 2))
        return replace(law, value=law.value / size ** min(1.0, strength))
    shift = strength * {"W + lambda V": law.value, "W + lambda I": eye, "W - lambda I": -eye}[kind]
    return replace(law, query=eye, key=law.interaction + shift)


def compute(settings: Settings, progress: Update) -> Data:
    """Integrate random systems of the collapse theorem under every change and strength."""
    systems, until, strengths = settings["systems"], settings["until"], settings["strengths"]
    dim, tokens = settings["dim"], settings["tokens"]
    rng = Rng.from_seed(settings["seed"])
    laws = [rng.metric_law(rng.definite(dim, -1.0), rng.definite(dim) + rng.skew(dim, 0.2)) for _ in range(systems)]
    starts = [rng.tokens(tokens, dim) for _ in range(systems)]
    options = {"save": 10, "rtol": 1e-7, "atol": 1e-10}
    rows: list[Data] = []
    for kind in CHANGES:
        for strength in strengths:
            progress(len(rows), len(CHANGES) * len(strengths))
            cases = [
                Case(change_law(kind, law, strength), start, horizon=until, options=options)
                for law, start in zip(laws, starts, strict=True)
            ]
            ratios, apart = [], 0
            for found in integrate(cases):
                centred = found.points - found.points.mean(-2, keepdim=True)
                sizes = centred.norm(dim=-1).amax(-1)
                ratio = float(sizes[-1] / sizes[0])
                ratios.append(ratio)
                apart += ratio > 1.0 or found.outcome.name in ("blow_up", "diverged")
            mean = float(np.exp(np.mean(np.log(np.maximum(ratios, 1e-12)))))
            row = {"change": kind, "strength": strength, "systems": systems}
            rows.append({**row, "spread grew in": apart, "mean spread left": mean})
    top = strengths[-1]
    grew = {row["change"]: row["spread grew in"] for row in rows if row["strength"] == top}
    answer = (
        f"of {systems} collapsing systems the spread of the tokens grows in {grew['W + lambda V']} under W + "
        f"{top:g} V (which makes A + {top:g} I), in "
        f"{grew['W - lambda I']} under W - {top:g} I, in {grew['W + lambda I']} under W + {top:g} I; "
        f"temperature ({grew['temperature']}) and spectral "
        f"normalisation of V ({grew['spectral normalisation of V']}) change speeds, not signs"
    )
    limits = (
        "Random systems of the collapse theorem (A symmetric negative, W positive), no training: "
        "what these do to a loss is another question."
    )
    return {"answer": answer, "limits": limits, "rows": rows}


def draw(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw the mean spread that is left against the strength of each change."""
    curves = []
    for kind in CHANGES:
        rows = [row for row in data["rows"] if row["change"] == kind]
        left = [min(row["mean spread left"], 1e6) for row in rows]
        curves.append(Curve([row["strength"] for row in rows], left, kind))
    until = data["settings"]["until"]
    label = f"mean spread at t = {until:g}, relative to the start"
    return draw_answer(data, (Panel(tuple(curves), "strength", label, log_y=True),), path)


FIGURE = Figure(
    key="divergence",
    title="Ways to enforce divergence",
    question="Which changes of attention keep tokens from collapsing: lambda terms, temperature, spectral normalisation?",
    source="pham2025dynamical",
    parameters=(
        SEED,
        Parameter("systems", 12, "random systems", minimum=1),
        Parameter("strengths", (0.0, 0.5, 1.0, 2.0, 4.0), "strengths lambda of each change"),
        Parameter("until", 60.0, "final time"),
        Parameter("tokens", 8, "tokens of each system", minimum=2),
        Parameter("dim", 4, "dimension", minimum=1),
    ),
    cost=5.0,
    compute=compute,
    draw=draw,
    summarise=summarise_answer,
    verdict=judge_answer,
    small={"systems": 2, "strengths": (0.0, 4.0), "until": 5.0},
)
