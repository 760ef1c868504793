r"""What runs of a study say: pairs of arms, seed by seed, with intervals and tests.

An arm and its reference share seeds, hence batches, so that differences :math:`\delta_s` of one seed are tested: the interval and the test
of Student's t on them, and the exact test that flips signs of :math:`\delta_s` in all :math:`2^n` ways, which assumes only that their
distribution is symmetric under the null. With n pairs its p is at least :math:`2/2^n`: 1/16 for five seeds, so that alone it never reaches
5 percent there. Pairs that answer one question are tested together: Holm's correction.

A run that ended in no finite number is lost: it has no difference, and what remains of its arm are the seeds that went well. So an arm that
lost runs is never said to be better: a pair whose other seeds are in favour of the side that lost runs is not tested but named, and
keeps its place in Holm's correction as p = 1. One that is worse even so is tested with the seeds that are left, which understates it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from attractor.errors import InputError
from attractor.training.run_folder import summary
from attractor.training.studies.study import Study

Row = dict[str, Any]
MOST = 20  # pairs whose signs are flipped in all ways


@dataclass(frozen=True)
class Comparison:
    """An arm less its reference. ``better`` is the difference in the direction of better; ``deviations`` is the difference in units of
    the standard deviation of seeds within the two arms. ``lost`` and ``reference_lost`` count runs that ended in no finite number."""

    question: str
    arm: str
    reference: str
    seeds: int
    lost: int
    reference_lost: int
    mean: float
    reference_mean: float
    difference: float
    low: float
    high: float
    better: float
    deviations: float | None
    p: float
    p_holm: float
    p_flips: float | None
    p_flips_holm: float | None

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


def sign_flips(differences: Sequence[float]) -> float | None:
    """The exact two-sided p of the mean under all flips of signs; None for so many pairs that t needs no help."""
    found = np.asarray(differences, dtype=float)
    if not len(found):
        raise InputError("signs are flipped for at least one pair, got none")
    if len(found) > MOST:
        return None
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
    lost = lost_runs(rows, measure)
    for row in rows:
        if row["seed"] not in lost.get(row["arm"], ()):
            found.setdefault(row["arm"], {})[row["seed"]] = float(row[measure])
    return found


def lost_runs(rows: Sequence[Row], measure: str) -> dict[str, set[int]]:
    """Seeds by arm of the runs that ended in no finite number: in what they are judged by, or in the loss (a classifier still guesses)."""
    found: dict[str, set[int]] = {}
    for row in rows:
        ends = row.get(measure), row.get("loss", 0.0)
        if any(end is None or not math.isfinite(end) for end in ends):
            found.setdefault(row["arm"], set()).add(row["seed"])
    return found


def arms_table(study: Study, rows: Sequence[Row]) -> list[Row]:
    """Mean, deviation and 95% interval of every arm over the runs that ended in a number, and how many did not."""
    values, lost = by_arm(rows, study.measure), lost_runs(rows, study.measure)
    parameters = {row["arm"]: row["parameters"] for row in rows}
    return [
        {
            "arm": arm,
            "parameters": parameters[arm],
            **summary(list(values.get(arm, {}).values())),
            "lost": len(lost.get(arm, ())),
        }
        for arm in study.arms
        if arm in parameters
    ]


@dataclass(frozen=True)
class Compared:
    """What pairs of arms say: those that were tested; those with fewer than two seeds in common (``missing``); and those that are
    not tested because runs were lost (``untested``), with how many."""

    pairs: list[Comparison]
    missing: list[str]
    untested: list[str]


def comparisons(study: Study, rows: Sequence[Row]) -> Compared:
    """Every pair of every question, corrected within the question."""
    values, lost = by_arm(rows, study.measure), lost_runs(rows, study.measure)
    found = Compared([], [], [])
    for question, pairs in study.questions.items():
        kept: list[Row] = []
        untested = []
        for arm, reference in pairs:
            one = paired(values.get(arm, {}), values.get(reference, {}), study.lower)
            own, other = (len(lost.get(name, ())) for name in (arm, reference))
            flattered = one is not None and ((own and one["better"] > 0) or (other and one["better"] < 0))
            if flattered or (one is None and values.keys() | lost.keys() >= {arm, reference} and own + other):
                untested.append(f"{arm} (lost {own}) against {reference} (lost {other})")
            elif one is None:
                found.missing.append(f"{arm} against {reference}")
            else:
                named = {"question": question, "arm": arm, "reference": reference, "lost": own, "reference_lost": other}
                kept.append({**named, **one})
        found.untested.extend(untested)
        at_most = [1.0] * len(untested)
        ps = holm([row["p"] for row in kept] + at_most)
        flips = (
            holm([row["p_flips"] for row in kept] + at_most)
            if all(row["p_flips"] is not None for row in kept)
            else None
        )
        for index, row in enumerate(kept):
            tests = {"p_holm": ps[index], "p_flips_holm": None if flips is None else flips[index]}
            found.pairs.append(Comparison(**row, **tests))
    return found


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
