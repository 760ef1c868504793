"""Options that say what becomes of a run."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from attractor.cli.files import check_picture, check_store
from attractor.cli.groups import given, panel
from attractor.errors import InputError

option = panel("Results")
WITH_RESUME = {
    "resume",
    "plot",
    "density",
    "report",
    "member",
    "width",
    "observe",
    "json",
    "quiet",
    "progress",
    "debug",
    "max_seconds",
    "max_evaluations",
}


@dataclass(frozen=True)
class OutputOptions:
    """What becomes of the run."""

    out: Annotated[Path | None, option("PATH", "Stream the run into this new Zarr store.", "--out", "-o")] = None
    resume: Annotated[
        Path | None, option("PATH", "Go on with the run in this store; it knows its law, tokens and tolerances.")
    ] = None
    plot: Annotated[
        list[Path] | None, option("FILE", "Draw the run: .html, .png, .pdf, .svg, .gif or .mp4; may be repeated.")
    ] = None
    density: Annotated[
        Path | None, option("FILE", "Draw the density of tokens on a line or in a plane: .png, .pdf or .svg.")
    ] = None
    report: Annotated[
        Path | None, option("FILE.html", "Write a page: the film, the theory beside it, observables and costs.")
    ] = None
    member: Annotated[int, option("I", "Which member of an ensemble is drawn.", min=0)] = 0
    observe: Annotated[
        list[str] | None, option("NAME", "Report this observable too, with --json at all saved times; may be repeated.")
    ] = None
    json: Annotated[bool, option("", "Print one JSON object.", "--json")] = False
    quiet: Annotated[bool, option("", "Print nothing but errors (and the object of --json).", "--quiet", "-q")] = False
    progress: Annotated[
        bool | None, option("", "A bar on stderr.", "--progress/--no-progress", default="if stderr is a terminal")
    ] = None
    debug: Annotated[bool, option("", "Show the traceback of an error.", "--debug")] = False

    @property
    def shows_progress(self) -> bool:
        if self.progress is not None:
            return self.progress
        return sys.stderr.isatty() and not self.quiet


def check_output(options: OutputOptions, context: typer.Context) -> None:
    """Everything about the results that can be known to fail, before the run starts."""
    from attractor.observables import named

    if options.resume is not None:
        other = [option for name, option in given(context).items() if name not in WITH_RESUME]
        if other:
            raise InputError(f"--resume goes on with the run as it was defined: leave out {', '.join(other)}")
        if not options.resume.exists():
            raise InputError(f"--resume {options.resume}: there is no such store")
        if not (options.resume / "zarr.json").is_file():
            raise InputError(f"--resume {options.resume} is not a run of attractor: there is no zarr.json in it")
    for name in options.observe or ():
        named(name)
    for path in options.plot or ():
        check_picture(path)
    if options.density is not None:
        check_picture(options.density, "--density", still=True)
    if options.report is not None:
        from attractor.report import check_place

        check_place(options.report, "--report")
    if options.out is not None:
        check_store(options.out)
