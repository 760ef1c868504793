"""``attractor reproduce``: figures and experiments of the literature."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attractor.cli.console import Outputs, print_json, print_rows, print_table
from attractor.cli.environment import versions
from attractor.cli.inputs import check_figure
from attractor.cli.options import (
    FigureOptions,
    command_line,
    given,
    panel,
    result_option,
    seed_option,
    with_options,
)
from attractor.errors import AttractorError, InputError

if TYPE_CHECKING:
    from attractor.papers import Data, Figure, Reproduced
    from attractor.progress import Update

option = panel("Figure")


@dataclass(frozen=True)
class ReproduceOptions:
    """Which figure, with which settings."""

    key: Annotated[
        str | None, typer.Argument(metavar="[KEY]", help="The figure; without it, list all.", show_default=False)
    ] = None
    all: Annotated[bool, option("", "Reproduce all entries into the folder --out, and write its gallery.", "--all")] = (
        False
    )
    describe: Annotated[
        bool, option("", "Print parameters with their sources and what is not known; compute nothing.", "--describe")
    ] = False
    small: Annotated[bool, option("", "Use the small settings of the tests.", "--small")] = False
    seed: Annotated[int, seed_option("Seed of the random systems.", "Figure")] = 0
    change: Annotated[
        list[str] | None,
        option("NAME=VALUE", "Another value of a parameter, lists separated by commas; may be repeated.", "--set"),
    ] = None
    data: Annotated[
        Path | None, option("FILE.json", "Show and draw stored data instead of computing them.", "--data")
    ] = None
    again: Annotated[bool, option("", "Compute again what --out already holds.", "--again")] = False


@dataclass(frozen=True)
class ReproduceResults(FigureOptions):
    """Where results go."""

    out: Annotated[
        Path | None,
        result_option(
            "FOLDER",
            "Write data, figure and page into FOLDER/KEY; finished parts are not computed again.",
            "--out",
            "-o",
        ),
    ] = None
    plot: Annotated[Path | None, result_option("FILE", "Draw the figure: .png, .pdf or .svg.")] = None


@with_options(ReproduceOptions, ReproduceResults)
def reproduce(context: typer.Context, options: ReproduceOptions, output: ReproduceResults) -> None:
    """Reproduce a figure or an experiment of the literature, and judge the result.

    Without KEY: list them. --out FOLDER stores data, figure and page; a run that was interrupted continues where it was. Exit code 0; 1 if
    a computation fails, 2 for a bad argument.
    """
    from attractor.papers import find_figure, list_figures

    used = given(context)
    if options.all:
        reproduce_gallery(context, options, output, used)
        return
    if options.key is None:
        other = [
            f"--{'set' if name == 'change' else name}"
            for name in ("seed", "change", "small", "data", "again", "plot", "describe")
            if name in used
        ]
        if other:
            raise InputError(f"{', '.join(other)} belongs to one figure: give its KEY")
        print_figures(list_figures(), output)
        return
    figure = find_figure(options.key)
    if options.describe:
        print_description(figure, output.json)
        return
    if output.plot is not None:
        check_figure(output.plot, still=True)
    elif "width" in used and output.out is None:
        raise InputError("--width belongs to --plot or --out, which are not given")
    data, files = compute(figure, options, output, used)
    figures = figure.draw(data, output.plot) if output.plot is not None else ()
    command, outputs = command_line(context), Outputs.given(figures, files=files)
    if output.json:
        print_json({**figure.document(data), "command": command, "outputs": outputs.row(), "versions": versions()})
        return
    print_result(figure, data)
    outputs.print(command)


def compute(
    figure: Figure, options: ReproduceOptions, output: ReproduceResults, used: dict[str, str]
) -> tuple[Data, Sequence[Path]]:
    """Return the data of an entry, stored or computed, and the files written into the folder of the results."""
    from attractor.papers import read_data, reproduce_into, write_gallery

    if options.data is not None:
        idle = [
            f"--{'set' if name == 'change' else name}"
            for name in ("seed", "change", "small", "again", "out")
            if name in used
        ]
        if idle:
            raise InputError(f"{', '.join(idle)} has no effect on stored data: leave it out, or leave out --data")
        return read_data(options.data, figure), ()
    changes: dict[str, Any] = {**(figure.small if options.small else {}), **parse_settings(options.change or [])}
    if "seed" in used:
        if not any(parameter.name == "seed" for parameter in figure.parameters):
            raise InputError(f"--seed: {figure.key} has no random draws of ours")
        changes["seed"] = options.seed
    figure.check_needs(figure.settings(changes))  # raises for a bad setting and for missing weights
    if output.out is None:
        if options.again:
            raise InputError("--again belongs to --out, which is not given")
        with output.show_progress(figure.key) as update:
            return figure.reproduce(changes, update), ()
    folder = check_output(output.out)
    with output.show_progress(figure.key) as update:
        found = reproduce_into(figure, folder, changes, update, options.again)
    assert found.data is not None
    return found.data, (folder / figure.key, write_gallery(folder))


def reproduce_gallery(
    context: typer.Context, options: ReproduceOptions, output: ReproduceResults, used: dict[str, str]
) -> None:
    """Reproduce all entries, print a row for each, and fail if one was not computed."""
    from attractor.papers import list_figures, reproduce_all

    idle = [
        f"--{'set' if name == 'change' else name}"
        for name in ("seed", "change", "data", "plot", "describe")
        if name in used
    ]
    if options.key is not None or idle:
        raise InputError(
            f"{options.key if options.key is not None else ', '.join(idle)} belongs to one figure: leave out --all"
        )
    if output.out is None:
        raise InputError("--all writes into a folder: give --out FOLDER")
    folder, figures = check_output(output.out), list_figures()

    def progress(figure: Figure) -> AbstractContextManager[Update]:
        return output.show_progress(f"{figure.key} ({figures.index(figure) + 1} of {len(figures)})")

    def tell(row: Reproduced) -> None:
        if not output.json:
            words = (
                row.message
                if row.verdict is None
                else f"{row.verdict.outcome} ({row.data['seconds']:g} s of CPU time)"
                if row.data
                else ""
            )
            print_rows("", {row.figure.key: f"{row.state}: {words}"}, indent="")

    rows = reproduce_all(folder, figures, small=options.small, again=options.again, progress=progress, tell=tell)
    command, outputs = command_line(context), Outputs.given(files=[folder / "index.html"])
    if output.json:
        listed = [
            {
                "key": row.figure.key,
                "state": row.state,
                "verdict": None if row.verdict is None else row.verdict.outcome,
                "seconds": None if row.data is None else row.data["seconds"],
                "message": row.message,
            }
            for row in rows
        ]
        from attractor.papers import SCHEMA

        print_json(
            {"schema": SCHEMA, "command": command, "entries": listed, "outputs": outputs.row(), "versions": versions()}
        )
    else:
        outputs.print(command)
    absent = [row.figure.key for row in rows if row.data is None]
    if absent:
        raise AttractorError(f"{len(absent)} of {len(rows)} entries were not computed: {', '.join(absent)}")


def check_output(folder: Path) -> Path:
    """Return the folder of results, which is created; raise if nothing can be written there."""
    from attractor.files import check_folder, make_folder

    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder} is a file; give a folder")
    try:
        make_folder(folder)
    except OSError as error:
        raise InputError(f"--out {folder} cannot be created: {(error.strerror or str(error)).lower()}") from None
    check_folder(folder, f"--out {folder}")
    return folder


def parse_settings(entries: list[str]) -> dict[str, Any]:
    """Return the names and texts of ``--set`` options."""
    changes: dict[str, Any] = {}
    for entry in entries:
        name, sign, value = entry.partition("=")
        if not sign or not name.strip():
            raise InputError(f"--set {entry} is not of the form NAME=VALUE, such as --set systems=4")
        changes[name.strip()] = value.strip()
    return changes


def print_result(figure: Figure, data: Data) -> None:
    """Print tables, comparisons and the verdict."""
    from attractor.html_repr import format_number

    for table in figure.summarise(data):
        if table.columns:
            print_table(table.title, table.columns, table.rows)
        else:
            print_rows(table.title, {row[0]: row[1] for row in table.rows})
    if beside := figure.beside(data):
        rows = [(row.quantity, row.accurate, row.published) for row in beside]
        print_table("Beside the published procedure", ("quantity", "accurate", "published procedure"), rows)
    if compared := figure.compare(data):
        rows = [
            (
                row.quantity,
                format_number(row.ours),
                format_number(row.other),
                f"{row.tolerance:g}{' relative' if row.relative else ''}",
                "agrees" if row.agrees else "differs",
                row.code,
            )
            for row in compared
        ]
        print_table("Beside independent code", ("quantity", "ours", "other", "tolerance", "", "code"), rows)
    verdict = figure.verdict(data)
    settings = {} if figure.has_published_settings(data) else {"settings": "not the default settings of the entry"}
    print_rows("Verdict", {"verdict": verdict.outcome, "reason": verdict.reason, **settings})


def print_figures(figures: tuple[Figure, ...], output: ReproduceResults) -> None:
    """Print the list of figures, one table for each paper; with a folder, the verdicts that were computed there."""
    from attractor.papers import SCHEMA, stored_data
    from attractor.solvers import describe_source

    found = {figure.key: stored_data(figure, output.out) if output.out is not None else None for figure in figures}
    verdicts = {
        figure.key: figure.verdict(data).outcome for figure in figures if (data := found[figure.key]) is not None
    }
    if output.json:
        rows = [{**figure.row(), "verdict": verdicts.get(figure.key)} for figure in figures]
        print_json({"schema": SCHEMA, "figures": rows, "versions": versions()})
        return
    for source in dict.fromkeys(figure.source for figure in figures):
        columns = ("key", "title", "figure", "CPU time", *(("verdict",) if output.out is not None else ()))
        rows = [
            (
                figure.key,
                figure.title,
                figure.reference or "our experiment",
                f"{figure.cost:g} s",
                *((verdicts.get(figure.key, "not computed"),) if output.out is not None else ()),
            )
            for figure in figures
            if figure.source == source
        ]
        print_table(describe_source(source), columns, rows)
    print_rows(
        "",
        {
            "KEY": "compute and judge one",
            "KEY --describe": "its parameters and their sources",
            "--all --out FOLDER": "all, with a gallery",
        },
    )


def print_description(figure: Figure, as_json: bool) -> None:
    """Print what an entry shows, its parameters with their sources, and what is not known."""
    from attractor.papers import SCHEMA, format_setting
    from attractor.solvers import describe_source

    if as_json:
        print_json({"schema": SCHEMA, "figures": [figure.row()], "versions": versions()})
        return
    defaults = figure.settings()
    rows = {
        "question": figure.question,
        "source": describe_source(figure.source),
        "figure": figure.reference or "our experiment",
        "CPU time": f"{figure.cost:g} s",
    }
    rows |= {f"not known {number}": words for number, words in enumerate(figure.unknown, 1)}
    print_rows(f"{figure.key}: {figure.title}", rows)
    print_table(
        "Parameters",
        ("name", "default", "meaning", "source"),
        [
            (row.name, format_setting(defaults[row.name]) or "empty", row.description, row.source or "our choice")
            for row in figure.parameters
        ],
    )
