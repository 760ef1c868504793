"""The experiment on real models for people: tables and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attractor.cli.printing import number, print_rows

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
    from attractor.pictures.intervals import Interval, Rows, draw_intervals

    predictors = document["predictors"]
    panels = []
    for outcome, title in DRAWN.items():
        rows = [row for row in document["pooled"] if row["outcome"] == outcome]
        if rows:
            panels.append(Rows(title, [Interval(row["rho"], row["low"], row["high"], row["null"]) for row in rows]))
    caption = (
        f"Spearman correlations over layers inside each model, averaged over {', '.join(document['pooled_over'])}; bars: 95% of "
        f"{number(document['resamples'])} resamples of layers; grey: 95% of permutations. The block is defined for pre-norm models only. "
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
    from attractor.pictures.curves import Curve, Panel, draw_panels

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
