"""Report page of ``attractor train``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from attractor.plotting import PlotlySpec
from attractor.report.blocks import Badge, Measure
from attractor.report.figures import axes_layout, escape_text, scatter
from attractor.report.report import Report
from attractor.training import SCORES, History, describe_run, summarise

TONES = {"convergent": "warn", "divergent": "good"}


def training_report(runs: Sequence[History], command: str) -> Report:
    """Build one page for runs that differ in their seeds."""
    first = runs[0]
    measure = first.measure
    found = summarise([run.evaluations[-1][0].scores[measure] for run in runs])
    lead = f"At the end: {SCORES[measure]} {found.mean:.4f}"
    if found.interval is not None:
        lead += f" over {found.count} seeds, 95% interval {found.interval[0]:.4f} to {found.interval[1]:.4f}"
    facts = {"task": first.config.task, "attention": first.config.attention, "steps": first.steps[-1].step}
    report = Report(describe_run(first), command, kicker="attractor train", lead=f"{lead}.", facts=facts)
    _add_curves(report, runs, measure)
    _add_depth(report, first)
    _add_weights(report, first)
    _add_regimes(report, first)
    _add_scores(report, runs)
    entries = [{"entry": name, "value": escape_text(value)} for name, value in first.config.row().items()]
    report.section("Configuration").fold("All entries").table(entries)
    return report


def _add_curves(report: Report, runs: Sequence[History], measure: str) -> None:
    section, count = report.section("Curves"), f"{len(runs)} run{'s' * (len(runs) != 1)}"
    curves = [(escape_text(run.name), *(values.tolist() for values in run.losses())) for run in runs]
    low, high = curves[0][2][-1], curves[0][2][0]
    section.figure(
        _lines(curves, "lines", "training loss (nats)"),
        "Training loss, as means over neighbouring steps.",
        f"Training loss of {count}, from {high:.3f} to {low:.3f} in the first.",
    )
    scores = [
        (
            escape_text(run.name),
            [step.step for step, _ in run.evaluations],
            [step.scores[measure] for step, _ in run.evaluations],
        )
        for run in runs
    ]
    section.figure(
        _lines(scores, "lines+markers", SCORES[measure]),
        f"{SCORES[measure].capitalize()} on validation data.",
        f"{SCORES[measure].capitalize()} of {count} along steps.",
    )


def _lines(curves: Sequence[tuple[str, Sequence[float], Sequence[float]]], mode: str, y_title: str) -> PlotlySpec:
    return {"data": [scatter(x, y, mode, name=name) for name, x, y in curves], "layout": axes_layout("step", y_title)}


def _add_depth(report: Report, run: History) -> None:
    """Add a heat map: rows are evaluations, columns are depths."""
    found = run.evaluations
    depths = range(len(found[0][1].norm))
    measures = {
        name: Measure([getattr(dynamics, key) for _, dynamics in found], scale, words)
        for name, key, scale, words in (
            ("norm", "norm", "sequential", "Mean norm of tokens."),
            ("effective rank", "effective_rank", "sequential", "Mean effective rank of the tokens of a sample."),
            ("squared distance", "distance", "sequential", "Mean squared distance between two tokens of a sample."),
            ("cosine", "cosine", "diverging", "Mean cosine between two tokens of a sample; 1 is consensus."),
        )
        if all(getattr(dynamics, key) is not None for _, dynamics in found)
    }
    report.section("Tokens along depth").heatmap(
        measures,
        rows=[step.step for step, _ in found],
        columns=list(depths),
        axes=("step", "depth"),
        caption=f"Tokens of four validation samples before every block and after the last, along training ({run.name}).",
        alt=f"Norms, distances and cosines at {len(found)} evaluations and {len(depths)} depths.",
    )


WEIGHTS = (
    ("strength of the refinement", "strength", "diverging", "Mean strength lambda of the heads of a layer."),
    ("smallest strength", "strength_low", "diverging", "Smallest strength lambda of a layer."),
    ("largest strength", "strength_high", "diverging", "Largest strength lambda of a layer."),
    ("largest real part of V", "growth", "diverging", "Largest real part of the eigenvalues of the value map."),
    ("smallest eigenvalue of sym(V'W)", "form_low", "diverging", "Relative to its norm; positive: positive definite."),
    ("largest eigenvalue of sym(V'W)", "form_high", "diverging", "Relative to its norm; negative: negative definite."),
    ("entropy of attention", "entropy", "sequential", "Mean over heads, relative to the largest possible one."),
    ("norm of the gradient", "gradient", "sequential", "Norm of the gradient of a block, before clipping."),
)


def _add_weights(report: Report, run: History) -> None:
    """Add heat maps of strengths, spectra, entropies and gradients: rows are evaluations, columns are layers."""
    section = report.section("Attention along training")
    for name, key, scale, words in WEIGHTS:
        rows = [(step.step, values) for step, one in run.evaluations if (values := getattr(one, key)) is not None]
        if not rows:
            continue
        section.heatmap(
            {name: Measure([values for _, values in rows], scale, words)},
            rows=[step for step, _ in rows],
            columns=list(range(len(rows[0][1]))),
            axes=("step", "layer"),
            caption=f"{name[0].upper()}{name[1:]}, layer by layer along training ({run.name}; step 0 is the start).",
            alt=f"{name} at {len(rows)} evaluations and {len(rows[0][1])} layers.",
        )


def _add_regimes(report: Report, run: History) -> None:
    """Add the labels of heads and layers at the first and the last evaluation."""
    section = report.section("Regimes")
    (_, first), (_, last) = run.evaluations[0], run.evaluations[-1]
    heads = last.head_regimes
    if not run.config.labels:
        section.text("The run has no labels (labels = false).")
        return
    if not heads or not all(heads):
        section.text("The weights are not finite, so their heads have no regime.", tone="bad")
        return

    def detail(layer: int, head: int) -> dict[str, Any]:
        labels = [(step.step, (found.head_regimes or ())[layer][head]) for step, found in run.evaluations]
        changes = [labels[0], *(now for before, now in pairwise(labels) if now[1] != before[1])]
        return {"along the run": ", ".join(f"{label} from step {step}" for step, label in changes)}

    section.heatmap(
        {
            "at the end": Measure(heads, "category"),
            "at the first evaluation": Measure(first.head_regimes or (), "category"),
        },
        rows=range(len(heads)),
        columns=range(len(heads[0])),
        caption=f"Regime of every head by its weights, without the norm before the layer ({run.name}).",
        alt="Labels of heads by layer.",
        detail=detail,
    )
    rows = [
        {"layer": index, "first evaluation": before, "end": Badge(label, TONES.get(label, "plain"))}
        for index, (before, label) in enumerate(zip(first.regimes or (), last.regimes or (), strict=True))
    ]
    section.table(rows, caption="The same for whole layers.")


def _add_scores(report: Report, runs: Sequence[History]) -> None:
    rows = [{"run": run.name, "loss": step.loss, **step.scores} for run in runs for step, _ in (run.evaluations[-1],)]
    report.section("Scores").table(rows, caption="At the last step; loss is that of the last training batch.")
