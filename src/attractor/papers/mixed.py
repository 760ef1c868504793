"""Mixed definiteness: between collapse (A negative) and divergence (A positive)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

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

FAR = 100.0
POSITIVE, AWAY, EARLY = "positive eigenvalues of A", f"beyond {FAR:g} times the start", "of these with U_A(0) < 0"


def compute(settings: Settings, progress: Update) -> Data:
    """Integrate random systems whose A has 0, 1, ..., d positive eigenvalues."""
    dim, systems, until = settings["dim"], settings["systems"], settings["until"]
    options = {"save": 60, "rtol": 1e-7, "atol": 1e-9}
    rows: list[Data] = []
    for positive in range(dim + 1):
        progress(positive, dim + 1)
        rng = Rng.from_seed([settings["seed"], positive])
        cases = []
        for _ in range(systems):
            metric = rng.definite(dim, -1.0) if positive == 0 else rng.indefinite(dim, positive)
            law = rng.metric_law(metric, rng.definite(dim) + rng.skew(dim, 0.3))
            cases.append(Case(law, rng.tokens(settings["tokens"], dim), horizon=until, options=options))
        ratios, early, away = [], 0, 0
        for case, found in zip(cases, integrate(cases), strict=True):
            norms = found.points.norm(dim=-1).amax(-1)
            ratios.append(float(norms[-1] / norms[0]))
            form = case.matrices.metric
            energy = float(((case.tokens.points @ form) * case.tokens.points).sum())
            far = bool((norms > FAR * norms[0]).any()) or found.outcome.name in ("blow_up", "diverged")
            away += far
            early += far and energy < 0
        row = {POSITIVE: positive, "systems": systems, AWAY: away, EARLY: early}
        rows.append({**row, "median growth": float(np.median(ratios))})
    answer = (
        f"with W positive, one positive eigenvalue of A out of {dim} is enough: {rows[1][AWAY]} of {systems} systems had "
        f"left {FAR:g} times their start by t = {until:g}, "
        f"against {rows[0][AWAY]} without any; {sum(row[EARLY] for row in rows)} of the "
        f"runs that left began with U_A < 0, where no theorem speaks"
    )
    limits = "Random symmetric A and W with a positive symmetric part, Gaussian starts, full attention without normalisation."
    return {"answer": answer, "limits": limits, "rows": rows}


def draw(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw how many systems diverge, and their growth, against the number of positive eigenvalues."""
    rows, label = data["rows"], f"of {data['settings']['systems']} systems"
    x = [row[POSITIVE] for row in rows]
    away = Curve(x, [row[AWAY] for row in rows], "systems that left", dots=True)
    growth = Curve(x, [row["median growth"] for row in rows], dots=True)
    panels = (Panel((away,), POSITIVE, label), Panel((growth,), POSITIVE, "median growth of norms", log_y=True))
    return draw_answer(data, panels, path)


FIGURE = Figure(
    key="mixed",
    title="Mixed definiteness",
    question="What do tokens do where A is neither positive nor negative definite?",
    source="pham2025dynamical",
    parameters=(
        SEED,
        Parameter("systems", 16, "random systems for each number of positive eigenvalues", minimum=1),
        Parameter("until", 30.0, "final time"),
        Parameter("tokens", 8, "tokens of each system", minimum=2),
        Parameter("dim", 6, "dimension", minimum=1),
    ),
    cost=6.0,
    compute=compute,
    draw=draw,
    summarise=summarise_answer,
    verdict=judge_answer,
    small={"dim": 3, "systems": 3, "tokens": 4},
)
