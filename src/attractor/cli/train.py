"""``attractor train``."""

from __future__ import annotations

import json
import os
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attractor.cli.console import Written, ending
from attractor.cli.inputs import check_folder_to_make
from attractor.cli.options import PictureOptions, grouped, panel, replay
from attractor.errors import InputError, StoreError
from attractor.files import write_json
from attractor.progress import is_shown, progress_bar

if TYPE_CHECKING:
    from attractor.training import TrainingStep

SEEDS = "seeds.json"  # in the folder of a run of several


def planned(options: TrainOptions) -> list[tuple[Any, Path]]:
    """A configuration and a folder for each run."""
    from attractor.training import read_config

    if (options.out is None) == (options.resume is None):
        raise InputError("give --out FOLDER for a new run or --resume FOLDER to go on with one")
    if options.seed is not None and options.seeds is not None:
        raise InputError("--seed is for one run and --seeds for several: give one of them")
    given, seeds = changes(options), _listed_seeds(options.seeds)
    if options.resume is not None:
        return begun(options.resume, options.config, given, seeds)
    assert options.out is not None
    if options.config is None:
        raise InputError("name a CONFIG for a new run: a TOML file, or one that comes along, such as tiny")
    if seeds is None:
        return [(read_config(options.config, **given), options.out)]
    return [(read_config(options.config, **given | {"seed": seed}), options.out / f"seed{seed}") for seed in seeds]


def changes(options: TrainOptions) -> dict[str, Any]:
    """Entries that are given beside CONFIG."""
    named = {"data": options.data, "steps": options.steps, "seed": options.seed}
    return changed(options.change or []) | {name: value for name, value in named.items() if value is not None}


def begun(resume: Path, config: str | None, given: dict[str, Any], seeds: list[int] | None) -> list[tuple[Any, Path]]:
    """The run in a folder, or those of its seeds, with the configurations that they began with; what is given again must agree."""
    from attractor.training import RunFolder, read_config

    runs = _stored(resume, seeds)
    # entries that were set beside the file when a run began are not the file's to say
    before = {*(name for _, folder in runs for name in RunFolder(folder).changed()), "seed"}
    for stored, folder in runs:
        row = stored.row()
        unknown = sorted(given.keys() - row.keys())
        if unknown:
            raise InputError(f"a run does not know an entry {unknown[0]!r}; it knows {', '.join(sorted(row))}")
        _agree(row, given, folder)
        if config is not None:
            kept = {name: getattr(stored, name) for name in before}
            _agree(row, read_config(config, **kept | given).row(), folder)
    return runs


def _stored(resume: Path, seeds: list[int] | None) -> list[tuple[Any, Path]]:
    """Runs by the configurations in their folders; seeds that had not begun are as those that had."""
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


def _agree(stored: dict[str, Any], given: dict[str, Any], folder: Path) -> None:
    """Refuse entries that the run does not have."""
    other = [name for name, value in sorted(given.items()) if not _same(name, stored[name], value)]
    if other:
        named = ", ".join(f"{name} ({stored[name]!r} there, {given[name]!r} here)" for name in other)
        raise InputError(
            f"the run in {folder} has another configuration: {named}; --resume FOLDER alone goes on with it as it began"
        )


def _same(name: str, stored: Any, given: Any) -> bool:
    if name in ("data", "tokenizer") and isinstance(stored, str) and isinstance(given, str):
        return stored == given or Path(stored).resolve() == Path(given).resolve()
    return stored == (list(given) if isinstance(given, tuple) else given)


def _listed_seeds(given: str | None) -> list[int] | None:
    if given is None:
        return None
    try:
        return list(dict.fromkeys(int(seed) for seed in given.split(",")))
    except ValueError:
        raise InputError(f"--seeds {given} is not a list of whole numbers: write --seeds 0,1,2") from None


def _config(folder: Path) -> Any:
    """The configuration that a run began with."""
    from attractor.training import RunFolder

    return RunFolder(folder).config()


def _number(folder: Path) -> int:
    try:
        return int(folder.name.removeprefix("seed"))
    except ValueError:
        raise StoreError(f"{folder} is not the folder of a seed, which are named seed0, seed1 and so on") from None


def _seeds(folder: Path) -> list[int]:
    """The seeds that a run of several was to have, in their order."""
    try:
        return [int(seed) for seed in json.loads((folder / SEEDS).read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError):
        raise StoreError(f"{folder / SEEDS} is damaged: name the CONFIG and --seeds of the run") from None


@contextmanager
def listed(runs: list[tuple[Any, Path]], cache: Path | None) -> Iterator[None]:
    """The list of all seeds beside their folders, so that those that have not begun are not forgotten; none if no run begins."""
    from attractor.training import RunFolder

    if cache is None or os.environ.get("RANK", "0") != "0":
        yield
        return
    place = cache.parent / SEEDS
    new = [folder for folder in (cache.parent, *cache.parent.parents) if not folder.exists()]
    cache.parent.mkdir(parents=True, exist_ok=True)
    seeds = dict.fromkeys([*_seeds(cache.parent), *(config.seed for config, _ in runs)])
    write_json(place, [*seeds])
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
    """Which runs go on; refuses folders before any of them is trained. Of several seeds some may not have begun when all were stopped."""
    from attractor.training import RunFolder

    folders = [RunFolder(folder) for _, folder in runs]
    if options.resume is None:
        for folder in folders:
            check_folder_to_make(folder.path, "--out")
            folder.check_new()
        return [False] * len(runs)
    return [folder.has_run() for folder in folders]


def named_entries(runs: list[tuple[Any, Path]], options: TrainOptions) -> list[str]:
    """Entries that were set beside CONFIG, now or when a run that goes on began: what a run that begins keeps in its folder."""
    from attractor.training import RunFolder

    before = (RunFolder(folder).changed() for _, folder in runs if options.resume is not None)
    return sorted({*changes(options), *(name for names in before for name in names)})


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
        from attractor.cli.console import print_json
        from attractor.cli.environment import versions

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
        from attractor.cli.inputs import check_picture

        check_picture(output.plot, still=True)
    if output.report is not None:
        from attractor.report import check_place

        check_place(output.report, "--report")


def show(folders: list[Path], command: str, output: TrainOutput) -> None:
    """The picture and the page of the runs."""
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


def over_seeds(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and interval of what runs are judged by."""
    from attractor.training import SCORES, summarise

    return {name: summarise([report[name] for report in reports]).row() for name in SCORES if name in reports[0]}


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
    """One run with a bar on stderr: the loss, and how many tokens or images are read per second."""
    from attractor.training import train as run

    shows = is_shown(output.progress) and os.environ.get("RANK", "0") == "0"
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

        report = run(config, folder, resume=resume, cache=cache, changed=named, progress=show if shows else None)
    return {"seed": config.seed, **report.row()}
