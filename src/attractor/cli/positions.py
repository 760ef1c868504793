"""``attractor positions``: what positional encodings do to a collapse."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from attractor.cli.console import Written, ending
from attractor.cli.options import PictureOptions, check_numbers, grouped, panel, replay
from attractor.progress import progress_bar

SCHEMA = "attractor.positions/1"


study_option, option = panel("Study"), panel("Results")


@dataclass(frozen=True)
class StudyOptions:
    """How many systems, and how far."""

    systems: Annotated[int, study_option("N", "Random systems under each encoding.", min=1)] = 24
    phase: Annotated[int, study_option("N", "Systems in each cell of the phase diagram; 0 for none.", min=0)] = 12
    until: Annotated[float, study_option("T", "The time to reach.", "--until", "-t")] = 100.0
    seed: Annotated[int, study_option("N", "Seed of the systems.", min=0)] = 0


@dataclass(frozen=True)
class ResultOptions:
    """What becomes of it."""

    plot: Annotated[Path | None, option("FILE", "Draw the study: .png, .pdf or .svg.")] = None
    json: Annotated[bool, option("", "Print one JSON object.", "--json")] = False
    progress: Annotated[
        bool | None, option("", "A bar on stderr.", "--progress/--no-progress", default="if stderr is a terminal")
    ] = None
    debug: Annotated[bool, option("", "Show the traceback of an error.", "--debug")] = False


@grouped(StudyOptions, ResultOptions, PictureOptions)
def positions(context: typer.Context, asked: StudyOptions, results: ResultOptions, pictures: PictureOptions) -> None:
    """Follow systems that collapse without positions (theorem regimes.T1) under every positional encoding.

    Absolute positions once, at every layer, or on queries and keys only; rotary positions in full and causal attention and for
    different splits of the same interaction. Exit code 0; 2 for a bad argument.
    """
    with ending("attractor positions", results.debug), pictures.sized():
        from attractor.cli.console import print_json
        from attractor.cli.environment import versions
        from attractor.cli.inputs import check_picture
        from attractor.cli.theory_tables import print_positions
        from attractor.errors import InputError
        from attractor.papers import positional_study

        check_numbers(context)
        if asked.until < 10:
            raise InputError(
                f"--until {asked.until:g} is too early to tell a plateau from a collapse: give at least 10"
            )
        if results.plot is not None:
            check_picture(results.plot, still=True)
        with progress_bar("positions", results.progress) as show:
            study = positional_study(asked.systems, asked.until, asked.seed, asked.phase, progress=show)
        if results.plot is not None:
            from attractor.papers import draw

            draw(study, results.plot)
        command = replay(context, without=("json", "progress", "debug"))
        written = Written.of([results.plot])
        if results.json:
            document = {"schema": SCHEMA, "command": command, **study.row(), "written": written.row()}
            print_json({**document, "versions": versions()})
        else:
            print_positions(study.row())
            written.tell(command)
