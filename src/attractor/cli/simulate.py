"""``attractor simulate``: the verb ``flow`` from the shell."""

from __future__ import annotations

import math
import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attractor.cli.console import FAILED, Written, complain, ending
from attractor.cli.inputs import write_pictures
from attractor.cli.options import OutputOptions, PictureOptions, check_numbers, check_output, grouped, replay
from attractor.cli.system_options import (
    BETA,
    DIM,
    TOKENS,
    LawOptions,
    RunOptions,
    SpaceOptions,
    TokenOptions,
    build_law,
    build_space,
    flow_options,
    random_tokens,
    read_law,
    read_tokens,
    sent,
)
from attractor.errors import InputError

if TYPE_CHECKING:
    from attractor.laws import Attention
    from attractor.solvers import Trajectory
    from attractor.spaces import Space
    from attractor.states import Tokens

SCHEMA = "attractor.simulate/1"


@dataclass(frozen=True)
class Problem:
    """What flow needs: a law, tokens and a space."""

    law: Attention
    tokens: Tokens
    space: Space


@grouped(TokenOptions, LawOptions, SpaceOptions, RunOptions, OutputOptions, PictureOptions)
def simulate(
    context: typer.Context,
    tokens: TokenOptions,
    law: LawOptions,
    space: SpaceOptions,
    run: RunOptions,
    output: OutputOptions,
    pictures: PictureOptions,
) -> None:
    """Follow tokens under attention, and say where they go.

    Without options: 64 random tokens in R^3 under isotropic attention, until t = 10. Results go to stdout, progress and
    errors to stderr. Exit code 0; 1 if the run failed or stalled, 2 for a bad argument, 130 if interrupted.
    """
    with (
        ending("attractor simulate", output.debug, interrupted=lambda: interrupted(output.out or output.resume)),
        pictures.sized(),
    ):
        check_numbers(context)
        check_output(output, context)
        if output.resume is None:
            problem = build(tokens, law, space, run)
            result = follow(problem, tokens, run, output)
            arguments = resolved(problem, tokens, law, space, run, output)
        else:
            result = go_on(output.resume, run, output)
            arguments = _words({**result.definition["options"], **asdict(output)})
        if first_process():
            drawn, failure = write_pictures(result, output.plot or [], output.member, output.density)
            if output.report is not None:
                write_report(context, result, output)
            tell(context, result, arguments, output, [str(path) for path in drawn])
            if failure is not None:
                raise failure
        stalled = [outcome for outcome in result.outcomes if outcome.name == "stalled"]
        if stalled:
            complain(f"the run stalled at t = {stalled[0].time:.6g}: {stalled[0].message}", "attractor simulate")
            raise typer.Exit(FAILED)


def first_process() -> bool:
    """Whether this is the process of torchrun that draws and prints, or the only one."""
    from attractor.solvers import is_first_process

    return is_first_process()


def interrupted(store: Path | None) -> str:
    """What is left of a run that was stopped by hand."""
    if store is None or not store.exists():
        return "interrupted; nothing was kept (a run with --out PATH can be resumed)"
    return f"interrupted; go on with: {shlex.join(['attractor', 'simulate', '--resume', str(store)])}"


def build(tokens: TokenOptions, law: LawOptions, space: SpaceOptions, run: RunOptions) -> Problem:
    """Files first, since they know the dimension; then what is made to fit them."""

    where = build_space(space)
    state, matrices = read_tokens(tokens), read_law(law)
    dim = state.dim if state is not None else tokens.dim
    if dim is None and "query" in matrices:
        dim = matrices["query"].shape[-1]
    if dim is None:
        dim = where.dim
    if state is None:
        check_room(tokens, DIM if dim is None else dim, run)
        state = random_tokens(tokens, DIM if dim is None else dim)
    return Problem(build_law(law, matrices, state.dim, state.n), state, where)


def check_room(tokens: TokenOptions, dim: int, run: RunOptions) -> None:
    """Refuse more tokens than a run has memory for, before any is drawn."""
    from attractor.solvers import check_footprint, default_method, save_times, stepper_named

    options = flow_options(run)
    shape = (tokens.ensemble or 1, TOKENS if tokens.tokens is None else tokens.tokens, dim)
    bytes_each, rtol = (4, 1e-5) if tokens.float32 else (8, 1e-8)
    stepper = stepper_named(options["method"] or default_method(options["rtol"] or rtol))
    until = options["save"][-1] if options["until"] is None else options["until"]
    saved = save_times(options["save"], 0.0, until, bytes_each * math.prod(shape))[0]
    check_footprint(shape, stepper, len(saved), bytes_each)


def follow(problem: Problem, tokens: TokenOptions, run: RunOptions, output: OutputOptions) -> Trajectory:
    """Run the flow, after a look at whether the observables that are asked for can be had."""
    from attractor.observables import find_observable
    from attractor.solvers import flow

    options = flow_options(run)
    problem.law.check(problem.tokens)
    problem.space.check_dimension(problem.tokens.dim)
    members = problem.tokens.batch_shape.numel()
    if output.density is not None and problem.tokens.dim > 2:
        raise InputError(f"--density is drawn on a line or in a plane, not in dimension {problem.tokens.dim}")
    if (output.plot or output.density or output.report) and output.member >= members:
        raise InputError(f"--member {output.member} does not exist: members are numbered from 0 to {members - 1}")
    for name in output.observe or ():
        find_observable(name)(problem.tokens, law=problem.law, space=problem.space)
    there, progress = sent(problem.tokens, tokens), output.shows_progress
    run_there = flow(problem.law, there, space=problem.space, store=output.out, progress=progress, **options)
    return run_there.to("cpu")


def go_on(path: Path, run: RunOptions, output: OutputOptions) -> Trajectory:
    from attractor.solvers import resume

    return resume(
        path, max_seconds=run.max_seconds, max_evaluations=run.max_evaluations, progress=output.shows_progress
    )


def resolved(problem: Problem, *groups: Any) -> dict[str, Any]:
    """All options with the values that were used, ready for JSON."""
    arguments: dict[str, Any] = {}
    for group in groups:
        arguments |= asdict(
            replace(group, until=flow_options(group)["until"]) if isinstance(group, RunOptions) else group
        )
    arguments |= {"tokens": problem.tokens.n, "dim": problem.tokens.dim}
    if arguments["query"] is None and arguments["random_law"] is None and arguments["beta"] is None:
        arguments["beta"] = BETA
    if arguments["random_law"] is not None:
        arguments |= {"heads": problem.law.heads, "head_dim": problem.law.query.shape[-2]}
    return _words(arguments)


def _words(value: Any) -> Any:
    """The same for JSON: paths, rules and the like by what they are called."""
    if isinstance(value, dict):
        return {str(name): _words(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_words(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def again(context: typer.Context) -> str:
    """The command; the store exists by now, so the same run again must do without it."""
    return replay(context, without=("out", "json", "quiet", "progress", "debug"))


def write_report(context: typer.Context, run: Trajectory, output: OutputOptions) -> None:
    """The page of the run."""
    from attractor.report import simulation_report

    assert output.report is not None
    observe = tuple(dict.fromkeys(output.observe or ()))
    simulation_report(run, again(context), output.member, observe).write(output.report)


def tell(
    context: typer.Context, run: Trajectory, arguments: dict[str, Any], output: OutputOptions, pictures: list[str]
) -> None:
    """Print the result: one JSON object, or a summary for people."""
    from attractor.cli.console import print_json, print_run
    from attractor.cli.environment import versions

    if output.quiet and not output.json:
        return
    observe = tuple(dict.fromkeys(output.observe or ()))
    report = run.summary(observe)
    store = output.out or output.resume
    written = Written(pictures, output.report, store=store)
    command = again(context)
    if output.json:
        head = {"schema": SCHEMA, "command": command, "arguments": arguments}
        print_json({**head, **report, "written": written.row(), "versions": versions()})
    else:
        print_run(report, written, command)
