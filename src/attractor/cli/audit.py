"""``attractor audit``: what the weights of real models say, head by head."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attractor.cli.ending import ending
from attractor.cli.files import check_file
from attractor.cli.groups import grouped, panel, replay
from attractor.cli.written import Written

if TYPE_CHECKING:
    from attractor.checkpoints import Audit, Checkpoint

SCHEMA = "attractor.audit/2"
change, output = panel("Weights"), panel("Results")


class Detail(StrEnum):
    auto = "auto"
    full = "full"
    heads = "heads"


@dataclass(frozen=True)
class AuditOptions:
    """Which weights, and how they are taken."""

    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...", help="A folder, a file, a name of attractor fetch, or one on the Hugging Face hub."
        ),
    ]
    fold: Annotated[
        bool | None,
        change(
            "", "Take the norm before attention into the weights.", "--fold/--no-fold", default="in pre-norm models"
        ),
    ] = None
    detail: Annotated[
        Detail,
        change(
            "",
            "heads: heads alone; full: also mismatched heads, rotary offsets, numbers without the norm, sums and error bars; "
            "auto: full up to width 1024.",
        ),
    ] = Detail.auto
    sums: Annotated[
        bool | None, change("", "Classify layers as wholes too.", "--sums/--no-sums", default="as --detail")
    ] = None
    nulls: Annotated[int, change("N", "Random heads to compare with; 0: no nulls.", min=0)] = 64
    verify: Annotated[
        bool | None,
        change("", "Compare with the model's own attention.", "--verify/--no-verify", default="up to width 1024"),
    ] = None
    seed: Annotated[int, change("N", "Of random heads and perturbed weights.", min=0)] = 0


@dataclass(frozen=True)
class AuditOutput:
    """What becomes of the audit."""

    csv: Annotated[Path | None, output("FILE", "Write one row for each head.")] = None
    parquet: Annotated[Path | None, output("FILE", "The same as a Parquet table.")] = None
    report: Annotated[
        Path | None, output("FILE.html", "Write a page: every head as a heatmap, labels, and what moved.")
    ] = None
    json: Annotated[bool, output("", "Print one JSON object.", "--json")] = False
    progress: Annotated[
        bool | None, output("", "A bar on stderr.", "--progress/--no-progress", default="if stderr is a terminal")
    ] = None
    debug: Annotated[bool, output("", "Show the traceback of an error.", "--debug")] = False


@grouped(AuditOptions, AuditOutput)
def audit(context: typer.Context, options: AuditOptions, output: AuditOutput) -> None:
    """Classify every head of real models by its weights: definiteness, spectra, regime, whether a theorem certifies it, and how far it is
    from a random head and from mismatched ones. Several models are compared with the first.

    All numbers are spectra of weights alone, without data. Exit code 0; 1 if a model cannot be read, 2 for a bad argument.
    """
    with ending("attractor audit", output.debug):
        _check(output)
        from attractor.checkpoints.opening import needs_transformers
        from attractor.checkpoints.verification import quiet
        from attractor.cli.audittable import print_audit, print_comparison
        from attractor.cli.printing import print_json, versions
        from attractor.flow.summary import strict

        needs_transformers()
        command = replay(context, without=("json", "progress", "debug"))
        with quiet():
            pairs = [one(model, options, output) for model in options.models]
            found = [audited for _, audited in pairs]
            compared = _compared(pairs)
        files = _write(found, output)
        if output.report is not None:
            from attractor.checkpoints.audit_page import audit_report

            audit_report(found, compared, command).write(output.report)
        written = Written(report=output.report, files=files)
        if output.json:
            parts = {"models": [model.row() for model in found], "comparisons": [one.row() for one in compared]}
            document = {"schema": SCHEMA, "command": command, **parts, "written": written.row()}
            print_json(strict({**document, "versions": versions()}))
        else:
            print_audit(found)
            print_comparison(compared)
            written.tell(command)


def _check(output: AuditOutput) -> None:
    """Refuse what could not be written at the end."""
    for path, option in ((output.csv, "--csv"), (output.parquet, "--parquet")):
        if path is not None:
            check_file(path, option)
    if output.report is not None:
        from attractor.report import check_place

        check_file(check_place(output.report, "--report"), "--report")
    if output.parquet is not None:
        from attractor.checkpoints.audit_files import needs_pyarrow

        needs_pyarrow()


def one(model: str, options: AuditOptions, output: AuditOutput) -> tuple[Checkpoint, Audit]:
    """One model, with a bar."""
    from rich.console import Console
    from rich.progress import Progress

    from attractor.checkpoints import audit as audit_one
    from attractor.checkpoints import checkpoint

    shows = sys.stderr.isatty() if output.progress is None else output.progress
    opened = checkpoint(model)
    with Progress(console=Console(stderr=True), disable=not shows, transient=True) as bar:
        task = bar.add_task(f"layers of {Path(model).name}", total=len(opened.layers))
        advance = lambda count: bar.update(task, completed=count)  # noqa: E731
        settings = {name: getattr(options, name) for name in ("fold", "detail", "sums", "nulls", "verify", "seed")}
        return opened, audit_one(opened, progress=advance, **{**settings, "detail": options.detail.value})


def _compared(pairs: list[tuple[Checkpoint, Audit]]) -> list:
    from attractor.checkpoints.comparison import compare

    (opened, first), *others = pairs
    return [compare(first, audited, (opened, other)) for other, audited in others]


def _write(found: list[Audit], output: AuditOutput) -> list[Path]:
    from attractor.checkpoints.audit_files import write_csv, write_parquet

    written = []
    for path, write in ((output.csv, write_csv), (output.parquet, write_parquet)):
        if path is not None:
            write(found, path)
            written.append(path)
    return written
