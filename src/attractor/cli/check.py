"""``attractor check``: theorems tested on random instances."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from attractor.cli.console import FAILED, Outputs, print_error, print_json, print_rows, print_table, short
from attractor.cli.options import (
    CommonOptions,
    command_line,
    given,
    panel,
    print_result,
    result_option,
    seed_option,
    with_options,
)
from attractor.errors import InputError

SCHEMA = "attractor.check/2"
DETAILED = 5  # theorems that are listed with their hypotheses
option = panel("Theorems")


@dataclass(frozen=True)
class CheckOptions:
    """Which theorems, on how many instances."""

    theorem: Annotated[
        list[str] | None,
        option("KEY", "A theorem such as regimes.T1, or a paper such as regimes; may be repeated.", default="all"),
    ] = None
    instances: Annotated[int, option("N", "Random instances of each theorem.", min=1)] = 50
    violated: Annotated[int, option("N", "Instances that violate each hypothesis; 0 for none.", min=0)] = 10
    seed: Annotated[int, seed_option("Seed of all random draws.", "Theorems")] = 0
    processes: Annotated[int, option("N", "Worker processes.", min=1)] = 2
    systems: Annotated[
        int | None,
        option("N", "Instead: compare the predictions for N random systems with simulations of them.", min=1),
    ] = None
    show: Annotated[bool, option("", "List the theorems and stop.", "--list")] = False


@dataclass(frozen=True)
class CheckResults(CommonOptions):
    """Where results go."""

    report: Annotated[Path | None, result_option("FILE.html", "Write a page with results and statements.")] = None


@with_options(CheckOptions, CheckResults)
def check(context: typer.Context, options: CheckOptions, output: CheckResults) -> None:
    """Test theorems: sample instances that satisfy the hypotheses, integrate them, measure the conclusion.

    Also samples instances that violate one hypothesis at a time and counts how often the conclusion still holds. Exit code 0; 1 if a
    proved statement is violated, 2 for a bad argument.
    """
    from attractor.theory import check as check_theorems
    from attractor.theory import select_theorems, summarize

    check_combination(given(context))
    if options.systems is not None:
        compare_predictions(context, options.systems, options.seed, output)
        return
    chosen = select_theorems(options.theorem or None)
    if options.show:
        rows = [summarize(entry) for entry in chosen]
        print_json({"schema": SCHEMA, "theorems": rows}) if output.json else print_theorems(rows)
        return
    if output.report is not None:
        from attractor.report import check_place

        check_place(output.report, "--report")
    settings = {name: getattr(options, name) for name in ("instances", "violated", "seed", "processes")}
    with output.show_progress("check", total=len(chosen)) as update:
        found = check_theorems(
            options.theorem or None, **settings, progress=lambda key, done, total: update(done, total, key)
        )
    command = command_line(context)
    if output.report is not None:
        from attractor.report import check_report

        check_report(found, command).write(output.report)
    row, outputs = found.row(), Outputs(report=output.report)
    print_result(output, SCHEMA, command, row, outputs, lambda: print_check(row))
    if found.violations:
        print_error(f"{found.violations} violations of proved statements", "attractor check")
        raise typer.Exit(FAILED)


def check_combination(named: dict[str, str]) -> None:
    """Raise if an option has no effect beside another one."""
    shared = ("json", "quiet", "debug")
    alone = {"systems": ("systems", "seed", "progress", *shared), "show": ("show", "theorem", *shared)}
    for name, allowed in alone.items():
        other = [option for key, option in named.items() if key not in allowed]
        if name in named and other:
            raise InputError(f"{named[name]} does not go with {', '.join(other)}: leave out one or the other")


def compare_predictions(context: typer.Context, systems: int, seed: int, output: CheckResults) -> None:
    """Compare predictions with simulations of random systems."""
    from attractor.theory import measure_agreement

    with output.show_progress("systems") as update:
        found = measure_agreement(systems, seed, update)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(found.kinds.items()))
    rows = {
        "systems": f"{found.systems} ({kinds})",
        "predicted": f"{found.covered} by {found.predictions} applications of proved theorems",
        "contradicted": str(len(found.disputes)),
    }
    rows |= {f"system {item.system}": f"{item.kind}: {item.theorem}: {item.reason}" for item in found.disputes}
    title, document = "Predictions and simulations of random systems", {"seed": seed, **found.row()}
    print_result(output, SCHEMA, command_line(context), document, Outputs(), lambda: print_rows(title, rows))
    if found.disputes:
        print_error(f"{len(found.disputes)} predictions of proved theorems are contradicted", "attractor check")
        raise typer.Exit(FAILED)


def print_check(report: dict[str, Any]) -> None:
    """Print one line for each theorem, and how often conclusions hold without a hypothesis."""
    columns = ("theorem", "title", "status", "instances", "violations", "worst margin", "seconds")
    rows = []
    for row in report["theorems"]:
        count = Text(str(row["violations"]), "red" if row["violations"] else "green")
        head = (row["key"], row["title"], row["status"], row["instances"])
        rows.append((*head, count, short(row["worst"]), f"{row['seconds']:.1f}"))
    print_table("Theorems on random instances", columns, rows)
    sharp = [
        (row["key"], found["hypothesis"], f"{found['held']} of {found['instances']}")
        for row in report["theorems"]
        for found in row["sharpness"]
    ]
    if sharp:
        print_table("With one hypothesis violated, the conclusion held in", ("theorem", "hypothesis", "held"), sharp)


def print_theorems(rows: list[dict[str, Any]]) -> None:
    """Print the list of theorems; a few of them with their hypotheses."""
    if len(rows) > DETAILED:
        columns = [(row["key"], row["title"], row["status"], _name_fate(row["fate"])) for row in rows]
        print_table("Theorems", ("theorem", "title", "status", "fate"), columns)
        print_rows("", {"hypotheses": "attractor check --list --theorem KEY"}, "")
        return
    for row in rows:
        parts = {
            "status": row["status"],
            "source": row["source"],
            "fate": _name_fate(row["fate"]),
            "hypotheses": ", ".join(row["hypotheses"]),
            "proof": row["proof"],
        }
        print_rows(f"{row['key']}: {row['title']}", {name: text for name, text in parts.items() if text})


def _name_fate(fate: str) -> str:
    return {"identity": "none", "depends on the case": "by case"}.get(fate, fate)
