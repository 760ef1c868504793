"""``attractor simulate``: integrate tokens under attention."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attractor.cli.console import FAILED, Outputs, print_error, print_json, print_rows
from attractor.cli.environment import versions
from attractor.cli.inputs import check_figure, check_store, write_figures
from attractor.cli.options import (
    LAST,
    WidthOptions,
    check_numbers,
    command_line,
    given,
    parse_numbers,
    result_option,
    with_options,
)
from attractor.cli.system_options import (
    BETA,
    DIM,
    TOKENS,
    LawOptions,
    NoiseOptions,
    RunOptions,
    SpaceOptions,
    TokenOptions,
    build_law,
    build_noise,
    build_space,
    draw_tokens,
    flow_options,
    read_law,
    read_tokens,
    to_device,
)
from attractor.errors import InputError
from attractor.html_repr import format_number
from attractor.memory import format_size
from attractor.progress import is_shown
from attractor.registry import check_name

if TYPE_CHECKING:
    from attractor.laws import Attention
    from attractor.solvers import Noise, Redrawn, Trajectory
    from attractor.spaces import Space
    from attractor.states import Tokens

SCHEMA = "attractor.simulate/2"
LISTED = 12  # merges in logarithmic time that are listed
DRAWING = ("attention", "snapshots", "title", "view", "no_caption", "rescaled")
WITH_RESUME = {"clock", "density", "member", "observe", "max_seconds", "max_evaluations", *DRAWING, *LAST} - {"out"}


@dataclass(frozen=True)
class SimulateResults(WidthOptions):
    """Where results go."""

    density: Annotated[
        Path | None, result_option("FILE", "Draw the density of tokens in one or two dimensions: .png, .pdf or .svg.")
    ] = None
    attention: Annotated[
        Path | None,
        result_option("FILE", "Draw the attention weights at the times of --snapshots: .png, .pdf or .svg."),
    ] = None
    snapshots: Annotated[
        str | None,
        result_option(
            "K|T,T,...", "Snapshots of a static --plot: their number, or the saved times nearest to these.", default="3"
        ),
    ] = None
    title: Annotated[
        str | None, result_option("TEXT|none", "Title of --plot and --attention.", default="the tokens and the law")
    ] = None
    view: Annotated[
        str | None, result_option("AZ,EL", "Azimuth and elevation of --plot in degrees.", default="that shows most")
    ] = None
    no_caption: Annotated[bool, result_option("", "Leave out the caption of a static --plot.", "--no-caption")] = False
    rescaled: Annotated[
        bool, result_option("", "Draw the rescaled tokens e^(-tV) x, V the value of the law.", "--rescaled")
    ] = False
    member: Annotated[int, result_option("I", "Member of the ensemble that is drawn.", min=0)] = 0
    clock: Annotated[
        str,
        result_option("NAME", "Time axis of --plot: time, log_time, exponent (log t / beta), arc_length or sigma."),
    ] = "time"
    observe: Annotated[
        list[str] | None,
        result_option("NAME", "Also report this observable, with --json at all saved times; may be repeated."),
    ] = None
    out: Annotated[Path | None, result_option("PATH", "Write the run to this new Zarr store.", "--out", "-o")] = None
    resume: Annotated[
        Path | None,
        result_option("PATH", "Continue the run in this store, with the law, tokens and tolerances stored there."),
    ] = None
    report: Annotated[
        Path | None,
        result_option("FILE.html", "Write a page: animation, predictions of theorems, observables and costs."),
    ] = None
    plot: Annotated[
        list[Path] | None,
        result_option("FILE", "Draw the run: .html, .png, .pdf, .svg, .gif, .webp or .mp4; may be repeated."),
    ] = None


@dataclass(frozen=True)
class Problem:
    """A law, tokens, a space and noise."""

    law: Attention
    tokens: Tokens
    space: Space
    noise: Noise | Redrawn | None = None


def _interrupted(*parts: Any) -> str:
    """Return the message after Ctrl-C: how to continue the run, if it has a store."""
    output = next(part for part in parts if isinstance(part, SimulateResults))
    store = output.out or output.resume
    if store is None or not store.exists():
        return "interrupted; nothing was kept (a run with --out PATH can be resumed)"
    return f"interrupted; continue with: {shlex.join(['attractor', 'simulate', '--resume', str(store)])}"


@with_options(
    TokenOptions, LawOptions, SpaceOptions, NoiseOptions, RunOptions, SimulateResults, interrupted=_interrupted
)
def simulate(
    context: typer.Context,
    tokens: TokenOptions,
    law: LawOptions,
    space: SpaceOptions,
    noise: NoiseOptions,
    run: RunOptions,
    output: SimulateResults,
) -> None:
    """Integrate tokens under attention and report where they converge.

    Without options: 64 random tokens in R^3 under isotropic attention, until t = 10. Results go to stdout, progress and
    errors to stderr. Exit code 0; 1 if the run failed or stalled, 2 for a bad argument, 130 if interrupted.
    """
    from attractor.solvers import is_first_process

    check_numbers(context)
    check_results(output, context)
    if output.resume is None:
        problem = build_problem(tokens, law, space, run, noise)
        result = integrate(problem, tokens, run, output)
        arguments = resolve_arguments(problem, tokens, law, space, noise, run, output)
    else:
        result = continue_run(output.resume, run, output)
        assert result.definition is not None
        arguments = _json_values({**result.definition.options, **asdict(output)})
    if is_first_process():
        figures, failure = draw_run(result, output)
        command = command_line(context, without=("out",))  # the store exists by now
        observe = tuple(dict.fromkeys(output.observe or ()))
        if output.report is not None:
            from attractor.report import simulation_report

            simulation_report(result, command, output.member, observe).write(output.report)
        print_run(result, observe, arguments, output, figures, command)
        if failure is not None:
            raise failure
    stalled = [outcome for outcome in result.outcomes if outcome.name == "stalled"]
    if stalled:
        print_error(f"the run stalled at t = {stalled[0].time:.6g}: {stalled[0].message}", "attractor simulate")
        raise typer.Exit(FAILED)


def check_results(options: SimulateResults, context: typer.Context) -> None:
    """Raise if results could not be written, before the run starts."""
    from attractor.observables import find_observable
    from attractor.solvers import CLOCKS

    used = given(context)
    if options.resume is not None:
        other = [option for name, option in used.items() if name not in WITH_RESUME]
        if other:
            raise InputError(f"--resume continues the run as it was defined: leave out {', '.join(other)}")
        if not options.resume.exists():
            raise InputError(f"--resume {options.resume}: there is no such store")
        if not (options.resume / "zarr.json").is_file():
            raise InputError(f"--resume {options.resume} is not a run of attractor: there is no zarr.json in it")
    for name in options.observe or ():
        find_observable(name)
    check_name(options.clock, CLOCKS, "--clock", "clocks")
    for path in options.plot or ():
        check_figure(path)
    for name, path in (("--density", options.density), ("--attention", options.attention)):
        if path is not None:
            check_figure(path, name, still=True)
    plot_options(options)
    if not options.plot and not (options.attention and (options.snapshots or options.title)):
        idle = [used[name] for name in DRAWING[1:] if name in used]
        if idle:
            raise InputError(f"{', '.join(idle)} belong to --plot, which is not given")
    if options.report is not None:
        from attractor.report import check_place

        check_place(options.report, "--report")
    if options.out is not None:
        check_store(options.out)


def draw_run(run: Trajectory, output: SimulateResults) -> tuple[list[Path], Exception | None]:
    """Draw the figures that were asked for; see ``write_figures``."""
    drawn = run.rescaled() if output.rescaled else run
    files = (output.plot or [], output.member, output.density, output.clock, output.attention)
    return write_figures(drawn, *files, **plot_options(output))


def plot_options(output: SimulateResults) -> dict[str, Any]:
    """Return the keyword arguments of ``Trajectory.plot`` that were given."""
    found: dict[str, Any] = {}
    if output.title is not None:
        found["title"] = "" if output.title.strip().lower() == "none" else output.title
    if output.snapshots is not None:
        whole = output.snapshots.strip().isdigit()
        found["snapshots"] = times = int(output.snapshots) if whole else parse_numbers(output.snapshots, "--snapshots")
        if isinstance(times, list) and sorted(set(times)) != times:
            raise InputError(f"--snapshots must be a number or increasing times, got {output.snapshots}")
    if output.view is not None:
        angles = parse_numbers(output.view, "--view")
        if len(angles) != 2:
            raise InputError(
                f"--view must be an azimuth and an elevation in degrees, such as 30,20; got {output.view!r}"
            )
        found["view"] = tuple(angles)
    if output.no_caption:
        found["caption"] = False
    return found


def build_problem(
    tokens: TokenOptions, law: LawOptions, space: SpaceOptions, run: RunOptions, noise: NoiseOptions | None = None
) -> Problem:
    """Read files, which determine the dimension, and build the rest to fit them."""

    where = build_space(space)
    state, matrices = read_tokens(tokens), read_law(law)
    dim = state.dim if state is not None else tokens.dim
    if dim is None and "query" in matrices:
        dim = matrices["query"].shape[-1]
    if dim is None:
        dim = where.dim
    if state is None:
        check_memory(tokens, DIM if dim is None else dim, run)
        state = draw_tokens(tokens, DIM if dim is None else dim)
    random = None if noise is None else build_noise(noise)
    if random is not None and run.step is None:
        raise InputError("noise needs steps of one size: give --step H")
    return Problem(build_law(law, matrices, state.dim, state.n), state, where, random)


def check_memory(tokens: TokenOptions, dim: int, run: RunOptions) -> None:
    """Raise if a run of so many tokens does not fit into memory."""
    from attractor.solvers import LogTime, check_footprint, default_method, save_times, stepper_named

    options = flow_options(run)
    if isinstance(options["until"], LogTime):
        return  # a run in logarithmic time checks its memory itself
    shape = (tokens.ensemble or 1, TOKENS if tokens.tokens is None else tokens.tokens, dim)
    bytes_each, rtol = (4, 1e-5) if tokens.float32 else (8, 1e-8)
    stepper = stepper_named(options["method"] or default_method(options["rtol"] or rtol))
    until = options["save"][-1] if options["until"] is None else options["until"]
    saved = save_times(options["save"], 0.0, until, bytes_each * math.prod(shape))[0]
    check_footprint(shape, stepper, len(saved), bytes_each)


def integrate(problem: Problem, tokens: TokenOptions, run: RunOptions, output: SimulateResults) -> Trajectory:
    """Run the flow, after checks of the figures and observables."""
    from attractor.laws import Rescaled
    from attractor.observables import find_observable
    from attractor.solvers import flow

    options = flow_options(run)
    problem.law.check(problem.tokens)
    problem.space.check_dimension(problem.tokens.dim)
    members = problem.tokens.batch_shape.numel()
    if output.rescaled:
        Rescaled(problem.law)  # raises if tokens cannot be rescaled
        if problem.space.is_curved:
            raise InputError(f"--rescaled is for flat space, where tokens grow, and the space is {problem.space.name}")
    if output.density is not None and problem.tokens.dim > 2:
        raise InputError(f"--density is drawn on a line or in a plane, not in dimension {problem.tokens.dim}")
    if (output.plot or output.density or output.report) and output.member >= members:
        raise InputError(f"--member {output.member} does not exist: members are numbered from 0 to {members - 1}")
    for name in output.observe or ():
        find_observable(name)(problem.tokens, law=problem.law, space=problem.space)
    start, progress = to_device(problem.tokens, tokens), is_shown(output.progress, output.quiet)
    run_options = {"space": problem.space, "noise": problem.noise, "store": output.out, "progress": progress, **options}
    return flow(problem.law, start, **run_options).to("cpu")


def continue_run(path: Path, run: RunOptions, output: SimulateResults) -> Trajectory:
    """Continue the run in a store."""
    from attractor.solvers import resume

    shown = is_shown(output.progress, output.quiet)
    return resume(path, max_seconds=run.max_seconds, max_evaluations=run.max_evaluations, progress=shown)


def resolve_arguments(problem: Problem, *groups: Any) -> dict[str, Any]:
    """Return all options with the values that were used, for JSON."""
    arguments: dict[str, Any] = {}
    for group in groups:
        arguments |= asdict(
            replace(group, until=None if group.log_until is not None else flow_options(group)["until"])
            if isinstance(group, RunOptions)
            else group
        )
    arguments |= {"tokens": problem.tokens.n, "dim": problem.tokens.dim}
    if arguments["query"] is None and arguments["random_law"] is None and arguments["beta"] is None:
        arguments["beta"] = BETA
    if arguments["random_law"] is not None:
        arguments |= {"heads": problem.law.heads, "head_dim": problem.law.query.shape[-2]}
    return _json_values(arguments)


def _json_values(value: Any) -> Any:
    """Return values that JSON has; others become text."""
    if isinstance(value, dict):
        return {str(name): _json_values(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_values(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def print_run(
    run: Trajectory,
    observe: tuple[str, ...],
    arguments: dict[str, Any],
    output: SimulateResults,
    figures: list[Path],
    command: str,
) -> None:
    """Print the result: one JSON object, or the outcome, the costs, the observables and the files."""
    from attractor.solvers import format_log_time

    report, outputs = run.summary(observe), Outputs(figures, output.report, store=output.out or output.resume)
    if output.json:
        head = {"schema": SCHEMA, "command": command, "arguments": arguments}
        print_json({**head, **report, "outputs": outputs.row(), "versions": versions()})
        return
    outcome = report["outcome"]
    name = outcome["name"].replace("_", " ").capitalize()
    log_time = outcome["log_time"]
    when = format_number(outcome["time"]) if log_time is None else format_log_time(log_time)
    print_rows(f"{name} at t = {when}: {outcome['message']}.", _costs(report))
    if report["observables"]:
        several = " (mean over the ensemble)" if report["sizes"]["ensemble"] else ""
        print_rows(f"Observables at the start and at the end{several}", _observables(report))
    more = {}
    if outputs.store is not None and outcome["name"] in ("budget", "unfinished"):
        more["continue"] = shlex.join(["attractor", "simulate", "--resume", str(outputs.store)])
    outputs.print(command, **more)


def _costs(report: dict[str, Any]) -> dict[str, str]:
    sizes, stats = report["sizes"], report["stats"]
    members = "".join(f"{size} x " for size in sizes["ensemble"])
    rows = {
        "tokens": f"{members}{sizes['tokens']} of dimension {sizes['dim']}, space {report['space']}",
        "law": report["law"] or "none",
        **(
            {}
            if stats["reduced_dim"] is None
            else {"integrated in": f"{stats['reduced_dim']} dimensions, the span of the start"}
        ),
        "evaluations": f"{stats['evaluations']:,}",
        "steps": f"{stats['accepted']:,} accepted, {stats['rejected']:,} rejected ({stats['method']})",
        "seconds": f"{stats['seconds']:.3g} (engine {stats['engine'] or 'none'}{_processes(stats['processes'])})",
        "memory": f"{format_size(stats['peak_memory'])} at most" if stats["peak_memory"] else "not known",
        "saved": f"{sizes['saved']:,} times",
    }
    found = [event for event in report["events"] if event["kind"] == "merge"]
    merges = [event["time"] for event in found if "log_time" not in event]
    logged = [event for event in found if "log_time" in event]
    for number, event in enumerate(logged[:LISTED], 1):
        rows[f"merge {number}"] = _describe_merge(event)
    if len(logged) > LISTED:
        rows["further merges"] = f"{len(logged) - LISTED:,}, the last at {_describe_merge(logged[-1])}"
    if merges:
        rows["merges"] = (
            f"{stats['merges']:,}, the first at t = {format_number(min(merges))}, the last at t = {format_number(max(merges))}"
        )
    if "outcomes" in report:
        rows["outcomes"] = ", ".join(f"{count} {name}" for name, count in report["outcomes"].items())
    return rows


def _describe_merge(event: dict[str, Any]) -> str:
    """When clusters merged in logarithmic time, and the tokens in them."""
    which = ", ".join(map(str, event["members"] or ())) or f"{event['size']:,} tokens"
    if event["log_time"] is None:
        return f"t = 0: {which}"
    kind = "error of log t at most" if event["certified"] else "error of log t about"
    error = "" if event["log_error"] is None else f", {kind} {event['log_error']:.1g}"
    return f"t = e^{event['log_time']:.10g}: {which}{error}"


def _observables(report: dict[str, Any]) -> dict[str, str]:
    rows = {}
    for name, values in report["observables"].items():
        start, end = (_cell(values[when], report["sizes"]["ensemble"]) for when in ("start", "end"))
        rows[name] = f"{start:>12}{end:>14}"
    return rows


def _processes(count: int) -> str:
    return "" if count == 1 else f" on {count} processes"


def _cell(value: Any, ensemble: list[int]) -> str:
    depth, inner = 0, value
    while isinstance(inner, list):
        depth, inner = depth + 1, inner[0]
    if depth > len(ensemble):
        return "see --json"
    if depth == 0:
        return format_number(value)
    entries = list(_flat(value))
    return format_number(None if None in entries else float(statistics.fmean(entries)))


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _flat(item)
    else:
        yield value
