"""``attractor train``: a model of text or of pictures with chosen attention."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from attractor.cli.ending import ending
from attractor.cli.groups import grouped, panel, replay
from attractor.cli.pictures import PictureOptions
from attractor.cli.train_plan import check_folders, listed, named_entries, planned
from attractor.cli.written import Written

SCHEMA = "attractor.train/1"
what, output = panel("Run"), panel("Results")


@dataclass(frozen=True)
class TrainOptions:
    """What is trained."""

    config: Annotated[
        str | None,
        typer.Argument(
            metavar="CONFIG",
            help="A TOML file, or the name of one that comes along, such as tiny; --resume knows its own.",
            show_default=False,
        ),
    ] = None
    data: Annotated[
        str | None, what("PATH", "A file or a folder of text or pictures; datasets:NAME.", default="what CONFIG says")
    ] = None
    out: Annotated[Path | None, what("FOLDER", "A new folder for the run.", "--out", "-o")] = None
    resume: Annotated[Path | None, what("FOLDER", "Go on with the run in this folder, as it began.")] = None
    seed: Annotated[int | None, what("N", "Seed of everything.", min=0, default="what CONFIG says, or 0")] = None
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

    plot: Annotated[Path | None, output("FILE", "Draw losses, scores and tokens along depth (.png, .pdf, .svg).")] = (
        None
    )
    report: Annotated[Path | None, output("FILE.html", "Write a page: curves, tokens, the regime of every head.")] = (
        None
    )
    json: Annotated[bool, output("", "Print one JSON object.", "--json")] = False
    progress: Annotated[
        bool | None, output("", "A bar on stderr.", "--progress/--no-progress", default="if stderr is a terminal")
    ] = None
    debug: Annotated[bool, output("", "Show the traceback of an error.", "--debug")] = False


@grouped(TrainOptions, TrainOutput, PictureOptions)
def train(context: typer.Context, options: TrainOptions, output: TrainOutput, pictures: PictureOptions) -> None:
    """Train a Transformer of text or of pictures whose attention is the experiment.

    The folder of a run holds its configuration, the last checkpoint, and curve.jsonl with a line for each step: the loss, and at
    evaluations the scores (bits per byte and perplexities, or accuracy), norms, distances and cosines of tokens along depth and the
    regime of every layer and head. A run that was killed and resumed has the same curve. Exit code 0; 1 for a failed run, 2 for a
    bad argument.
    """
    with ending("attractor train", output.debug), pictures.sized():
        from attractor.cli.printing import print_json, versions

        check_places(output)
        runs = planned(options)
        goes_on = check_folders(runs, options)
        folder = options.out or options.resume
        cache = None if folder is None or runs[0][1] == folder else folder / "data"  # seeds share what is made of text
        with listed(runs, cache):
            named = named_entries(runs, options)
            reports = [one(*run, resume, named, cache, output) for run, resume in zip(runs, goes_on, strict=True)]
        if os.environ.get("RANK", "0") != "0":
            return  # of several processes the first one speaks
        command = replay(context, without=("json", "progress", "debug"))
        show([folder for _, folder in runs], command, output)
        over = over_seeds(reports)
        written = Written.of([output.plot], output.report, [folder for _, folder in runs])
        if output.json:
            found = {"schema": SCHEMA, "command": command, "runs": reports, "over_seeds": over}
            print_json({**found, "written": written.row(), "versions": versions()})
            return
        for report in reports:
            typer.echo(said(report))
        for name, row in over.items():
            if row["interval"] is not None:
                low, high = row["interval"]
                typer.echo(f"{name}: {row['mean']:.4f} over {row['count']} seeds, 95% interval {low:.4f} to {high:.4f}")
        written.tell(command)


def check_places(output: TrainOutput) -> None:
    """Refuse pictures and pages that could not be written at the end."""
    if output.plot is not None:
        from attractor.cli.files import check_picture

        check_picture(output.plot, still=True)
    if output.report is not None:
        from attractor.report import check_place

        check_place(output.report, "--report")


def show(folders: list[Path], command: str, output: TrainOutput) -> None:
    """The picture and the page of the runs."""
    if output.plot is None and output.report is None:
        return
    from attractor.experiments.training.history import History

    histories = [History.read(folder) for folder in folders]
    if output.plot is not None:
        from attractor.experiments.training.pictures import draw_runs

        draw_runs(histories, output.plot)
    if output.report is not None:
        from attractor.experiments.training.page import training_report

        training_report(histories, command).write(output.report)


def over_seeds(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and interval of what runs are judged by."""
    from attractor.experiments.training.history import SCORES, summary

    return {name: summary([report[name] for report in reports]) for name in SCORES if name in reports[0]}


def said(report: dict[str, Any]) -> str:
    """One line for a run."""
    score = (
        f"accuracy {report['accuracy']:.4f}" if "accuracy" in report else f"{report['bits_per_byte']:.4f} bits per byte"
    )
    return (
        f"{report['folder']}: {report['steps']} steps, {report['parameters']} parameters, {score}, "
        f"{report['seconds']:.1f} s"
    )


def one(
    config: Any, folder: Path, resume: bool, named: list[str], cache: Path | None, output: TrainOutput
) -> dict[str, Any]:
    """One run with a bar on stderr: the loss, and how many tokens or pictures go by each second."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from attractor.experiments.training import train as run

    shows = sys.stderr.isatty() if output.progress is None else output.progress
    shows = shows and os.environ.get("RANK", "0") == "0"
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    each = config.batch * config.accumulate * int(os.environ.get("WORLD_SIZE", "1"))
    unit = "pictures" if config.task == "images" else "tokens"
    each *= 1 if config.task == "images" else config.context
    with Progress(*columns, console=Console(stderr=True), disable=not shows, transient=True) as bar:
        task = bar.add_task(f"seed {config.seed}", total=config.steps)
        began: list[tuple[float, int]] = []

        def show(row: dict[str, Any]) -> None:
            began.append((time.perf_counter(), row["step"]))
            del began[:-50]  # the speed of the last steps
            (first, then), (now, step) = began[0], began[-1]
            speed = (step - then) * each / max(now - first, 1e-9)
            words = f"seed {config.seed}, loss {row['loss']:.3f}, {speed:,.0f} {unit}/s"
            bar.update(task, completed=row["step"], description=words)

        report = run(config, folder, resume=resume, cache=cache, changed=named, progress=show if shows else None)
    return {"seed": config.seed, **report.row()}
