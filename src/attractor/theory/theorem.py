"""Theorem interface, ensembles of cases, and the list of all theorems."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.errors import InputError, UnsupportedError
from attractor.laws import Attention, Law
from attractor.registry import find
from attractor.solvers import Trajectory, flow
from attractor.spaces import Euclidean, Space
from attractor.states import Gaussian, Tokens
from attractor.theory.conditions import FATES, Condition, Hypothesis, Matrices, Verdict, examine, matrices, together

TOLERANCES = {"rtol": 1e-10, "atol": 1e-13}
SAVED = 100
EVALUATIONS = 30_000  # for each member: more than any instance of a theorem needs, an end for those that violate one
RANKS = {"query": 3, "key": 3, "value": 3, "output": 3, "query_bias": 2, "key_bias": 2, "value_bias": 2}


def integrate(cases: Sequence[Case]) -> list[Trajectory]:
    """The trajectory of every case, at tolerances that leave a conclusion nothing to blame on the integrator."""
    runs: list[Trajectory | None] = [None] * len(cases)
    groups: dict[Any, list[int]] = {}
    for index, case in enumerate(cases):
        groups.setdefault(_shape(case) or index, []).append(index)
    for members in groups.values():
        group = [cases[index] for index in members]
        if len(group) == 1:
            runs[members[0]] = _flow(group[0].law, group[0].state, group[0])
            continue
        points = torch.stack([case.tokens.points for case in group])
        run = _flow(stacked([case.attention for case in group]), Tokens(points), group[0])
        for place, index in enumerate(members):
            runs[index] = run.member(place)
    return [run for run in runs if run is not None]


def _flow(law: Any, state: Any, case: Case) -> Trajectory:
    members = 1 if not isinstance(state, Tokens) else state.batch_shape.numel()
    budget = {"max_evaluations": EVALUATIONS * members}
    options = {"save": SAVED, "merge": False, **TOLERANCES, **budget, **case.options}
    return flow(law, state, space=case.space, until=case.horizon, stop=options.pop("stop", ()), **options)


def _shape(case: Case) -> Any:
    """What two cases must share to run together, or None for a case that runs alone."""
    law, state = case.law, case.state
    if not isinstance(law, Attention) or not isinstance(state, Tokens) or state.batch_shape:
        return None
    if law.query.ndim > 3 or law.output_bias is not None or state.masses is not None or state.positions is not None:
        return None
    shapes = tuple(None if (part := getattr(law, name)) is None else tuple(part.shape) for name in RANKS)
    # parts that hold tensors (a boolean mask, a table of positions, an ellipsoid) are equal only to themselves
    form = (law.kernel, law.mask, law.positions, law.scale, shapes, case.space)
    return (*form, tuple(state.points.shape), case.horizon, repr(sorted(case.options.items())))


def stacked(laws: list[Attention]) -> Attention:
    """One law whose leading axis holds the parameters of each."""
    parts: dict[str, Tensor] = {}
    for name, rank in RANKS.items():
        rows = [getattr(law, name) for law in laws]
        if rows[0] is not None:
            parts[name] = torch.stack([row if row.ndim == rank else row.unsqueeze(0) for row in rows])
    return dataclasses.replace(laws[0], **parts)


class Status(StrEnum):
    """Where the truth of a statement comes from."""

    PAPER = "proved in the paper"
    HERE = "proved here"
    CHECKED = "checked"
    CONJECTURE = "conjecture"

    @property
    def proved(self) -> bool:
        return self in (Status.PAPER, Status.HERE)


@dataclass(frozen=True)
class Citation:
    """``key`` in references.bib, the place there, and how its symbols read in ours."""

    key: str
    place: str = ""
    symbols: str = ""


@dataclass(frozen=True, eq=False)
class Case:
    """A law, a state and a space, with the time to look at: what a theorem speaks about.

    ``options`` go to ``flow`` (save, method, rtol, step...); ``facts`` are whatever a sampler wants its conclusion to know.
    Statements about a law alone need no state.
    """

    law: Law
    state: Tokens | Gaussian | None = None
    space: Space = field(default_factory=Euclidean)
    horizon: float = 10.0
    options: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def matrices(self) -> Matrices:
        """The matrices of an attention law, as the theorems name them."""
        return matrices(self.attention)

    @property
    def attention(self) -> Attention:
        if not isinstance(self.law, Attention):
            raise UnsupportedError(f"this statement is about Attention(...), not about {type(self.law).__name__}")
        return self.law

    @property
    def entered(self) -> Tokens:
        """The tokens as they enter the flow: with positions that are added once."""
        return self.law.enter(self.tokens)

    @property
    def tokens(self) -> Tokens:
        if not isinstance(self.state, Tokens):
            raise UnsupportedError(f"this statement is about Tokens(...), got {type(self.state).__name__}")
        return self.state


@dataclass(frozen=True)
class Measurement:
    """One conclusion as measured: true if ``slack`` is not below -``tolerance``.

    An ``asymptotic`` one speaks of the limit, so it counts only at horizons chosen for it; the others hold at every time.
    """

    name: str
    slack: float
    tolerance: float = 0.0
    asymptotic: bool = False

    @property
    def margin(self) -> float:
        """Signed: negative where the conclusion is violated; NaN counts as violated."""
        return self.slack + self.tolerance

    @property
    def holds(self) -> bool:
        return self.margin >= 0


Sampler = Callable[[np.random.Generator], Case]


def negated(case: Case) -> Case:
    """The same problem with every velocity reversed, for tests that a check can fail."""
    law = case.attention
    changed = {"value": -law.value}
    for name in ("value_bias", "output_bias"):
        bias = getattr(law, name)
        changed |= {} if bias is None else {name: -bias}
    return replace(case, law=replace(law, **changed))


@dataclass(frozen=True, eq=False, repr=False)
class Theorem:
    """A statement that can be asked about a case, and checked on random ones.

    Parameters
    ----------
    key, title : such as "regimes.T1" and "Collapse".
    statement, rate : LaTeX, in our symbols; ``citation`` translates them to the source's.
    hypotheses : named conditions; they are looked at in order.
    fate : a name in FATES, or a function of the case.
    conclude : (case, evidence) -> measurements; the evidence is what ``gather`` returned for the case.
    sample : a random case that satisfies the hypotheses (draws that do not are thrown away).
    violate : for some hypotheses, a sampler of cases that fail this one alone.
    gather : cases -> evidence for each; by default their trajectories, integrated in ensembles.
    timeless : whether it speaks of weights or of one moment, so of layers as well as of flows.
    broken : a change of the case after which the conclusion, measured with the law as it was, must fail.
    """

    key: str
    title: str
    statement: str
    citation: Citation
    status: Status
    hypotheses: tuple[Hypothesis, ...]
    fate: str | Callable[[Case], str]
    conclude: Callable[[Case, Any], tuple[Measurement, ...]]
    sample: Sampler
    violate: Mapping[str, Sampler] = field(default_factory=dict)
    gather: Callable[[Sequence[Case]], Sequence[Any]] = integrate
    broken: Callable[[Case], Case] = negated
    rate: str = ""
    proof: str = ""
    timeless: bool = False

    def __post_init__(self) -> None:
        names = [hypothesis.name for hypothesis in self.hypotheses]
        if len(set(names)) < len(names) or not set(self.violate) <= set(names):
            raise InputError(f"theorem {self.key}: hypotheses are {names}, violated are {list(self.violate)}")
        if isinstance(self.fate, str) and self.fate not in FATES:
            raise InputError(f"theorem {self.key}: the fate {self.fate!r} is not one of {', '.join(FATES)}")

    def __repr__(self) -> str:
        return f"Theorem({self.key!r}: {self.title}, {self.status.value})"

    def examine(self, case: Case) -> tuple[Condition, ...]:
        """The hypotheses that can be looked at, each with its margin."""
        return examine(self.hypotheses, case)

    def verdict(self, conditions: tuple[Condition, ...]) -> Verdict:
        """Whether the theorem applies."""
        return together(conditions, len(self.hypotheses))

    def predicted(self, case: Case) -> str:
        """The fate of a case to which the theorem applies."""
        return self.fate if isinstance(self.fate, str) else self.fate(case)


def each(function: Callable[[Case], Any]) -> Callable[[Sequence[Case]], list[Any]]:
    """Evidence of one case at a time, for ``gather``."""
    return lambda cases: [function(case) for case in cases]


# imported here, before the package gives the name ``theorems`` to the function below
SHELF = importlib.import_module("attractor.theory.theorems")


@cache
def _shelved() -> dict[str, Theorem]:
    found: dict[str, Theorem] = {}
    for module in pkgutil.walk_packages(SHELF.__path__, SHELF.__name__ + "."):
        theorem = getattr(importlib.import_module(module.name), "THEOREM", None)
        if isinstance(theorem, Theorem):
            if theorem.key in found:
                raise InputError(f"two theorems are called {theorem.key!r}: give one of them another key")
            found[theorem.key] = theorem
    return dict(sorted(found.items(), key=lambda item: _natural(item[0])))


def _natural(key: str) -> list[int | str]:
    """T10 after T9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", key)]


def list_theorems(paper: str | None = None) -> tuple[Theorem, ...]:
    """All theorems in order of their keys, or those of one paper ("regimes", "consensus", "meanfield")."""
    return tuple(theorem for theorem in _shelved().values() if paper in (None, theorem.key.split(".")[0]))


def find_theorem(key: str) -> Theorem:
    """The theorem of that key."""
    return find(key, _shelved(), "theorem")


def summary(theorem: Theorem) -> dict[str, Any]:
    """One theorem, ready for JSON."""
    return {
        "key": theorem.key,
        "title": theorem.title,
        "status": theorem.status.value,
        "statement": theorem.statement,
        "fate": theorem.fate if isinstance(theorem.fate, str) else "depends on the case",
        "rate": theorem.rate,
        "hypotheses": {hypothesis.name: hypothesis.formula for hypothesis in theorem.hypotheses},
        "citation": {
            "key": theorem.citation.key,
            "place": theorem.citation.place,
            "symbols": theorem.citation.symbols,
        },
        "proof": theorem.proof,
    }


def dollars(text: str) -> str:
    r"""LaTeX between \( and \) as Markdown has it."""
    return text.replace(r"\(", "$").replace(r"\)", "$")


def markdown(paper: str | None = None) -> str:
    """All theorems of one source, or of all, as Markdown with mathematics."""
    parts = []
    for theorem in list_theorems(paper):
        lines = [
            f"## {theorem.key}: {theorem.title}",
            f"*{theorem.status.value}*; {theorem.citation.place or 'source'}: {{cite:p}}`{theorem.citation.key}`",
            dollars(theorem.statement),
            "Hypotheses: " + "; ".join(f"{item.name} (${item.formula}$)" for item in theorem.hypotheses) + ".",
        ]
        if theorem.rate:
            lines.append(f"Rate: ${theorem.rate}$.")
        if theorem.proof:
            lines.append(f"Proof: {theorem.proof}")
        lines.append(f"Symbols: {theorem.citation.symbols}.")
        lines.append(f"Check: `attractor check --theorem {theorem.key}`")
        parts.append("\n\n".join(lines))
    return "\n\n".join(parts) + "\n"
