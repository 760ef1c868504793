"""``attractor train``: train a Transformer."""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attractor.cli.console import Outputs
from attractor.cli.inputs import check_figure, check_new_folder
from attractor.cli.options import (
    FigureOptions,
    command_line,
    panel,
    parse_seeds,
    print_result,
    result_option,
    with_options,
)
from attractor.errors import InputError, StoreError
from attractor.files import checksum_json, read_json, write_json
from attractor.progress import is_shown, progress_bar

if TYPE_CHECKING:
    from attractor.training import TrainingStep

SEEDS = "seeds.json"  # in the folder of a run of several


def plan_runs(options: TrainOptions) -> list[tuple[Any, Path]]:
    """Return a configuration and a folder for each run."""
    from attractor.training import read_config

    if (options.out is None) == (options.resume is None):
        raise InputError("give --out FOLDER for a new run or --resume FOLDER to continue one")
    if options.seed is not None and options.seeds is not None:
        raise InputError("--seed is for one run and --seeds for several: give one of them")
    given, seeds = list_changes(options), None if options.seeds is None else parse_seeds(options.seeds)
    if options.resume is not None:
        return read_runs(options.resume, options.config, given, seeds)
    assert options.out is not None
    if options.config is None:
        raise InputError("give a CONFIG for a new run: a TOML file, or a built-in one such as tiny")
    if seeds is None:
        return [(read_config(options.config, **given), options.out)]
    return [(read_config(options.config, **given | {"seed": seed}), options.out / f"seed{seed}") for seed in seeds]


def list_changes(options: TrainOptions) -> dict[str, Any]:
    """Return the entries that options set beside CONFIG."""
    named = {"data": options.data, "steps": options.steps, "seed": options.seed}
    return parse_changes(options.change or []) | {name: value for name, value in named.items() if value is not None}


def read_runs(
    resume: Path, config: str | None, given: dict[str, Any], seeds: list[int] | None
) -> list[tuple[Any, Path]]:
    """Return the stored runs of a folder, or of its seeds; entries given again must agree with them."""
    from attractor.training import RunFolder, read_config

    runs = _stored(resume, seeds)
    # CONFIG does not determine entries that were set beside it when the run started
    before = {*(name for _, folder in runs for name in RunFolder(folder).changed()), "seed"}
    for stored, folder in runs:
        row = stored.row()
        unknown = sorted(given.keys() - row.keys())
        if unknown:
            raise InputError(f"there is no entry {unknown[0]!r}; the entries are {', '.join(sorted(row))}")
        extended = _is_extended(stored, given, folder)
        _check_equal({**row, "steps": given["steps"]} if extended else row, given, folder)
        if config is not None:
            kept = {name: getattr(stored, name) for name in before}
            other = read_config(config, **kept | given).row()
            _check_equal(row, {**other, "steps": row["steps"]} if extended else other, folder)
    return [
        (replace(stored, steps=given["steps"]) if _is_extended(stored, given, folder) else stored, folder)
        for stored, folder in runs
    ]


def _is_extended(stored: Any, given: dict[str, Any], folder: Path) -> bool:
    """Whether a finished run gets more steps."""
    from attractor.training import RunFolder

    steps = given.get("steps")
    return isinstance(steps, int) and steps > stored.steps and RunFolder(folder).last_step() == stored.steps


def _stored(resume: Path, seeds: list[int] | None) -> list[tuple[Any, Path]]:
    """Read the runs in a folder; seeds that had not started get the configuration of the others."""
    from attractor.training import RunFolder

    if RunFolder(resume).has_run():
        if seeds is not None:
            raise InputError(f"{resume} holds one run and no folders of seeds: leave out --seeds")
        return [(_config(resume), resume)]
    found = {_number(file.parent): _config(file.parent) for file in resume.glob("seed*/config.json")}
    if seeds is not None and not found.keys() & set(seeds):
        named = ",".join(str(seed) for seed in seeds)
        raise StoreError(f"{resume} holds no run of the seeds {named} that could be resumed")
    if not found:
        raise StoreError(f"{resume} holds no run that could be resumed: it has no readable config.json")
    first = next(iter(found.values()))
    wanted = dict.fromkeys([*_seeds(resume), *sorted(found)]) if seeds is None else seeds
    return [(found.get(seed) or replace(first, seed=seed), resume / f"seed{seed}") for seed in wanted]


def _check_equal(stored: dict[str, Any], given: dict[str, Any], folder: Path) -> None:
    """Raise if entries differ from those of the run."""
    other = [name for name, value in sorted(given.items()) if not _is_same(name, stored[name], value)]
    if other:
        named = ", ".join(f"{name} ({stored[name]!r} there, {given[name]!r} here)" for name in other)
        raise InputError(
            f"the run in {folder} has another configuration: {named}; --resume FOLDER alone continues it unchanged"
        )


def _is_same(name: str, stored: Any, given: Any) -> bool:
    if name in ("data", "tokenizer") and isinstance(stored, str) and isinstance(given, str):
        return stored == given or Path(stored).resolve() == Path(given).resolve()
    return stored == (list(given) if isinstance(given, tuple) else given)


def _config(folder: Path) -> Any:
    """Return the configuration of a stored run."""
    from attractor.training import RunFolder

    return RunFolder(folder).config()


def _number(folder: Path) -> int:
    try:
        return int(folder.name.removeprefix("seed"))
    except ValueError:
        raise StoreError(f"{folder} is not the folder of a seed, which are named seed0, seed1 and so on") from None


def _seeds(folder: Path) -> list[int]:
    """Return the recorded seeds of a run of several, in their order; the record of attractor 0.2 is a list without a checksum."""
    try:
        record = read_json(folder / SEEDS)
        seeds = record if isinstance(record, list) else record["seeds"]
        if isinstance(record, dict) and record.get("checksum") != checksum_json(seeds):
            raise ValueError("the checksum is another")
        return [int(seed) for seed in seeds]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError):
        raise StoreError(f"{folder / SEEDS} is damaged: give the CONFIG and --seeds of the run") from None


@contextmanager
def record_seeds(runs: list[tuple[Any, Path]], cache: Path | None) -> Iterator[None]:
    """Record all seeds beside their folders, so that --resume finds those that have not started; remove the record if none starts."""
    from attractor.training import RunFolder

    if cache is None or os.environ.get("RANK", "0") != "0":
        yield
        return
    place = cache.parent / SEEDS
    new = [folder for folder in (cache.parent, *cache.parent.parents) if not folder.exists()]
    cache.parent.mkdir(parents=True, exist_ok=True)
    seeds = dict.fromkeys([*_seeds(cache.parent), *(config.seed for config, _ in runs)])
    write_json(place, {"seeds": [*seeds], "checksum": checksum_json([*seeds])})
    try:
        yield
    except BaseException:
        if not any(RunFolder(folder).has_run() for _, folder in runs):
            with suppress(OSError):
                place.unlink()
                for folder in new:
                    folder.rmdir()
        raise


def check_folders(runs: list[tuple[Any, Path]], options: TrainOptions) -> list[bool]:
    """Return which runs are resumed (of several seeds some may not have started); raise if a new folder cannot be used."""
    from attractor.training import RunFolder

    folders = [RunFolder(folder) for _, folder in runs]
    if options.resume is None:
        for folder in folders:
            check_new_folder(folder.path, "--out")
            folder.check_new()
        return [False] * len(runs)
    return [folder.has_run() for folder in folders]


def named_entries(runs: list[tuple[Any, Path]], options: TrainOptions) -> list[str]:
    """Return the entries set beside CONFIG, now or when a resumed run started; a new run stores them in its folder."""
    from attractor.training import RunFolder

    before = (RunFolder(folder).changed() for _, folder in runs if options.resume is not None)
    return sorted({*list_changes(options), *(name for names in before for name in names)})


def parse_changes(given: list[str]) -> dict[str, Any]:
    """Return entries NAME=VALUE with values as in TOML; anything else is text."""
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


SCHEMA = "attractor.train/2"
run_option = panel("Run")


@dataclass(frozen=True)
class TrainOptions:
    """The configuration, the data and the folder of a run."""

    config: Annotated[
        str | None,
        typer.Argument(
            metavar="CONFIG",
            help="A TOML file, or a built-in configuration such as tiny; not needed with --resume.",
            show_default=False,
        ),
    ] = None
    data: Annotated[
        str | None,
        run_option("PATH", "A file or a folder of text or images, or datasets:NAME.", default="that of CONFIG"),
    ] = None
    out: Annotated[Path | None, run_option("FOLDER", "A new folder for the run.", "--out", "-o")] = None
    resume: Annotated[
        Path | None, run_option("FOLDER", "Continue the run in this folder; with --steps N, a finished one.")
    ] = None
    seed: Annotated[int | None, run_option("N", "Seed of all random draws.", min=0, default="that of CONFIG, or 0")] = (
        None
    )
    seeds: Annotated[
        str | None, run_option("S,S,...", "One run for each seed, in folders seed0, seed1, ... of --out.")
    ] = None
    steps: Annotated[int | None, run_option("N", "Number of steps.", min=1, default="that of CONFIG")] = None
    change: Annotated[
        list[str] | None, run_option("NAME=VALUE", "Another entry of CONFIG; may be repeated.", "--set")
    ] = None


@dataclass(frozen=True)
class TrainResults(FigureOptions):
    """Where results go."""

    plot: Annotated[
        Path | None, result_option("FILE", "Draw losses, scores and tokens along depth: .png, .pdf or .svg.")
    ] = None
    report: Annotated[
        Path | None, result_option("FILE.html", "Write a page: curves, tokens, the regime of every head.")
    ] = None


@with_options(TrainOptions, TrainResults)
def train(context: typer.Context, options: TrainOptions, output: TrainResults) -> None:
    """Train a Transformer on text or images with the attention of a configuration.

    The folder of a run holds its configuration, the last checkpoint, and curve.jsonl with a line for each step: the loss, and at
    evaluations the scores (bits per byte and perplexities, or accuracy), norms, distances and cosines of tokens along depth and the
    regime of every layer and head. A run that was killed and resumed has the same curve. Exit code 0; 1 for a failed run, 2 for a
    bad argument.
    """
    check_results(output)
    runs = plan_runs(options)
    resumes = check_folders(runs, options)
    folder = options.out or options.resume
    cache = None if folder is None or runs[0][1] == folder else folder / "data"  # seeds share tokenized text
    with record_seeds(runs, cache):
        named = named_entries(runs, options)
        reports = [train_one(*run, resume, named, cache, output) for run, resume in zip(runs, resumes, strict=True)]
    if os.environ.get("RANK", "0") != "0":
        return  # of several processes the first one prints
    command = command_line(context)
    draw_results([folder for _, folder in runs], command, output)
    summaries = summarise_seeds(reports)
    outputs = Outputs.given([output.plot], output.report, [folder for _, folder in runs])

    def print_tables() -> None:
        for report in reports:
            typer.echo(format_run(report))
        for name, row in summaries.items():
            if row["interval"] is not None:
                low, high = row["interval"]
                typer.echo(f"{name}: {row['mean']:.4f} over {row['count']} seeds, 95% interval {low:.4f} to {high:.4f}")

    print_result(output, SCHEMA, command, {"runs": reports, "over_seeds": summaries}, outputs, print_tables)


def check_results(output: TrainResults) -> None:
    """Raise if results could not be written."""
    if output.plot is not None:
        check_figure(output.plot, still=True)
    if output.report is not None:
        from attractor.report import check_place

        check_place(output.report, "--report")


def draw_results(folders: list[Path], command: str, output: TrainResults) -> None:
    """Draw the figure and write the report."""
    if output.plot is None and output.report is None:
        return
    from attractor.training import History

    histories = [History.read(folder) for folder in folders]
    if output.plot is not None:
        from attractor.training import draw_runs

        draw_runs(histories, output.plot)
    if output.report is not None:
        from attractor.report import training_report

        training_report(histories, command).write(output.report)


def summarise_seeds(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Return mean and interval of every score."""
    from attractor.training import SCORES, summarise

    return {name: summarise([report[name] for report in reports]).row() for name in SCORES if name in reports[0]}


def format_run(report: dict[str, Any]) -> str:
    """Return one line for a run."""
    score = (
        f"accuracy {report['accuracy']:.4f}" if "accuracy" in report else f"{report['bits_per_byte']:.4f} bits per byte"
    )
    return (
        f"{report['folder']}: {report['steps']} steps, {report['parameters']} parameters, {score}, "
        f"{report['seconds']:.1f} s"
    )


def train_one(
    config: Any, folder: Path, resume: bool, named: list[str], cache: Path | None, output: TrainResults
) -> dict[str, Any]:
    """Train one run; the progress bar shows the loss and the tokens or images per second."""
    from attractor.training import train as train_model

    shows = is_shown(output.progress, output.quiet) and os.environ.get("RANK", "0") == "0"
    each = config.batch * config.accumulate * int(os.environ.get("WORLD_SIZE", "1"))
    unit = "images" if config.task == "images" else "tokens"
    each *= 1 if config.task == "images" else config.context
    with progress_bar(f"seed {config.seed}", shows, total=config.steps) as update:
        began: list[tuple[float, int]] = []

        def show(done: TrainingStep) -> None:
            began.append((time.perf_counter(), done.step))
            del began[:-50]  # the speed of the last steps
            (first, then), (now, step) = began[0], began[-1]
            speed = (step - then) * each / max(now - first, 1e-9)
            update(done.step, note=f"loss {done.loss:.3f}, {speed:,.0f} {unit}/s")

        report = train_model(
            config, folder, resume=resume, cache=cache, changed=named, progress=show if shows else None
        )
    return {"seed": config.seed, **report.row()}
