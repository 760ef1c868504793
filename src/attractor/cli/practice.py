"""The experiment on real models for people: tables and pictures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from attractor.cli.console import Written, ending, print_rows
from attractor.cli.inputs import check_file, check_picture, read_lines
from attractor.cli.options import PictureOptions, given, grouped, panel, replay
from attractor.errors import InputError
from attractor.html_repr import format_number
from attractor.progress import progress_lines

SHOWN = {
    "W positive": "W > 0",
    "A negative": "A < 0",
    "A positive": "A > 0",
    "value stable": "V stable",
    "collapse proved": "collapse",
    "divergence proved": "divergence",
}
DRAWN = {"stream": "stream across attention", "rate": "rate of the layer's flow", "block": "across the block"}


def print_practice(document: dict[str, Any]) -> None:
    """Hypotheses by model, correlations of all models together, and the answers."""
    rows = {"": f"{'heads':>6}" + "".join(f"{name:>12}" for name in SHOWN.values())}
    for model in document["models"]:
        cells = (f"{model['heads'][key]} ({model['random_heads'][key]})" for key in SHOWN)
        rows[model["name"]] = f"{model['heads']['heads']:>6}" + "".join(f"{cell:>12}" for cell in cells)
    print_rows("heads that meet a hypothesis (in brackets: random heads of the same shapes)", rows)
    ranks = {"": f"{'of':<7}" + "".join(f"{name:>22}" for name in DRAWN)}
    for name, part in document["predictors"].items():
        ranks[name.replace("_", " ")] = f"{part['group']:<7}" + "".join(
            f"{_cell(document, name, key):>22}" for key in DRAWN
        )
    print_rows("rank correlations over layers, all models (*: p < 0.05 for all predictors together)", ranks)
    print_rows("answers", {f"{index + 1}": text for index, text in enumerate(document["answers"])})
    print_rows("", {"models together": ", ".join(document["pooled_over"])})


def _cell(document: dict[str, Any], predictor: str, outcome: str) -> str:
    for row in document["pooled"]:
        if (row["predictor"], row["outcome"]) == (predictor, outcome):
            return f"{row['rho']:.2f} [{row['low']:.2f}, {row['high']:.2f}]{'*' if row['family'] < 0.05 else ' '}"
    return "undefined"


def draw(document: dict[str, Any], plot: Path | None, layers: Path | None) -> list[str]:
    """The pictures that were asked for, and where they are."""
    if plot is not None:
        _correlations(document, plot)
    if layers is not None:
        _layers(document, layers)
    return [str(path) for path in (plot, layers) if path is not None]


def _correlations(document: dict[str, Any], path: Path) -> None:
    from attractor.plotting import Interval, Rows, draw_intervals

    predictors = document["predictors"]
    panels = []
    for outcome, title in DRAWN.items():
        rows = [row for row in document["pooled"] if row["outcome"] == outcome]
        if rows:
            panels.append(Rows(title, [Interval(row["rho"], row["low"], row["high"], row["null"]) for row in rows]))
    caption = (
        f"Spearman correlations over layers inside each model, averaged over {', '.join(document['pooled_over'])}; bars: 95% of "
        f"{format_number(document['resamples'])} resamples of layers; grey: 95% of permutations. The block is defined for pre-norm models. "
        f"Drawn by: {document['command']}"
    )
    draw_intervals(
        [name.replace("_", " ") for name in predictors],
        [part["group"] for part in predictors.values()],
        panels,
        "Which spectra of weights rank layers by how much they lengthen tokens?",
        caption,
        "rank correlation",
        path,
    )


def _layers(document: dict[str, Any], path: Path) -> None:
    from attractor.plotting import Curve, Panel, draw_panels

    models = document["models"]

    def depth(model: dict[str, Any]) -> list[float]:
        count = len(model["layers"]["stream"])
        return [(index + 0.5) / count for index in range(count)]

    measured = tuple(Curve(depth(model), model["layers"]["stream"]) for model in models)
    promised = tuple(Curve(depth(model), model["layers"]["value_radius"]) for model in models)
    pairs = tuple(Curve(m["layers"]["value_radius"], m["layers"]["stream"], m["name"], dots=True) for m in models)
    panels = (
        Panel(measured, "depth", "log growth across attention"),
        Panel(promised, "depth", "discrete radius of the value", log_y=True),
        Panel(pairs, "discrete radius of the value", "log growth across attention", log_x=True),
    )
    caption = (
        f"One curve a model, one point a layer; colours are the same in all panels. Drawn by: {document['command']}"
    )
    draw_panels(panels, "Growth of norms that was measured, and what the value's spectrum promises", caption, path)


SCHEMA = "attractor.practice/1"
option, output = panel("Experiment"), panel("Results")


@dataclass(frozen=True)
class PracticeOptions:
    """Which models, and what they read."""

    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL...]", help="Models; without one, those that attractor fetch has."),
    ] = None
    file: Annotated[
        Path | None, option("FILE", "One text a line for all models.", default="what each model was made for")
    ] = None
    seed: Annotated[int, option("N", "Of resampling and of random heads.", min=0)] = 0
    resamples: Annotated[int, option("N", "Resamples and permutations of layers.", min=100)] = 2000


@dataclass(frozen=True)
class PracticeOutput:
    """What becomes of it."""

    out: Annotated[Path | None, output("FILE", "Write all data as JSON.", "--out", "-o")] = None
    plot: Annotated[Path | None, output("FILE", "Draw the correlations: .png, .pdf or .svg.")] = None
    plot_layers: Annotated[Path | None, output("FILE", "Draw growth along depth: .png, .pdf or .svg.")] = None
    json: Annotated[bool, output("", "Print one JSON object.", "--json")] = False
    progress: Annotated[
        bool | None, output("", "A line on stderr for each model.", "--progress/--no-progress", default="shown")
    ] = None
    debug: Annotated[bool, output("", "Show the traceback of an error.", "--debug")] = False


@grouped(PracticeOptions, PracticeOutput, PictureOptions)
def practice(
    context: typer.Context, options: PracticeOptions, output: PracticeOutput, pictures: PictureOptions
) -> None:
    """Ask real models whether theory speaks of them: does a head meet the hypotheses of collapse or divergence, and do spectra of weights
    rank layers by how much they lengthen tokens?

    Rank correlations over layers, with intervals by resampling layers and a null by permuting them. Exit code 0; 1 if a model cannot
    be read, 2 for a bad argument.
    """
    with ending("attractor practice", output.debug), pictures.sized():
        texts = read_texts(options.file)
        check(output, given(context))
        from attractor.cli.console import print_json
        from attractor.cli.environment import versions
        from attractor.files import write_json
        from attractor.models import require_transformers

        require_transformers()
        from attractor.models import silence_transformers
        from attractor.papers import answers, run

        tell = progress_lines(output.progress)
        names = tuple(options.models or ())
        with silence_transformers():
            found = run(names, texts=texts, seed=options.seed, resamples=options.resamples, progress=tell)
        command = replay(context, without=("json", "progress", "debug"))
        document: dict[str, Any] = {"schema": SCHEMA, "command": command, "answers": answers(found), **found}
        drawn = draw(document, output.plot, output.plot_layers)
        written = Written.of(drawn, files=[output.out])
        document["written"] = written.row()
        document["versions"] = versions()
        if output.out is not None:
            write_json(output.out, document, indent=1)
        if output.json:
            print_json(document)
        else:
            print_practice(document)
            written.tell(command)


def read_texts(path: Path | None) -> tuple[str, ...] | None:
    """The texts of a file, one a line."""
    if path is None:
        return None
    found = tuple(one.text for one in read_lines([path]))
    if not found:
        raise InputError(f"--file {path} has no text in it: give one a line")
    return found


def check(output: PracticeOutput, named: dict[str, str]) -> None:
    """Refuse files that could not be written before anything runs."""
    if "width" in named and output.plot is None and output.plot_layers is None:
        raise InputError("--width belongs to --plot and --plot-layers, neither of which is given")
    for path in (output.plot, output.plot_layers):
        if path is not None:
            check_picture(path, still=True)
    if output.out is not None:
        check_file(output.out, "--out")
