"""``predict``: which theorems apply to a law, a state and a space, by what margin, and the fate they predict."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np

from attractor.attention import Law
from attractor.errors import InputError
from attractor.spaces import Euclidean, Space, space_named
from attractor.states import Gaussian, Tokens
from attractor.theory.conditions import Condition, Verdict, decided
from attractor.theory.fates import FATES, exclusive
from attractor.theory.library import theorem as theorem_named
from attractor.theory.library import theorems
from attractor.theory.theorem import Case, Theorem


@dataclass(frozen=True, repr=False)
class Finding:
    """One theorem, asked about one case."""

    theorem: Theorem
    conditions: tuple[Condition, ...]
    verdict: Verdict
    fate: str | None

    @property
    def missing(self) -> tuple[Condition, ...]:
        """What does not hold, or cannot be decided."""
        return tuple(condition for condition in self.conditions if condition.verdict is not Verdict.HOLDS)

    @property
    def margin(self) -> float:
        """The smallest margin of a strict inequality."""
        return min((c.margin.value for c in self.conditions if c.margin.high > 0), default=1.0)

    @property
    def distance(self) -> tuple[int, float]:
        """How far the theorem is from applying: hypotheses that are not known to hold, then how clearly they fail."""
        unseen = len(self.theorem.hypotheses) - len(self.conditions)
        return len(self.missing) + unseen, sum(max(0.0, -condition.margin.value) for condition in self.missing)

    def __repr__(self) -> str:
        lacking = ", ".join(condition.name for condition in self.missing)
        fate = f", {self.fate}" if self.fate not in (None, "identity") else ""
        return f"Finding({self.theorem.key}: {self.verdict.value}{fate}{'; missing: ' + lacking if lacking else ''})"

    def row(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "theorem": self.theorem.key,
            "title": self.theorem.title,
            "status": self.theorem.status.value,
            "verdict": self.verdict.value,
            "fate": self.fate,
            "rate": self.theorem.rate,
            "conditions": [condition.row() for condition in self.conditions],
            "not_examined": [h.name for h in self.theorem.hypotheses[len(self.conditions) :]],
        }


@dataclass(frozen=True, repr=False)
class Prediction:
    """What the theorems say about a case."""

    findings: tuple[Finding, ...]

    @property
    def applicable(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.verdict is Verdict.HOLDS)

    @property
    def undetermined(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.verdict is Verdict.UNDETERMINED)

    @property
    def fates(self) -> dict[str, list[str]]:
        """Predicted fates and the theorems behind each."""
        found: dict[str, list[str]] = {}
        for finding in self.applicable:
            if finding.fate is not None and finding.fate != "identity":
                found.setdefault(finding.fate, []).append(finding.theorem.key)
        return found

    @property
    def contradictions(self) -> tuple[tuple[Finding, Finding], ...]:
        """Pairs of applicable statements whose fates exclude each other: one of them, or its check of hypotheses, is wrong."""
        pairs = combinations([finding for finding in self.applicable if finding.fate is not None], 2)
        return tuple((one, other) for one, other in pairs if exclusive(str(one.fate), str(other.fate)))

    @property
    def nearest(self) -> Finding | None:
        """The theorem that comes closest to applying without doing so; those that predict a fate come first."""
        others = [finding for finding in self.findings if finding.verdict is not Verdict.HOLDS]
        return min(others, key=lambda finding: (finding.theorem.fate == "identity", *finding.distance), default=None)

    def __repr__(self) -> str:
        """Fates with the theorems behind them, what else applies, what cannot be decided, and what the nearest one misses."""
        said = {key for keys in self.fates.values() for key in keys}
        lines = [f"{fate} ({FATES[fate]}): {', '.join(keys)}" for fate, keys in self.fates.items()]
        lines = lines or ["no theorem predicts a fate"]
        also = [finding.theorem.key for finding in self.applicable if finding.theorem.key not in said]
        lines += [f"also apply: {', '.join(also)}"] if also else []
        lines += [f"undetermined: {', '.join(f.theorem.key for f in self.undetermined)}"] if self.undetermined else []
        lines += [f"CONTRADICTION: {a.theorem.key} and {b.theorem.key}" for a, b in self.contradictions]
        if self.nearest is not None:
            lacking = (
                ", ".join(condition.name for condition in self.nearest.missing) or "nothing that could be examined"
            )
            lines.append(f"nearest that does not apply: {self.nearest.theorem.key}, for want of: {lacking}")
        return "Prediction\n" + "\n".join("  " + line for line in lines)

    def row(self) -> dict[str, Any]:
        """Ready for JSON."""
        nearest = self.nearest
        return {
            "fates": {fate: {"means": FATES[fate], "theorems": keys} for fate, keys in self.fates.items()},
            "applicable": [finding.row() for finding in self.applicable],
            "undetermined": [finding.row() for finding in self.undetermined],
            "contradictions": [[one.theorem.key, other.theorem.key] for one, other in self.contradictions],
            "nearest": None if nearest is None else {**nearest.row(), "missing": [c.name for c in nearest.missing]},
        }


def predict(
    law: Law,
    state: Tokens | Gaussian | None = None,
    space: Space | str | None = None,
    *,
    step: float | None = None,
    paper: str | None = None,
) -> Prediction:
    """Ask every theorem about a law, a state and a space.

    Parameters
    ----------
    law, state, space : as in ``flow``; without a state only statements about laws can answer.
    step : the size of discrete layers; None for continuous time.
    paper : ask the theorems of one source only: "regimes", "consensus", "meanfield".
    """
    if not isinstance(law, Law):
        raise InputError(f"predict needs a law such as Attention(...), got {type(law).__name__}")
    if state is not None and not isinstance(state, (Tokens, Gaussian)):
        raise InputError(f"predict asks about Tokens(...) or a Gaussian(...), got {type(state).__name__}")
    place = Euclidean() if space is None else space_named(space) if isinstance(space, str) else space
    if not isinstance(place, Space):
        raise InputError(f"space must be Sphere(), an Ellipsoid(...) or a name, got {type(place).__name__}")
    if isinstance(state, Tokens):
        law.check(state)
        place.check_dimension(state.dim)
        state = state.moved(place.enter(state.points))  # as a flow would
    elif isinstance(state, Gaussian) and getattr(law, "dim", state.dim) != state.dim:
        raise InputError(f"the law moves points of {law.dim} coordinates, the Gaussian has {state.dim}")  # type: ignore[attr-defined]
    if paper is not None and not theorems(paper):
        papers = sorted({theorem.key.split(".")[0] for theorem in theorems()})
        raise InputError(f"paper {paper!r} is not known; give {', '.join(papers)}")
    if step is not None and not (math.isfinite(step) and step > 0):
        raise InputError(f"step must be positive, got {step}")
    case = Case(law, state, place, options={} if step is None else {"method": "layers", "step": float(step)})
    return Prediction(tuple(ask(theorem, case) for theorem in theorems(paper)))


def ask(theorem: Theorem, case: Case) -> Finding:
    """One theorem about one case."""
    elsewhere = _other_time(theorem, case)
    if elsewhere is not None:
        return Finding(theorem, (elsewhere,), Verdict.FAILS, None)
    conditions = theorem.examine(case)
    verdict = theorem.verdict(conditions)
    return Finding(theorem, conditions, verdict, theorem.predicted(case) if verdict is Verdict.HOLDS else None)


def _other_time(theorem: Theorem, case: Case) -> Condition | None:
    """What is wrong where a statement about flows is asked about discrete layers, or the other way round."""
    asked, layered = case.options.get("method") == "layers", _layered(theorem.key)
    if layered == asked or theorem.timeless:
        return None
    if asked:
        return Condition("continuous time", r"\dot x", decided(False, "asked about discrete layers"), True)
    return Condition("discrete layers", r"x + h\,\dot x", decided(False, "asked about continuous time"), True)


@cache
def _layered(key: str) -> bool:
    """Whether a theorem is about discrete layers: its instances are."""
    return theorem_named(key).sample(np.random.default_rng(0)).options.get("method") == "layers"
