"""Generate docs/experiments.md from the text of experiments.md.in and the numbers of benchmarks/results/training.

    python docs/experiments_page.py              # with --figures also docs/_static/study_*.png

In the text, ``[[dynamics-bytes convergent/rotary plain/rotary]]`` is a difference with its interval (``[[after ...]]`` for a pair of no
question, ``[[step 1000 ...]]`` at a step of training), ``[[contrast STUDY A B C D]]`` the difference of the differences A - B and C - D,
``[[norm STUDY ARM]]`` a log growth of norms and ``[[mean STUDY ARM]]`` a score, with their intervals, ``{{STUDY: question}}`` the table of
a question and ``{{curves STUDY}}``, ``{{rates STUDY}}``, ``{{missing}}``, ``{{loops}}`` further tables.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from attractor.training import (
    ArmComparison,
    ArmDynamics,
    ArmSummary,
    PairedTest,
    StudyResults,
    Summary,
    compare_along,
    compare_arms,
    compare_pair,
    read_results,
    summarise,
    summarise_arms,
    summarise_dynamics,
    values_by_arm,
)

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results" / "training"
TUNED = ("dynamics-bytes", "dynamics-enwik8", "dynamics-vision")
LOOPED = ("looped", "looped-cpu")
UNTUNED = ("bytes", "bpe", "vision")
DIGITS = {"dynamics-bytes": 3, "dynamics-enwik8": 3, "bytes": 3, "bpe": 4}
REGIMES = ("plain", "convergent", "intermediate", "divergent")
CONTROLS = ("channels", "scattered-intermediate", "scattered-convergent")
HEAD = (
    "| study | arm | reference | arm's mean | difference (95%) | deviations | p | Holm | flips |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


class Numbers:
    """Results by study: at the best rate of every arm, where rates were tuned."""

    def __init__(self) -> None:
        self.results: dict[str, StudyResults] = {}
        self.pairs: dict[str, list[ArmComparison]] = {}
        self.missing: dict[str, list[str]] = {}
        self.values: dict[str, dict[str, dict[int, float]]] = {}
        self.arms: dict[str, dict[str, ArmSummary]] = {}
        self.dynamics: dict[str, dict[str, ArmDynamics]] = {}
        for name in (*TUNED, *LOOPED, *UNTUNED):
            results = read_results(RESULTS / f"{name}.jsonl")
            study, runs = results.study, results.at()
            compared = compare_arms(study, runs)
            assert not compared.untested, compared.untested
            assert name not in UNTUNED or not compared.missing, compared.missing
            self.results[name] = results
            self.pairs[name], self.missing[name] = compared.pairs, compared.missing
            self.values[name] = values_by_arm(runs, study.measure)
            self.arms[name] = {arm.arm: arm for arm in summarise_arms(study, runs)}
            self.dynamics[name] = {arm.arm: arm for arm in summarise_dynamics(study, runs)}

    def replace(self, match: re.Match[str]) -> str:
        """Return the number of a mark in the text."""
        words = match[1].split()
        if words[0] in ("norm", "later_norm", "cosine"):
            return between(getattr(self.dynamics[words[1]][words[2]], words[0]), 2)
        if words[0] == "mean":
            return between(self.arms[words[1]][words[2]].summary, digits(words[1]), points(words[1]))
        if words[0] == "contrast":
            return self._contrast(words[1], *words[2:])
        study, arm, reference = words[-3:]
        if words[0] == "step":
            along = compare_along(self.results[study].study, self.results[study].at(), arm, reference)
            return written(study, along.tests[along.steps.index(int(words[1]))])
        planned = [one for one in self.pairs[study] if (one.arm, one.reference) == (arm, reference)]
        assert bool(planned) != (words[0] == "after"), match[1]  # pairs of no question are marked as such
        values = self.values[study]
        lower = self.results[study].study.lower
        pair = planned[0] if planned else compare_pair(values[arm], values[reference], lower)
        assert pair is not None
        return written(study, pair)

    def _contrast(self, study: str, *arms: str) -> str:
        """Return (A - B) - (C - D) over common seeds."""
        first, second, third, fourth = (self.values[study][arm] for arm in arms)
        seeds = sorted(first.keys() & second.keys() & third.keys() & fourth.keys())
        found = summarise([first[seed] - second[seed] - third[seed] + fourth[seed] for seed in seeds])
        assert found.mean is not None
        assert found.interval is not None
        low, high = found.interval
        return f"{signed(found.mean, study)}{unit(study)} ({signed(low, study)} to {signed(high, study)})"

    def table(self, words: str) -> str:
        """Return the comparisons of a question: of one study ("STUDY: question"), or of the untuned ones that have it."""
        study, colon, question = words.partition(": ")
        studies, question = ([study], question) if colon else (list(UNTUNED), words)
        rows = [self._row(name, pair) for name in studies for pair in self.pairs[name] if pair.question == question]
        assert rows, words
        return "\n".join([HEAD, *rows])

    def _row(self, study: str, pair: ArmComparison) -> str:
        mean = f"{points(study) * pair.mean:.{digits(study)}f}"
        interval = f"{signed(pair.low, study)} to {signed(pair.high, study)}"
        mark = "**" if pair.p_holm < 0.05 else ""
        difference = f"{mark}{signed(pair.difference, study)}{mark} ({interval})"
        size = "" if pair.deviations is None else f"{pair.deviations:+.1f}"
        tests = f"{pair.p:.2g}", f"{pair.p_holm:.2g}", f"{pair.p_flips:.2g}"
        return "| " + " | ".join((study, pair.arm, pair.reference, mean, difference, size, *tests)) + " |"

    def curves(self, study: str) -> str:
        """Return the differences of every tested pair at some steps of training."""
        results = self.results[study]
        runs = results.at()
        tables = [compare_along(results.study, runs, pair.arm, pair.reference) for pair in self.pairs[study]]
        steps = tables[0].steps
        count = len(steps)
        kept = sorted({0, count // 6, count // 3, 2 * count // 3, count - 1})
        lines = ["| arm | reference | " + " | ".join(f"step {steps[k]}" for k in kept) + " |"]
        lines.append("|---|---|" + "---|" * len(kept))
        for table in tables:
            cells = [written(study, table.tests[k]).replace(" points", "") for k in kept]
            lines.append(f"| {table.arm} | {table.reference} | " + " | ".join(cells) + " |")
        return "\n".join(lines)

    def rates(self, study: str) -> str:
        """Return the tuning runs of every arm."""
        found = self.results[study].rates()
        grid = sorted({rate for arm in found.values() for rate in arm.means})
        lines = ["| arm | " + " | ".join(f"{rate:g}" for rate in grid) + " | best |"]
        lines.append("|---|" + "---|" * (len(grid) + 1))
        for arm in found.values():
            assert arm.tuned
            cells = [f"{points(study) * (arm.means[rate] or float('nan')):.{digits(study)}f}" for rate in grid]
            edge = " (edge)" if arm.at_edge else ""
            lines.append(f"| {arm.arm} | " + " | ".join(cells) + f" | {arm.best:g}{edge} |")
        return "\n".join(lines)

    def not_run(self) -> str:
        """Return the planned pairs without results."""
        return "\n".join(f"- {study}: {'; '.join(self.missing[study])}." for study in TUNED if self.missing[study])

    def facts(self) -> str:
        """Return sizes, steps, tokens and origin of the tuned and looped studies."""
        lines = [
            "| study | parameters | steps | tokens of a run | tokens of all runs | runs (of them tuning) | hardware | commit |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for study in (*TUNED, *LOOPED):
            runs = self.results[study].runs
            plain = next(run for run in runs if not run.tuning)
            read = sum(run.result.tokens or 0 for run in runs)
            origin = plain.provenance
            cells = (
                study,
                f"{plain.result.parameters / 1e6:.2f} M",
                str(plain.result.steps),
                f"{(plain.result.tokens or 0) / 1e6:.1f} M",
                f"{read / 1e6:.0f} M",
                f"{len(runs)} ({sum(run.tuning for run in runs)})",
                str(origin.hardware),
                (origin.commit or "")[:7],
            )
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines)

    def loops(self) -> str:
        """Return accuracy and last cosine of every looped model, by number of loops."""
        lines = [
            "| study | arm | loops | accuracy, % (95%) | last cosine (95%) | log growth of norms (95%) |",
            "|---|---|---|---|---|---|",
        ]
        for study in LOOPED:
            ordered = sorted(self.arms[study], key=lambda arm: (arm.partition("/")[0], int(arm.partition("/")[2])))
            for arm in ordered:
                kind, _, loops = arm.partition("/")
                found = self.dynamics[study].get(arm)
                traced = ("", "") if found is None else (between(found.cosine, 3), between(found.norm, 2))
                score = between(self.arms[study][arm].summary, 1, 100)
                lines.append("| " + " | ".join((study, kind, loops, score, *traced)) + " |")
        return "\n".join(lines)

    def sizes(self) -> str:
        """Return how totals of parameters differ, for equal positions and by learned positions."""
        apart, more = 0.0, []
        for study in UNTUNED:
            arms = self.arms[study]
            plain = {arm.partition("/")[2]: row.parameters for arm, row in arms.items() if arm.startswith("plain/")}
            shares = [row.parameters / plain[arm.partition("/")[2]] - 1 for arm, row in arms.items()]
            apart = max(apart, *map(abs, shares))
            more.append(f"{100 * (plain['absolute'] / plain['none'] - 1):.1f} percent ({study})")
        return (
            f"Totals of arms with the same positions are within {100 * apart:.2f} percent of plain attention's. "
            "Learned absolute positions are parameters too: "
            f"arms with them have {', '.join(more)} more than arms with rotary or no positions."
        )

    def everything(self, names: tuple[str, ...]) -> str:
        """Return all arms of some studies: means with intervals."""
        labels = (f"{name}, {'bits per byte' if name in DIGITS else '% right'}" for name in names)
        lines = [f"| arm | {' | '.join(labels)} |", "|---|" + "---|" * len(names)]
        for arm in dict.fromkeys(arm for name in names for arm in self.results[name].study.arms):
            found = [self.arms[name].get(arm) for name in names]
            if any(found):
                cells = [
                    "" if row is None else between(row.summary, digits(name), points(name))
                    for name, row in zip(names, found, strict=True)
                ]
                lines.append(f"| {arm} | " + " | ".join(cells) + " |")
        return "\n".join(lines)

    def depth(self, names: tuple[str, ...]) -> str:
        """Return norms, cosines and growth of trained models."""
        lines = [
            "| study | arm | log growth of norms (95%) | after the first block (95%) | last cosine (95%) | max Re λ, layers | negative |",
            "|---|---|---|---|---|---|---|",
        ]
        for study in names:
            positions = self.results[study].study.arms[0].partition("/")[2]
            kept = {f"{kind}/{positions}" for kind in (*REGIMES, *CONTROLS, *(f"bare-{kind}" for kind in REGIMES))}
            for arm, row in self.dynamics[study].items():
                if study in TUNED or arm in kept:
                    curves = [between(getattr(row, name), 2) for name in ("norm", "later_norm", "cosine")]
                    growth = f"{row.growth_low:.4f} to {row.growth_high:.4f}"
                    cells = study, arm, *curves, growth, f"{row.negative} of {row.layers}"
                    lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines)


def points(study: str) -> float:
    """Return the factor of a measure: accuracies are in percent."""
    return 1.0 if study in DIGITS else 100.0


def digits(study: str) -> int:
    return DIGITS.get(study, 1)


def unit(study: str) -> str:
    return "" if study in DIGITS else " points"


def written(study: str, test: PairedTest) -> str:
    return f"{signed(test.difference, study)}{unit(study)} ({signed(test.low, study)} to {signed(test.high, study)})"


def signed(value: float, study: str) -> str:
    return f"{points(study) * value:+.{digits(study)}f}"


def between(found: Summary, digits: int, factor: float = 1.0) -> str:
    assert found.interval is not None
    low, high = found.interval
    return f"{factor * (found.mean or 0.0):.{digits}f} ({factor * low:.{digits}f} to {factor * high:.{digits}f})"


def page() -> str:
    """Return the text of the page."""
    numbers = Numbers()
    words = (DOCS / "experiments.md.in").read_text(encoding="utf-8")
    words = re.sub(r"\[\[(.+?)\]\]", numbers.replace, words)
    special = {
        "all arms": lambda: numbers.everything(UNTUNED),
        "all tuned arms": lambda: numbers.everything(TUNED),
        "depth": lambda: numbers.depth(UNTUNED),
        "tuned depth": lambda: numbers.depth(TUNED),
        "sizes": numbers.sizes,
        "missing": numbers.not_run,
        "facts": numbers.facts,
        "loops": numbers.loops,
        **{f"curves {name}": lambda name=name: numbers.curves(name) for name in TUNED},
        **{f"rates {name}": lambda name=name: numbers.rates(name) for name in TUNED},
    }
    return re.sub(r"\{\{(.+?)\}\}", lambda match: special.get(match[1], lambda: numbers.table(match[1]))(), words)


def draw_figures() -> None:
    """Draw the figures by the commands in their captions."""
    from attractor.cli.main import run

    for name in (*TUNED, *UNTUNED):
        where = f"benchmarks/results/training/{name}.jsonl"
        curves = (("--plot-curves", f"study_{name}_curves.png"),)
        differences = (("--plot", f"study_{name}.png"), ("--plot-depth", f"study_{name}_depth.png"))
        for option, picture in curves if name in TUNED else differences:
            assert run(["study", "results", where, option, f"docs/_static/{picture}"]) == 0


if __name__ == "__main__":
    (DOCS / "experiments.md").write_text(page(), encoding="utf-8")
    if "--figures" in sys.argv:
        draw_figures()
