"""Report page of ``attractor simulate``."""

from __future__ import annotations

from typing import Any

from attractor.errors import AttractorError
from attractor.html_repr import format_number
from attractor.memory import format_size
from attractor.plotting import style
from attractor.report.blocks import Badge
from attractor.report.pages.theory import add_fates, add_theorem
from attractor.report.report import Report, Section
from attractor.solvers import Trajectory, scene, summarise

ASKED = 1024  # tokens up to which every theorem is asked about the start
BAD = ("stalled", "budget", "unfinished")


def simulation_report(run: Trajectory, command: str, member: int = 0, observe: tuple[str, ...] = ()) -> Report:
    """The report of ``simulate``."""
    found = summarise(run, observe)
    outcome, sizes = run.outcome, found["sizes"]
    lead = f"{outcome.name.replace('_', ' ').capitalize()} at t = {outcome.time:.6g}: {outcome.message}."
    members = "".join(f"{count} × " for count in sizes["ensemble"])
    facts = {
        "tokens": f"{members}{sizes['tokens']:,}",
        "dimension": sizes["dim"],
        "space": run.space.name,
        "law": found["law"] or "a function",
    }
    report = Report("Where the tokens went", command, kicker="attractor simulate", lead=lead, facts=facts)
    add_run(report.section("The run"), run, member)
    if "outcomes" in found:
        add_members(report.section("Members of the ensemble"), found)
    add_theory(report.section("What the theory says"), run, member)
    add_observables(report.section("Observables"), found)
    add_costs(report.section("What it took"), found)
    return report


def add_run(section: Section, run: Trajectory, member: int = 0, command: str = "") -> Section:
    """The animation of one member; of a run that kept no states, a sentence."""
    if len(run.times) == 0:
        return section.text("The run kept no states, so there is nothing to draw: give save times.", tone="warn")
    which = f"Member {member} of the ensemble. " if run.initial.batch_shape else ""
    return section.animation(scene(run, member), caption=which, command=command)


def add_members(section: Section, found: dict[str, Any]) -> Section:
    """How the members ended, and when."""
    counts = found["outcomes"]
    times = {name: [one["time"] for one in found["members"] if one["name"] == name] for name in counts}
    data = [
        {
            "type": "box",
            "name": name.replace("_", " "),
            "x": values,
            "boxpoints": "all",
            "jitter": 0.5,
            "marker": {"color": style.PALETTE[place % 7]},
        }
        for place, (name, values) in enumerate(times.items())
    ]
    rows = [
        {"outcome": name, "members": count, "first": min(times[name]), "last": max(times[name])}
        for name, count in counts.items()
    ]
    return section.figure(
        {"data": data, "layout": {"xaxis": {"title": {"text": "time of the end"}}, "showlegend": False}},
        "When the members of the ensemble ended, by how they ended; each dot is one member.",
        "Times of the ends of members: " + "; ".join(f"{row['outcome']} {row['members']}" for row in rows),
        height=140 + 70 * len(data),
        numbers=rows,
    )


def add_theory(section: Section, run: Trajectory, member: int = 0) -> Section:
    """Which theorems apply to the start, and whether the run agrees."""
    single = run.member(member)
    if run.law is None or single.n > ASKED:
        reason = "the law is a Python function" if run.law is None else f"there are more than {ASKED} tokens"
        return section.text(
            f"The theorems were not asked, because {reason}; `attractor predict` asks them about any start."
        )
    from attractor.theory import predict

    try:
        found = predict(single.law, single.tokens, run.space)  # type: ignore[arg-type]
    except AttractorError as error:
        return section.text(f"The theorems could not be asked: {error}", tone="warn")
    asked = (
        f"{len(found.applicable)} of {len(found.findings)} theorems apply to this start, before anything is integrated."
    )
    add_fates(section.text(asked), found, single)
    part = section.fold("The theorems that apply, and how this start meets their hypotheses")
    for item in found.applicable:
        add_theorem(part.fold(f"{item.theorem.key}: {item.theorem.title}"), item)
    return section


def add_observables(section: Section, found: dict[str, Any]) -> Section:
    """Observables at the start and at the end."""
    rows = []
    for name, values in found["observables"].items():
        start, end = values["start"], values["end"]
        if isinstance(start, list) or isinstance(end, list):
            continue
        rows.append({"observable": name.replace("_", " "), "at the start": start, "at the end": end})
    if not rows:
        return section.text("The observables of an ensemble are in the object that `--json` prints.")
    return section.table(rows, caption="At t = 0 and at the end of the run.")


def add_costs(section: Section, found: dict[str, Any]) -> Section:
    """What the run took."""
    stats, name = found["stats"], found["outcome"]["name"]
    section.card(
        {
            "outcome": Badge(name.replace("_", " "), "warn" if name in BAD else "good"),
            "at t": format_number(found["outcome"]["time"]),
        }
    )
    section.card(
        {
            "evaluations of the law": stats["evaluations"],
            "steps": f"{stats['accepted']:,} accepted, {stats['rejected']:,} rejected",
        }
    )
    memory = format_size(stats["peak_memory"]) if stats["peak_memory"] else "not known"
    section.card({"seconds": stats["seconds"], "memory": memory})
    return section.card({"stepper": stats["method"], "engine": stats["engine"] or "none", "merges": stats["merges"]})
