"""``attractor positions``: what positional encodings do to a collapse."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attractor.cli.ending import ending
from attractor.cli.groups import check_numbers, replay

SCHEMA = "attractor.positions/1"


def positions(
    context: typer.Context,
    systems: Annotated[int, typer.Option(metavar="N", help="Random systems under each encoding.", min=1)] = 24,
    phase: Annotated[
        int, typer.Option(metavar="N", help="Systems in each cell of the phase diagram; 0 for none.", min=0)
    ] = 12,
    until: Annotated[float, typer.Option("--until", "-t", metavar="T", help="The time to reach.")] = 100.0,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the systems.", min=0)] = 0,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the study: .png, .pdf or .svg.")] = None,
    json: Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object.")] = False,
    debug: Annotated[bool, typer.Option("--debug", metavar="", help="Show the traceback of an error.")] = False,
) -> None:
    """Follow systems that collapse without positions (theorem regimes.T1) under every positional encoding.

    Absolute positions once, at every layer, or on queries and keys only; rotary positions in full and causal attention and for
    different splits of the same interaction. Exit code 0; 2 for a bad argument.
    """
    with ending("attractor positions", debug):
        from attractor.cli.files import check_picture
        from attractor.cli.printing import print_json, versions
        from attractor.cli.theorytable import print_positions
        from attractor.errors import InputError
        from attractor.theory.positional import positional_study

        check_numbers(context)
        if until < 10:
            raise InputError(f"--until {until:g} is too early to tell a plateau from a collapse: give at least 10")
        if plot is not None:
            from attractor.theory.positional_picture import SUFFIXES

            if plot.suffix.lower() not in SUFFIXES:
                raise InputError(f"--plot {plot}: the study is drawn as {', '.join(SUFFIXES)}")
            check_picture(plot)
        study = positional_study(systems, until, seed, phase)
        if plot is not None:
            from attractor.theory.positional_picture import draw

            draw(study, plot)
        if json:
            command = replay(context, without=("json", "debug"))
            print_json({"schema": SCHEMA, "command": command, **study.row(), "versions": versions()})
        else:
            print_positions(study.row())
