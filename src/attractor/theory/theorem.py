"""The interface of theorems, integration of cases in ensembles, and the list of all theorems."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import cache, cached_property
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from attractor.errors import InputError, UnsupportedError
from attractor.laws import Attention, Law, Schedule
from attractor.registry import find
from attractor.solvers import Trajectory, describe_source, enter_space, flow
from attractor.spaces import Euclidean, Space
from attractor.states import Density, Gaussian, Tokens
from attractor.theory.conditions import (
    FATES,
    Condition,
    Hypothesis,
    Matrices,
    Verdict,
    combine_verdicts,
    compute_matrices,
    examine,
)
from attractor.theory.sampling import Rng
from attractor.theory.timescales import TimeScale


class Keyed(Protocol):
    """A theorem or a counter-example, found by its key."""

    @property
    def key(self) -> str: ...


T = TypeVar("T", bound=Keyed)
TOLERANCES = {"rtol": 1e-10, "atol": 1e-13}
SAVED = 100
EVALUATIONS = 30_000  # per member: more than any instance of a theorem needs; it ends those that violate one
# number of axes of each parameter of one law, with an axis of heads
RANKS = {"query": 3, "key": 3, "value": 3, "output": 3, "query_bias": 2, "key_bias": 2, "value_bias": 2}


def integrate(cases: Sequence[Case]) -> list[Trajectory]:
    """Return the trajectory of every case, at tolerances far below those of the conclusions.

    Cases that differ only in parameters and points run as one ensemble.
    """
    runs: dict[int, Trajectory] = {}
    groups: dict[Any, list[int]] = {}
    for index, case in enumerate(cases):
        groups.setdefault(_ensemble_key(case) or index, []).append(index)
    for members in groups.values():
        group = [cases[index] for index in members]
        if len(group) == 1:
            runs[members[0]] = _flow(group[0].law, group[0].state, group[0])
            continue
        points = torch.stack([case.tokens.points for case in group])
        run = _flow(stack_laws([case.attention for case in group]), Tokens(points), group[0])
        runs |= {index: run.member(row) for row, index in enumerate(members)}
    return [runs[index] for index in range(len(cases))]


def _flow(law: Any, state: Any, case: Case) -> Trajectory:
    members = state.batch_shape.numel() if isinstance(state, Tokens) else 1
    options = {"save": SAVED, "merge": False, "stop": (), "max_evaluations": EVALUATIONS * members, **TOLERANCES}
    return flow(law, state, space=case.space, until=case.horizon, **{**options, **case.options})


def _ensemble_key(case: Case) -> Any:
    """Return what two cases must share to run as one ensemble, or None for a case that runs alone."""
    law, state = case.law, case.state
    if not isinstance(law, Attention) or not isinstance(state, Tokens) or state.batch_shape:
        return None
    if law.query.ndim > 3 or law.output_bias is not None or state.masses is not None or state.positions is not None:
        return None
    shapes = tuple(None if (part := getattr(law, name)) is None else tuple(part.shape) for name in RANKS)
    # parts that hold tensors (a boolean mask, a table of positions, an ellipsoid) are equal only to themselves
    form = (law.kernel, law.mask, law.positions, law.scale, shapes, case.space)
    return (*form, tuple(state.points.shape), case.horizon, repr(sorted(case.options.items())))


def stack_laws(laws: list[Attention]) -> Attention:
    """Return one law whose leading axis holds the parameters of each."""
    parts: dict[str, Tensor] = {}
    for name, rank in RANKS.items():
        rows = [getattr(law, name) for law in laws]
        if rows[0] is not None:
            parts[name] = torch.stack([row if row.ndim == rank else row.unsqueeze(0) for row in rows])
    return replace(laws[0], **parts)


class Status(StrEnum):
    """How the truth of a statement is known."""

    PAPER = "proved in the paper"
    HERE = "proved here"
    CHECKED = "checked"
    CONJECTURE = "conjecture"

    @property
    def is_proved(self) -> bool:
        return self in (Status.PAPER, Status.HERE)


@dataclass(frozen=True)
class Citation:
    """``key`` in references.bib, the place in that work, the translation of our symbols to its symbols, and the work's own number of the
    statement, where it is known."""

    key: str
    place: str = ""
    symbols: str = ""
    number: str = ""


@dataclass(frozen=True, eq=False)
class Case:
    """An instance of a theorem: a law, a state, a space and the final time of the run.

    ``options`` are those of ``flow`` (save, method, rtol, step...); ``facts`` hold data that a sampler passes to the
    conclusion. Statements about a law alone need no state. ``entered`` tells that the state is the one that a flow starts from, on
    the space and with positions of the input added; ``precision`` is that in which the tokens were given.
    """

    law: Law
    state: Tokens | Gaussian | Density | None = None
    space: Space = field(default_factory=Euclidean)
    horizon: float = 10.0
    options: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    entered: bool = False
    precision: torch.dtype = torch.float64

    @cached_property
    def matrices(self) -> Matrices:
        """The interactions W and values V of an attention law, in float64."""
        return compute_matrices(self.attention)

    @property
    def attention(self) -> Attention:
        if not isinstance(self.law, Attention):
            raise UnsupportedError(f"this statement is about Attention(...), not about {type(self.law).__name__}")
        return self.law

    @property
    def initial_tokens(self) -> Tokens:
        """The tokens that a flow starts from."""
        return self.tokens if self.entered else enter_tokens(self.law, self.tokens, self.space)

    @property
    def tokens(self) -> Tokens:
        if not isinstance(self.state, Tokens):
            raise UnsupportedError(f"this statement is about Tokens(...), got {type(self.state).__name__}")
        return self.state

    @property
    def gaussian(self) -> Gaussian:
        if not isinstance(self.state, Gaussian):
            raise UnsupportedError(f"this statement is about a Gaussian(...), got {type(self.state).__name__}")
        return self.state


@dataclass(frozen=True)
class Measurement:
    """A measured conclusion: it holds if ``slack`` is at least -``tolerance``.

    An ``asymptotic`` conclusion is about the limit and counts only at horizons chosen for it; the others hold at every time.
    """

    name: str
    slack: float
    tolerance: float = 0.0
    asymptotic: bool = False

    @property
    def margin(self) -> float:
        """Negative where the conclusion is violated; NaN counts as violated."""
        return self.slack + self.tolerance

    @property
    def holds(self) -> bool:
        return self.margin >= 0


def enter_tokens(law: Law, tokens: Tokens, space: Space) -> Tokens:
    """Return the tokens that a flow starts from, with the ensemble axes that they had."""
    return tokens.with_points(enter_space(law, tokens, space).points.reshape(tokens.points.shape))


Sampler = Callable[[Rng], Case]


def reverse_velocity(case: Case) -> Case:
    """Return the case with every velocity reversed, at all times of a schedule."""
    if isinstance(case.law, Schedule):
        laws = tuple(_negate(law) if isinstance(law, Attention) else law for law in case.law.laws)
        return replace(case, law=replace(case.law, laws=laws))
    return replace(case, law=_negate(case.attention))


def _negate(law: Attention) -> Attention:
    parts = {name: getattr(law, name) for name in ("value", "value_bias", "output_bias")}
    return replace(law, **{name: -part for name, part in parts.items() if part is not None})


@dataclass(frozen=True, eq=False, repr=False)
class Theorem:
    """A statement with hypotheses that can be evaluated for a case, and a conclusion that can be measured.

    Parameters
    ----------
    key, title : such as "regimes.T1" and "Collapse".
    statement, rate : LaTeX, in our symbols; ``citation`` translates them to the source's.
    hypotheses : named conditions, evaluated in order.
    fate : a name in FATES, or a function of the case.
    conclude : (case, evidence) -> measurements; the evidence is what ``gather`` returned for the case.
    sample : draws a random case that satisfies the hypotheses (draws that do not are discarded).
    violate : for some hypotheses, a sampler of cases that fail this one alone.
    gather : cases -> evidence for each; by default their trajectories, integrated in ensembles.
    break_case : a change of the case after which the conclusion, measured with the original law, must fail;
        tests use it to show that the check can fail.
    time_scale : when the fate of a case is to be expected, and at which rate, as numbers.
    quantity : what never decreases, for the fate "monotone".
    proof : the idea of the proof in one sentence; the proof itself is in the docstring of the file.
    time_independent : whether the statement is about weights or one state, so about layers as well as flows.
    noisy : whether the statement is about motion with noise; the others are about motion without.
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
    break_case: Callable[[Case], Case] = reverse_velocity
    rate: str = ""
    time_scale: Callable[[Case], TimeScale | None] | None = None
    quantity: str = ""
    proof: str = ""
    time_independent: bool = False
    noisy: bool = False

    def __post_init__(self) -> None:
        names = [hypothesis.name for hypothesis in self.hypotheses]
        if len(set(names)) < len(names) or not set(self.violate) <= set(names):
            raise InputError(f"theorem {self.key}: hypotheses are {names}, violated are {list(self.violate)}")
        if self.fate == "monotone" and not self.quantity:
            raise InputError(f"theorem {self.key}: name the quantity that never decreases")
        if isinstance(self.fate, str) and self.fate not in FATES:
            raise InputError(f"theorem {self.key}: the fate {self.fate!r} is not one of {', '.join(FATES)}")

    @property
    def alias(self) -> str:
        """A second key, with the number of the statement in its source: "geshkovski2023emergence:4.2"; empty if that is not known."""
        return f"{self.citation.key}:{self.citation.number}" if self.citation.number else ""

    @property
    def for_almost_every_start(self) -> bool:
        """Whether some starts are exceptions, which have measure zero."""
        return any(hypothesis.generic for hypothesis in self.hypotheses)

    def __repr__(self) -> str:
        return f"Theorem({self.key!r}: {self.title}, {self.status.value})"

    def examine(self, case: Case) -> tuple[Condition, ...]:
        """Evaluate the hypotheses in order, up to the first structural one that does not hold."""
        return examine(self.hypotheses, case)

    def decide(self, conditions: tuple[Condition, ...]) -> Verdict:
        """Return whether the theorem applies, from its evaluated hypotheses."""
        return combine_verdicts(conditions, len(self.hypotheses))

    def predict_fate(self, case: Case) -> str:
        """Return the fate of a case to which the theorem applies."""
        return self.fate if isinstance(self.fate, str) else self.fate(case)


def gather_each(function: Callable[[Case], Any]) -> Callable[[Sequence[Case]], list[Any]]:
    """Return a ``gather`` that computes the evidence of one case at a time."""
    return lambda cases: [function(case) for case in cases]


def load_members(package: str, attribute: str, kind: type[T]) -> dict[str, T]:
    """Import all modules below a package and return their ``attribute``, where it is of a type, by its key."""
    root = importlib.import_module(package)
    modules = (importlib.import_module(info.name) for info in pkgutil.walk_packages(root.__path__, package + "."))
    found: dict[str, T] = {}
    for module in modules:
        member = getattr(module, attribute, None)
        if isinstance(member, kind):
            if member.key in found:
                raise InputError(f"{module.__name__}: the key {member.key!r} is taken: choose another")
            found[member.key] = member
    return dict(sorted(found.items(), key=lambda item: _natural(item[0])))


@cache
def _load_theorems() -> dict[str, Theorem]:
    return load_members("attractor.theory.theorems", "THEOREM", Theorem)


def _natural(key: str) -> list[int | str]:
    """Sort key that places T10 after T9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", key)]


def list_theorems(paper: str | None = None) -> tuple[Theorem, ...]:
    """Return all theorems in the order of their keys, or those of one paper ("regimes", "consensus", "meanfield")."""
    return tuple(theorem for theorem in _load_theorems().values() if paper in (None, theorem.key.split(".")[0]))


def find_theorem(key: str) -> Theorem:
    """Return the theorem with a key, or with the number of its source such as "geshkovski2023emergence:4.2"."""
    known = _load_theorems()
    for theorem in known.values():
        if theorem.alias and theorem.alias == key:
            return theorem
    return find(key, known, "theorem", listing="attractor check --list")


def summarize(theorem: Theorem) -> dict[str, Any]:
    """Return one theorem as a JSON object."""
    return {
        "key": theorem.key,
        "alias": theorem.alias,
        "title": theorem.title,
        "status": theorem.status.value,
        "statement": theorem.statement,
        "fate": theorem.fate if isinstance(theorem.fate, str) else "depends on the case",
        "rate": theorem.rate,
        "quantity": theorem.quantity,
        "hypotheses": {hypothesis.name: hypothesis.formula for hypothesis in theorem.hypotheses},
        "citation": asdict(theorem.citation),
        "source": describe_source(theorem.citation.key),
        "proof": theorem.proof,
    }


def render_markdown(paper: str | None = None) -> str:
    """Return the theorems of one paper, or all, as a Markdown page with mathematics."""
    parts = []
    for theorem in list_theorems(paper):
        lines = [
            f"## {theorem.key}: {theorem.title}" + (f" ({theorem.alias})" if theorem.alias else ""),
            f"*{theorem.status.value}*; {theorem.citation.place or 'source'}: {{cite:p}}`{theorem.citation.key}`",
            theorem.statement.replace(r"\(", "$").replace(r"\)", "$"),
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
