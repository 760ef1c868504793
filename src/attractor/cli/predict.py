"""``attractor predict``: which theorems apply to a law, tokens and a space, and what they say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from attractor.cli.console import Written, ending
from attractor.cli.options import check_numbers, grouped, panel, replay
from attractor.cli.simulate import build
from attractor.cli.system_options import LawOptions, RunOptions, SpaceOptions, TokenOptions
from attractor.registry import check_name

SCHEMA = "attractor.predict/1"
option = panel("Results")


@dataclass(frozen=True)
class PredictOptions:
    """What to ask and how to answer."""

    step: Annotated[float | None, option("H", "Size of discrete layers.", default="continuous time")] = None
    paper: Annotated[str | None, option("NAME", "Ask one source only: regimes, consensus, meanfield.")] = None
    report: Annotated[
        Path | None,
        option("FILE.html", "Write the answer as a page, with the statements as mathematics.", "--report"),
    ] = None
    json: Annotated[bool, option("", "Print one JSON object.", "--json")] = False
    debug: Annotated[bool, option("", "Show the traceback of an error.", "--debug")] = False


@grouped(TokenOptions, LawOptions, SpaceOptions, PredictOptions)
def predict(
    context: typer.Context, tokens: TokenOptions, law: LawOptions, space: SpaceOptions, options: PredictOptions
) -> None:
    """Say which theorems apply, by what margin, and the fate they predict.

    Takes the tokens, the law and the space as ``attractor simulate`` does. Exit code 0; 2 for a bad argument.
    """
    with ending("attractor predict", options.debug):
        from attractor.cli.console import print_json
        from attractor.cli.environment import versions
        from attractor.cli.theory_tables import print_prediction
        from attractor.errors import InputError
        from attractor.theory import list_theorems
        from attractor.theory import predict as ask

        check_numbers(context)
        if options.report is not None:
            from attractor.report import check_place

            check_place(options.report, "--report")
        papers = sorted({theorem.key.split(".")[0] for theorem in list_theorems()})
        if options.paper is not None:
            check_name(options.paper, papers, "--paper", "papers")
        if tokens.ensemble is not None:
            raise InputError("--ensemble is for simulate: a prediction is about one start")
        problem = build(tokens, law, space, RunOptions())
        found = ask(problem.law, problem.tokens, problem.space, step=options.step, paper=options.paper)
        command = replay(context, without=("json", "debug"))
        if options.report is not None:
            from attractor.report import prediction_report

            prediction_report(found, command).write(options.report)
        written = Written(report=options.report)
        if options.json:
            document = {"schema": SCHEMA, "command": command, **found.row(), "written": written.row()}
            print_json({**document, "versions": versions()})
        else:
            print_prediction(found.row())
            written.tell(command)
