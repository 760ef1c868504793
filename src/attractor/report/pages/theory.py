"""Report pages of predictions and theorem checks."""

from __future__ import annotations

import math
from typing import Any

from attractor.plotting import style
from attractor.report.blocks import Badge, Code, Maths
from attractor.report.figures import escape_text
from attractor.report.report import Report, Section
from attractor.solvers import Trajectory, describe_source
from attractor.theory import CheckReport, Finding, Prediction, Theorem, find_contradiction, find_theorem

TONES = {"holds": "good", "undetermined": "warn", "fails": "bad"}
BARS = 40  # hypotheses in the figure of sharpness


def prediction_report(found: Prediction, command: str) -> Report:
    """Build the page of a prediction."""
    count = len(found.applicable)
    lead = f"{count or 'No'} theorem{'' if count == 1 else 's'} of {len(found.findings)} apply to this system."
    report = Report("Prediction", command, kicker="attractor predict", lead=lead)
    add_fates(report.section("Predicted"), found)
    applying = report.section("Theorems that apply")
    for item in found.applicable:
        add_theorem(applying.fold(f"{item.theorem.key}: {item.theorem.title}"), item)
    if found.nearest is not None:
        nearest = report.section("Nearest theorem that does not apply")
        nearest.text(f"{found.nearest.theorem.key}: {found.nearest.theorem.title}. Hypotheses that fail are marked.")
        add_theorem(nearest, found.nearest)
    return report


def add_fates(section: Section, found: Prediction, run: Trajectory | None = None) -> Section:
    """Add predicted fates, their meaning, when they are to be expected, the theorems and, with a run, whether it contradicts them."""
    rows: list[dict[str, Any]] = []
    for fate, keys in found.fates.items():
        scale = found.find_scale(fate)
        row: dict[str, Any] = {
            "predicted": Badge(fate),
            "meaning": found.meanings[fate],
            "time and rate": "" if scale is None else scale.describe(found.until),
            "by": ", ".join(keys),
        }
        if run is not None:
            row["in this run"] = _compare(found, fate, run)
        rows.append(row)
    if found.note:
        section.text(f"{found.note[0].upper()}{found.note[1:]}.", tone="warn")
    if rows:
        section.table(rows, caption="Fates that theorems predict from law, tokens and space.")
    elif not found.note:
        section.text("No theorem predicts a fate for this system.", tone="warn")
    for item in found.exceptional:
        section.text(
            f"This start is exceptional: {item.theorem.key} is about almost every start, but here {item.exception}.",
            tone="warn",
        )
    for one, other in found.contradictions:
        section.text(f"{one.theorem.key} and {other.theorem.key} exclude each other.", tone="bad")
    return section


def _compare(found: Prediction, fate: str, run: Trajectory) -> Badge:
    """Say whether a run contradicts a fate, has ended long before it, or is one that only an exception could contradict."""
    against, scale = find_contradiction(fate, run), found.find_scale(fate)
    if against is None:
        return Badge("not contradicted", "good")
    end = run.outcome.time
    if scale is not None and scale.is_beyond(end if math.isfinite(end) and end > 0 else found.until):
        return Badge("the run ended long before", "warn")
    if all(item.theorem.for_almost_every_start for item in found.applicable if item.fate == fate):
        return Badge(f"{against}: a start that is an exception, or a longer run is needed", "warn")
    if not any(item.theorem.status.is_proved for item in found.applicable if item.fate == fate):
        return Badge("a conjecture is contradicted: " + against, "warn")
    return Badge("contradicted: " + against, "bad")


def add_statement(section: Section, entry: Theorem) -> Section:
    """Add statement, rate and source of a theorem."""
    section.text(entry.statement)
    if entry.rate:
        section.text("Rate:").maths(entry.rate)
    place = f", {entry.citation.place}" if entry.citation.place else ""
    return section.text(
        f"{entry.status.value.capitalize()}; {describe_source(entry.citation.key)}{place}. Symbols: {entry.citation.symbols}."
    )


def add_theorem(section: Section, item: Finding) -> Section:
    """Add a theorem with the margins of its hypotheses."""
    add_statement(section, item.theorem)
    if item.scale is not None:
        section.text(f"Here: {item.scale.describe()}.")
    if item.fate is not None:
        section.text(f"Fate: {item.meaning}.")
    rows = [
        (
            condition.name,
            Maths(condition.formula),
            Badge(condition.verdict.value, TONES[condition.verdict.value]),
            condition.row()["margin"],
            condition.margin.detail,
        )
        for condition in item.conditions
    ]
    return section.table(rows, ("hypothesis", "formula", "verdict", "margin", "detail"))


def check_report(found: CheckReport, command: str) -> Report:
    """Build the page of a check."""
    instances = sum(entry.instances for entry in found.theorems)
    lead = f"{len(found.theorems)} theorems on {instances} random instances: {found.violations} violations of proved statements."
    facts = {
        "theorems": len(found.theorems),
        "instances": instances,
        "violations": found.violations,
        "seed": found.seed,
        "seconds": found.seconds,
    }
    report = Report("Theorems on random instances", command, kicker="attractor check", lead=lead, facts=facts)
    add_check(report.section("Instances"), found)
    add_sharpness(report.section("Sharpness of hypotheses"), found)
    statements = report.section("Statements")
    for entry in found.theorems:
        part = statements.fold(f"{entry.key}: {entry.title}")
        add_statement(part, find_theorem(entry.key)).commands(
            {f"attractor check --theorem {entry.key}": "check it again"}
        )
    return report


def add_check(section: Section, found: CheckReport) -> Section:
    """Add one row for each theorem."""
    rows = [
        {
            "theorem": Code(entry.key),
            "statement": entry.title,
            "status": Badge(entry.status, "good" if entry.status.startswith("proved") else "warn"),
            "instances": entry.instances,
            "violations": Badge(str(entry.violations), "bad" if entry.violations else "good"),
            "smallest margin": entry.worst,
            "of the conclusion": entry.conclusion,
        }
        for entry in found.theorems
    ]
    caption = "Random systems that satisfy the hypotheses; a negative margin is a violation."
    return section.table(rows, caption=caption)


def add_sharpness(section: Section, found: CheckReport) -> Section:
    """Add how often conclusions held without one of their hypotheses."""
    sharp = [(entry.key, item) for entry in found.theorems for item in entry.sharpness]
    if not sharp:
        return section.text("No hypothesis was violated on purpose: give `--violated N`.")
    rows = [
        {"theorem": key, "violated hypothesis": item.hypothesis, "conclusion held": item.held, "of": item.instances}
        for key, item in sharp
    ]
    shown = list(reversed(sharp[:BARS]))
    bars = {
        "type": "bar",
        "orientation": "h",
        "y": [escape_text(f"{key}: {item.hypothesis}") for key, item in shown],
        "x": [100 * item.held / item.instances for _, item in shown],
        "marker": {"color": style.PALETTE[0]},
        "hovertemplate": "%{y}<br>held in %{x:.0f}%<extra></extra>",
    }
    layout = {"xaxis": {"range": [-1, 101], "ticksuffix": "%"}, "bargap": 0.35}
    left = "" if len(sharp) <= BARS else f" The first {BARS} of {len(sharp)} are drawn."
    section.figure(
        {"data": [bars], "layout": layout},
        "How often the conclusion held although one hypothesis was violated: at 0% the hypothesis is needed, "
        f"at 100% these samples do not show that it is.{left}",
        f"Bars of {len(shown)} hypotheses from 0 to 100 per cent.",
        height=110 + 26 * len(shown),
        numbers=rows,
    )
    return section
