"""``attractor regimes``: classification of a law by its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from attractor.cli.console import Outputs, print_rows, print_table, short
from attractor.cli.options import CommonOptions, check_numbers, command_line, print_result, result_option, with_options
from attractor.cli.system_options import LawOptions, build_law, read_law

SCHEMA = "attractor.regimes/2"
COLUMN_WORDS = {
    "proved by": "theorem that proves the label; heuristic: none does",
    "W, V'W": "index of the symmetric part: 1 positive, -1 negative semi-definite, between them both signs",
    "Re V": "largest real part of an eigenvalue of V",
    "|I+V|": "spectral radius of I + V, for discrete layers of size one",
    "residual": "share of the interactions that the best common metric leaves",
}
DIM, PLACES = 3, 1024


@dataclass(frozen=True)
class RegimeOptions(CommonOptions):
    """How the law is classified."""

    dim: Annotated[
        int | None,
        result_option("D", "Dimension of the tokens.", "--dim", "-d", default=f"that of the files, or {DIM}", min=1),
    ] = None
    tolerance: Annotated[
        float | None,
        result_option("X", "Relative size below which an eigenvalue counts as zero.", default="1e-10; float32 1e-5"),
    ] = None
    stacked: Annotated[bool, result_option("", "Add the metric as the published code defines it.", "--stacked")] = False


@with_options(LawOptions, RegimeOptions)
def regimes(context: typer.Context, law: LawOptions, options: RegimeOptions) -> None:
    """Classify a law by its weights, head by head: label, certificate, definiteness, spectrum of the value.

    Takes the law as ``attractor simulate`` does. Exit code 0; 2 for a bad argument.
    """
    from attractor.weights import regime

    check_numbers(context)
    matrices = read_law(law)
    dim = options.dim if options.dim is not None else matrices["query"].shape[-1] if "query" in matrices else DIM
    built = build_law(law, matrices, dim, PLACES)
    found = regime(built, tolerance=options.tolerance, mode="stacked" if options.stacked else "token")
    report = {"layers": [found.row()]}
    print_result(options, SCHEMA, command_line(context), report, Outputs(), lambda: print_regimes(report))


def print_regimes(report: dict[str, Any]) -> None:
    """Print layers and heads."""
    from attractor.weights import LABELS

    rows = []
    for layer in report["layers"]:
        whole = layer["layer"]
        if whole is not None:
            metric, residual = whole["metric_index"], short(whole["residual"])
            rows.append((*_names(whole, "all"), *_numbers(whole, metric), residual))
        rows += [
            (*_names(head, head["head"]), *_numbers(head, head["reduced_metric_index"]), "") for head in layer["heads"]
        ]
    print_table(
        "Regimes of heads",
        ("layer", "head", "label", "proved by", "W", "V'W", "Re V", "|I+V|", "residual"),
        rows,
    )
    shown = {name: text for name, text in COLUMN_WORDS.items() if name != "residual" or any(row[-1] for row in rows)}
    print_rows("Columns", shown)
    for layer in report["layers"]:
        found = layer["layer"] or layer["heads"][0]
        print_rows("", {found["label"]: f"{LABELS[found['label']]}; {found['why']}"}, indent="")


def _names(row: dict[str, Any], head: Any) -> tuple[Any, ...]:
    layer = "" if row["layer"] is None else str(row["layer"])
    return layer, head, row["label"], row["certificate"] or "heuristic"


def _numbers(row: dict[str, Any], metric: float | None) -> tuple[str, ...]:
    return tuple(map(short, (row["interaction_index"], metric, row["value_abscissa"], row["value_radius"])))
