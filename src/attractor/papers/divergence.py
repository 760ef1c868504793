"""Ways to keep tokens from collapsing, on the same systems: temperature, spectral normalisation of V, lambda terms in
the logits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from attractor.laws import Attention
from attractor.papers.figure import Answer, Question, Row
from attractor.plotting import Curve, Panel
from attractor.theory import Case, Rng, integrate

DIM, TOKENS, SYSTEMS, UNTIL = 4, 8, 12, 60.0
STRENGTHS = (0.0, 0.5, 1.0, 2.0, 4.0)


def shifted(law: Attention, change: Tensor) -> Attention:
    """Q'K + change, with the same values."""
    eye = torch.eye(law.dim, dtype=torch.float64)
    return replace(law, query=eye, key=law.interaction + change)


def changed(kind: str, law: Attention, strength: float) -> Attention:
    eye = torch.eye(law.dim, dtype=torch.float64)
    if kind == "temperature":
        return replace(law, scale=1.0 / (1.0 + strength))
    if kind == "spectral normalisation of V":
        size = float(torch.linalg.matrix_norm(law.value, 2))
        return replace(law, value=law.value / size ** min(1.0, strength))
    if kind == "W + lambda V":
        return shifted(law, strength * law.value)
    return shifted(law, (strength if kind == "W + lambda I" else -strength) * eye)


KINDS = ("temperature", "spectral normalisation of V", "W + lambda I", "W - lambda I", "W + lambda V")


def run(seed: int) -> Answer:
    rng = Rng.from_seed(seed)
    bases = [rng.metric_law(rng.definite(DIM, -1.0), rng.definite(DIM) + rng.skew(DIM, 0.2)) for _ in range(SYSTEMS)]
    starts = [rng.tokens(TOKENS, DIM) for _ in range(SYSTEMS)]
    rows: list[Row] = []
    curves = []
    for kind in KINDS:
        spreads = []
        for strength in STRENGTHS:
            cases = [
                Case(
                    changed(kind, law, strength),
                    start,
                    horizon=UNTIL,
                    options={"save": 10, "rtol": 1e-7, "atol": 1e-10},
                )
                for law, start in zip(bases, starts, strict=True)
            ]
            shares, apart = [], 0
            for found in integrate(cases):
                centred = found.points - found.points.mean(-2, keepdim=True)
                sizes = centred.norm(dim=-1).amax(-1)
                share = float(sizes[-1] / sizes[0])
                shares.append(share)
                apart += share > 1.0 or found.outcome.name in ("blow_up", "diverged")
            spreads.append(float(np.exp(np.mean(np.log(np.maximum(shares, 1e-12))))))
            rows.append(
                {
                    "change": kind,
                    "strength": strength,
                    "systems": SYSTEMS,
                    "spread grew in": apart,
                    "mean spread left": spreads[-1],
                }
            )
        curves.append(Curve(list(STRENGTHS), np.minimum(spreads, 1e6).tolist(), kind))
    grew = {(str(row["change"]), row["strength"]): int(row["spread grew in"] or 0) for row in rows}
    top = STRENGTHS[-1]
    sentence = (
        f"of {SYSTEMS} collapsing systems the spread of the tokens grows in {grew['W + lambda V', top]} under W + "
        f"{top:g} V (which makes A + {top:g} I), in "
        f"{grew['W - lambda I', top]} under W - {top:g} I, in {grew['W + lambda I', top]} under W + {top:g} I; "
        f"temperature ({grew['temperature', top]}) and spectral "
        f"normalisation of V ({grew['spectral normalisation of V', top]}) change speeds, not signs"
    )
    limits = (
        "Random systems of the collapse theorem (A symmetric negative, W positive), no training: "
        "what these do to a loss is another question."
    )
    return Answer(
        tuple(rows),
        sentence,
        limits,
        (Panel(tuple(curves), "strength", "mean spread at t = 60, relative to the start", log_y=True),),
    )


QUESTION = Question(
    "divergence",
    "Ways to enforce divergence",
    "Which changes of attention keep tokens from collapsing: lambda terms, temperature, spectral normalisation?",
    "pham2025dynamical",
    run,
)
