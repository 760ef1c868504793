"""``attractor study``: many training runs that differ in one thing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from attractor.cli.bars import said
from attractor.cli.ending import ending
from attractor.cli.files import check_folder_to_make
from attractor.cli.groups import grouped, panel, replay
from attractor.errors import InputError

SCHEMA = "attractor.study/1"
what, how, output = panel("Study"), panel("How it is run"), panel("Results")


@dataclass(frozen=True)
class StudyOptions:
    """What is compared."""

    name: Annotated[str, typer.Argument(metavar="NAME", help="bytes, bpe or vision.")]
    data: Annotated[Path, what("PATH", "Text (a file or a folder), or a folder of CIFAR-10.")]
    out: Annotated[Path, what("FOLDER", "Where runs.jsonl is; a study that is there goes on.", "--out", "-o")]
    arms: Annotated[
        str | None, what("ARM,...", "Some of the arms, such as plain/rotary,shift/rotary.", default="all")
    ] = None
    seeds: Annotated[str, what("S,S,...", "Seeds; the same for every arm.")] = "0,1,2,3,4"
    change: Annotated[
        str | None, what("ENTRY=VALUE,...", "Other entries of the configuration of every run.", "--set", default="none")
    ] = None


@dataclass(frozen=True)
class StudyHow:
    """How it is run."""

    workers: Annotated[int, how("N", "Processes that share the arms.", min=1)] = 1
    max_seconds: Annotated[float | None, how("S", "Begin no arm after this many seconds.", min=0)] = None
    compile: Annotated[bool, how("", "Compile blocks, on a GPU.", "--compile/--no-compile", default="compiled")] = True
    kept: Annotated[Path | None, how("FOLDER", "Where tokens made of text are kept.", default="a folder of --out")] = (
        None
    )


@dataclass(frozen=True)
class StudyOutput:
    """What becomes of it."""

    json: Annotated[bool, output("", "Print one JSON object.", "--json")] = False
    progress: Annotated[
        bool | None, output("", "A line on stderr for each arm.", "--progress/--no-progress", default="shown")
    ] = None
    debug: Annotated[bool, output("", "Show the traceback of an error.", "--debug")] = False


@grouped(StudyOptions, StudyHow, StudyOutput)
def study(context: typer.Context, options: StudyOptions, how: StudyHow, output: StudyOutput) -> None:
    """Train every arm of a study with every seed, and keep a line of runs.jsonl for each finished run.

    Seeds of an arm run side by side as one batched program. A study that was stopped goes on where it was; what failed or was not begun
    in time is said on stderr. Exit code 0; 1 if arms are missing, 2 for a bad argument.
    """
    with ending("attractor study", output.debug):
        from attractor.bench import facts
        from attractor.cli.printing import print_json, versions
        from attractor.experiments.studies.study import run_study

        plan = planned(options, how)
        command = replay(context, without=("json", "progress", "debug"))
        known = {"command": command, "hardware": hardware(), "commit": facts.commit(), "time": facts.now()}
        count, missing = run_study(
            plan, options.out, {**known, "torch": facts.versions()["torch"]}, said(output.progress), said(True)
        )
        if output.json:
            found = {"study": options.name, "runs": count, "missing": missing, "file": str(options.out / "runs.jsonl")}
            print_json({"schema": SCHEMA, "command": command, **found, "versions": versions()})
        else:
            typer.echo(
                f"{options.out / 'runs.jsonl'}: {count} runs" + (f", without {', '.join(missing)}" if missing else "")
            )
        if missing:
            raise typer.Exit(1)


def planned(options: StudyOptions, how: StudyHow) -> Any:
    """The runs that are wanted."""
    from attractor.experiments.studies.arms import changes_of, study_named
    from attractor.experiments.studies.running import Way
    from attractor.experiments.studies.study import Plan

    chosen = study_named(options.name)
    arms = (
        chosen.arms if options.arms is None else tuple(filter(None, (arm.strip() for arm in options.arms.split(","))))
    )
    arms = tuple(dict.fromkeys(arms))
    for arm in arms:
        changes_of(chosen, arm)  # or it says which there are
    try:
        seeds = tuple(dict.fromkeys(int(seed) for seed in options.seeds.split(",")))
    except ValueError:
        raise InputError(f"--seeds {options.seeds} is not a list of whole numbers: write --seeds 0,1,2") from None
    check_folder_to_make(options.out, "--out")
    if not options.data.exists():
        raise InputError(f"the data {options.data} do not exist")
    changes: dict[str, Any] = {"data": str(options.data), **entries(options.change)}
    check_entries(changes)
    check_honoured(changes)
    kept = how.kept or options.out / "kept"
    return Plan(chosen, arms, seeds, changes, Way.best(how.compile), kept, how.workers, how.max_seconds)


def entries(text: str | None) -> dict[str, Any]:
    """Entries of a configuration in the words of TOML, or bare words: steps=100,betas=[0.9,0.99],augment=none."""
    from attractor.cli.train_plan import changed

    given = [entry for entry in pieces(text or "") if entry.strip()]
    if not all("=" in entry for entry in given):
        raise InputError(f"--set {text} is not a list such as steps=100,rate=1e-3,betas=[0.9,0.99]")
    return changed(given)


def pieces(text: str) -> list[str]:
    """Text between commas that stand in no bracket and no quotes."""
    found, depth, quote = [""], 0, ""
    for sign in text:
        if quote or sign in "\"'":
            quote = "" if sign == quote else quote or sign
        else:
            depth += (sign in "[{") - (sign in "]}")
        if sign == "," and not quote and not depth:
            found.append("")
        else:
            found[-1] += sign
    return found


def check_honoured(changes: dict[str, Any]) -> None:
    """Refuse entries that make arms what they are, and those that a fleet does not have."""
    from attractor.experiments.studies.arms import KINDS

    axes = {name for kind in KINDS.values() for name in kind} | {"positions"}
    own = sorted(changes.keys() & axes)
    if own:
        raise InputError(f"{', '.join(own)} is what arms differ in: choose --arms instead of --set")
    missing = {
        "accumulate",
        "smoothing",
        "precision",
        "compile",
        "test",
        "trackers",
        "checkpoint",
        "dropout",
        "drop_path",
    }
    without = sorted(changes.keys() & missing)
    if without:
        raise InputError(f"a study does not have {', '.join(without)}: use attractor train for such runs")


def check_entries(changes: dict[str, Any]) -> None:
    """Refuse entries that no configuration has, before a folder is made."""
    from dataclasses import fields

    from attractor.experiments.training.config import Config

    unknown = sorted(changes.keys() - {field.name for field in fields(Config)})
    if unknown:
        raise InputError(
            f"--set {unknown[0]} is not an entry of a configuration; see attractor.experiments.training.Config"
        )


def hardware() -> str:
    """The GPU, or the processor."""
    import torch

    from attractor.bench import facts

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else facts.processor()
