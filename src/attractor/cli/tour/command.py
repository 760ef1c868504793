"""``attractor tour``: one run of every part, and a page."""

from __future__ import annotations

import shlex
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attractor.cli.console import FAILED, Outputs, format_error, print_error, print_rows
from attractor.cli.inputs import check_new_folder
from attractor.cli.options import (
    CommonOptions,
    command_line,
    panel,
    print_result,
    result_option,
    seed_option,
    with_options,
)
from attractor.cli.tour.models import audit_heads, refine_layer, trace_tokens
from attractor.cli.tour.stop import Stop
from attractor.cli.tour.systems import check_theorems, integrate_gaussians, simulate_clusters, simulate_hemisphere
from attractor.errors import InputError, MissingExtraError
from attractor.registry import check_name

if TYPE_CHECKING:
    from attractor.cli.tour.stop import Display, Settings
    from attractor.report import Report

STOPS = (
    Stop("clusters", "Tokens gather in clusters", simulate_clusters),
    Stop("hemisphere", "A rate known beforehand", simulate_hemisphere),
    Stop("theorems", "Theorems that can be measured", check_theorems),
    Stop("gaussians", "Two Gaussians: blow-up and collapse", integrate_gaussians),
    Stop("audit", "A real model's weights", audit_heads),
    Stop("trace", "A real model's tokens", trace_tokens),
    Stop("refine", "One refined layer", refine_layer),
)


def select_stops(names: list[str]) -> list[Stop]:
    """Return the stops of the given names, or all, in the order of the tour."""
    known = [stop.key for stop in STOPS]
    for name in names:
        check_name(name, known, "--stop", "stops")
    return [stop for stop in STOPS if not names or stop.key in names]


SCHEMA = "attractor.tour/2"
option = panel("Tour")
LEAD = (
    "A Transformer's tokens are particles: every layer moves each of them towards those it attends to. This page was "
    "computed on this machine just now; it shows where tokens go, what is proved about it, and the regimes of real weights."
)


@dataclass(frozen=True)
class TourOptions:
    """Which stops, on which model."""

    model: Annotated[
        str, option("MODEL", "A folder, a GGUF file or a name instead of MiniLM; see attractor fetch.")
    ] = "minilm"
    text: Annotated[str, option("TEXT", "The sentence that the model reads.", default="one about banks and rivers")] = (
        ""
    )
    stop: Annotated[list[str] | None, option("NAME", "Only this stop; may be repeated.", default="all of them")] = None
    seed: Annotated[int, seed_option("Seed of all random draws.", "Tour")] = 0
    small: Annotated[bool, option("", "Small systems: a quick test of everything.", "--small")] = False


@dataclass(frozen=True)
class TourResults(CommonOptions):
    """Where results go."""

    out: Annotated[Path, result_option("FOLDER", "Folder of report.html; it is created if needed.", "--out", "-o")] = (
        Path("tour")
    )


@dataclass(frozen=True)
class Visit:
    """Result of one stop."""

    key: str
    title: str
    status: str  # made, skipped or failed
    summary: str
    seconds: float
    found: dict[str, Any]


@with_options(TourOptions, TourResults)
def tour(context: typer.Context, options: TourOptions, output: TourResults) -> None:
    """Run every part once: tokens on a sphere, theorems, Gaussians, a real model. Half a minute, and one page at the end.

    Works offline. Stops that need an extra or the weights of the model are skipped if it is not installed, and say how to install it.
    Without the extra "report" the results are printed and no page is written. Exit code 0; 1 if a stop failed, 2 for a bad argument.
    """
    from attractor.cli.tour.stop import Settings, display
    from attractor.report import Report, check_place

    stops = select_stops(options.stop or [])
    settings = Settings(options.seed, options.model, options.text, options.small)
    folder = output.out.expanduser()
    check_new_folder(folder, "--out")
    check_model(settings, stops)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        page, no_page = check_place(folder / "report.html", "--out"), ""
    except MissingExtraError as error:
        page, no_page = None, f"not written: {error}"
        if not any(folder.iterdir()):
            folder.rmdir()
    begin, command = time.perf_counter(), command_line(context)
    report = Report("Where do a Transformer's tokens go?", command, kicker="attractor tour", lead=LEAD)
    with display(stops, False if output.quiet and output.progress is None else output.progress) as shown:
        visits = [visit(stop, report, settings, shown, output.debug) for stop in stops]
    report.facts = {
        "seed": options.seed,
        "stops": f"{sum(row.status == 'made' for row in visits)} of {len(visits)}",
        "took": f"{time.perf_counter() - begin:.0f} s",
    }
    if page is not None:
        add_overview(report, visits)
        report.section("Commands to try next").commands(next_commands(options.model))
        report.write(page)
    document = {
        "seed": options.seed,
        "stops": [
            {"stop": row.key, "status": row.status, "summary": row.summary, "seconds": row.seconds, "found": row.found}
            for row in visits
        ],
        "bytes": 0 if page is None else page.stat().st_size,
        "no_page": no_page,
        "next": list(next_commands(options.model)),
    }
    print_result(
        output,
        SCHEMA,
        command,
        document,
        Outputs(report=page),
        lambda: print_tour(visits, page, no_page, options.model),
    )
    failed = [row for row in visits if row.status == "failed"]
    for row in failed:
        print_error(f"the stop {row.key} failed: {row.summary}", "attractor tour")
    if failed:
        raise typer.Exit(FAILED)


def check_model(settings: Settings, stops: list[Stop]) -> None:
    """Open a model other than the default one, so that a wrong name fails at once."""
    from attractor.cli.tour.models import DEFAULT, open_model
    from attractor.cli.tour.stop import Skipped

    if settings.model == DEFAULT or not any(stop.key in ("audit", "trace", "refine") for stop in stops):
        return
    try:
        open_model(settings.model)
    except Skipped as reason:
        raise InputError(f"--model {settings.model}: {reason}") from None


def visit(stop: Stop, report: Report, settings: Settings, shown: Display, debug: bool = False) -> Visit:
    """Run one stop; an error is reported in its section, and the tour continues."""
    from attractor.cli.tour.stop import Skipped

    section, begin = report.section(stop.title), time.perf_counter()
    shown.begin(stop)
    try:
        summary, found = stop.run(section, settings, shown.update)
        status = "made"
    except (Skipped, MissingExtraError) as reason:
        section.blocks.clear()
        section.text(f"This stop was skipped: {reason}", tone="warn")
        status, summary, found = "skipped", str(reason), {}
    except Exception as error:
        if debug:
            traceback.print_exc()
        section.text(f"This stop failed: {format_error(error)}", tone="bad")
        status, summary, found = "failed", format_error(error), {}
    made = Visit(stop.key, stop.title, status, summary, time.perf_counter() - begin, found)
    shown.end(stop, made)
    return made


def add_overview(report: Report, visits: list[Visit]) -> None:
    """Add the table of all stops."""
    from attractor.report import Badge

    tones = {"made": "good", "skipped": "warn", "failed": "bad"}
    rows = [
        {
            "stop": row.title,
            "status": Badge(row.status, tones[row.status]),
            "result": row.summary,
            "seconds": round(row.seconds, 1),
        }
        for row in visits
    ]
    report.table(rows, caption="The tour in short; each line is a section below.")


def next_commands(model: str) -> dict[str, str]:
    """Return commands to try next, and what they show."""
    name = shlex.quote(model)
    simulate = "attractor simulate --tokens 64 --dim 3 --beta 4 --space sphere --until 100 --report mine.html"
    return {
        "attractor explore": "move tokens in the browser, with the theorems beside them",
        simulate: "your own tokens: change their number, the dimension or beta, and see where they go",
        f"attractor trace {name} --text 'A sentence of your own.' --report trace.html": "your own sentence, block by block",
        f"attractor audit {name}": "regimes of the weights of a model, head by head; any folder, GGUF file or name",
    }


def print_tour(visits: list[Visit], page: Path | None, no_page: str, model: str) -> None:
    """Print one line for each stop, the page or why there is none, and commands to try next."""
    stops = {row.title: row.summary if row.status == "made" else f"{row.status}: {row.summary}" for row in visits}
    print_rows("The tour", stops)
    if page is None:
        print_rows("The report", {"page": no_page})
    else:
        size = f"{page.stat().st_size / 1e6:.1f} MB, self-contained"
        print_rows("The report", {"open in a browser": page.resolve().as_uri(), "size": size})
    print_rows("Commands to try next", {str(index): line for index, line in enumerate(next_commands(model), 1)})
