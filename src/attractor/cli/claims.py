"""``attractor claims``: counter-examples to claims that fail as stated."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attractor.cli.console import FAILED, Outputs, print_error, print_rows
from attractor.cli.options import FigureOptions, command_line, panel, print_result, result_option, with_options
from attractor.errors import InputError

if TYPE_CHECKING:
    from attractor.theory import CounterExample, Evidence

SCHEMA = "attractor.claims/2"
option = panel("Claims")


@dataclass(frozen=True)
class ClaimOptions:
    """Which claims."""

    only: Annotated[list[str] | None, option("KEY", "Only the claim of this key; may be repeated.")] = None
    catalogue: Annotated[bool, option("", "List the claims and stop.", "--list")] = False
    write: Annotated[Path | None, option("FILE", "Write the table of claims to this Markdown file and stop.")] = None


@dataclass(frozen=True)
class ClaimResults(FigureOptions):
    """Where results go."""

    plot: Annotated[
        Path | None,
        result_option(
            "FOLDER|FILE", "Draw the evidence: .png files in a folder, or for one claim a .png, .pdf or .svg file."
        ),
    ] = None


@with_options(ClaimOptions, ClaimResults)
def claims(context: typer.Context, options: ClaimOptions, output: ClaimResults) -> None:
    """Run the counter-examples to claims that fail as stated, and report whether each is reproduced.

    Without options: all of them, in less than a minute. Exit code 0; 1 if one is not reproduced, 2 for a bad argument.
    """
    from attractor.theory import find_counterexample, list_counterexamples, render_claims

    if options.write is not None:
        write_table(options.write, render_claims())
        return
    chosen = tuple(map(find_counterexample, dict.fromkeys(options.only or ()))) or list_counterexamples()
    check_plot(output.plot, len(chosen))
    command = command_line(context)
    if options.catalogue:
        rows = [example.row() for example in chosen]
        if not output.json:
            for row in rows:
                print_claim(row)
            return
    else:
        rows = reproduce_all(chosen, output)
    done = sum(row.get("reproduced", False) for row in rows)
    summary = f"{done} of {len(rows)} counter-examples reproduced"
    outputs = Outputs([row["figure"] for row in rows if "figure" in row])
    print_result(output, SCHEMA, command, {"claims": rows}, outputs, lambda: typer.echo(summary))
    failed = [row["key"] for row in rows if row.get("reproduced") is False]
    if failed:
        print_error(f"not reproduced: {', '.join(failed)}", "attractor claims")
        raise typer.Exit(FAILED)


def check_plot(path: Path | None, claims: int) -> None:
    """Raise if figures could not be written."""
    from attractor.cli.inputs import check_figure, check_new_folder

    if path is None:
        return
    if is_file(path):
        if claims > 1:
            raise InputError(f"--plot {path} is one file for {claims} claims; give a folder, or one claim with --only")
        check_figure(path, still=True)
        return
    check_new_folder(path, "--plot")
    path.mkdir(parents=True, exist_ok=True)
    check_figure(path / "claim.png")


def is_file(path: Path) -> bool:
    """Whether a path for figures is one file rather than a folder."""
    return path.is_file() or (bool(path.suffix) and not path.is_dir())


def write_table(path: Path, text: str) -> None:
    """Write the table of claims."""
    from attractor.files import check_target, write_text

    write_text(check_target(path), text)
    typer.echo(f"{path}: {text.count(chr(10) + '| ') - 1} claims", err=True)


def reproduce_all(chosen: Sequence[CounterExample], output: ClaimResults) -> list[dict[str, Any]]:
    """Run every counter-example; without ``--json`` each is printed when it is done."""
    rows: list[dict[str, Any]] = []
    with output.show_progress("claims") as update:
        for example in chosen:
            update(len(rows), len(chosen))
            rows.append(reproduce_claim(example, output.plot))
            if not output.json:
                print_claim(rows[-1])
    return rows


def reproduce_claim(example: CounterExample, plot: Path | None) -> dict[str, Any]:
    """Run one counter-example and draw its evidence."""
    begin = time.perf_counter()
    evidence = example.run()
    row = {
        **example.row(),
        "reproduced": evidence.reproduced,
        "evidence": evidence.sentence,
        "facts": {name: value if value == value else None for name, value in evidence.facts.items()},
        "seconds": round(time.perf_counter() - begin, 3),
    }
    if plot is not None:
        row["figure"] = str(draw_evidence(example, evidence, plot))
    return row


def draw_evidence(example: CounterExample, evidence: Evidence, place: Path) -> Path:
    """Draw the evidence of one claim."""
    from attractor.plotting import draw_panels

    caption = f"{evidence.sentence[0].upper()}{evidence.sentence[1:]}. Drawn by: {example.command} --plot {place}"
    path = place if is_file(place) else place / f"{example.key}.png"
    return draw_panels(evidence.panels, example.title, caption, path)


def print_claim(row: dict[str, Any]) -> None:
    """Print one claim, and its evidence if it was run."""
    lines = {"claim": row["claim"], "basis": row["basis"], "verdict": row["verdict"], "true": row["truth"]}
    if "evidence" in row:
        lines |= {"reproduced": "yes" if row["reproduced"] else "NO", "evidence": row["evidence"]}
    print_rows(row["key"], lines)
