"""Hypotheses with margins, fates, and the matrices of a law."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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

if TYPE_CHECKING:
    from attractor.theory.theorem import Case

BAND = 1e-10  # relative size below which a float64 eigenvalue has no sign
EQUAL, CLEARLY_UNEQUAL = 1e-9, 1e-6  # relative residuals of an equation


class Verdict(StrEnum):
    """Three values, in the order in which they combine: the worst of several counts."""

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

    @property
    def verdict(self) -> Verdict:
        if self.value >= self.high:
            return Verdict.HOLDS
        return Verdict.FAILS if self.value < self.low else Verdict.UNDETERMINED  # NaN is undetermined


def strictly(value: float, band: float = BAND, detail: str = "") -> Margin:
    """value > 0, undetermined within the band around zero."""
    return Margin(float(value), -band, band, detail)


def weakly(value: float, band: float = BAND, detail: str = "") -> Margin:
    """value >= 0, where zero itself is allowed: only clearly negative values fail."""
    return Margin(float(value), -band, -1e-14, detail)


def nonzero(size: float, band: float = BAND, detail: str = "") -> Margin:
    """size > 0 for something that cannot be negative: fails only at zero itself."""
    return Margin(float(size), 1e-15, band, detail)


def vanishing(residual: float, tolerance: float = EQUAL, unequal: float = CLEARLY_UNEQUAL, detail: str = "") -> Margin:
    """residual = 0: holds up to ``tolerance``, fails above ``unequal``, undetermined between."""
    return Margin(tolerance - float(residual), tolerance - unequal, 0.0, detail)


def decided(holds: bool, detail: str = "") -> Margin:
    """A condition on the form of the problem, which is true or false: margin 1 or -1."""
    return Margin(1.0 if holds else -1.0, detail=detail)


@dataclass(frozen=True)
class Hypothesis:
    """A named condition; ``formula`` is LaTeX. Where a ``structural`` one fails, those after it have no meaning."""

    name: str
    formula: str
    margin: Callable[[Case], Margin]
    structural: bool = False

    def examine(self, case: Case) -> Condition:
        try:
            margin = self.margin(case)
        except (AttractorError, LinAlgError) as error:
            margin = Margin(float("nan"), detail=str(error))
        return Condition(self.name, self.formula, margin, self.structural)


@dataclass(frozen=True)
class Condition:
    """A hypothesis that was looked at."""

    name: str
    formula: str
    margin: Margin
    structural: bool = False

    @property
    def verdict(self) -> Verdict:
        return self.margin.verdict

    def row(self) -> dict[str, Any]:
        """Ready for JSON."""
        finite = self.margin.value == self.margin.value and abs(self.margin.value) != float("inf")
        return {
            "name": self.name,
            "verdict": self.verdict.value,
            "margin": self.margin.value if finite else None,
            "open": self.margin.high > 0,  # a strict inequality, of which the margin is a matter of degree
            "detail": self.margin.detail,
        }


def examine(hypotheses: tuple[Hypothesis, ...], case: Case) -> tuple[Condition, ...]:
    """Conditions in order, up to the first structural one that does not hold."""
    found: list[Condition] = []
    for hypothesis in hypotheses:
        found.append(hypothesis.examine(case))
        if hypothesis.structural and found[-1].verdict is not Verdict.HOLDS:
            break
    return tuple(found)


def together(conditions: tuple[Condition, ...], count: int) -> Verdict:
    """The verdict on ``count`` hypotheses of which these could be looked at."""
    order = list(Verdict)
    worst = max((order.index(condition.verdict) for condition in conditions), default=0)
    return order[worst] if len(conditions) == count or worst else Verdict.UNDETERMINED


FATES = {
    "collapse": "every token tends to zero",
    "divergence": "token norms are unbounded",
    "bounded": "token norms stay bounded",
    "consensus": "all tokens tend to one point",
    "equilibrium": "every token tends to a limit",
    "separation": "no pair of tokens comes closer, in the metric of the theorem",
    "contraction": "no pair of tokens moves apart, in the metric of the theorem",
    "bipartite": "tokens tend to two opposite points",
    "blow-up": "norms become infinite in finite time",
    "monotone": "a quantity of the theorem never decreases",
    "identity": "an equation or inequality, without a fate of its own",
}
# pairs of fates that no run of distinct tokens can have together
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


def exclusive(first: str, second: str) -> bool:
    """Whether one run cannot have both fates."""
    return {first, second} in EXCLUSIVE


def contradiction(fate: str, run: Trajectory) -> str | None:
    """Why a finished run shows that a predicted fate is wrong, or None. A run that merely reached its time shows nothing."""
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
    """``interactions`` W (h, d, d), scale included, and ``values`` V (h, d, d), output projection included."""

    interactions: Tensor
    values: Tensor

    @cached_property
    def interaction(self) -> Tensor:
        """The sum of W over heads."""
        return self.interactions.sum(0)

    @cached_property
    def value(self) -> Tensor:
        """The sum of V over heads: it moves the mean near zero, and the first token under a causal mask."""
        return self.values.sum(0)

    @cached_property
    def spread(self) -> float:
        """Smallest over largest singular value of all values side by side: zero where no one metric is determined."""
        sizes = torch.linalg.svdvals(torch.cat(tuple(self.values), dim=-1))
        return float(sizes[-1] / sizes[0].clamp_min(1e-300))

    @cached_property
    def metric(self) -> Tensor:
        """The A that comes closest to A V = W for every head."""
        values, interactions = torch.cat(tuple(self.values), -1), torch.cat(tuple(self.interactions), -1)
        return torch.linalg.lstsq(values.mT, interactions.mT, driver="gelsd").solution.mT

    @cached_property
    def residual(self) -> float:
        """How far A V = W is missed, relative to W."""
        missed = torch.linalg.vector_norm(self.interactions - self.metric @ self.values)
        return float(missed / torch.linalg.vector_norm(self.interactions).clamp_min(1e-300))

    @cached_property
    def congruent(self) -> Tensor:
        """V'W of one head, congruent to its metric: the same inertia without an inverse."""
        return self.values[0].mT @ self.interactions[0]


def matrices(law: Attention) -> Matrices:
    """The matrices of a law without an ensemble axis, in float64."""
    if law.query.ndim > 3:
        raise UnsupportedError("the law has parameters for several ensemble members: ask about law.member(...) of one")
    interaction, value = (law.scale * law.interaction).detach().double(), law.value_map.detach().double()
    if not (bool(interaction.isfinite().all()) and bool(value.isfinite().all())):
        raise UnsupportedError("the law has entries that are not finite")
    d = law.dim
    return Matrices(interaction.reshape(-1, d, d).cpu(), value.reshape(-1, d, d).cpu())
