"""``attractor reproduce``: figures and experiments of the literature."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attractor.cli.console import Outputs, print_json, print_rows, print_table
from attractor.cli.environment import versions
from attractor.cli.inputs import check_figure, check_file
from attractor.cli.options import (
    FigureOptions,
    command_line,
    given,
    panel,
    result_option,
    seed_option,
    with_options,
)
from attractor.errors import InputError

if TYPE_CHECKING:
    from attractor.papers import Figure

SCHEMA = "attractor.reproduce/1"
option = panel("Figure")


@dataclass(frozen=True)
class ReproduceOptions:
    """Which figure, with which settings."""

    key: Annotated[
        str | None, typer.Argument(metavar="[KEY]", help="The figure; without it, list all.", show_default=False)
    ] = None
    seed: Annotated[int, seed_option("Seed of the random systems.", "Figure")] = 0
    change: Annotated[
        list[str] | None,
        option("NAME=VALUE", "Another value of a parameter, lists separated by commas; may be repeated.", "--set"),
    ] = None


@dataclass(frozen=True)
class ReproduceResults(FigureOptions):
    """Where results go."""

    out: Annotated[Path | None, result_option("FILE.json", "Write the data as JSON.", "--out", "-o")] = None
    plot: Annotated[Path | None, result_option("FILE", "Draw the figure: .png, .pdf or .svg.")] = None


@with_options(ReproduceOptions, ReproduceResults)
def reproduce(context: typer.Context, options: ReproduceOptions, output: ReproduceResults) -> None:
    """Reproduce a figure or an experiment of the literature.

    Without KEY: list them with their source, cost and parameters. Exit code 0; 1 if the computation fails, 2 for a bad argument.
    """
    from attractor.files import write_json
    from attractor.papers import find_figure, list_figures

    used = given(context)
    if options.key is None:
        other = [used[name] for name in ("seed", "change", "out", "plot") if name in used]
        if other:
            raise InputError(f"{', '.join(other)} belongs to one figure: give its KEY")
        print_figures(list_figures(), output.json)
        return
    figure = find_figure(options.key)
    changes = parse_settings(options.change or [])
    if "seed" in used:
        if not any(parameter.name == "seed" for parameter in figure.parameters):
            raise InputError(f"--seed: {figure.key} has no random draws of ours")
        changes["seed"] = options.seed
    figure.settings(changes)  # raises for a bad setting
    if output.plot is not None:
        check_figure(output.plot, still=True)
    elif "width" in used:
        raise InputError("--width belongs to --plot, which is not given")
    if output.out is not None:
        check_file(output.out, "--out")
    with output.show_progress(figure.key) as update:
        data = figure.reproduce(changes, update)
    figures = figure.draw(data, output.plot) if output.plot is not None else ()
    command, outputs = command_line(context), Outputs.given(figures, files=[output.out])
    head = {"schema": SCHEMA, "command": command, "key": figure.key, "title": figure.title, "source": figure.source}
    data = {name: value for name, value in data.items() if name != "key"}
    document = {
        **head,
        "settings": data.pop("settings"),
        "data": data,
        "outputs": outputs.row(),
        "versions": versions(),
    }
    if output.out is not None:
        write_json(output.out, document, indent=1)
    if output.json:
        print_json(document)
        return
    for table in figure.summarise({"key": figure.key, "settings": document["settings"], **data}):
        if table.columns:
            print_table(table.title, table.columns, table.rows)
        else:
            print_rows(table.title, {row[0]: row[1] for row in table.rows})
    outputs.print(command)


def parse_settings(entries: list[str]) -> dict[str, Any]:
    """Return the names and texts of ``--set`` options."""
    changes: dict[str, Any] = {}
    for entry in entries:
        name, sign, value = entry.partition("=")
        if not sign or not name.strip():
            raise InputError(f"--set {entry} is not of the form NAME=VALUE, such as --set systems=4")
        changes[name.strip()] = value.strip()
    return changes


def print_figures(figures: tuple[Figure, ...], as_json: bool) -> None:
    """Print the list of figures."""
    from attractor.solvers import describe_source

    if as_json:
        rows = [figure.row() for figure in figures]
        print_json({"schema": SCHEMA, "figures": rows, "versions": versions()})
        return
    for figure in figures:
        defaults = figure.settings()
        parameters = {
            parameter.name: f"{parameter.description} (default {format_setting(defaults[parameter.name]) or 'empty'})"
            for parameter in figure.parameters
        }
        rows = {
            "question": figure.question,
            "source": describe_source(figure.source),
            "cost": figure.cost,
            **parameters,
        }
        print_rows(f"{figure.key}: {figure.title}", rows)


def format_setting(value: Any) -> str:
    """Return a setting as it may be typed."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
