"""Report page of ``attractor simulate``."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

from attractor.errors import AttractorError
from attractor.html_repr import format_number
from attractor.memory import format_size
from attractor.plotting import style
from attractor.report.blocks import Badge
from attractor.report.pages.theory import add_fates, add_theorem
from attractor.report.report import Report, Section
from attractor.solvers import Trajectory

MOST = 1024  # tokens up to which theorems are evaluated at the start
BAD = ("stalled", "budget", "unfinished")


def simulation_report(run: Trajectory, command: str, member: int = 0, observe: tuple[str, ...] = ()) -> Report:
    """Build the page of a run."""
    found = run.summary(observe)
    outcome, sizes = run.outcome, found["sizes"]
    members = "".join(f"{count} × " for count in sizes["ensemble"])
    facts = {
        "tokens": f"{members}{sizes['tokens']:,}",
        "dimension": sizes["dim"],
        "space": run.space.name,
        "law": found["law"] or "a function",
    }
    report = Report("Simulation", command, kicker="attractor simulate", lead=outcome.sentence, facts=facts)
    add_run(report.section("Run"), run, member)
    if "outcomes" in found:
        add_members(report.section("Ensemble"), run)
    add_theory(report.section("Theory"), run, member)
    add_observables(report.section("Observables"), found)
    add_costs(report.section("Cost"), run)
    return report


def add_run(section: Section, run: Trajectory, member: int = 0, command: str = "") -> Section:
    """Add the animation of one member."""
    if len(run.times) == 0:
        return section.text("The run saved no states: give save times to draw it.", tone="warn")
    which = f"Member {member} of the ensemble. " if run.initial.batch_shape else ""
    return section.animation(run.scene(member), caption=which, command=command)


def add_members(section: Section, run: Trajectory) -> Section:
    """Add outcomes and end times of the members."""
    counts = Counter(outcome.name for outcome in run.outcomes).most_common()
    times = {name: [outcome.time for outcome in run.outcomes if outcome.name == name] for name, _ in counts}
    data = [
        {"type": "box", "name": name.replace("_", " "), "x": values, "boxpoints": "all", "jitter": 0.5}
        | {"marker": {"color": style.PALETTE[place % 7]}}
        for place, (name, values) in enumerate(times.items())
    ]
    rows = [
        {"outcome": name, "members": count, "first": min(times[name]), "last": max(times[name])}
        for name, count in counts
    ]
    return section.figure(
        {"data": data, "layout": {"xaxis": {"title": {"text": "end time"}}, "showlegend": False}},
        "End times of the members by outcome; each dot is one member.",
        "End times of members: " + "; ".join(f"{row['outcome']} {row['members']}" for row in rows),
        height=140 + 70 * len(data),
        numbers=rows,
    )


def add_theory(section: Section, run: Trajectory, member: int = 0) -> Section:
    """Add the theorems that apply to the start, and whether the run agrees with them."""
    single = run.member(member)
    if run.law is None or single.n > MOST:
        reason = "the law is a Python function" if run.law is None else f"there are more than {MOST} tokens"
        return section.text(f"Theorems were not evaluated, because {reason}; see `attractor predict`.")
    from attractor.theory import predict

    try:
        end = None if run.definition is None else run.definition.options.get("until")
        found = predict(single.law, single.tokens, run.space, until=end, noise=run.noise)  # type: ignore[arg-type]
    except AttractorError as error:
        return section.text(f"Theorems could not be evaluated: {error}", tone="warn")
    count = f"{len(found.applicable)} of {len(found.findings)} theorems apply to this start."
    add_fates(section.text(count), found, single)
    part = section.fold("Theorems that apply, with their hypotheses")
    for item in found.applicable:
        add_theorem(part.fold(f"{item.theorem.key}: {item.theorem.title}"), item)
    return section


def add_observables(section: Section, found: dict[str, Any]) -> Section:
    """Add observables at the start and at the end; of an ensemble their means and the middle 90% of the members."""
    rows: list[dict[str, Any]] = []
    ensemble = tuple(found["sizes"]["ensemble"])
    for name, values in found["observables"].items():
        ends = [np.array(values[when], dtype=float) for when in ("start", "end")]
        if any(numbers.shape != ensemble for numbers in ends):  # not one number for each member
            continue
        row: dict[str, Any] = {"observable": name.replace("_", " ")}
        for when, numbers in zip(("start", "end"), ends, strict=True):
            if ensemble:
                low, high = np.quantile(numbers, [0.05, 0.95])
                row |= {
                    f"mean at the {when}": numbers.mean(),
                    f"90% at the {when}": f"{format_number(low)} to {format_number(high)}",
                }
            else:
                row[f"at the {when}"] = None if np.isnan(numbers) else float(numbers)
        rows.append(row)
    if not rows:
        return section.text("No observable with one number for each state was evaluated.")
    words = "Means over the members at t = 0 and at the end of the run, with the range of the middle 90% of them."
    return section.table(rows, caption=words if ensemble else "At t = 0 and at the end of the run.")


def add_costs(section: Section, run: Trajectory) -> Section:
    """Add outcome, steps, time and memory."""
    stats, outcome = run.stats, run.outcome
    end = outcome.time if math.isfinite(outcome.time) else None
    when = format_number(end) if outcome.log_time is None else outcome.when
    section.card(
        {
            "outcome": Badge(outcome.name.replace("_", " "), "warn" if outcome.name in BAD else "good"),
            "at t": when,
        }
    )
    steps = f"{stats.accepted:,} accepted, {stats.rejected:,} rejected"
    section.card({"evaluations of the law": stats.evaluations, "steps": steps})
    section.card(
        {"seconds": stats.seconds, "memory": format_size(stats.peak_memory) if stats.peak_memory else "not known"}
    )
    return section.card({"stepper": stats.method, "engine": stats.engine or "none", "merges": stats.merges})
