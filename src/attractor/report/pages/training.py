"""Report page of ``attractor train``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from attractor.report.blocks import Badge, Measure
from attractor.report.figures import plain
from attractor.report.report import Report
from attractor.training import SCORES, History, summary, title

TONES = {"convergent": "warn", "divergent": "good"}


def counted(count: int, thing: str) -> str:
    return f"{count} {thing}{'s' * (count != 1)}"


def training_report(runs: Sequence[History], command: str) -> Report:
    """One page for runs that differ in their seeds."""
    first = runs[0]
    score = first.score
    ends = [run.evaluations[-1][score] for run in runs]
    found = summary(ends)
    said = f"{SCORES[score]} {found['mean']:.4f}"
    if found["interval"] is not None:
        said += f" over {found['count']} seeds, 95% interval {found['interval'][0]:.4f} to {found['interval'][1]:.4f}"
    facts = {"task": first.config["task"], "attention": first.config["attention"], "steps": first.rows[-1]["step"]}
    report = Report(title(first), command, kicker="attractor train", lead=f"At the end: {said}.", facts=facts)
    _curves(report, runs, score)
    _depth(report, first)
    _regimes(report, first)
    _scores(report, runs)
    changed = [{"entry": name, "value": plain(value)} for name, value in first.config.items()]
    report.section("Configuration").fold("All entries").table(changed)
    return report


def _curves(report: Report, runs: Sequence[History], score: str) -> None:
    section = report.section("Curves")
    losses = []
    for run in runs:
        x, y = run.losses()
        losses.append({"type": "scatter", "mode": "lines", "x": x.tolist(), "y": y.tolist(), "name": plain(run.name)})
    layout = {"xaxis": {"title": {"text": "step"}}, "yaxis": {"title": {"text": "training loss (nats)"}}}
    section.figure(
        {"data": losses, "layout": layout},
        "Training loss, as means over neighbouring steps.",
        f"Training loss of {counted(len(runs), 'run')}, from {losses[0]['y'][0]:.3f} to {losses[0]['y'][-1]:.3f} in the first.",
    )
    scores = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "x": [row["step"] for row in run.evaluations],
            "y": [row[score] for row in run.evaluations],
            "name": plain(run.name),
        }
        for run in runs
    ]
    layout = {"xaxis": {"title": {"text": "step"}}, "yaxis": {"title": {"text": SCORES[score]}}}
    words = f"{SCORES[score].capitalize()} on validation data."
    section.figure(
        {"data": scores, "layout": layout}, words, f"{counted(len(runs), 'curve')} of {SCORES[score]} along steps."
    )


def _depth(report: Report, run: History) -> None:
    """Rows are evaluations, columns are places along depth."""
    rows = run.evaluations
    depths = range(len(rows[0]["dynamics"]["norm"]))
    measures = {
        name: Measure([row["dynamics"][key] for row in rows], scale, words)
        for name, key, scale, words in (
            ("norm", "norm", "sequential", "Mean norm of tokens."),
            ("squared distance", "distance", "sequential", "Mean squared distance between two tokens of a sample."),
            ("cosine", "cosine", "diverging", "Mean cosine between two tokens of a sample; 1 is consensus."),
        )
    }
    report.section("Tokens along depth").heatmap(
        measures,
        rows=[row["step"] for row in rows],
        columns=list(depths),
        axes=("step", "depth"),
        caption=f"Tokens of four validation samples before every block and after the last, along training ({run.name}).",
        alt=f"Norms, distances and cosines at {len(rows)} evaluations and {len(depths)} depths.",
    )


def _regimes(report: Report, run: History) -> None:
    """Labels of heads at the first and the last evaluation."""
    section = report.section("Regimes")
    first, last = (row["dynamics"] for row in (run.evaluations[0], run.evaluations[-1]))
    if not last["head_regimes"] or not all(last["head_regimes"]):
        section.text("The weights are not finite, so their heads have no regime.", tone="bad")
        return
    heads = last["head_regimes"]

    def detail(layer: int, head: int) -> dict[str, Any]:
        along = [(row["step"], row["dynamics"]["head_regimes"][layer][head]) for row in run.evaluations]
        changes = [along[0], *(now for before, now in pairwise(along) if now[1] != before[1])]
        return {"along the run": ", ".join(f"{label} from step {step}" for step, label in changes)}

    section.heatmap(
        {
            "at the end": Measure(heads, "category"),
            "at the first evaluation": Measure(first["head_regimes"], "category"),
        },
        rows=range(len(heads)),
        columns=range(len(heads[0])),
        caption=f"The regime of every head by its weights ({run.name}); the norm before the layer is left out.",
        alt="Labels of heads by layer.",
        detail=detail,
    )
    rows = [
        {"layer": index, "first evaluation": first["regimes"][index], "end": Badge(label, TONES.get(label, "plain"))}
        for index, label in enumerate(last["regimes"])
    ]
    section.table(rows, caption="The same for whole layers.")


def _scores(report: Report, runs: Sequence[History]) -> None:
    rows = []
    for run in runs:
        end = run.evaluations[-1]
        scores = {name: value for name, value in end.items() if isinstance(value, float) and name != "rate"}
        rows.append({"run": run.name, **scores})
    report.section("Scores").table(rows, caption="At the last step; loss is that of the last training batch.")
