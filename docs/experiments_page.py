"""Generate docs/experiments.md from the text of experiments.md.in and the numbers of benchmarks/results/training.

    python docs/experiments_page.py              # with --figures also docs/_static/study_*.png

In the text, ``[[bytes convergent/rotary plain/rotary]]`` is a difference with its interval (``[[after ...]]`` for a pair of no question),
``[[norm bytes plain/rotary]]`` a log growth of norms with its interval, ``{{regimes}}`` the table of a question.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from attractor.training import (
    STUDIES,
    ArmComparison,
    ArmDynamics,
    ArmSummary,
    Summary,
    compare_arms,
    compare_pair,
    read_results,
    summarise_arms,
    summarise_dynamics,
    values_by_arm,
)

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results" / "training"
POINTS = {"bytes": 1.0, "bpe": 1.0, "vision": 100.0}  # accuracies are in percent
DIGITS = {"bytes": 3, "bpe": 4, "vision": 1}
FOLLOWED = (
    "plain",
    "convergent",
    "intermediate",
    "divergent",
    "channels",
    "scattered-intermediate",
    "scattered-convergent",
)
BARE = ("bare-plain", "bare-convergent", "bare-intermediate", "bare-divergent")


class Numbers:
    """Results by study."""

    def __init__(self) -> None:
        self.pairs: dict[str, list[ArmComparison]] = {}
        self.values: dict[str, dict[str, dict[int, float]]] = {}
        self.arms: dict[str, dict[str, ArmSummary]] = {}
        self.dynamics: dict[str, dict[str, ArmDynamics]] = {}
        for name in STUDIES:
            results = read_results(RESULTS / f"{name}.jsonl")
            study, runs = results.study, results.runs
            compared = compare_arms(study, runs)
            assert not compared.missing, compared.missing
            assert not compared.untested, compared.untested
            self.pairs[name] = compared.pairs
            self.values[name] = values_by_arm(runs, study.measure)
            self.arms[name] = {arm.arm: arm for arm in summarise_arms(study, runs)}
            self.dynamics[name] = {arm.arm: arm for arm in summarise_dynamics(study, runs)}

    def replace(self, match: re.Match[str]) -> str:
        """Return the number of a mark in the text."""
        words = match[1].split()
        if words[0] in ("norm", "later_norm", "cosine"):
            return between(getattr(self.dynamics[words[1]][words[2]], words[0]), 2)
        study, arm, reference = words[-3:]
        planned = [one for one in self.pairs[study] if (one.arm, one.reference) == (arm, reference)]
        assert bool(planned) != (words[0] == "after"), match[1]  # pairs of no question are marked as such
        values = self.values[study]
        pair = planned[0] if planned else compare_pair(values[arm], values[reference], STUDIES[study].lower)
        assert pair is not None
        unit = " points" if study == "vision" else ""
        ends = (signed(value, study) for value in (pair.difference, pair.low, pair.high))
        return "{}{unit} ({} to {})".format(*ends, unit=unit)

    def table(self, question: str) -> str:
        """Return the comparisons of one question."""
        lines = [
            "| study | arm | reference | arm's mean | difference (95%) | deviations | p | Holm | flips |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for study, pairs in self.pairs.items():
            for pair in pairs:
                if pair.question == question:
                    lines.append(self._row(study, pair))
        return "\n".join(lines)

    def _row(self, study: str, pair: ArmComparison) -> str:
        mean = f"{POINTS[study] * pair.mean:.{DIGITS[study]}f}"
        interval = f"{signed(pair.low, study)} to {signed(pair.high, study)}"
        mark = "**" if pair.p_holm < 0.05 else ""
        difference = f"{mark}{signed(pair.difference, study)}{mark} ({interval})"
        size = "" if pair.deviations is None else f"{pair.deviations:+.1f}"
        tests = f"{pair.p:.2g}", f"{pair.p_holm:.2g}", f"{pair.p_flips:.2g}"
        return "| " + " | ".join((study, pair.arm, pair.reference, mean, difference, size, *tests)) + " |"

    def sizes(self) -> str:
        """Return how totals of parameters differ, for equal positions and by learned positions."""
        apart, more = 0.0, []
        for study, arms in self.arms.items():
            plain = {arm.partition("/")[2]: row.parameters for arm, row in arms.items() if arm.startswith("plain/")}
            shares = [row.parameters / plain[arm.partition("/")[2]] - 1 for arm, row in arms.items()]
            apart = max(apart, *map(abs, shares))
            more.append(f"{100 * (plain['absolute'] / plain['none'] - 1):.1f} percent ({study})")
        return (
            f"Totals of arms with the same positions are within {100 * apart:.2f} percent of plain attention's. "
            "Learned absolute positions are parameters too: "
            f"arms with them have {', '.join(more)} more than arms with rotary or no positions."
        )

    def everything(self) -> str:
        """Return all arms of all studies: means with intervals."""
        lines = ["| arm | bytes, bits per byte | bpe, bits per byte | vision, % right |", "|---|---|---|---|"]
        for arm in dict.fromkeys(arm for study in STUDIES.values() for arm in study.arms):
            cells = []
            for study, arms in self.arms.items():
                found = arms.get(arm)
                cells.append("" if found is None else between(found.summary, DIGITS[study], POINTS[study]))
            lines.append(f"| {arm} | " + " | ".join(cells) + " |")
        return "\n".join(lines)

    def depth(self) -> str:
        """Return norms, cosines and growth of trained models."""
        lines = [
            "| study | arm | log growth of norms (95%) | after the first block (95%) | last cosine (95%) | max Re λ, layers | negative |",
            "|---|---|---|---|---|---|---|",
        ]
        for study, found in self.dynamics.items():
            positions = STUDIES[study].arms[0].partition("/")[2]
            for kind in (*FOLLOWED, *BARE):
                row = found.get(f"{kind}/{positions}")
                if row is not None:
                    curves = [between(getattr(row, name), 2) for name in ("norm", "later_norm", "cosine")]
                    growth = f"{row.growth_low:.4f} to {row.growth_high:.4f}"
                    cells = study, row.arm, *curves, growth, f"{row.negative} of {row.layers}"
                    lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines)


def signed(value: float, study: str) -> str:
    return f"{POINTS[study] * value:+.{DIGITS[study]}f}"


def between(found: Summary, digits: int, factor: float = 1.0) -> str:
    assert found.interval is not None
    low, high = found.interval
    return f"{factor * (found.mean or 0.0):.{digits}f} ({factor * low:.{digits}f} to {factor * high:.{digits}f})"


def page() -> str:
    """Return the text of the page."""
    numbers = Numbers()
    words = (DOCS / "experiments.md.in").read_text(encoding="utf-8")
    words = re.sub(r"\[\[(.+?)\]\]", numbers.replace, words)
    special = {"all arms": numbers.everything, "depth": numbers.depth, "sizes": numbers.sizes}
    return re.sub(r"\{\{(.+?)\}\}", lambda match: special.get(match[1], lambda: numbers.table(match[1]))(), words)


def draw_figures() -> None:
    """Draw the figures by the commands in their captions."""
    from attractor.cli.main import run

    for name in STUDIES:
        where = f"benchmarks/results/training/{name}.jsonl"
        for option, picture in (("--plot", f"study_{name}.png"), ("--plot-depth", f"study_{name}_depth.png")):
            assert run(["study", "results", where, option, f"docs/_static/{picture}"]) == 0


if __name__ == "__main__":
    (DOCS / "experiments.md").write_text(page(), encoding="utf-8")
    if "--figures" in sys.argv:
        draw_figures()
