"""Mixed definiteness: what happens between collapse (A negative) and divergence (A positive)?"""

from __future__ import annotations

import numpy as np

from attractor.papers.figure import Answer, Question, Row
from attractor.plotting import Curve, Panel
from attractor.theory import Case, Rng, integrate

DIM, TOKENS, SYSTEMS, UNTIL = 6, 8, 16, 30.0
FAR = 100.0


def run(seed: int) -> Answer:
    rows: list[Row] = []
    medians = []
    for positive in range(DIM + 1):
        rng = Rng.from_seed([seed, positive])
        cases = []
        for _ in range(SYSTEMS):
            metric = rng.definite(DIM, -1.0) if positive == 0 else rng.indefinite(DIM, positive)
            law = rng.metric_law(metric, rng.definite(DIM) + rng.skew(DIM, 0.3))
            cases.append(
                Case(law, rng.tokens(TOKENS, DIM), horizon=UNTIL, options={"save": 60, "rtol": 1e-7, "atol": 1e-9})
            )
        ratios, early, away = [], 0, 0
        for case, found in zip(cases, integrate(cases), strict=True):
            norms = found.points.norm(dim=-1).amax(-1)
            ratios.append(float(norms[-1] / norms[0]))
            form = case.matrices.metric
            energy = float(((case.tokens.points @ form) * case.tokens.points).sum())
            far = bool((norms > FAR * norms[0]).any()) or found.outcome.name in ("blow_up", "diverged")
            away += far
            early += far and energy < 0
        medians.append(float(np.median(ratios)))
        rows.append(
            {
                "positive eigenvalues of A": positive,
                "systems": SYSTEMS,
                f"beyond {FAR:g} times the start": away,
                "of these with U_A(0) < 0": early,
                "median growth": medians[-1],
            }
        )
    first = [int(row[f"beyond {FAR:g} times the start"] or 0) for row in rows]
    sentence = (
        f"with W positive, one positive eigenvalue of A out of {DIM} is enough: {first[1]} of {SYSTEMS} systems had "
        f"left {FAR:g} times their start by t = {UNTIL:g}, "
        f"against {first[0]} without any; {sum(int(row['of these with U_A(0) < 0'] or 0) for row in rows)} of the "
        f"runs that left began with U_A < 0, where no theorem speaks"
    )
    panel = Panel(
        (Curve(list(range(DIM + 1)), first, "systems that left", dots=True),),
        "positive eigenvalues of A",
        f"of {SYSTEMS} systems",
    )
    growth = Panel(
        (Curve(list(range(DIM + 1)), medians, dots=True),),
        "positive eigenvalues of A",
        "median growth of norms",
        log_y=True,
    )
    limits = "Random symmetric A and W with a positive symmetric part, Gaussian starts, full attention without normalisation."
    return Answer(tuple(rows), sentence, limits, (panel, growth))


QUESTION = Question(
    "mixed",
    "Mixed definiteness",
    "What do tokens do where A is neither positive nor negative definite?",
    "pham2025dynamical",
    run,
)
