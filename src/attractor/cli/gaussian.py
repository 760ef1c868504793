"""``attractor gaussian``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from attractor.cli.console import Written, ending
from attractor.cli.inputs import check_picture
from attractor.cli.options import PictureOptions, check_numbers, given, grouped, numbers, panel, replay
from attractor.cli.system_options import LawOptions, build_law, read_law, read_matrix, read_vector
from attractor.errors import InputError
from attractor.html_repr import format_number
from attractor.progress import progress_bar

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
    found = {"--phase": phase, "--blow-up-map": blow_up_map, "--case": case, "--ranks": ranks}
    return found[wanted[0]] if wanted else one


def read_start(options: StartOptions, law: LawOptions) -> tuple[Any, Any]:
    """The law and the Gaussian of one run."""
    import numpy as np

    from attractor.cli.inputs import read_array
    from attractor.laws import Affine
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
    from attractor.cli.console import print_json, print_rows
    from attractor.cli.environment import versions

    command = replay(context, without=("json", "quiet", "progress", "debug"))
    if results.report is not None:
        from attractor.report import gaussian_report

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


def one(start: StartOptions, law: LawOptions, many: ManyOptions, results: ResultOptions) -> dict[str, Any]:
    """One Gaussian, followed until a time or its blow-up."""
    from attractor.files import to_json
    from attractor.report import add_gaussian
    from attractor.solvers import flow

    moved, state = read_start(start, law)
    if start.save is not None:
        save: Any = numbers(start.save, "--save")
    else:
        save = None
    until = max(start.until, save[-1]) if save else start.until
    run = flow(moved, state, until=until, save=save, rtol=start.rtol, progress=bool(results.progress))
    shown = range(len(run.times)) if save else (0, len(run.times) - 1)
    states = [{"time": float(run.times[k]), **_moments(run.means[k], run.covariances[k])} for k in shown]
    report = {**run.summary(), "states": states, "final": _moments(run.final.mean, run.final.covariance)}  # type: ignore[union-attr]
    report["bounds"] = _bounds(moved, state)
    report.pop("observables")
    if results.plot is not None:
        _plot_run(run, results)
    end = run.outcome
    rows = {"law": repr(moved), "evaluations": f"{run.stats.evaluations:,}"}
    if report["bounds"]:
        rows["T* between"] = " and ".join(
            format_number(side) for side in (report["bounds"]["lower"], report["bounds"]["upper"])
        )
    for state_row in states:
        mean, values = (", ".join(format_number(x) for x in state_row[name]) for name in ("mean", "eigenvalues"))
        rows[f"t = {format_number(state_row['time'])}"] = f"mean ({mean}), eigenvalues of the covariance ({values})"
    title = f"{end.name.replace('_', ' ').capitalize()} at t = {end.time:.12g}: {end.message}."
    return {
        **to_json(report),
        "lines_for_people": [(title, rows)],
        "view": lambda section: add_gaussian(section, run),
    }


def _moments(mean: Any, covariance: Any) -> dict[str, Any]:
    values = np.linalg.eigvalsh(covariance.numpy())[::-1]
    return {"mean": mean.tolist(), "covariance": covariance.tolist(), "eigenvalues": np.maximum(values, 0.0).tolist()}


def _bounds(law: Any, state: Any) -> dict[str, Any] | None:
    """The a-priori interval of the blow-up time, where there is one."""
    from attractor.errors import UnsupportedError
    from attractor.laws import Attention
    from attractor.meanfield import blow_up_bounds

    if not isinstance(law, Attention):
        return None
    try:
        found = blow_up_bounds(law, state)
    except UnsupportedError:
        return None
    if not math.isfinite(found.upper):
        return None
    return {"lower": found.lower, "upper": found.upper}


def _plot_run(run: Any, results: ResultOptions) -> None:
    from attractor.plotting import draw_spectrum

    values = np.maximum(np.linalg.eigvalsh(run.covariances.numpy()), 0.0)[:, ::-1]
    blown = run.outcome.time if run.outcome.name == "blow_up" else None
    title = f"A Gaussian under {run.law!r}" if run.law is not None else "A Gaussian"
    draw_spectrum(
        run.times.numpy(), values, run.means.numpy(), results.plot, end=blown, title=title, caption=str(run.outcome)
    )


def phase(start: StartOptions, law: LawOptions, many: ManyOptions, results: ResultOptions) -> dict[str, Any]:
    """Where covariances of trace one go."""
    from attractor.meanfield import phase_portrait as follow

    moved, _ = read_start(start, law)
    with progress_bar("phase", results.progress, results.quiet) as show:
        found = follow(moved, many.grid, progress=show)
    summary = found.summary()
    if results.plot is not None:
        _plot_phase(found, results, f"Covariances under {moved!r}", _sentence(summary))
    lines = [(f"{summary['starts']} starts of trace one", _rows(summary))]
    return {
        "phase": summary,
        "lines_for_people": lines,
        "view": lambda part: _phase_view(part, found, _sentence(summary)),
    }


def _plot_phase(found: Any, results: ResultOptions, title: str, caption: str) -> None:
    from attractor.plotting import draw_cone

    draw_cone(_ways(found), [one.kind for one in found.limits], results.plot, title=title, caption=caption)


def _ways(found: Any) -> list[np.ndarray]:
    """Paths in the disc of covariances of trace one."""
    from attractor.meanfield import cone_coordinates

    pairs = zip(found.starts, found.limits, strict=True)
    return [cone_coordinates(np.concatenate((start[None], one.path))) for start, one in pairs]


def _phase_view(section: Any, found: Any, words: str) -> None:
    from attractor.report import add_phase

    add_phase(section, _ways(found), [one.kind for one in found.limits], words)


def _sentence(summary: dict[str, Any]) -> str:
    kinds = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in summary["kinds"].items())
    return f"Outcomes of {summary['starts']} starts: {kinds}. Small dots are starts, ringed dots ends."


def _rows(summary: dict[str, Any]) -> dict[str, str]:
    rows = {"outcomes": ", ".join(f"{count} {name}" for name, count in summary["kinds"].items())}
    if summary["ranks"]:
        rows["ranks"] = ", ".join(f"rank {rank}: {count}" for rank, count in summary["ranks"].items())
    if summary["lines"]:
        rows["lines"] = ", ".join(f"({format_number(line[0])}, {format_number(line[1])})" for line in summary["lines"])
    if summary["blow_up_times"]:
        rows["blow-up"] = " to ".join(f"t = {format_number(time)}" for time in summary["blow_up_times"])
    return rows


def blow_up_map(start: StartOptions, law: LawOptions, many: ManyOptions, results: ResultOptions) -> dict[str, Any]:
    """When covariances of trace one blow up."""
    from attractor.files import to_json
    from attractor.meanfield import cone_coordinates, disc_grid, find_blow_up
    from attractor.plotting import draw_map
    from attractor.report import add_blow_up_map
    from attractor.states import Gaussian

    moved, _ = read_start(start, law)
    if moved.dim != 2:
        raise InputError(f"a blow-up map is one of covariances in the plane, the law has dimension {moved.dim}")
    starts, found = disc_grid(many.grid), []
    with progress_bar("blow-up", results.progress, results.quiet) as show:
        for index, covariance in enumerate(starts):
            found.append(find_blow_up(moved, Gaussian(np.zeros(2), covariance), max_evaluations=20_000))  # type: ignore[arg-type]
            show(index + 1, len(starts))
    times = np.array([one.time for one in found])
    finite = times[np.isfinite(times)]
    entries = [
        {"covariance": covariance.tolist(), "time": one.time, "direction": one.direction, "outcome": one.outcome}
        for covariance, one in zip(starts, found, strict=True)
    ]
    if results.plot is not None:
        title = "Blow-up times from trace one"
        draw_map(
            cone_coordinates(starts)[:, :2],
            times,
            results.plot,
            title=title,
            caption=f"{moved!r}. Grey: no blow-up by t = 10000.",
        )
    rows = {"blow up": f"{len(finite)} of {len(times)}"}
    if len(finite):
        rows |= {
            "first": f"t = {format_number(float(finite.min()))}",
            "last": f"t = {format_number(float(finite.max()))}",
        }
    lines = [(f"{len(times)} starts of trace one", rows)]
    places = cone_coordinates(starts)[:, :2]
    return {
        **to_json({"map": entries}),
        "lines_for_people": lines,
        "view": lambda part: add_blow_up_map(part, places, times),
    }


def case(start: StartOptions, law: LawOptions, many: ManyOptions, results: ResultOptions) -> dict[str, Any]:
    """A published case: the outcome of an accurate integrator beside what the published code concludes."""
    from attractor.papers import study

    with progress_bar(str(many.case), results.progress, results.quiet) as show:
        found = study(
            str(many.case), many.grid, official_scaling=many.official_scaling, emulate=many.emulate, progress=show
        )
    sections = [
        (f"{found.case.name}: claimed that {found.case.claim} ({found.case.draw})", {"claim": found.case.claim})
    ]
    for kernel, (phase_found, emulated) in found.found.items():
        rows = _rows(phase_found.summary())
        if emulated:
            rows["emulated"] = f"{emulated['words']} (published procedure: Euler, projection, cut 0.1)"
            rows["agree"] = "yes" if emulated["agrees"] else "no: " + emulated["difference"]
        sections.append((kernel, rows))
    if results.plot is not None:
        kernel = next(iter(found.found))
        _plot_phase(found.found[kernel][0], results, f"Case {found.case.name}, {kernel}", found.case.claim)

    def view(section: Any) -> None:
        for kernel, (phase_found, _) in found.found.items():
            _phase_view(
                section, phase_found, f"{kernel}: {_sentence(phase_found.summary())} Claimed: {found.case.claim}."
            )

    return {"case": found.summary(), "lines_for_people": sections, "view": view}


def ranks(start: StartOptions, law: LawOptions, many: ManyOptions, results: ResultOptions) -> dict[str, Any]:
    """Ranks of limits of random laws."""
    from attractor.papers import rank_histogram
    from attractor.plotting import draw_counts
    from attractor.report import add_ranks

    dims = [int(dim) for dim in numbers(many.dims, "--dims")]
    if not dims or min(dims) < 2 or max(dims) > 12:
        raise InputError(f"--dims must be dimensions from 2 to 12, got {many.dims}")
    with progress_bar("ranks", results.progress, results.quiet) as show:
        found = rank_histogram(
            law.kernel, many.value_kind, dims, many.draws, many.seed, emulate=many.emulate, progress=show
        )
    sections = []
    for dim in dims:
        rows = {"accurate": _counts(found.accurate[dim])}
        if many.emulate:
            rows["emulated"] = (
                f"{_counts(found.emulated[dim])} (published procedure; dropped: rank above {(dim + 1) // 2})"
            )
        rows["dim ker S"] = str(found.kernel_dimension[dim])
        sections.append((f"{law.kernel}, V {many.value_kind}, d = {dim}, {many.draws} draws", rows))
    panels = {
        f"d = {dim}": {
            "accurate": found.accurate[dim],
            **({"published procedure, emulated": found.emulated[dim]} if many.emulate else {}),
        }
        for dim in dims
    }
    title = f"Ranks of limits under {law.kernel} attention, V {many.value_kind}"
    caption = f"{many.draws} draws in each dimension, seed {many.seed}."
    if results.plot is not None:
        draw_counts(panels, results.plot, title=title, caption=caption)
    view = lambda part: add_ranks(part, panels, f"{title.lower()}; {caption}")  # noqa: E731
    return {"ranks": found.summary(), "lines_for_people": sections, "view": view}


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{'rank ' if label.isdigit() else ''}{label}: {count}" for label, count in counts.items())
