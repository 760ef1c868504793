"""``attractor audit``: what the weights of real models say, head by head."""

from __future__ import annotations

import csv
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attractor.cli.ending import ending
from attractor.cli.files import check_file
from attractor.cli.groups import grouped, panel, replay

if TYPE_CHECKING:
    from attractor.checkpoints import Audit

SCHEMA = "attractor.audit/1"
change, output = panel("Weights"), panel("Results")


@dataclass(frozen=True)
class AuditOptions:
    """Which weights, and how they are taken."""

    models: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="Folders, GGUF files, or names on the Hugging Face hub.")
    ]
    fold: Annotated[bool, change("", "Take the norm before attention into the weights.", "--fold/--no-fold")] = True
    sums: Annotated[bool, change("", "Classify layers as wholes too.", "--sums/--no-sums")] = True


@dataclass(frozen=True)
class AuditOutput:
    """What becomes of the audit."""

    csv: Annotated[Path | None, output("FILE", "Write one row for each head.")] = None
    json: Annotated[bool, output("", "Print one JSON object.", "--json")] = False
    progress: Annotated[
        bool | None, output("", "A bar on stderr.", "--progress/--no-progress", default="if stderr is a terminal")
    ] = None
    debug: Annotated[bool, output("", "Show the traceback of an error.", "--debug")] = False


@grouped(AuditOptions, AuditOutput)
def audit(context: typer.Context, options: AuditOptions, output: AuditOutput) -> None:
    """Classify every head of real models by its weights: definiteness, spectra, regime, and whether a theorem certifies it.

    All numbers are spectra of weights alone, without data. Exit code 0; 1 if a model cannot be read, 2 for a bad argument.
    """
    with ending("attractor audit", output.debug):
        if output.csv is not None:
            check_file(output.csv, "--csv")
        from attractor.checkpoints.opening import needs_transformers
        from attractor.checkpoints.verification import quiet
        from attractor.cli.audittable import print_audit
        from attractor.cli.printing import print_json, versions
        from attractor.flow.summary import strict

        needs_transformers()
        with quiet():
            found = [one(model, options, output) for model in options.models]
        if output.csv is not None:
            write_csv(found, output.csv)
        command = replay(context, without=("json", "progress", "debug"))
        if output.json:
            models = [asdict(model) for model in found]
            print_json(strict({"schema": SCHEMA, "command": command, "models": models, "versions": versions()}))
        else:
            print_audit(found, command)


def one(model: str, options: AuditOptions, output: AuditOutput) -> Audit:
    """One model, with a bar."""
    from rich.console import Console
    from rich.progress import Progress

    from attractor.checkpoints import audit as audit_one
    from attractor.checkpoints import checkpoint

    shows = sys.stderr.isatty() if output.progress is None else output.progress
    opened = checkpoint(model)
    with Progress(console=Console(stderr=True), disable=not shows, transient=True) as bar:
        task = bar.add_task("layers", total=len(opened.layers))
        advance = lambda count: bar.update(task, completed=count)  # noqa: E731
        return audit_one(opened, fold=options.fold, sums=options.sums, progress=advance)


def write_csv(found: list[Audit], path: Path) -> None:
    """One row for each head of every model; what has more than one number is left to JSON."""
    from attractor.pictures.writing import atomic

    rows: list[dict[str, Any]] = [{"model": model.model, **row} for model in found for row in model.heads]
    flat = [{key: value for key, value in row.items() if not isinstance(value, (list, dict))} for row in rows]
    with atomic(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(flat[0]) if flat else ["model"])
        writer.writeheader()
        writer.writerows(flat)
