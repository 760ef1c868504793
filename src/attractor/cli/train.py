"""``attractor train``: a model of text or of pictures with chosen attention."""

from __future__ import annotations

import os
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from attractor.cli.ending import ending
from attractor.cli.groups import grouped, panel, replay
from attractor.errors import InputError

SCHEMA = "attractor.train/1"
what, output = panel("Run"), panel("Results")


@dataclass(frozen=True)
class TrainOptions:
    """What is trained."""

    config: Annotated[
        str, typer.Argument(metavar="CONFIG", help="A TOML file, or the name of one that comes along, such as tiny.")
    ]
    data: Annotated[
        str | None, what("PATH", "A file or a folder of text or pictures; datasets:NAME.", default="what CONFIG says")
    ] = None
    out: Annotated[Path | None, what("FOLDER", "A new folder for the run.", "--out", "-o")] = None
    resume: Annotated[Path | None, what("FOLDER", "Go on with the run in this folder, after its last checkpoint.")] = (
        None
    )
    seeds: Annotated[str | None, what("S,S,...", "One run for each seed, in folders seed0, seed1, ... of --out.")] = (
        None
    )
    steps: Annotated[int | None, what("N", "How many steps.", min=1, default="what CONFIG says")] = None
    change: Annotated[
        list[str] | None, what("NAME=VALUE", "Another entry of CONFIG; may be given several times.", "--set")
    ] = None


@dataclass(frozen=True)
class TrainOutput:
    """What becomes of it."""

    json: Annotated[bool, output("", "Print one JSON object.", "--json")] = False
    progress: Annotated[
        bool | None, output("", "A bar on stderr.", "--progress/--no-progress", default="if stderr is a terminal")
    ] = None
    debug: Annotated[bool, output("", "Show the traceback of an error.", "--debug")] = False


@grouped(TrainOptions, TrainOutput)
def train(context: typer.Context, options: TrainOptions, output: TrainOutput) -> None:
    """Train a Transformer of text or of pictures whose attention is the experiment.

    The folder of a run holds its configuration, the last checkpoint, and curve.jsonl with a line for each step: the loss, and at
    evaluations the scores (bits per byte and perplexities, or accuracy), norms, distances and cosines of tokens along depth and the
    regime of every layer and head. A run that was killed and resumed has the same curve. Exit code 0; 1 for a failed run, 2 for a
    bad argument.
    """
    with ending("attractor train", output.debug):
        from attractor.cli.printing import print_json, versions

        runs = planned(options)
        reports = [one(*run, options.resume is not None, output) for run in runs]
        if os.environ.get("RANK", "0") != "0":
            return  # of several processes the first one speaks
        if output.json:
            command = replay(context, without=("json", "progress", "debug"))
            print_json({"schema": SCHEMA, "command": command, "runs": reports, "versions": versions()})
        else:
            for report in reports:
                typer.echo(said(report))


def planned(options: TrainOptions) -> list[tuple[Any, Path]]:
    """A configuration and a folder for each run."""
    from attractor.experiments.training import read_config

    if (options.out is None) == (options.resume is None):
        raise InputError("give --out FOLDER for a new run or --resume FOLDER to go on with one")
    folder = options.out or options.resume
    assert folder is not None
    changes = {**changed(options.change or []), "data": options.data, "steps": options.steps}
    if options.seeds is None:
        return [(read_config(options.config, **changes), folder)]
    try:
        seeds = [int(seed) for seed in options.seeds.split(",")]
    except ValueError:
        raise InputError(f"--seeds {options.seeds} is not a list of whole numbers: write --seeds 0,1,2") from None
    return [(read_config(options.config, **changes, seed=seed), folder / f"seed{seed}") for seed in seeds]


def changed(given: list[str]) -> dict[str, Any]:
    """Entries as TOML has them; a word that is none there is itself."""
    found: dict[str, Any] = {}
    for entry in given:
        name, sign, value = entry.partition("=")
        if not sign or not name.strip():
            raise InputError(f"--set {entry} is not of the form NAME=VALUE, such as --set attention=divergent")
        try:
            found[name.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[name.strip()] = value.strip()
    return found


def said(report: dict[str, Any]) -> str:
    """One line for a run."""
    score = (
        f"accuracy {report['accuracy']:.4f}" if "accuracy" in report else f"{report['bits_per_byte']:.4f} bits per byte"
    )
    return (
        f"{report['folder']}: {report['steps']} steps, {report['parameters']} parameters, {score}, "
        f"{report['seconds']:.1f} s"
    )


def one(config: Any, folder: Path, resume: bool, output: TrainOutput) -> dict[str, Any]:
    """One run with a bar on stderr."""
    from rich.console import Console
    from rich.progress import Progress

    from attractor.experiments.training import train as run

    shows = sys.stderr.isatty() if output.progress is None else output.progress
    shows = shows and os.environ.get("RANK", "0") == "0"
    with Progress(console=Console(stderr=True), disable=not shows, transient=True) as bar:
        task = bar.add_task(f"seed {config.seed}", total=config.steps)

        def show(row: dict[str, Any]) -> None:
            bar.update(task, completed=row["step"], description=f"seed {config.seed}, loss {row['loss']:.3f}")

        report = run(config, folder, resume=resume, progress=show)
    return {"seed": config.seed, **report.row()}
