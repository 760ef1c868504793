"""``attractor questions``: open questions of the papers, as experiments."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from attractor.cli.console import Written, ending
from attractor.cli.inputs import check_picture
from attractor.cli.options import PictureOptions, grouped, panel, replay
from attractor.errors import InputError
from attractor.html_repr import format_number

SCHEMA = "attractor.questions/1"
option = panel("Question")


@dataclass(frozen=True)
class QuestionOptions:
    """Which experiment, and what becomes of it."""

    key: Annotated[str | None, typer.Argument(metavar="KEY", help="The question; without one they are listed.")] = None
    seed: Annotated[int, option("N", "Of the random systems.", min=0)] = 0
    plot: Annotated[Path | None, option("FILE", "Draw the answer: .png, .pdf or .svg.")] = None
    json: Annotated[bool, option("", "Print one JSON object.", "--json")] = False
    debug: Annotated[bool, option("", "Show the traceback of an error.", "--debug")] = False


@grouped(QuestionOptions, PictureOptions)
def questions(context: typer.Context, options: QuestionOptions, pictures: PictureOptions) -> None:
    """Answer an open question of the papers by an experiment, with its figures and its limits.

    Without a key the questions are listed. Exit code 0; 2 for a bad argument.
    """
    with ending("attractor questions", options.debug), pictures.sized():
        from attractor.papers import figure as answers

        if options.key is None:
            listed([_head(question) for question in answers.questions()], options, again(context))
            return
        question = answers.question(options.key)
        if options.plot is not None:
            check_picture(options.plot, still=True)
        answer = question.run(options.seed)
        document = {**_head(question), "seed": options.seed, **answer.row()}
        if options.plot is not None:
            from attractor.plotting import draw_panels

            command = f"{question.command} --seed {options.seed}"
            caption = f"{answer.sentence[0].upper()}{answer.sentence[1:]}. {answer.limits} Drawn by: {command} --plot {options.plot}"
            draw_panels(answer.panels, question.question, caption, options.plot)
        tell(document, options, again(context))


def again(context: typer.Context) -> str:
    """The command line that asks the same."""
    return replay(context, without=("json", "debug"))


def _head(question: Any) -> dict[str, Any]:
    return {"key": question.key, "title": question.title, "question": question.question, "source": question.source}


def listed(heads: list[dict[str, Any]], options: QuestionOptions, command: str) -> None:
    from attractor.cli.console import print_json, print_rows
    from attractor.cli.environment import versions

    if options.plot is not None:
        raise InputError("--plot draws the answer to one question: give its key")
    if options.json:
        print_json({"schema": SCHEMA, "command": command, "questions": heads, "versions": versions()})
    else:
        print_rows("questions", {head["key"]: head["question"] for head in heads})


def tell(document: dict[str, Any], options: QuestionOptions, command: str) -> None:
    from attractor.cli.console import print_json, print_rows
    from attractor.cli.environment import versions
    from attractor.cli.theory_tables import table

    written = Written.of([options.plot])
    if options.json:
        found = {"schema": SCHEMA, "command": command, **document, "written": written.row()}
        print_json({**found, "versions": versions()})
        return
    rows = [
        tuple(value if isinstance(value, str) else format_number(value) for value in row.values())
        for row in document["rows"]
    ]
    table(document["question"], tuple(map(str, document["rows"][0])), rows)
    print_rows("", {"answer": document["answer"], "limits": document["limits"]})
    written.tell(command)
