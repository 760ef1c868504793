"""``attractor predict``: theorems that apply to a law, tokens and a space, and the fate they predict."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from attractor.cli.console import Outputs, print_rows, print_table, short
from attractor.cli.options import CommonOptions, check_numbers, command_line, print_result, result_option, with_options
from attractor.cli.simulate import build_problem
from attractor.cli.system_options import (
    LawOptions,
    NoiseOptions,
    RunOptions,
    SpaceOptions,
    TokenOptions,
    build_noise,
)
from attractor.errors import InputError
from attractor.registry import check_name

SCHEMA = "attractor.predict/2"
NO_FATE = {"identity": "none"}
STYLES = {"holds": "green", "fails": "red", "undetermined": "yellow"}


@dataclass(frozen=True)
class PredictOptions(CommonOptions):
    """Which theorems are tested."""

    step: Annotated[float | None, result_option("H", "Size of discrete layers.", default="continuous time")] = None
    until: Annotated[
        float | None, result_option("T", "End of a run: fates that are to be expected later are said to be beyond it.")
    ] = None
    log_until: Annotated[
        float | None, result_option("L", "End of a run, as the logarithm of its time.", "--log-until")
    ] = None
    paper: Annotated[str | None, result_option("NAME", "Theorems of one paper: regimes, consensus, meanfield.")] = None
    report: Annotated[
        Path | None, result_option("FILE.html", "Write a page with the prediction and the statements.", "--report")
    ] = None


@with_options(TokenOptions, LawOptions, SpaceOptions, NoiseOptions, PredictOptions)
def predict(
    context: typer.Context,
    tokens: TokenOptions,
    law: LawOptions,
    space: SpaceOptions,
    noise: NoiseOptions,
    options: PredictOptions,
) -> None:
    """List the theorems that apply, by what margin, and the fate they predict.

    Takes tokens, law, space and noise as ``attractor simulate`` does. Exit code 0; 2 for a bad argument.
    """
    from attractor.solvers import LogTime
    from attractor.theory import list_theorems
    from attractor.theory import predict as predict_fate

    check_numbers(context)
    if options.report is not None:
        from attractor.report import check_place

        check_place(options.report, "--report")
    papers = sorted({theorem.key.split(".")[0] for theorem in list_theorems()})
    if options.paper is not None:
        check_name(options.paper, papers, "--paper", "papers")
    if tokens.ensemble is not None:
        raise InputError("--ensemble is for simulate: a prediction is about one start")
    until: Any = options.until
    if options.log_until is not None:
        if until is not None:
            raise InputError("--until and --log-until both give the end of a run: leave out one of them")
        until = LogTime(options.log_until)
    problem = build_problem(tokens, law, space, RunOptions())
    settings = {"step": options.step, "paper": options.paper, "until": until, "noise": build_noise(noise)}
    found = predict_fate(problem.law, problem.tokens, problem.space, **settings)
    command = command_line(context)
    if options.report is not None:
        from attractor.report import prediction_report

        prediction_report(found, command).write(options.report)
    row, outputs = found.row(), Outputs(report=options.report)
    print_result(options, SCHEMA, command, row, outputs, lambda: print_prediction(row))


def print_prediction(report: dict[str, Any]) -> None:
    """Print the fates with the times at which they are to be expected, the theorems behind them, starts that are exceptions,
    contradictions, and what the nearest other theorem lacks."""
    console = Console(highlight=False)
    fates = [(fate, found["means"], "\n".join(found["theorems"])) for fate, found in report["fates"].items()]
    if report["note"]:
        print_rows("", {"note": report["note"]}, indent="")
    if fates:
        print_table("Predicted", ("fate", "meaning", "by"), fates)
    elif not report["note"]:
        console.print(Text("No theorem predicts a fate.", "bold"))
    for row in report["exceptional"]:
        why = f"{row['theorem']} is about almost every start, but here {row['reason']}"
        print_rows("", {"exceptional start": why}, indent="")
    times = [(name, found["text"]) for name, found in report["times"].items()]
    if times:
        print_table("When and how fast", ("theorem", "time and rate"), times)
    rows = [
        (
            row["theorem"],
            row["title"],
            row["status"],
            NO_FATE.get(row["fate"], row["fate"]),
            short(_smallest_margin(row)),
        )
        for row in report["applicable"]
    ]
    if rows:
        print_table("Theorems that apply", ("theorem", "title", "status", "fate", "margin"), rows)
        words = {"margin": "of the strict inequality that is closest to failing, relative; empty without one"}
        if any(row["fate"] in NO_FATE for row in report["applicable"]):
            words["fate none"] = "an equation or inequality that holds at every time; it says nothing about the limit"
        print_rows("", words)
    for row in report["undetermined"]:
        names = [
            f"{c['name']}, {c['detail']}" if c["detail"] else c["name"]
            for c in row["conditions"]
            if c["verdict"] == "undetermined"
        ]
        console.print(f"undetermined: {row['theorem']} ({'; '.join(names) or 'not all hypotheses can be examined'})")
    for first, second in report["contradictions"]:
        console.print(Text(f"contradiction: {first} and {second} exclude each other", "red"))
    nearest = report["nearest"]
    if nearest is not None:
        conditions = [
            (c["name"], Text(c["verdict"], STYLES[c["verdict"]]), short(c["margin"]), c["detail"])
            for c in nearest["conditions"]
            if c["verdict"] != "holds"
        ]
        title = f"Nearest theorem that does not apply: {nearest['theorem']}"
        print_table(title, ("hypothesis", "verdict", "margin", "detail"), conditions)


def _smallest_margin(row: dict[str, Any]) -> float | None:
    """Return the smallest margin of a strict inequality."""
    return min((c["margin"] for c in row["conditions"] if c["margin"] is not None and c["open"]), default=None)
