"""Hypotheses evaluated with margins, the fates that theorems predict, and the matrices of a law."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # pyright: ignore[reportAttributeAccessIssue]

from attractor.errors import AttractorError, UnsupportedError
from attractor.laws import Attention
from attractor.solvers import Trajectory
from attractor.states import Tokens
from attractor.weights import Bounds, bound_abscissa, rounding_error

if TYPE_CHECKING:
    from attractor.theory.theorem import Case

BAND = 1e-10  # relative size below which a float64 eigenvalue has no sign
EQUAL, CLEARLY_UNEQUAL = 1e-9, 1e-6  # relative residuals of an equation


class Verdict(StrEnum):
    """Whether a condition holds; several combine to the last of theirs in this order."""

    HOLDS = "holds"
    UNDETERMINED = "undetermined"
    FAILS = "fails"


@dataclass(frozen=True)
class Margin:
    """``value`` is the signed margin; the condition holds from ``high`` upwards and fails below ``low``."""

    value: float
    low: float = 0.0
    high: float = 0.0
    detail: str = ""

    @classmethod
    def positive(cls, value: float, band: float = BAND, detail: str = "") -> Margin:
        """value > 0; undetermined within the band around zero."""
        return cls(float(value), -band, band, detail)

    @classmethod
    def nonnegative(cls, value: float, band: float = BAND, detail: str = "") -> Margin:
        """value >= 0, zero included: only values below the band fail."""
        return cls(float(value), -band, -1e-14, detail)

    @classmethod
    def nonzero(cls, size: float, band: float = BAND, detail: str = "") -> Margin:
        """size > 0 for a quantity that cannot be negative: fails only at zero."""
        return cls(float(size), 1e-15, band, detail)

    @classmethod
    def zero(
        cls, residual: float, tolerance: float = EQUAL, unequal: float = CLEARLY_UNEQUAL, detail: str = ""
    ) -> Margin:
        """residual = 0: holds up to ``tolerance``, fails above ``unequal``, undetermined between."""
        return cls(tolerance - float(residual), tolerance - unequal, 0.0, detail)

    @classmethod
    def bounded(cls, bounds: Bounds, size: float, band: float = BAND) -> Margin:
        """value > 0 for a computed value with proved bounds, all relative to ``size``: rounding that they leave widens the band."""
        value, low, high = (part / max(size, 1e-300) for part in (bounds.value, bounds.low, bounds.high))
        found = cls(value, value - high - band, value - low + band)
        if found.verdict is not Verdict.UNDETERMINED or abs(value) < band:
            return replace(found, detail=f"{bounds.value:.4g}")
        return replace(found, detail=f"computed as {bounds.value:.4g}, but rounding leaves the sign open")

    @classmethod
    def boolean(cls, holds: bool, detail: str = "") -> Margin:
        """A condition on the form of the problem: margin 1 or -1."""
        return cls(1.0 if holds else -1.0, detail=detail)

    @property
    def verdict(self) -> Verdict:
        if self.value >= self.high:
            return Verdict.HOLDS
        return Verdict.FAILS if self.value < self.low else Verdict.UNDETERMINED  # NaN is undetermined


@dataclass(frozen=True)
class Hypothesis:
    """A named condition; ``formula`` is LaTeX. Where a ``structural`` one fails, the later ones are not defined; a ``generic`` one
    fails only for a null set of starts, the exceptions of a statement about almost every start."""

    name: str
    formula: str
    margin: Callable[[Case], Margin]
    structural: bool = False
    generic: bool = False

    def examine(self, case: Case) -> Condition:
        try:
            margin = self.margin(case)
        except (AttractorError, LinAlgError) as error:
            margin = Margin(float("nan"), detail=str(error))
        return Condition(self.name, self.formula, margin, self.structural, self.generic)


@dataclass(frozen=True)
class Condition:
    """A hypothesis evaluated for a case."""

    name: str
    formula: str
    margin: Margin
    structural: bool = False
    generic: bool = False

    @property
    def verdict(self) -> Verdict:
        return self.margin.verdict

    def row(self) -> dict[str, Any]:
        """Return the condition as a JSON object."""
        return {
            "name": self.name,
            "verdict": self.verdict.value,
            "margin": self.margin.value if math.isfinite(self.margin.value) else None,
            "open": self.margin.high > 0,  # a strict inequality, whose margin is a matter of degree
            "detail": self.margin.detail,
        }


def examine(hypotheses: tuple[Hypothesis, ...], case: Case) -> tuple[Condition, ...]:
    """Evaluate hypotheses in order, up to the first structural one that does not hold."""
    found: list[Condition] = []
    for hypothesis in hypotheses:
        found.append(hypothesis.examine(case))
        if hypothesis.structural and found[-1].verdict is not Verdict.HOLDS:
            break
    return tuple(found)


def combine_verdicts(conditions: tuple[Condition, ...], count: int) -> Verdict:
    """Return the verdict on ``count`` hypotheses, of which these were evaluated."""
    order = list(Verdict)
    worst = max((order.index(condition.verdict) for condition in conditions), default=0)
    return order[worst] if len(conditions) == count or worst else Verdict.UNDETERMINED


FATES = {
    "collapse": "every token tends to zero",
    "divergence": "token norms are unbounded",
    "bounded": "token norms stay bounded",
    "consensus": "all tokens tend to one point",
    "equilibrium": "every token tends to a limit",
    "separation": "no pair of tokens comes closer, in the metric A = W V^-1 of the law",
    "contraction": "no pair of tokens moves apart, in the metric -A, A = W V^-1 of the law",
    "bipartite": "tokens tend to two opposite points",
    "blow-up": "norms become infinite in finite time",
    "metastable": "no pair of tokens comes close before the time of the theorem",
    "monotone": "a quantity of the theorem never decreases",
    "identity": "an equation or inequality that holds at every time; it says nothing about the limit",
}
# pairs of fates that no run of distinct tokens can both have
EXCLUSIVE = (
    {"collapse", "divergence"},
    {"collapse", "separation"},
    {"collapse", "bipartite"},
    {"collapse", "blow-up"},
    {"bounded", "divergence"},
    {"bounded", "blow-up"},
    {"consensus", "bipartite"},
    {"equilibrium", "divergence"},
    {"equilibrium", "blow-up"},
)


def are_exclusive(first: str, second: str) -> bool:
    """Return whether no run can have both fates."""
    return {first, second} in EXCLUSIVE


def find_contradiction(fate: str, run: Trajectory) -> str | None:
    """Return why a finished run contradicts a predicted fate, or None; a run that only reached its end time contradicts nothing."""
    name, end = run.outcome.name, run.final
    if not isinstance(end, Tokens):
        return None
    size = float(end.points.norm(dim=-1).max())
    gap = float((end.points - end.points[..., :1, :]).norm(dim=-1).max())
    start = float(run.points[0].norm(dim=-1).max()) if len(run.times) else size
    grown = name in ("diverged", "blow_up")
    resting = name == "steady" and size > 1e-3 * max(start, torch.finfo(end.points.dtype).tiny)
    if fate in ("collapse", "bounded", "equilibrium") and grown:
        return f"{FATES[fate]} was predicted, but {run.outcome.message}"
    if fate == "collapse" and resting:
        return f"{FATES[fate]} was predicted, but the tokens rest at a norm of {size:.3g}"
    if fate in ("divergence", "blow-up") and (name == "collapsed" or resting):
        return f"{FATES[fate]} was predicted, but {run.outcome.message}"
    if fate == "consensus" and resting and gap > 1e-3 * size:
        return f"{FATES[fate]} was predicted, but the tokens rest at a distance of {gap:.3g}"
    if fate == "bipartite" and name == "consensus":
        return f"{FATES[fate]} was predicted, but {run.outcome.message}"
    return None


@dataclass(frozen=True, eq=False)
class Matrices:
    """``interactions`` W (h, d, d), scale included, and ``values`` V (h, d, d), output projection included; ``value_size`` is the norm
    of the factors of the values, to which their rounding is relative."""

    interactions: Tensor
    values: Tensor
    value_size: float

    @cached_property
    def interaction(self) -> Tensor:
        """The sum of W over heads."""
        return self.interactions.sum(0)

    @cached_property
    def value(self) -> Tensor:
        """The sum of V over heads: the linear velocity of the mean near zero, and of the first token under a causal mask."""
        return self.values.sum(0)

    @cached_property
    def abscissa(self) -> Bounds:
        """The largest real part of an eigenvalue of ``value``, with proved bounds on the side that decides its sign."""
        return bound_abscissa(self.value, rounding_error(self.value, self.value_size))

    @cached_property
    def conditioning(self) -> float:
        """Smallest over largest singular value of all values side by side: zero where no single metric is determined."""
        sizes = torch.linalg.svdvals(torch.cat(tuple(self.values), dim=-1))
        return float(sizes[-1] / sizes[0].clamp_min(1e-300))

    @cached_property
    def metric(self) -> Tensor:
        """The least-squares solution A of A V_h = W_h for all heads."""
        values, interactions = torch.cat(tuple(self.values), -1), torch.cat(tuple(self.interactions), -1)
        return torch.linalg.lstsq(values.mT, interactions.mT, driver="gelsd").solution.mT

    @cached_property
    def residual(self) -> float:
        """|W - A V| / |W| in the Frobenius norm over all heads."""
        missed = torch.linalg.vector_norm(self.interactions - self.metric @ self.values)
        return float(missed / torch.linalg.vector_norm(self.interactions).clamp_min(1e-300))

    @property
    def transposed(self) -> Tensor:
        """A = K'Q of the first head, scale included: the transpose of its interaction."""
        return self.interactions[0].mT

    @cached_property
    def congruent(self) -> Tensor:
        """V'W of one head: congruent to its metric, so of the same inertia, without an inverse."""
        return self.values[0].mT @ self.interactions[0]


PARTS = ("query", "key", "value", "output")


def compute_matrices(law: Attention) -> Matrices:
    """Return the matrices of a law without ensemble axes, in float64."""
    if law.query.ndim > 3:
        raise UnsupportedError("the law has parameters for several ensemble members: use law.member(...) for one")
    parts = {name: None if (part := getattr(law, name)) is None else part.detach().double().cpu() for name in PARTS}
    law = replace(law, **parts)  # products of single precision weights are computed in double precision
    interaction, value = law.scale * law.interaction, law.value_map
    if not (bool(interaction.isfinite().all()) and bool(value.isfinite().all())):
        raise UnsupportedError("the law has entries that are not finite")
    sizes = [float(torch.linalg.vector_norm(part)) for part in (law.value, law.output) if part is not None]
    d = law.dim
    return Matrices(interaction.reshape(-1, d, d), value.reshape(-1, d, d), math.prod(sizes))
