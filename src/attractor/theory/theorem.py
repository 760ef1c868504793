"""What a theorem is: hypotheses with margins, a fate, and a conclusion that can be measured.

One file each under ``theorems/<paper>/``; the file defines ``THEOREM = Theorem(...)`` and is found by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np

from attractor.attention import Attention, Law
from attractor.errors import InputError, UnsupportedError
from attractor.spaces import Euclidean, Space
from attractor.states import Gaussian, Tokens
from attractor.theory.conditions import Condition, Hypothesis, Verdict, examine, together
from attractor.theory.ensembles import integrate
from attractor.theory.fates import FATES
from attractor.theory.matrices import Matrices, matrices


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
