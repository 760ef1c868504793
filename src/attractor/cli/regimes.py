"""``attractor regimes``: what the weights of a law alone say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from attractor.cli.console import ending
from attractor.cli.options import check_numbers, grouped, panel, replay
from attractor.cli.system_options import LawOptions, build_law, read_law

SCHEMA = "attractor.regimes/1"
DIM, PLACES = 3, 1024
option = panel("Results")


@dataclass(frozen=True)
class RegimeOptions:
    """How to look and how to answer."""

    dim: Annotated[
        int | None,
        option("D", "Dimension of the tokens.", "--dim", "-d", default=f"that of the files, or {DIM}", min=1),
    ] = None
    tolerance: Annotated[
        float | None, option("X", "Relative size below which an eigenvalue has no sign.", default="1e-10; float32 1e-5")
    ] = None
    stacked: Annotated[bool, option("", "Add the metric as the published code defines it.", "--stacked")] = False
    json: Annotated[bool, option("", "Print one JSON object.", "--json")] = False
    debug: Annotated[bool, option("", "Show the traceback of an error.", "--debug")] = False


@grouped(LawOptions, RegimeOptions)
def regimes(context: typer.Context, law: LawOptions, options: RegimeOptions) -> None:
    """Classify a law by its weights, head by head: label, certificate, definiteness, spectrum of the value.

    Takes the law as ``attractor simulate`` does. Exit code 0; 2 for a bad argument.
    """
    with ending("attractor regimes", options.debug):
        from attractor.cli.console import print_json
        from attractor.cli.environment import versions
        from attractor.cli.theory_tables import print_regimes
        from attractor.weights import regime

        check_numbers(context)
        matrices = read_law(law)
        dim = options.dim if options.dim is not None else matrices["query"].shape[-1] if "query" in matrices else DIM
        built = build_law(law, matrices, dim, PLACES)
        found = regime(built, tolerance=options.tolerance, mode="stacked" if options.stacked else "token")
        report = {"layers": [found.row()]}
        if options.json:
            command = replay(context, without=("json", "debug"))
            print_json({"schema": SCHEMA, "command": command, **report, "versions": versions()})
        else:
            print_regimes(report)
