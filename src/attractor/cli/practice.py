"""``attractor practice``: what weights promise against what tokens do, over real models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from attractor.cli.bars import said
from attractor.cli.ending import ending
from attractor.cli.files import check_file, check_picture
from attractor.cli.groups import given, grouped, panel, replay
from attractor.cli.pictures import PictureOptions
from attractor.cli.texts import read_lines
from attractor.cli.written import Written
from attractor.errors import InputError

SCHEMA = "attractor.practice/1"
option, output = panel("Experiment"), panel("Results")


@dataclass(frozen=True)
class PracticeOptions:
    """Which models, and what they read."""

    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL...]", help="Models; without one, those that attractor fetch has."),
    ] = None
    file: Annotated[
        Path | None, option("FILE", "One text a line for all models.", default="what each model was made for")
    ] = None
    seed: Annotated[int, option("N", "Of resampling and of random heads.", min=0)] = 0
    resamples: Annotated[int, option("N", "Resamples and permutations of layers.", min=100)] = 2000


@dataclass(frozen=True)
class PracticeOutput:
    """What becomes of it."""

    out: Annotated[Path | None, output("FILE", "Write all data as JSON.", "--out", "-o")] = None
    plot: Annotated[Path | None, output("FILE", "Draw the correlations: .png, .pdf or .svg.")] = None
    plot_layers: Annotated[Path | None, output("FILE", "Draw growth along depth: .png, .pdf or .svg.")] = None
    json: Annotated[bool, output("", "Print one JSON object.", "--json")] = False
    progress: Annotated[
        bool | None, output("", "A line on stderr for each model.", "--progress/--no-progress", default="shown")
    ] = None
    debug: Annotated[bool, output("", "Show the traceback of an error.", "--debug")] = False


@grouped(PracticeOptions, PracticeOutput, PictureOptions)
def practice(
    context: typer.Context, options: PracticeOptions, output: PracticeOutput, pictures: PictureOptions
) -> None:
    """Ask real models whether theory speaks of them: does a head meet the hypotheses of collapse or divergence, and do spectra of weights
    rank layers by how much they lengthen tokens?

    Rank correlations over layers, with intervals by resampling layers and a null by permuting them. Exit code 0; 1 if a model cannot
    be read, 2 for a bad argument.
    """
    with ending("attractor practice", output.debug), pictures.sized():
        texts = read_texts(options.file)
        check(output, given(context))
        from attractor.checkpoints.opening import needs_transformers
        from attractor.cli.practicetable import draw, print_practice
        from attractor.cli.printing import print_json, versions, write_json

        needs_transformers()
        from attractor.checkpoints.verification import quiet
        from attractor.experiments.practice.study import run
        from attractor.experiments.practice.words import answers

        tell = said(output.progress)
        names = tuple(options.models or ())
        with quiet():
            found = run(names, texts=texts, seed=options.seed, resamples=options.resamples, progress=tell)
        command = replay(context, without=("json", "progress", "debug"))
        document: dict[str, Any] = {"schema": SCHEMA, "command": command, "answers": answers(found), **found}
        drawn = draw(document, output.plot, output.plot_layers)
        written = Written.of(drawn, files=[output.out])
        document["written"] = written.row()
        document["versions"] = versions()
        if output.out is not None:
            write_json(document, output.out)
        if output.json:
            print_json(document)
        else:
            print_practice(document)
            written.tell(command)


def read_texts(path: Path | None) -> tuple[str, ...] | None:
    """The texts of a file, one a line."""
    if path is None:
        return None
    found = tuple(one.text for one in read_lines([path]))
    if not found:
        raise InputError(f"--file {path} has no text in it: give one a line")
    return found


def check(output: PracticeOutput, named: dict[str, str]) -> None:
    """Refuse files that could not be written before anything runs."""
    if "width" in named and output.plot is None and output.plot_layers is None:
        raise InputError("--width belongs to --plot and --plot-layers, neither of which is given")
    for path in (output.plot, output.plot_layers):
        if path is not None:
            check_picture(path, still=True)
    if output.out is not None:
        check_file(output.out, "--out")
