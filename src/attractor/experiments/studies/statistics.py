r"""What runs of a study say: pairs of arms, seed by seed, with intervals and tests.

An arm and its reference share seeds, hence batches, so that differences :math:`\delta_s` of one seed are tested: the interval and the test
of Student's t on them, and the exact test that flips signs of :math:`\delta_s` in all :math:`2^n` ways, which assumes only that their
distribution is symmetric under the null. With n pairs its p is at least :math:`2/2^n`: 1/16 for five seeds, so that alone it never reaches
5 percent there. Pairs that answer one question are tested together: Holm's correction.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from attractor.errors import InputError
from attractor.experiments.studies.arms import Study
from attractor.experiments.training.history import summary

Row = dict[str, Any]
MOST = 20  # pairs whose signs are flipped in all ways


@dataclass(frozen=True)
class Comparison:
    """An arm less its reference. ``better`` is the difference in the direction of better; ``deviations`` is the difference in units of
    the standard deviation of seeds within the two arms."""

    question: str
    arm: str
    reference: str
    seeds: int
    mean: float
    reference_mean: float
    difference: float
    low: float
    high: float
    better: float
    deviations: float | None
    p: float
    p_holm: float
    p_flips: float
    p_flips_holm: float

    def row(self) -> Row:
        """As a row of a table."""
        return asdict(self)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's adjusted p values: each is below a level exactly if Holm's procedure rejects at that level."""
    adjusted, highest = [1.0] * len(ps), 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda index: ps[index])):
        highest = max(highest, min(1.0, (len(ps) - rank) * ps[index]))
        adjusted[index] = highest
    return adjusted


def sign_flips(differences: Sequence[float]) -> float:
    """The exact two-sided p of the mean under all flips of signs."""
    found = np.asarray(differences, dtype=float)
    if not len(found):
        raise InputError("signs are flipped for at least one pair, got none")
    if len(found) > MOST:
        return math.nan  # too many ways; with so many pairs t needs no help
    sums = np.array(list(itertools.product((1.0, -1.0), repeat=len(found)))) @ found
    slack = 1e-12 * np.abs(found).sum()  # a flip of what is equal must count as equal
    return float(np.mean(np.abs(sums) >= abs(found.sum()) - slack))


def paired_t(differences: Sequence[float]) -> float:
    """The two-sided p of Student's t for a mean of zero."""
    from scipy.stats import t

    found = np.asarray(differences, dtype=float)
    error = found.std(ddof=1) / math.sqrt(len(found))
    if error == 0.0:
        return 1.0 if found.mean() == 0.0 else 0.0
    return float(2 * t.sf(abs(found.mean()) / error, len(found) - 1))


def spread(first: Sequence[float], second: Sequence[float]) -> float:
    """The pooled standard deviation of two samples of one size."""
    return math.sqrt((np.var(first, ddof=1) + np.var(second, ddof=1)) / 2)


def by_arm(rows: Sequence[Row], measure: str) -> dict[str, dict[int, float]]:
    """Values by arm and seed, without runs that ended in no finite number."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        if row.get(measure) is not None and math.isfinite(row[measure]):
            found.setdefault(row["arm"], {})[row["seed"]] = float(row[measure])
    return found


def arms_table(study: Study, rows: Sequence[Row]) -> list[Row]:
    """Mean, deviation and 95% interval of every arm."""
    values = by_arm(rows, study.measure)
    parameters = {row["arm"]: row["parameters"] for row in rows}
    return [
        {"arm": arm, "parameters": parameters[arm], **summary(list(values[arm].values()))}
        for arm in study.arms
        if arm in values
    ]


def comparisons(study: Study, rows: Sequence[Row]) -> tuple[list[Comparison], list[str]]:
    """Every pair of every question, corrected within the question; and the pairs that have fewer than two seeds in common."""
    values = by_arm(rows, study.measure)
    found: list[Comparison] = []
    missing: list[str] = []
    for question, pairs in study.questions.items():
        kept: list[Row] = []
        for arm, reference in pairs:
            one = paired(values.get(arm, {}), values.get(reference, {}), study.lower)
            if one is None:
                missing.append(f"{arm} against {reference}")
            else:
                kept.append({"question": question, "arm": arm, "reference": reference, **one})
        corrected = zip(kept, holm([row["p"] for row in kept]), holm([row["p_flips"] for row in kept]), strict=True)
        found += [Comparison(**row, p_holm=p, p_flips_holm=flips) for row, p, flips in corrected]
    return found, missing


def paired(arm: dict[int, float], reference: dict[int, float], lower: bool) -> Row | None:
    """One pair of arms by their values of each seed, not corrected; None where they have fewer than two seeds in common."""
    seeds = sorted(arm.keys() & reference.keys())
    if len(seeds) < 2:
        return None
    first, second = [arm[seed] for seed in seeds], [reference[seed] for seed in seeds]
    differences = [one - other for one, other in zip(first, second, strict=True)]
    said, width = summary(differences), spread(first, second)
    return {
        "seeds": len(seeds),
        "mean": float(np.mean(first)),
        "reference_mean": float(np.mean(second)),
        "difference": said["mean"],
        "low": said["interval"][0],
        "high": said["interval"][1],
        "better": -said["mean"] if lower else said["mean"],
        "deviations": said["mean"] / width if width > 0 else None,
        "p": paired_t(differences),
        "p_flips": sign_flips(differences),
    }
