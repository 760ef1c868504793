"""``attractor claims``: claims that fail as stated, and the systems that show it."""

from __future__ import annotations

import time as clock
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attractor.cli.console import FAILED, Written, complain, ending
from attractor.cli.options import PictureOptions, grouped, panel, replay
from attractor.errors import InputError
from attractor.progress import progress_bar

if TYPE_CHECKING:
    from attractor.theory import CounterExample, Evidence

SCHEMA = "attractor.claims/1"
option = panel("Claims")


@dataclass(frozen=True)
class ClaimOptions:
    """Which claims, and what becomes of the evidence."""

    only: Annotated[list[str] | None, option("KEY", "Only the claim of this key; may be repeated.")] = None
    catalogue: Annotated[bool, option("", "Print the claims without running anything.", "--list")] = False
    plot: Annotated[
        Path | None,
        option("FOLDER|FILE", "Draw the evidence: .png files in a folder, or of one claim a .png, .pdf or .svg file."),
    ] = None
    write: Annotated[Path | None, option("FILE", "Write the table of claims to this Markdown file and stop.")] = None
    json: Annotated[bool, option("", "Print one JSON object.", "--json")] = False
    progress: Annotated[
        bool | None, option("", "A bar on stderr.", "--progress/--no-progress", default="if stderr is a terminal")
    ] = None
    debug: Annotated[bool, option("", "Show the traceback of an error.", "--debug")] = False


@grouped(ClaimOptions, PictureOptions)
def claims(context: typer.Context, options: ClaimOptions, pictures: PictureOptions) -> None:
    """Run the counter-examples to claims that fail as stated, and say whether each was reproduced.

    Without options: all of them, in well under a minute. Exit code 0; 1 if one was not reproduced, 2 for a bad argument.
    """
    with ending("attractor claims", options.debug), pictures.sized():
        from attractor.theory import find_counterexample, list_counterexamples, render_claims

        if options.write is not None:
            write(options.write, render_claims())
            return
        chosen = tuple(map(find_counterexample, dict.fromkeys(options.only or ()))) or list_counterexamples()
        check_place(options.plot, len(chosen))
        rows = [example.row() for example in chosen] if options.catalogue else all_reproduced(chosen, options)
        tell(rows, options, replay(context, without=("json", "progress", "debug")))
        failed = [row["key"] for row in rows if row.get("reproduced") is False]
        if failed:
            complain(f"not reproduced: {', '.join(failed)}", "attractor claims")
            raise typer.Exit(FAILED)


def check_place(place: Path | None, claims: int) -> None:
    """A place for pictures, before anything runs."""
    from attractor.cli.inputs import check_folder_to_make, check_picture

    if place is None:
        return
    if is_file(place):
        if claims > 1:
            raise InputError(f"--plot {place} is one file for {claims} claims; give a folder, or one claim with --only")
        check_picture(place, still=True)
        return
    check_folder_to_make(place, "--plot")
    place.mkdir(parents=True, exist_ok=True)
    check_picture(place / "claim.png")


def is_file(place: Path) -> bool:
    """Whether a place for pictures is one file rather than a folder."""
    return place.is_file() or (bool(place.suffix) and not place.is_dir())


def write(path: Path, text: str) -> None:
    """The table, whole or not at all."""
    from attractor.files import check_target, write_text

    write_text(check_target(path), text)
    typer.echo(f"{path}: {text.count(chr(10) + '| ') - 1} claims", err=True)


def all_reproduced(chosen: Sequence[CounterExample], options: ClaimOptions) -> list[dict[str, Any]]:
    """Run each, with a bar; for people each is printed as soon as it is known."""
    rows: list[dict[str, Any]] = []
    with progress_bar("claims", options.progress) as show:
        for example in chosen:
            show(len(rows), len(chosen))
            rows.append(reproduced(example, options))
    return rows


def reproduced(example: CounterExample, options: ClaimOptions) -> dict[str, Any]:
    """Run one and say what it showed."""
    begin = clock.perf_counter()
    evidence = example.run()
    row = {
        **example.row(),
        "reproduced": evidence.reproduced,
        "evidence": evidence.sentence,
        "facts": {name: value if value == value else None for name, value in evidence.facts.items()},
        "seconds": round(clock.perf_counter() - begin, 3),
    }
    if options.plot is not None:
        row["picture"] = str(draw(example, evidence, options.plot))
    if not options.json:
        _print(row)
    return row


def draw(example: CounterExample, evidence: Evidence, place: Path) -> Path:
    """The picture of one claim."""
    from attractor.plotting import draw_panels

    caption = f"{evidence.sentence[0].upper()}{evidence.sentence[1:]}. Drawn by: {example.command} --plot {place}"
    path = place if is_file(place) else place / f"{example.key}.png"
    return draw_panels(evidence.panels, example.title, caption, path)


def tell(rows: list[dict[str, Any]], options: ClaimOptions, command: str) -> None:
    """One JSON object, or a last line (and the claims themselves where nothing ran)."""
    from attractor.cli.console import print_json
    from attractor.cli.environment import versions

    written = Written([row["picture"] for row in rows if "picture" in row])
    if options.json:
        document = {"schema": SCHEMA, "command": command, "claims": rows, "written": written.row()}
        print_json({**document, "versions": versions()})
        return
    if options.catalogue:
        for row in rows:
            _print(row)
        return
    done = sum(row["reproduced"] for row in rows)
    typer.echo(f"{done} of {len(rows)} counter-examples reproduced")
    written.tell(command)


def _print(row: dict[str, Any]) -> None:
    from attractor.cli.console import print_rows

    lines = {"claim": row["claim"], "verdict": row["verdict"], "true": row["truth"]}
    if "evidence" in row:
        lines |= {"reproduced": "yes" if row["reproduced"] else "NO", "evidence": row["evidence"]}
    print_rows(row["key"], lines)
