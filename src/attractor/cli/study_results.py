"""``attractor study-results``: what the runs of a study say."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from attractor.cli.ending import ending
from attractor.cli.files import check_picture
from attractor.cli.groups import grouped, panel, replay
from attractor.cli.pictures import PictureOptions
from attractor.cli.written import Written
from attractor.errors import InputError

SCHEMA = "attractor.study-results/1"
option, output = panel("Study"), panel("Results")


@dataclass(frozen=True)
class ResultsOptions:
    """Which runs, and which of their questions."""

    file: Annotated[Path, typer.Argument(metavar="FILE", help="The runs.jsonl of a study, or its folder.")]
    question: Annotated[str | None, option("NAME", "One question, such as regimes.", default="all")] = None


@dataclass(frozen=True)
class ResultsOutput:
    """What becomes of it."""

    plot: Annotated[Path | None, output("FILE", "Draw the differences: .png, .pdf or .svg.")] = None
    plot_depth: Annotated[Path | None, output("FILE", "Draw tokens along depth: .png, .pdf or .svg.")] = None
    json: Annotated[bool, output("", "Print one JSON object.", "--json")] = False
    debug: Annotated[bool, output("", "Show the traceback of an error.", "--debug")] = False


@grouped(ResultsOptions, ResultsOutput, PictureOptions)
def study_results(
    context: typer.Context, options: ResultsOptions, output: ResultsOutput, pictures: PictureOptions
) -> None:
    """Compare the arms of a study: means with 95% intervals, and for every pair that a question asks about the difference, its interval,
    paired tests, Holm's correction within the question and the size of the effect.

    Exit code 0; 1 if the file cannot be read, 2 for a bad argument.
    """
    with ending("attractor study-results", output.debug), pictures.sized():
        from attractor.cli.printing import print_json, versions
        from attractor.cli.studytable import draw_depth, draw_differences, print_results

        for path in (output.plot, output.plot_depth):
            if path is not None:
                check_picture(path, still=True)
        study, rows, document = found(options)
        document = {"schema": SCHEMA, "command": replay(context, without=("json", "debug")), **document}
        drawn = []
        if output.plot is not None:
            drawn.append(str(draw_differences(document, output.plot)))
        if output.plot_depth is not None:
            drawn.append(str(draw_depth(study, rows, document["command"], output.plot_depth)))
        written = Written(drawn)
        document["written"] = written.row()
        if output.json:
            print_json({**document, "versions": versions()})
        else:
            print_results(document)
            written.tell(document["command"])


def found(options: ResultsOptions) -> tuple[Any, list[dict[str, Any]], dict[str, Any]]:
    """The study, its runs, and what they say."""
    from attractor.experiments.studies.results import dynamics_table, read_results
    from attractor.experiments.studies.statistics import arms_table, comparisons, lost_runs

    study, rows = read_results(options.file)
    if options.question is not None and options.question not in study.questions:
        raise InputError(
            f"--question {options.question} is not one of the study {study.name}: {', '.join(study.questions)}"
        )
    if options.question is not None:
        study = replace(study, questions={options.question: study.questions[options.question]})
    compared = comparisons(study, rows)
    facts = {name: sorted({str(row.get(name)) for row in rows}) for name in ("hardware", "commit", "torch", "time")}
    document = {
        "study": study.name,
        "measure": study.measure,
        "lower_is_better": study.lower,
        "runs": len(rows),
        "seeds": sorted({row["seed"] for row in rows}),
        "lost": sum(map(len, lost_runs(rows, study.measure).values())),
        "arms": arms_table(study, rows),
        "comparisons": [pair.row() for pair in compared.pairs],
        "missing": compared.missing,
        "untested": compared.untested,
        "dynamics": dynamics_table(study, rows),
        "made_by": sorted({row.get("command", "") for row in rows}),
        **facts,
    }
    return study, rows, document
