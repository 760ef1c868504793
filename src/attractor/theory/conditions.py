"""Hypotheses that a computer can decide, or admit that it cannot.

A hypothesis becomes a signed margin: positive where it holds. Between two bounds, within what rounding can blur, the answer is
"undetermined" and the margin says how near.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from torch.linalg import LinAlgError  # pyright: ignore[reportAttributeAccessIssue]

from attractor.errors import AttractorError

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
