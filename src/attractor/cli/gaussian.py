"""``attractor gaussian``: Gaussians under attention, by exact closures."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from attractor.cli.console import Outputs, print_rows
from attractor.cli.inputs import check_figure, read_array
from attractor.cli.options import (
    FigureOptions,
    check_numbers,
    command_line,
    given,
    panel,
    parse_numbers,
    print_result,
    result_option,
    seed_option,
    with_options,
)
from attractor.cli.system_options import LawOptions, build_law, read_law, read_vector
from attractor.errors import InputError
from attractor.html_repr import format_number

if TYPE_CHECKING:
    from attractor.report import Section

SCHEMA = "attractor.gaussian/2"
UNTIL = 10.0
start_option, mode_option = panel("Gaussian"), panel("Many Gaussians")


@dataclass(frozen=True)
class StartOptions:
    """The initial Gaussian, and the times."""

    mean: Annotated[str | None, start_option("X,X,...|FILE", "Mean: numbers, or a file.", default="zero")] = None
    covariance: Annotated[
        str | None, start_option("X,X;X,X|FILE", "Covariance: rows separated by semicolons, or a file.", default="I")
    ] = None
    dim: Annotated[
        int | None, start_option("D", "Dimension.", "--dim", "-d", default="that of the files, or 2", min=1)
    ] = None
    affine: Annotated[Path | None, start_option("FILE", "Matrix W (d, d) of a feed-forward x -> W x + c.")] = None
    affine_offset: Annotated[Path | None, start_option("FILE", "Its offset c (d).", default="zero")] = None
    until: Annotated[float, start_option("T", "Final time.", "--until", "-t")] = UNTIL
    save: Annotated[str | None, start_option("T,T,...", "Report these times.", default="start and end")] = None
    rtol: Annotated[float | None, start_option("X", "Relative error of a step.", default="2e-12")] = None
    noise: Annotated[
        float | None, start_option("X", "Strength of noise, which adds 2 X I to the rate of the covariance.", min=0)
    ] = None


@dataclass(frozen=True)
class ManyOptions:
    """Studies of many Gaussians."""

    phase: Annotated[bool, mode_option("", "Limits of covariances of trace one, in the plane.", "--phase")] = False
    blow_up_map: Annotated[
        bool, mode_option("", "Blow-up times of covariances of trace one, in the plane.", "--blow-up-map")
    ] = False
    case: Annotated[
        str | None, mode_option("NAME", "A published case: collapse, line, plane, two-lines, divergence, both.")
    ] = None
    ranks: Annotated[bool, mode_option("", "Ranks of the limits of random laws.", "--ranks")] = False
    grid: Annotated[int, mode_option("N", "Starts across the disc of --phase, --blow-up-map and --case.", min=1)] = 5
    dims: Annotated[str, mode_option("D,D,...", "Dimensions of --ranks.")] = "3,4,5"
    draws: Annotated[int, mode_option("N", "Draws of --ranks in each dimension.", min=1)] = 100
    value_kind: Annotated[str, mode_option("NAME", "V of --ranks: identity, definite (G'G) or generic.")] = "identity"
    seed: Annotated[int, seed_option("Seed of --ranks.", "Many Gaussians")] = 0
    official_scaling: Annotated[
        bool, mode_option("", "Scale l2 and sinkhorn in --case as the published code does.", "--official-scaling")
    ] = False
    emulate: Annotated[bool, mode_option("", "Also emulate the published procedure.", "--emulate/--no-emulate")] = True


@dataclass(frozen=True)
class GaussianResults(FigureOptions):
    """Where results go."""

    report: Annotated[Path | None, result_option("FILE.html", "Write a page: the figure and the numbers.")] = None


@dataclass(frozen=True)
class Finding:
    """Result of one mode of the command: for JSON, for the terminal, and a function that adds it to a report."""

    document: dict[str, Any]
    tables: list[tuple[str, dict[str, str]]]
    add_to: Callable[[Section], object]


@with_options(StartOptions, LawOptions, ManyOptions, GaussianResults)
def gaussian(
    context: typer.Context, start: StartOptions, law: LawOptions, many: ManyOptions, results: GaussianResults
) -> None:
    """Integrate a Gaussian under attention, exactly: blow-up, limits, phases and ranks.

    Without further options: N(0, I) in the plane under isotropic softmax attention. --phase, --blow-up-map, --case and --ranks study
    many Gaussians. A run that blows up before --until ends there. Exit code 0; 1 if a run failed, 2 for a bad argument.
    """
    check_numbers(context)
    if results.plot is not None:
        check_figure(results.plot, still=True)
    if results.report is not None:
        from attractor.report import check_place

        check_place(results.report, "--report")
    found = choose_mode(context, start, many)(start, law, many, results)
    command = command_line(context)
    if results.report is not None:
        from attractor.report import gaussian_report

        gaussian_report(found.tables, found.add_to, command).write(results.report)

    def print_tables() -> None:
        for title, rows in found.tables:
            print_rows(title, rows)

    print_result(results, SCHEMA, command, found.document, Outputs.given([results.plot], results.report), print_tables)


def choose_mode(context: typer.Context, start: StartOptions, many: ManyOptions) -> Callable[..., Finding]:
    """Return the function that computes what the options select; raise for options that have no effect on it."""
    modes = {
        "--phase": (many.phase, study_phase),
        "--blow-up-map": (many.blow_up_map, map_blow_up),
        "--case": (many.case, study_case),
        "--ranks": (many.ranks, study_ranks),
    }
    chosen = [name for name, (value, _) in modes.items() if value]
    if len(chosen) > 1:
        raise InputError(f"{' and '.join(chosen)} exclude each other: give one of them")
    used = given(context)
    if chosen[:1] in (["--case"], ["--ranks"]):
        other = [used[name] for name in LawOptions.__dataclass_fields__ if name in used and name != "kernel"]
        if other:
            raise InputError(f"{chosen[0]} defines its own law: leave out {', '.join(other)}")
    if chosen:
        other = [used[name] for name in ("mean", "covariance", "until", "save", "noise") if name in used]
        if other:
            raise InputError(f"{chosen[0]} defines its own starts and times: leave out {', '.join(other)}")
    elif "until" in used and start.save is not None and max(parse_numbers(start.save, "--save")) > start.until:
        raise InputError(f"--save {start.save} exceeds --until {start.until:g}: raise --until, or leave it out")
    return modes[chosen[0]][1] if chosen else integrate_gaussian


def read_start(options: StartOptions, law: LawOptions) -> tuple[Any, Any]:
    """Return the law and the initial Gaussian."""
    from attractor.laws import Affine
    from attractor.states import Gaussian

    files = read_law(law)
    covariance = None if options.covariance is None else read_array(Path(options.covariance), "--covariance").numpy()
    mean = None if options.mean is None else read_vector(options.mean, "--mean").numpy()
    sizes = [covariance.shape[-1] if covariance is not None else None, None if mean is None else len(mean)]
    sizes.append(files["query"].shape[-1] if "query" in files else None)
    dim = options.dim or next((size for size in sizes if size is not None), 2)
    built: Any = build_law(law, files, dim, 1)
    if options.affine is not None:
        offset = (
            None if options.affine_offset is None else read_array(options.affine_offset, "--affine-offset").reshape(-1)
        )
        built = built + Affine(read_array(options.affine, "--affine"), offset)
    elif options.affine_offset is not None:
        raise InputError("--affine-offset belongs to --affine, which is not given")
    state = Gaussian(np.zeros(dim) if mean is None else mean, np.eye(dim) if covariance is None else covariance)  # type: ignore[arg-type]
    return built, state


def integrate_gaussian(start: StartOptions, law: LawOptions, many: ManyOptions, results: GaussianResults) -> Finding:
    """Integrate one Gaussian until a time or its blow-up."""
    from attractor.files import to_json
    from attractor.report import add_gaussian
    from attractor.solvers import Noise, flow

    built, state = read_start(start, law)
    save = None if start.save is None else parse_numbers(start.save, "--save")
    until = max(start.until, save[-1]) if save else start.until
    noise = None if start.noise is None else Noise(start.noise)
    run = flow(built, state, noise=noise, until=until, save=save, rtol=start.rtol, progress=bool(results.progress))
    shown = range(len(run.times)) if save else (0, len(run.times) - 1)
    approach = find_approach(run)
    final = _moments(run.final.mean, run.final.covariance)  # type: ignore[union-attr]
    states = [
        {"time": float(run.times[k]), **_moments(run.means[k], run.covariances[k], run.points[k, 1:])} for k in shown
    ]
    if approach is not None:
        limits = {"mean": approach.mean.tolist(), "eigenvalues": approach.limits.tolist()}
        final |= limits
        for state_row in states:
            if state_row["time"] == run.outcome.time:
                state_row |= limits
    report = {**run.summary(), "states": states, "final": final, "bounds": None if noise else _bounds(built, state)}
    report["approach"] = None if approach is None else approach.row()
    report.pop("observables")
    if results.plot is not None:
        _plot_run(run, approach, results)
    end = run.outcome
    rows = {"law": repr(built), "evaluations": f"{run.stats.evaluations:,}"}
    if report["bounds"]:
        rows["T* by theory"] = format_interval(report["bounds"]["lower"], report["bounds"]["upper"])
    for state_row in states:
        mean, values = (", ".join(map(format_entry, state_row[name])) for name in ("mean", "eigenvalues"))
        at_end = approach is not None and state_row["time"] == end.time
        label = "t = T*" if at_end else f"t = {format_number(state_row['time'])}"
        values = approach.describe_limits() if at_end and approach is not None else values
        rows[label] = f"mean ({mean}), eigenvalues of the covariance ({values})"
    return Finding(to_json(report), [(end.sentence, rows)], lambda section: add_gaussian(section, run, approach))


def _moments(mean: Any, covariance: Any, rows: Any = None) -> dict[str, Any]:
    """Return mean, covariance and its eigenvalues, from the rows of its factor where they are known."""
    from attractor.solvers import factor_eigenvalues

    values = np.linalg.eigvalsh(covariance.numpy())[::-1] if rows is None else factor_eigenvalues(rows.numpy().T)
    return {"mean": mean.tolist(), "covariance": covariance.tolist(), "eigenvalues": np.maximum(values, 0.0).tolist()}


def format_entry(value: float) -> str:
    """Return a number in five digits, or "infinite"."""
    return format_number(value if math.isfinite(value) else None)


def find_approach(run: Any) -> Any:
    """Return the resolved approach to the blow-up of a run, or None where there is none."""
    from attractor.meanfield import approach_blow_up

    resolved = run.outcome.name == "blow_up" and run.law.autonomous and run.noise is None
    return approach_blow_up(run) if resolved else None


def format_interval(lower: float, upper: float) -> str:
    """Return an interval in as many digits as its ends need to differ; ends that agree to 12 digits are one number."""
    ends = [(f"{lower:.{digits}g}", f"{upper:.{digits}g}") for digits in range(6, 13)]
    low, high = next((pair for pair in ends if pair[0] != pair[1]), ends[-1])
    return f"between {low} and {high}" if low != high else f"{low}, to 12 digits"


def _bounds(law: Any, state: Any) -> dict[str, Any] | None:
    """Return the a-priori interval of the blow-up time, or None if there is none."""
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


def _plot_run(run: Any, approach: Any, results: GaussianResults) -> None:
    from attractor.plotting import draw_spectrum
    from attractor.report import gaussian_curves

    times, values, means = gaussian_curves(run, approach)
    blown = run.outcome.time if run.outcome.name == "blow_up" else None
    title = f"A Gaussian under {run.law.describe() if hasattr(run.law, 'describe') else repr(run.law)}"
    caption = run.outcome.sentence
    if approach is not None:
        caption += f" Eigenvalues at the dotted line: {approach.describe_limits()}."
    draw_spectrum(times, values, means, results.plot, end=blown, title=title, caption=caption)


def study_phase(start: StartOptions, law: LawOptions, many: ManyOptions, results: GaussianResults) -> Finding:
    """Integrate covariances of trace one until their limits."""
    from attractor.meanfield import phase_portrait
    from attractor.papers import describe_phase, phase_rows, trace_one_paths
    from attractor.plotting import draw_cone
    from attractor.report import add_phase

    built, _ = read_start(start, law)
    with results.show_progress("phase") as update:
        found = phase_portrait(built, many.grid, progress=update)
    summary, paths, kinds = found.summary(), trace_one_paths(found), [limit.kind for limit in found.limits]
    sentence = describe_phase(summary)
    if results.plot is not None:
        draw_cone(
            paths,
            kinds,
            results.plot,
            title=f"Covariances under {built.describe() if hasattr(built, 'describe') else repr(built)}",
            caption=sentence,
        )
    tables = [(f"{summary['starts']} starts of trace one", phase_rows(summary))]
    return Finding({"phase": summary}, tables, lambda section: add_phase(section, paths, kinds, sentence))


def map_blow_up(start: StartOptions, law: LawOptions, many: ManyOptions, results: GaussianResults) -> Finding:
    """Compute the blow-up times of covariances of trace one."""
    from attractor.files import to_json
    from attractor.meanfield import cone_coordinates, disc_grid, find_blow_up
    from attractor.plotting import draw_map
    from attractor.report import add_blow_up_map
    from attractor.states import Gaussian

    built, _ = read_start(start, law)
    if built.dim != 2:
        raise InputError(f"--blow-up-map needs a law in the plane, this one has dimension {built.dim}")
    starts, found = disc_grid(many.grid), []
    with results.show_progress("blow-up") as update:
        for index, covariance in enumerate(starts):
            found.append(find_blow_up(built, Gaussian(np.zeros(2), covariance), max_evaluations=20_000))  # type: ignore[arg-type]
            update(index + 1, len(starts))
    times = np.array([row.time for row in found])
    finite = times[np.isfinite(times)]
    entries = [
        {"covariance": covariance.tolist(), "time": row.time, "direction": row.direction, "outcome": row.outcome}
        for covariance, row in zip(starts, found, strict=True)
    ]
    places = cone_coordinates(starts)[:, :2]
    if results.plot is not None:
        title, caption = "Blow-up times from trace one", f"{built!r}. Grey: no blow-up by t = 10000."
        draw_map(places, times, results.plot, title=title, caption=caption)
    rows = {"blow up": f"{len(finite)} of {len(times)}"}
    if len(finite):
        first, last = (f"t = {format_number(float(time))}" for time in (finite.min(), finite.max()))
        rows |= {"first": first, "last": last}
    tables = [(f"{len(times)} starts of trace one", rows)]
    return Finding(to_json({"map": entries}), tables, lambda section: add_blow_up_map(section, places, times))


def study_case(start: StartOptions, law: LawOptions, many: ManyOptions, results: GaussianResults) -> Finding:
    """Reproduce a published case."""
    from attractor.papers import describe_phase, find_case, find_figure
    from attractor.report import add_phase

    assert many.case is not None
    figure = find_figure(f"gaussian-{find_case(many.case).name}")
    settings = {name: getattr(many, name) for name in ("grid", "official_scaling", "emulate")}
    with results.show_progress(figure.key) as update:
        data = figure.reproduce(settings, update)
    if results.plot is not None:
        figure.draw(data, results.plot)

    def add_to(section: Section) -> None:
        for row in data["panels"]:
            sentence = f"{row['kernel']}: {describe_phase(row['accurate'])} Claimed: {data['claim']}."
            paths = [np.array(path) for path in row["paths"]]
            add_phase(section, paths, row["kinds"], sentence)

    kernels = {}
    for row in data["panels"]:
        theirs = (
            None if row["published"] is None else {"ends": row["published"]["ends"], "trace": row["published"]["trace"]}
        )
        kernels[row["kernel"]] = {"accurate": row["accurate"], "emulated_published_procedure": theirs}
    shown = {"name": data["name"], "claim": data["claim"], "seeds": data["seeds"], "kernels": kernels}
    verdict = figure.verdict(data)
    shown |= {
        "official_scaling": many.official_scaling,
        "verdict": {"outcome": verdict.outcome, "reason": verdict.reason},
    }
    tables = [(table.title, {row[0]: row[1] for row in table.rows}) for table in figure.summarise(data)]
    tables += [("beside the published procedure", {row.quantity: row.published for row in figure.beside(data)})]
    tables += [("verdict", {"outcome": verdict.outcome, "reason": verdict.reason})]
    return Finding({"case": shown}, [(title, rows) for title, rows in tables if rows], add_to)


def study_ranks(start: StartOptions, law: LawOptions, many: ManyOptions, results: GaussianResults) -> Finding:
    """Count the ranks of limits of random laws."""
    from attractor.files import to_json
    from attractor.papers import count_ranks, format_counts, rank_histograms
    from attractor.plotting import draw_counts
    from attractor.report import add_ranks

    dims = [int(dim) for dim in parse_numbers(many.dims, "--dims")]
    with results.show_progress("ranks") as update:
        data = count_ranks(law.kernel, many.value_kind, dims, many.draws, many.seed, many.emulate, update)
    title = f"Ranks of limits under {data['kernel']} attention, V {data['value']}"
    caption = f"{data['draws']} draws in each dimension, seed {data['seed']}."
    if results.plot is not None:
        draw_counts(rank_histograms(data), results.plot, title=title, caption=caption)
    tables = []
    for dim, counts in data["accurate"].items():
        rows = {"accurate": format_counts(counts)}
        if many.emulate:
            emulated = format_counts(data["emulated_published_procedure"][dim])
            rows["emulated"] = f"{emulated} (published procedure; dropped: rank above {(int(dim) + 1) // 2})"
        rows["dim ker S"] = str(data["dim_ker_S"][dim])
        tables.append((f"{data['kernel']}, V {data['value']}, d = {dim}, {data['draws']} draws", rows))
    return Finding(
        to_json({"ranks": data}),
        tables,
        lambda part: add_ranks(part, rank_histograms(data), f"{title.lower()}; {caption}"),
    )
