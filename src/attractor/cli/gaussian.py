"""``attractor gaussian``: one Gaussian, or many, under attention."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from attractor.cli.ending import ending
from attractor.cli.files import check_picture
from attractor.cli.groups import check_numbers, given, grouped, numbers, panel, replay
from attractor.cli.law import LawOptions, build_law, read_law
from attractor.cli.moments import read_matrix, read_vector
from attractor.cli.pictures import PictureOptions
from attractor.cli.written import Written
from attractor.errors import InputError

SCHEMA = "attractor.gaussian/1"
UNTIL = 10.0
start_option, mode_option, result_option = panel("Gaussian"), panel("Many Gaussians"), panel("Results")


@dataclass(frozen=True)
class StartOptions:
    """Where the Gaussian starts, and how far it is followed."""

    mean: Annotated[str | None, start_option("X,X,...|FILE", "Mean: numbers, or a file.", default="zero")] = None
    covariance: Annotated[
        str | None, start_option("X,X;X,X|FILE", "Covariance: rows separated by semicolons, or a file.", default="I")
    ] = None
    dim: Annotated[
        int | None, start_option("D", "Dimension.", "--dim", "-d", default="that of the files, or 2", min=1)
    ] = None
    affine: Annotated[Path | None, start_option("FILE", "Matrix W (d, d) of a feed-forward x -> W x + c.")] = None
    affine_offset: Annotated[Path | None, start_option("FILE", "Its offset c (d).", default="zero")] = None
    until: Annotated[float, start_option("T", "The time to reach.", "--until", "-t")] = UNTIL
    save: Annotated[str | None, start_option("T,T,...", "Report these times.", default="start and end")] = None
    rtol: Annotated[float | None, start_option("X", "Relative error of a step.", default="2e-12")] = None


@dataclass(frozen=True)
class ManyOptions:
    """What is asked of many Gaussians."""

    phase: Annotated[bool, mode_option("", "Where covariances of trace one go, in the plane.", "--phase")] = False
    blow_up_map: Annotated[bool, mode_option("", "When they blow up, in the plane.", "--blow-up-map")] = False
    case: Annotated[
        str | None, mode_option("NAME", "A published case: collapse, line, plane, two-lines, divergence, both.")
    ] = None
    ranks: Annotated[bool, mode_option("", "Ranks of the limits of random laws.", "--ranks")] = False
    grid: Annotated[int, mode_option("N", "Starts across the disc of --phase, --blow-up-map and --case.", min=1)] = 5
    dims: Annotated[str, mode_option("D,D,...", "Dimensions of --ranks.")] = "3,4,5"
    draws: Annotated[int, mode_option("N", "Draws of --ranks in each dimension.", min=1)] = 100
    value_kind: Annotated[str, mode_option("NAME", "V of --ranks: identity, definite (G'G) or generic.")] = "identity"
    seed: Annotated[int, mode_option("N", "Seed of --ranks.", min=0)] = 0
    official_scaling: Annotated[
        bool, mode_option("", "Scale l2 and sinkhorn in --case as the published code does.", "--official-scaling")
    ] = False
    emulate: Annotated[
        bool, mode_option("", "Also emulate what the published code concludes.", "--emulate/--no-emulate")
    ] = True


@dataclass(frozen=True)
class ResultOptions:
    """What becomes of it."""

    plot: Annotated[Path | None, result_option("FILE", "Draw it: .png, .pdf or .svg.")] = None
    report: Annotated[Path | None, result_option("FILE.html", "Write a page: the picture, and the numbers.")] = None
    json: Annotated[bool, result_option("", "Print one JSON object.", "--json")] = False
    quiet: Annotated[
        bool, result_option("", "Print nothing but errors (and the object of --json).", "--quiet", "-q")
    ] = False
    progress: Annotated[
        bool | None,
        result_option("", "A bar on stderr.", "--progress/--no-progress", default="if stderr is a terminal"),
    ] = None
    debug: Annotated[bool, result_option("", "Show the traceback of an error.", "--debug")] = False


@grouped(StartOptions, LawOptions, ManyOptions, ResultOptions, PictureOptions)
def gaussian(
    context: typer.Context,
    start: StartOptions,
    law: LawOptions,
    many: ManyOptions,
    results: ResultOptions,
    pictures: PictureOptions,
) -> None:
    """Follow a Gaussian under attention, exactly: blow-up, limits, phases and ranks.

    Without further options: N(0, I) in the plane under isotropic softmax attention. --phase, --blow-up-map, --case and --ranks ask the
    same of many. A run that blows up before --until ends there and says so. Exit code 0; 1 if a run failed, 2 for a bad argument.
    """
    with ending("attractor gaussian", results.debug), pictures.sized():
        check_numbers(context)
        if results.plot is not None:
            check_picture(results.plot, still=True)
        if results.report is not None:
            from attractor.report import check_place

            check_place(results.report, "--report")
        report = _mode(context, start, many)(start, law, many, results)
        tell(context, report, results)


def _mode(context: typer.Context, start: StartOptions, many: ManyOptions) -> Any:
    """Which question is asked; options that belong to another one are refused."""
    from attractor.cli import gaussian_modes as modes

    asked = {"--phase": many.phase, "--blow-up-map": many.blow_up_map, "--case": many.case, "--ranks": many.ranks}
    wanted = [name for name, value in asked.items() if value]
    if len(wanted) > 1:
        raise InputError(f"{' and '.join(wanted)} are different questions: give one of them")
    used = given(context)
    if wanted[:1] in (["--case"], ["--ranks"]):
        own = {"kernel"}
        other = [used[name] for name in LawOptions.__dataclass_fields__ if name in used and name not in own]
        if other:
            raise InputError(f"{wanted[0]} brings its own law: leave out {', '.join(other)}")
    if wanted:
        other = [used[name] for name in ("mean", "covariance", "until", "save") if name in used]
        if other:
            raise InputError(f"{wanted[0]} has its own starts and times: leave out {', '.join(other)}")
    elif "until" in used and start.save is not None and max(numbers(start.save, "--save")) > start.until:
        raise InputError(f"--save {start.save} goes past --until {start.until:g}: raise --until, or leave it out")
    found = {"--phase": modes.phase, "--blow-up-map": modes.blow_up_map, "--case": modes.case, "--ranks": modes.ranks}
    return found[wanted[0]] if wanted else modes.one


def read_start(options: StartOptions, law: LawOptions) -> tuple[Any, Any]:
    """The law and the Gaussian of one run."""
    import numpy as np

    from attractor.attention import Affine
    from attractor.cli.files import read_array
    from attractor.states import Gaussian

    files = read_law(law)
    covariance = None if options.covariance is None else read_matrix(options.covariance, "--covariance").numpy()
    mean = None if options.mean is None else read_vector(options.mean, "--mean").numpy()
    sizes = [covariance.shape[-1] if covariance is not None else None, None if mean is None else len(mean)]
    sizes.append(files["query"].shape[-1] if "query" in files else None)
    dim = options.dim or next((size for size in sizes if size is not None), 2)
    moved: Any = build_law(law, files, dim, 1)
    if options.affine is not None:
        offset = (
            None if options.affine_offset is None else read_array(options.affine_offset, "--affine-offset").reshape(-1)
        )
        moved = moved + Affine(read_array(options.affine, "--affine"), offset)
    elif options.affine_offset is not None:
        raise InputError("--affine-offset goes with --affine, the matrix of the feed-forward")
    state = Gaussian(np.zeros(dim) if mean is None else mean, np.eye(dim) if covariance is None else covariance)  # type: ignore[arg-type]
    return moved, state


def tell(context: typer.Context, report: dict[str, Any], results: ResultOptions) -> None:
    """One JSON object, or a few lines for people."""
    from attractor.cli.printing import print_json, print_rows, versions

    command = replay(context, without=("json", "quiet", "progress", "debug"))
    if results.report is not None:
        from attractor.cli.gaussianpage import gaussian_report

        gaussian_report(report, command).write(results.report)
    if results.quiet and not results.json:
        return
    written = Written.of([results.plot], results.report)
    if results.json:
        head = {"schema": SCHEMA, "command": command}
        data = {name: value for name, value in report.items() if name not in ("lines_for_people", "view")}
        print_json({**head, **data, "written": written.row(), "versions": versions()})
        return
    for title, rows in report["lines_for_people"]:
        print_rows(title, rows)
    written.tell(command)
