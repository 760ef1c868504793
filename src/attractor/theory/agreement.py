"""Predictions against what happens: random systems of many kinds, asked and followed.

For every theorem that applies, the predicted fate is held against the outcome of the run, and every conclusion that is true at all times
is measured on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from attractor.attention import Attention, Rotary
from attractor.flow import Trajectory
from attractor.spaces import Sphere
from attractor.states import Tokens
from attractor.theory.conditions import Verdict
from attractor.theory.ensembles import integrate
from attractor.theory.fates import contradiction
from attractor.theory.library import theorems
from attractor.theory.prediction import Prediction, ask
from attractor.theory.sampling import Draw, cloud, definite, indefinite, metric_law, shared_metric_law, sizes, skew
from attractor.theory.theorem import Case
from attractor.theory.trends import RUNAWAY

HORIZON = 8.0


@dataclass(frozen=True)
class Dispute:
    """A prediction of a proved theorem that a run contradicts, or one theorem against another."""

    system: int
    kind: str
    theorem: str
    reason: str


@dataclass(frozen=True)
class Agreement:
    """How predictions and runs compare: systems for which some proved theorem applied, predictions in all, and what went wrong."""

    systems: int
    covered: int
    predictions: int
    kinds: dict[str, int]
    disputes: tuple[Dispute, ...]

    def row(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def random_system(draw: Draw) -> tuple[str, Case]:
    """A system of a random kind: what is certain about it is left to the theorems."""
    n, d = sizes(draw, ((3, 4), (5, 4)))
    state, options = cloud(draw, n, d), dict(RUNAWAY)
    kind = ("generic", "metric", "lopsided", "shared", "causal", "rotary", "sphere", "biased")[int(draw.integers(8))]
    sign = 1.0 if draw.random() < 0.5 else -1.0
    metric = indefinite(draw, d) if draw.random() < 0.3 else definite(draw, d, 1.0 if draw.random() < 0.5 else -1.0)
    law = metric_law(draw, metric, sign * definite(draw, d) + skew(draw, d, 0.3))
    if kind == "generic":
        law = Attention.random(d, 2, seed=int(draw.integers(1 << 31)))
    elif kind == "lopsided":
        law = metric_law(draw, metric + skew(draw, d, 0.7), sign * definite(draw, d) + skew(draw, d, 0.7))
    elif kind == "shared":
        law = shared_metric_law(draw, metric, 2, sign)
    elif kind == "causal":
        law = replace(law, mask="causal")
    elif kind == "rotary":
        law = replace(law, positions=Rotary(10.0), mask="causal" if draw.random() < 0.5 else None)
    elif kind == "biased":
        law = replace(law, query_bias=torch.from_numpy(draw.standard_normal(d)))
    elif kind == "sphere":
        law = Attention.isotropic(d, float(draw.uniform(-2.0, 4.0)), mask="causal" if draw.random() < 0.5 else None)
        tokens = Tokens.hemisphere if draw.random() < 0.5 else Tokens.uniform
        state, options = tokens(n, d, seed=int(draw.integers(1 << 31))), {}
        return kind, Case(law, state, Sphere(), HORIZON, {"stop": ("consensus", "steady")})
    return kind, Case(law, state, horizon=HORIZON, options={**options, "stop": ("collapsed", "steady")})


def agreement(
    systems: int = 200, seed: int = 0, progress: Callable[[int, int], object] = lambda done, total: None
) -> Agreement:
    """Ask all theorems about random systems, follow the systems, and compare; ``progress(done, systems)`` is told of each."""
    drawn = [random_system(np.random.default_rng([seed, index])) for index in range(systems)]
    runs = integrate([case for _, case in drawn])
    disputes: list[Dispute] = []
    kinds: dict[str, int] = {}
    covered = predictions = 0
    for index, ((kind, case), run) in enumerate(zip(drawn, runs, strict=True)):
        progress(index, systems)
        kinds[kind] = kinds.get(kind, 0) + 1
        found = Prediction(tuple(ask(theorem, case) for theorem in theorems()))
        proved = [item for item in found.applicable if item.theorem.status.proved]
        covered, predictions = covered + bool(proved), predictions + len(proved)
        reasons = [
            (f"{one.theorem.key} and {other.theorem.key}", "they exclude each other")
            for one, other in found.contradictions
            if one in proved and other in proved
        ]
        reasons += [
            (item.theorem.key, reason) for item in proved for reason in _contradicted(item.theorem.key, case, run)
        ]
        disputes += [Dispute(index, kind, key, reason) for key, reason in reasons]
    return Agreement(systems, covered, predictions, kinds, tuple(disputes))


def _contradicted(key: str, case: Case, run: Trajectory) -> Sequence[str]:
    """Why a run contradicts a theorem that applies to it."""
    theorem = next(item for item in theorems() if item.key == key)
    assert theorem.verdict(theorem.examine(case)) is Verdict.HOLDS
    evidence = run if theorem.gather is integrate else theorem.gather([case])[0]
    broken = [item for item in theorem.conclude(case, evidence) if not item.asymptotic and not item.holds]
    reasons = [f"{item.name}: margin {item.margin:.3g}" for item in broken]
    against = contradiction(theorem.predicted(case), run)
    return [*reasons, *([] if against is None else [against])]
