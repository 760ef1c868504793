"""``attractor tour``."""

from __future__ import annotations

import shlex
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attractor.cli.console import FAILED, complain, ending, sentence
from attractor.cli.inputs import check_folder_to_make
from attractor.cli.options import grouped, panel, replay
from attractor.cli.tour.models import audited, refined, traced
from attractor.cli.tour.stop import Stop
from attractor.cli.tour.systems import bench, clusters, gaussians, hemisphere
from attractor.errors import InputError
from attractor.registry import check_name

if TYPE_CHECKING:
    from attractor.cli.tour.stop import Settings
    from attractor.report import Report

STOPS = (
    Stop("clusters", "Tokens gather in clusters", clusters),
    Stop("hemisphere", "A rate known beforehand", hemisphere),
    Stop("theorems", "Theorems that can be measured", bench),
    Stop("gaussians", "Two Gaussians: blow-up and collapse", gaussians),
    Stop("audit", "A real model's weights", audited),
    Stop("trace", "A real model's tokens", traced),
    Stop("refine", "One refined layer", refined),
)


def chosen(names: list[str]) -> list[Stop]:
    """The stops that were asked for, in the order of the tour."""
    known = [stop.key for stop in STOPS]
    for name in names:
        check_name(name, known, "--stop", "stops")
    return [stop for stop in STOPS if not names or stop.key in names]


SCHEMA = "attractor.tour/1"
what, output = panel("Tour"), panel("Results")
LEAD = (
    "A Transformer's tokens are particles: every layer moves each of them towards those it attends to. This page was "
    "computed on this machine "
    "just now; it shows where tokens go, what is proved about it, and what real weights say."
)


@dataclass(frozen=True)
class TourOptions:
    """What is shown."""

    model: Annotated[
        str,
        what(
            "MODEL",
            "A folder, a GGUF file or a name, in place of MiniLM; see attractor fetch.",
            default="minilm",
        ),
    ] = "minilm"
    text: Annotated[str, what("TEXT", "The sentence that the model reads.", default="one about banks and rivers")] = ""
    stop: Annotated[list[str] | None, what("NAME", "Only this stop; may be repeated.", default="all of them")] = None
    seed: Annotated[int, what("N", "Seed of everything.", min=0)] = 0
    small: Annotated[bool, what("", "Small systems: a tour of seconds, to see that all works.", "--small")] = False


@dataclass(frozen=True)
class TourOutput:
    """What becomes of it."""

    out: Annotated[Path, output("FOLDER", "Where report.html is written; made if it is not there.", "--out", "-o")] = (
        Path("tour")
    )
    json: Annotated[bool, output("", "Print one JSON object.", "--json")] = False
    progress: Annotated[
        bool | None, output("", "A display on stderr.", "--progress/--no-progress", default="if stderr is a terminal")
    ] = None
    debug: Annotated[bool, output("", "Show the traceback of an error.", "--debug")] = False


@dataclass(frozen=True)
class Visit:
    """How one stop went."""

    key: str
    title: str
    status: str  # made, skipped or failed
    words: str
    seconds: float
    found: dict[str, Any]


@grouped(TourOptions, TourOutput)
def tour(context: typer.Context, options: TourOptions, output: TourOutput) -> None:
    """Take a tour: tokens on a sphere, theorems, Gaussians, a real model. Half a minute, and one page at the end.

    Works offline. Without the extra or the package that carries the model, those stops are skipped and the page says how to get
    them. Exit code 0; 1 if a stop failed, 2 for a bad argument.
    """
    with ending("attractor tour", output.debug):
        from attractor.cli.tour.stop import Settings, display
        from attractor.report import Report

        stops = chosen(options.stop or [])
        settings = Settings(options.seed, options.model, options.text, options.small)
        check_folder_to_make(output.out.expanduser(), "--out")
        check_model(settings, stops)
        page = place(output.out)
        begin = time.perf_counter()
        report = Report("Where do a Transformer's tokens go?", again(context), kicker="attractor tour", lead=LEAD)
        with display(stops, output.progress) as show:
            visits = [visit(stop, report, settings, show, output.debug) for stop in stops]
        report.facts = {
            "seed": options.seed,
            "stops": f"{sum(one.status == 'made' for one in visits)} of {len(visits)}",
            "took": f"{time.perf_counter() - begin:.0f} s",
        }
        add_overview(report, visits)
        report.section("Three commands to try next").commands(commands(options.model))
        report.write(page)
        tell(context, visits, page, options, output)
        if any(one.status == "failed" for one in visits):
            raise typer.Exit(FAILED)


def again(context: typer.Context) -> str:
    return replay(context, without=("json", "progress", "debug"))


def place(folder: Path) -> Path:
    """The page in a folder that is made if need be."""
    from attractor.report import check_place

    folder = folder.expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    return check_place(folder / "report.html", "--out")


def check_model(settings: Settings, stops: list[Stop]) -> None:
    """A model that was named is opened before anything else, so that a wrong name costs nothing."""
    from attractor.cli.tour.models import DEFAULT, opened
    from attractor.cli.tour.stop import Skipped

    if settings.model == DEFAULT or not any(stop.key in ("audit", "trace", "refine") for stop in stops):
        return
    try:
        opened(settings.model)
    except Skipped as reason:
        raise InputError(f"--model {settings.model}: {reason}") from None


def visit(stop: Stop, report: Report, settings: Settings, show: Any, debug: bool = False) -> Visit:
    """One stop; what goes wrong in it is said in its section, and the tour goes on."""
    from attractor.cli.tour.stop import Skipped

    section, begin = report.section(stop.title), time.perf_counter()
    show.begin(stop)
    try:
        words, found = stop.run(section, settings, show.say)
        status = "made"
    except Skipped as reason:
        section.blocks.clear()
        section.text(f"This stop was skipped: {reason}", tone="warn")
        status, words, found = "skipped", str(reason), {}
    except Exception as error:
        if debug:
            traceback.print_exc()
        section.text(f"This stop failed: {sentence(error)}", tone="bad")
        status, words, found = "failed", sentence(error), {}
    made = Visit(stop.key, stop.title, status, words, time.perf_counter() - begin, found)
    show.end(stop, made)
    return made


def add_overview(report: Report, visits: list[Visit]) -> None:
    """What was found, at the head of the page."""
    from attractor.report import Badge

    tones = {"made": "good", "skipped": "warn", "failed": "bad"}
    rows = [
        {
            "stop": one.title,
            "how it went": Badge(one.status, tones[one.status]),
            "what was found": one.words,
            "seconds": round(one.seconds, 1),
        }
        for one in visits
    ]
    report.table(rows, caption="The tour in short; each line is a section below.")


def commands(model: str) -> dict[str, str]:
    """What to type next."""
    name = shlex.quote(model)
    simulate = "attractor simulate --tokens 64 --dim 3 --beta 4 --space sphere --until 100 --report mine.html"
    return {
        simulate: "your own tokens: change their number, the dimension or beta, and see where they go",
        f"attractor trace {name} --text 'A sentence of your own.' --report trace.html": "your own sentence, block by block",
        f"attractor audit {name}": "what the weights of a model say, head by head; any folder, GGUF file or name will do",
    }


def tell(context: typer.Context, visits: list[Visit], page: Path, options: TourOptions, output: TourOutput) -> None:
    """One JSON object, or the tour in a few lines."""
    from attractor.cli.console import print_json, print_rows
    from attractor.cli.environment import versions

    size = page.stat().st_size
    if output.json:
        stops = [
            {"stop": one.key, "status": one.status, "words": one.words, "seconds": one.seconds, "found": one.found}
            for one in visits
        ]
        head = {"schema": SCHEMA, "command": again(context), "seed": options.seed, "stops": stops}
        print_json(
            {**head, "report": str(page), "bytes": size, "next": list(commands(options.model)), "versions": versions()}
        )
        return
    print_rows(
        "The tour", {one.title: one.words if one.status == "made" else f"{one.status}: {one.words}" for one in visits}
    )
    print_rows(
        "The report", {"open in a browser": page.resolve().as_uri(), "size": f"{size / 1e6:.1f} MB, complete in itself"}
    )
    print_rows(
        "Three commands to try next", {str(place + 1): line for place, line in enumerate(commands(options.model))}
    )
    for one in visits:
        if one.status == "failed":
            complain(f"the stop {one.key} failed: {one.words}", "attractor tour")
