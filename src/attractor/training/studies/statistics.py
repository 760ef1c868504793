r"""Statistics of studies: paired comparisons of arms with intervals and tests.

An arm and its reference share seeds, hence batches, so the differences :math:`\delta_s` of equal seeds are tested: Student's t, with its
interval, and the exact test that flips the signs of :math:`\delta_s` in all :math:`2^n` ways, which only assumes a symmetric distribution
under the null hypothesis. Its p is at least :math:`2/2^n` with n pairs (1/16 for five seeds). Pairs of one question are corrected together
by Holm's method.

A run whose score or loss is not finite is lost and has no difference. The remaining seeds of its arm are a biased sample, so an arm that
lost runs is never reported as better: such a pair is listed as untested and counts as p = 1 in Holm's correction. A pair in which the
remaining seeds are worse is tested with those, which understates the difference.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attractor.errors import InputError
from attractor.serialization import to_frame
from attractor.training.run_folder import Summary, summarise
from attractor.training.studies.runs import StudyRun
from attractor.training.studies.study import Study

if TYPE_CHECKING:
    import pandas

MAX_FLIPS = 20  # pairs whose signs are flipped in all ways


@dataclass(frozen=True)
class PairedTest:
    """Differences of two arms over their common seeds.

    Attributes
    ----------
    seeds : number of common seeds.
    mean, reference_mean : means of the two arms.
    difference, low, high : mean difference and its 95% interval.
    better : difference in the direction of better.
    deviations : difference in standard deviations of seeds within the arms; None if these are zero.
    p, p_flips : two-sided p of Student's t and of the sign flips; the latter is None for many pairs.
    """

    seeds: int
    mean: float
    reference_mean: float
    difference: float
    low: float
    high: float
    better: float
    deviations: float | None
    p: float
    p_flips: float | None


@dataclass(frozen=True)
class ArmComparison(PairedTest):
    """A pair of a question: an arm and its reference, with the runs that each lost and p values by Holm's correction."""

    question: str
    arm: str
    reference: str
    lost: int
    reference_lost: int
    p_holm: float
    p_flips_holm: float | None

    def row(self) -> dict[str, Any]:
        """Return the fields, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Comparisons:
    """All pairs of a study.

    Attributes
    ----------
    pairs : those that were tested.
    missing : names of pairs with fewer than two common seeds.
    untested : names of pairs that are not tested because of lost runs.
    """

    pairs: list[ArmComparison]
    missing: list[str]
    untested: list[str]

    def frame(self) -> pandas.DataFrame:
        """Return the tested pairs as a pandas DataFrame."""
        return to_frame(self.pairs)


@dataclass(frozen=True)
class ArmSummary:
    """An arm over its seeds: parameters, summary of the measure over finite runs, number of lost runs."""

    arm: str
    parameters: int
    summary: Summary
    lost: int

    def row(self) -> dict[str, Any]:
        """Return the fields in one mapping, for JSON."""
        return {"arm": self.arm, "parameters": self.parameters, **self.summary.row(), "lost": self.lost}


@dataclass(frozen=True)
class ArmDynamics:
    """Tokens of an arm's trained models.

    Attributes
    ----------
    norm, later_norm : log growth of norms from the embedding, and from the first block, to the end.
    cosine : mean cosine at the end.
    layers, negative : number of layers over all seeds, and those whose value map has negative growth.
    growth_low, growth_high : range of the growth.
    """

    arm: str
    norm: Summary
    later_norm: Summary
    cosine: Summary
    layers: int
    negative: int
    growth_low: float | None
    growth_high: float | None

    def row(self) -> dict[str, Any]:
        """Return the fields, for JSON."""
        return asdict(self)


def holm(ps: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p values: each is below a level exactly if Holm's procedure rejects at that level."""
    adjusted, highest = [1.0] * len(ps), 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda index: ps[index])):
        highest = max(highest, min(1.0, (len(ps) - rank) * ps[index]))
        adjusted[index] = highest
    return adjusted


def sign_flips(differences: Sequence[float]) -> float | None:
    """Return the exact two-sided p of the mean under all flips of signs; None for more than ``MAX_FLIPS`` pairs."""
    found = np.asarray(differences, dtype=float)
    if not len(found):
        raise InputError("signs are flipped for at least one pair, got none")
    if len(found) > MAX_FLIPS:
        return None
    sums = np.array(list(itertools.product((1.0, -1.0), repeat=len(found)))) @ found
    slack = 1e-12 * np.abs(found).sum()  # sums that are equal up to rounding count as equal
    return float(np.mean(np.abs(sums) >= abs(found.sum()) - slack))


def paired_t(differences: Sequence[float]) -> float:
    """Return the two-sided p of Student's t for a mean of zero."""
    from scipy.stats import t

    found = np.asarray(differences, dtype=float)
    error = found.std(ddof=1) / math.sqrt(len(found))
    if error == 0.0:
        return 1.0 if found.mean() == 0.0 else 0.0
    return float(2 * t.sf(abs(found.mean()) / error, len(found) - 1))


def pooled_deviation(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the pooled standard deviation of two samples of one size."""
    return math.sqrt((np.var(first, ddof=1) + np.var(second, ddof=1)) / 2)


def values_by_arm(runs: Sequence[StudyRun], measure: str) -> dict[str, dict[int, float]]:
    """Return the finite values of the measure by arm and seed, without lost runs."""
    found: dict[str, dict[int, float]] = {}
    for run in runs:
        value = run.result.scores.get(measure)
        if value is not None and not run.is_lost(measure):
            found.setdefault(run.arm, {})[run.seed] = float(value)
    return found


def lost_runs(runs: Sequence[StudyRun], measure: str) -> dict[str, set[int]]:
    """Return the seeds of lost runs by arm."""
    found: dict[str, set[int]] = {}
    for run in runs:
        if run.is_lost(measure):
            found.setdefault(run.arm, set()).add(run.seed)
    return found


def _arms(study: Study, runs: Sequence[StudyRun]) -> list[str]:
    """Return the arms that have runs: those of the study in its order, then others."""
    there = dict.fromkeys(run.arm for run in runs)
    return [*(arm for arm in study.arms if arm in there), *(arm for arm in there if arm not in study.arms)]


def summarise_arms(study: Study, runs: Sequence[StudyRun]) -> list[ArmSummary]:
    """Summarise every arm that has runs."""
    values, lost = values_by_arm(runs, study.measure), lost_runs(runs, study.measure)
    parameters = {run.arm: run.result.parameters for run in runs}
    return [
        ArmSummary(arm, parameters[arm], summarise(list(values.get(arm, {}).values())), len(lost.get(arm, ())))
        for arm in _arms(study, runs)
    ]


def compare_arms(study: Study, runs: Sequence[StudyRun]) -> Comparisons:
    """Test every pair of every question, corrected within the question."""
    values, lost = values_by_arm(runs, study.measure), lost_runs(runs, study.measure)
    found = Comparisons([], [], [])
    for question, pairs in study.questions.items():
        kept: list[tuple[str, str, int, int, PairedTest]] = []
        untested: list[str] = []
        for arm, reference in pairs:
            test = compare_pair(values.get(arm, {}), values.get(reference, {}), study.lower)
            own, other = (len(lost.get(name, ())) for name in (arm, reference))
            biased = test is not None and ((own and test.better > 0) or (other and test.better < 0))
            if biased or (test is None and values.keys() | lost.keys() >= {arm, reference} and own + other):
                untested.append(f"{arm} (lost {own}) against {reference} (lost {other})")
            elif test is None:
                found.missing.append(f"{arm} against {reference}")
            else:
                kept.append((arm, reference, own, other, test))
        found.untested.extend(untested)
        at_most = [1.0] * len(untested)
        ps = holm([test.p for *_, test in kept] + at_most)
        exact = [test.p_flips for *_, test in kept if test.p_flips is not None]
        flips = holm(exact + at_most) if len(exact) == len(kept) else None
        for index, (arm, reference, own, other, test) in enumerate(kept):
            found.pairs.append(
                ArmComparison(
                    **vars(test),
                    question=question,
                    arm=arm,
                    reference=reference,
                    lost=own,
                    reference_lost=other,
                    p_holm=ps[index],
                    p_flips_holm=None if flips is None else flips[index],
                )
            )
    return found


def compare_pair(arm: dict[int, float], reference: dict[int, float], lower: bool) -> PairedTest | None:
    """Test one pair of arms by their values of each seed, not corrected; None with fewer than two common seeds."""
    seeds = sorted(arm.keys() & reference.keys())
    if len(seeds) < 2:
        return None
    first, second = [arm[seed] for seed in seeds], [reference[seed] for seed in seeds]
    differences = [one - other for one, other in zip(first, second, strict=True)]
    summary, deviation = summarise(differences), pooled_deviation(first, second)
    assert summary.mean is not None
    assert summary.interval is not None
    return PairedTest(
        seeds=len(seeds),
        mean=float(np.mean(first)),
        reference_mean=float(np.mean(second)),
        difference=summary.mean,
        low=summary.interval[0],
        high=summary.interval[1],
        better=-summary.mean if lower else summary.mean,
        deviations=summary.mean / deviation if deviation > 0 else None,
        p=paired_t(differences),
        p_flips=sign_flips(differences),
    )


@dataclass(frozen=True)
class CurvePoint:
    """Mean of an arm at an evaluation, over the runs that have a number there, with its 95% interval (None for one run)."""

    arm: str
    step: int
    count: int
    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class PairAlong:
    """Differences of a pair of arms at every evaluation of the runs."""

    arm: str
    reference: str
    steps: tuple[int, ...]
    tests: tuple[PairedTest, ...]

    def rows(self) -> list[dict[str, Any]]:
        """Return one mapping for each evaluation, for JSON."""
        own = {"arm": self.arm, "reference": self.reference}
        return [{**own, "step": step, **asdict(test)} for step, test in zip(self.steps, self.tests, strict=True)]


def _values_along(runs: Sequence[StudyRun], arm: str) -> dict[int, dict[int, float]]:
    """Return the finite scores of an arm at every evaluation, by step and seed."""
    found: dict[int, dict[int, float]] = {}
    for run in runs:
        for step, value in run.result.scores_curve if run.arm == arm else ():
            if value is not None and math.isfinite(value):
                found.setdefault(step, {})[run.seed] = float(value)
    return found


def mean_curve(runs: Sequence[StudyRun], arm: str) -> list[CurvePoint]:
    """Return the learning curve of an arm with its band, from the runs that are compared (``StudyResults.at``)."""
    points = []
    for step, values in sorted(_values_along(runs, arm).items()):
        found = summarise(list(values.values()))
        assert found.mean is not None
        low, high = found.interval or (None, None)
        points.append(CurvePoint(arm, step, len(values), found.mean, low, high))
    return points


def compare_along(study: Study, runs: Sequence[StudyRun], arm: str, reference: str) -> PairAlong:
    """Compare a pair at every evaluation at which both arms have at least two common seeds."""
    first, second = _values_along(runs, arm), _values_along(runs, reference)
    tests = {
        step: compare_pair(first[step], second[step], study.lower) for step in sorted(first.keys() & second.keys())
    }
    kept = {step: test for step, test in tests.items() if test is not None}
    return PairAlong(arm, reference, tuple(kept), tuple(kept.values()))


def summarise_dynamics(study: Study, runs: Sequence[StudyRun]) -> list[ArmDynamics]:
    """Summarise the tokens of every arm that has runs with finite states."""
    found = []
    for arm in _arms(study, runs):
        traces = [run.result.dynamics for run in runs if run.arm == arm and run.result.dynamics is not None]
        if not traces:
            continue
        growth = [value for trace in traces for value in trace.growth or () if value is not None]
        found.append(
            ArmDynamics(
                arm,
                norm=summarise([math.log(trace.norm[-1] / trace.norm[0]) for trace in traces]),
                later_norm=summarise([math.log(trace.norm[-1] / trace.norm[1]) for trace in traces]),
                cosine=summarise([trace.cosine[-1] for trace in traces]),
                layers=len(growth),
                negative=sum(math.copysign(1.0, value) < 0 for value in growth),  # counts -0.0, a rounded negative
                growth_low=min(growth, default=None),
                growth_high=max(growth, default=None),
            )
        )
    return found


def mean_dynamics(runs: Sequence[StudyRun], arm: str) -> dict[str, list[float]]:
    """Return means over seeds of norm, distance, cosine and growth along depth."""
    traces = [run.result.dynamics for run in runs if run.arm == arm and run.result.dynamics is not None]
    return {
        name: np.mean([getattr(trace, name) for trace in traces], axis=0, dtype=float).tolist()
        for name in ("norm", "distance", "cosine", "growth")
    }
