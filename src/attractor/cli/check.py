"""``attractor check``: theorems on random instances."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attractor.cli.console import FAILED, Written, complain, ending
from attractor.cli.options import given, replay
from attractor.errors import InputError
from attractor.progress import progress_bar

SCHEMA = "attractor.check/1"


def check(
    context: typer.Context,
    theorem: Annotated[
        list[str] | None,
        typer.Option(
            "--theorem",
            metavar="KEY",
            help="A theorem such as regimes.T1, or a paper such as regimes; may be repeated.",
        ),
    ] = None,
    instances: Annotated[int, typer.Option(metavar="N", help="Random instances of each theorem.", min=1)] = 50,
    violated: Annotated[
        int, typer.Option(metavar="N", help="Instances that violate each hypothesis; 0 for none.", min=0)
    ] = 10,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of everything.", min=0)] = 0,
    processes: Annotated[int, typer.Option(metavar="N", help="Worker processes.", min=1)] = 2,
    systems: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Instead: ask all theorems about N random systems, follow these, and compare.", min=1
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--list", metavar="", help="List the theorems and stop.")] = False,
    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="FILE.html", help="Write a page with the statements as mathematics."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object.")] = False,
    progress: Annotated[
        bool | None,
        typer.Option(
            "--progress/--no-progress", metavar="", help="A bar on stderr.", show_default="if stderr is a terminal"
        ),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", metavar="", help="Show the traceback of an error.")] = False,
) -> None:
    """Check theorems: sample instances that satisfy the hypotheses, integrate them, measure the conclusion.

    Also samples instances that violate one hypothesis at a time and counts how often the conclusion still held. Exit code 0; 1 if a
    proved statement is violated, 2 for a bad argument.
    """
    with ending("attractor check", debug):
        from attractor.cli.console import print_json
        from attractor.cli.environment import versions
        from attractor.cli.theory_tables import print_check, print_theorems
        from attractor.theory import check as run
        from attractor.theory import select_theorems, summarize

        refuse_mixed(given(context))
        if systems is not None:
            compare(context, systems, seed, json, progress)
            return
        chosen = select_theorems(theorem or None)
        if show:
            rows = [summarize(entry) for entry in chosen]
            print_json({"schema": SCHEMA, "theorems": rows}) if json else print_theorems(rows)
            return
        if report is not None:
            from attractor.report import check_place

            check_place(report, "--report")
        settings = {"instances": instances, "violated": violated, "seed": seed, "processes": processes}
        with progress_bar("check", progress, total=len(chosen)) as update:
            found = run(theorem or None, **settings, progress=lambda key, done, total: update(done, total, key))
        command = replay(context, without=("json", "debug", "progress"))
        if report is not None:
            from attractor.report import check_report

            check_report(found, command).write(report)
        written = Written(report=report)
        if json:
            document = {"schema": SCHEMA, "command": command, **found.row(), "written": written.row()}
            print_json({**document, "versions": versions()})
        else:
            print_check(found.row())
            written.tell(command)
        if found.violations:
            complain(f"{found.violations} violations of proved statements", "attractor check")
            raise typer.Exit(FAILED)


def refuse_mixed(named: dict[str, str]) -> None:
    """Options that another one would leave without effect."""
    shared = ("json", "quiet", "debug")
    alone = {"systems": ("systems", "seed", "progress", *shared), "show": ("show", "theorem", *shared)}
    for name, allowed in alone.items():
        other = [option for key, option in named.items() if key not in allowed]
        if name in named and other:
            raise InputError(f"{named[name]} does not go with {', '.join(other)}: leave out one or the other")


def compare(context: typer.Context, systems: int, seed: int, json: bool, progress: bool | None) -> None:
    """Predictions against runs."""
    from attractor.cli.console import print_json, print_rows
    from attractor.cli.environment import versions
    from attractor.theory import measure_agreement

    with progress_bar("systems", progress) as show:
        found = measure_agreement(systems, seed, show)
    command = replay(context, without=("json", "debug", "progress"))
    if json:
        head = {"schema": SCHEMA, "command": command, "seed": seed}
        print_json({**head, **found.row(), "written": Written().row(), "versions": versions()})
    else:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(found.kinds.items()))
        rows = {
            "systems": f"{found.systems} ({kinds})",
            "predicted": f"{found.covered} by {found.predictions} applications of proved theorems",
            "contradicted": str(len(found.disputes)),
        }
        rows |= {f"system {item.system}": f"{item.kind}: {item.theorem}: {item.reason}" for item in found.disputes}
        print_rows("Predictions and runs of random systems", rows)
        Written().tell(command)
    if found.disputes:
        complain(f"{len(found.disputes)} predictions of proved theorems are contradicted", "attractor check")
        raise typer.Exit(FAILED)
