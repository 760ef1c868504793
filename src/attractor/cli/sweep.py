"""``attractor sweep``: grids of runs, and tables of them."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import shlex
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Union, get_args, get_origin, get_type_hints

import typer

from attractor.cli.audit import audit
from attractor.cli.check import check
from attractor.cli.console import FAILED, Outputs, print_error, print_rows, print_table
from attractor.cli.density import density
from attractor.cli.gaussian import gaussian
from attractor.cli.iterate import iterate
from attractor.cli.meanfield import meanfield
from attractor.cli.options import (
    CommonOptions,
    FigureOptions,
    add_command,
    check_numbers,
    command_line,
    given,
    panel,
    print_result,
    result_option,
    run_command,
    with_options,
)
from attractor.cli.predict import predict
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
)
from attractor.cli.trace import trace
from attractor.cli.train import train
from attractor.errors import InputError
from attractor.html_repr import format_number
from attractor.registry import closest, unknown

if TYPE_CHECKING:
    from attractor.sweeps import Cost, Executor, Sweep, System

SCHEMA, TABLE_SCHEMA, DIAGRAM_SCHEMA = "attractor.sweep/1", "attractor.sweep-table/1", "attractor.sweep-diagram/1"
HOUR = 3600.0  # a longer sweep is confirmed
SHOWN = 40  # lines of a table that are printed
LISTED = 6  # failed cells that are listed
MOST_ROWS = 10_000  # of the table in JSON
HASHED = 1 << 28  # bytes of a file up to which its content is compared
GROUPS = (TokenOptions, LawOptions, SpaceOptions, RunOptions, NoiseOptions)
NOT_SWEPT = ("seed", "ensemble", "device", "tokens_file", "max_seconds", "log_until", "noise_seed")
NOISE = ("noise", "common_noise", "redrawn")
sweep_option, where_option = panel("Sweep"), panel("Execution")


@dataclass(frozen=True)
class SweepOptions:
    """What is swept."""

    out: Annotated[
        Path, result_option("FOLDER", "Folder of the sweep; what is in it is not computed again.", "--out", "-o")
    ]
    over: Annotated[
        list[str],
        sweep_option(
            "NAME=VALUES",
            "An option of the system and its values: 0.1:9:90 (first, last, count; :log), or 8,128; repeated.",
        ),
    ]
    starts: Annotated[int, sweep_option("N", "Starts of each cell.", min=1)] = 1
    observe: Annotated[
        list[str] | None,
        sweep_option(
            "NAME,...",
            "Observables, such as pair_fraction or 'clusters(radius=0.2)'; of runs consensus_time, first_merge, merge_clusters.",
            default="clusters",
        ),
    ] = None


@dataclass(frozen=True)
class ExecutionOptions:
    """Where the cells are computed."""

    executor: Annotated[
        str, where_option("NAME", "local (processes), ray or slurm (job arrays, through submitit).")
    ] = "local"
    workers: Annotated[
        int | None,
        where_option(
            "N", "Tasks at the same time: processes, or jobs of SLURM.", default="one per core; 16 jobs", min=1
        ),
    ] = None
    shard: Annotated[
        str | None,
        where_option(
            "K/M|auto", "Compute the K-th of M parts of the cells; auto: of the job array of SLURM.", default="all"
        ),
    ] = None
    address: Annotated[
        str | None, where_option("HOST:PORT", "An existing Ray cluster.", default="one on this machine")
    ] = None
    cpus: Annotated[float, where_option("N", "Cores of a task of Ray or a job of SLURM.", min=0)] = 1.0
    gpus: Annotated[float, where_option("N", "GPUs of a task of Ray or a job of SLURM.", min=0)] = 0.0
    partition: Annotated[str | None, where_option("NAME", "Partition of SLURM.", default="that of the cluster")] = None
    job_seconds: Annotated[
        float, where_option("S", "Time limit of a job of SLURM, which is then queued again.", min=60)
    ] = 3600.0
    refine: Annotated[
        int, where_option("N", "Rounds of new cells between neighbours that differ in the first observable.", min=0)
    ] = 0
    retry: Annotated[bool, where_option("", "Compute cells again that failed.", "--retry")] = False
    yes: Annotated[bool, where_option("", "Do not ask before a sweep of more than an hour.", "--yes", "-y")] = False


def make_executor(options: ExecutionOptions) -> Executor:
    """Return the executor that the options describe."""
    from attractor.sweeps import EXECUTORS, Ray, Slurm, executor_named

    if options.executor in EXECUTORS:  # options of the others have no effect
        own = {"ray": ("address", "cpus", "gpus"), "slurm": ("cpus", "gpus", "partition", "job_seconds")}
        defaults = ExecutionOptions()
        for name in ("address", "cpus", "gpus", "partition", "job_seconds"):
            if getattr(options, name) != getattr(defaults, name) and name not in own.get(options.executor, ()):
                raise InputError(f"--{name.replace('_', '-')} does not belong to --executor {options.executor}")
    if options.executor == "ray":
        return Ray(options.address, options.workers, options.cpus, options.gpus)
    if options.executor == "slurm":
        minutes = max(1, math.ceil(options.job_seconds / 60))
        cpus, gpus = max(1, round(options.cpus)), round(options.gpus)
        return Slurm(options.workers or 16, minutes, cpus=cpus, gpus=gpus, partition=options.partition)
    return executor_named(options.executor, options.workers)


def parse_axes(texts: list[str], kinds: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the values of ``--over NAME=VALUES``; ``kinds`` are the types of the options."""
    axes: dict[str, list[Any]] = {}
    for text in texts:
        spelled, equals, values = text.partition("=")
        name = spelled.strip().removeprefix("--").replace("-", "_")
        name = {"n": "tokens", "d": "dim", "t": "until"}.get(name, name)
        if not equals:
            raise InputError(
                f"--over {text!r} has no values: write --over {name or 'beta'}=0.1:9:90 or --over {name or 'beta'}=1,2,4"
            )
        if name not in kinds:
            close = closest(name, kinds)
            hint = f"did you mean {close!r}?" if close else f"axes are options of the system: {', '.join(kinds)}"
            raise InputError(f"--over {spelled.strip()}: the system has no option {name!r}; {hint}")
        if name in axes:
            raise InputError(f"--over {name} is given twice: give all its values at once")
        axes[name] = parse_values(values, name, kinds[name])
    return axes


def parse_values(text: str, name: str, kind: type | None) -> list[Any]:
    """Return the values of an axis: FIRST:LAST:COUNT[:log], or values separated by commas; None is for numbers and texts."""
    from attractor.sweeps import grid

    parts = text.split(":")
    number = kind in (int, float) or (kind is None and all(map(_is_number, parts[:3])))
    if number and len(parts) in (3, 4) and "," not in text:
        try:
            first, last, count = float(parts[0]), float(parts[1]), int(parts[2])
        except ValueError:
            raise InputError(f"--over {name}={text}: a grid is FIRST:LAST:COUNT, such as 0.1:9:90") from None
        values = grid(first, last, count, parts[3] if len(parts) == 4 else "linear")
        if kind is int:
            values = list(dict.fromkeys(round(value) for value in values))
        return (
            [int(value) for value in values]
            if kind is None and all(value == int(value) for value in values)
            else values
        )
    found = [_parse_value(part.strip(), name, kind) for part in text.split(",") if part.strip()]
    if not found:
        raise InputError(f"--over {name}= has no values: write --over {name}=1,2,4")
    return found


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _parse_value(text: str, name: str, kind: type | None) -> Any:
    if kind is None:
        return text if not _is_number(text) else int(text) if text.lstrip("+-").isdigit() else float(text)
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise InputError(f"--over {name}: values are true or false, got {text!r}")
        return text.lower() == "true"
    if kind not in (int, float):
        return text
    try:
        return kind(text)
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise InputError(f"--over {name}: values are {what}, got {text!r}") from None


def option_kinds(groups: tuple[type[Any], ...]) -> dict[str, Any]:
    """Return the types of options by name: bool, int, float or str."""
    found: dict[str, Any] = {}
    for group in groups:
        hints = get_type_hints(group)
        for part in fields(group):
            kind = hints[part.name]
            if get_origin(kind) in (Union, types.UnionType):
                kind = next(item for item in get_args(kind) if item is not type(None))
            found[part.name] = kind if kind in (bool, int, float) else str
    return found


def split_names(texts: list[str] | None) -> list[str]:
    """Split names at commas outside brackets."""
    names: list[str] = []
    for text in texts or ():
        depth, name = 0, ""
        for sign in text:
            depth += (sign in "([") - (sign in ")]")
            if sign == "," and depth == 0:
                names.append(name)
                name = ""
            else:
                name += sign
        names.append(name)
    return list(dict.fromkeys(name.strip() for name in names if name.strip()))


@dataclass(frozen=True)
class SimulateSystem:
    """The system of ``attractor simulate`` for the values of a cell.

    Attributes
    ----------
    parts : options of tokens, law, space, integration and noise.
    axes : names of the options that cells vary.
    words : command line of a single system, without the options that vary and the seed.
    """

    parts: tuple[Any, ...]
    axes: tuple[str, ...]
    words: str = ""
    _known: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def identity(self) -> dict[str, str]:
        """The options that are given, without those that a sweep itself has."""
        values: dict[str, Any] = {}
        for part in self.parts:
            values |= asdict(part)
        defaults: dict[str, Any] = {}
        for group in GROUPS:
            defaults |= asdict(group())
        hidden = (
            *self.axes,
            *NOT_SWEPT[:3],
            "until",
            "save",
            "method",
            "rtol",
            "atol",
            "step",
            "fixed_step",
            "merge",
            "stop",
            "engine",
        )
        hidden = tuple(name for name in hidden if name != "tokens_file")
        return {"command": "simulate"} | {
            name: str(value) for name, value in values.items() if name not in hidden and value != defaults[name]
        }

    @property
    def rerun(self) -> str:
        """The command of one system, to which values and a seed are added."""
        return self.words

    @property
    def fixed(self) -> dict[str, Any]:
        """Numbers and names on which predictions depend, and which cells do not vary."""
        tokens, law, *_ = self.parts
        found = {
            "tokens": TOKENS if tokens.tokens is None else tokens.tokens,
            "dim": DIM if tokens.dim is None else tokens.dim,
            "beta": BETA if law.beta is None else law.beta,
            "kernel": law.kernel,
            "space": self.parts[2].space,
        }
        read = tokens.tokens_file is not None or any(getattr(law, name) is not None for name in ("query", "random_law"))
        known = ("kernel", "space") if read else tuple(found)
        return {name: found[name] for name in known if name not in self.axes}

    def __call__(self, *, seed: int, **values: Any) -> System:
        return self._build(seed, None, values)

    def _build(self, seed: int, starts: int | None, values: Mapping[str, Any]) -> System:
        """The system of one seed; with noise, that of an ensemble of starts."""
        import torch

        from attractor.sweeps import System

        tokens, law, space, run, noise = (
            replace(part, **{name: value for name, value in values.items() if name in {f.name for f in fields(part)}})
            for part in self.parts
        )
        known = tuple(values.items())
        drawn = read_tokens(tokens)
        if known not in self._known:
            where, matrices = build_space(space), read_law(law)
            dim = drawn.dim if drawn is not None else tokens.dim
            dim = matrices["query"].shape[-1] if dim is None and "query" in matrices else dim
            dim = where.dim if dim is None else dim
            options = flow_options(run)
            defaults = flow_options(self.parts[3])
            changed = {name: value for name, value in options.items() if repr(value) != repr(defaults[name])}
            self._known.clear()
            self._known[known] = [where, matrices, 3 if dim is None else dim, changed, None]
        entry = self._known[known]
        several = starts is not None and tokens.start != "orthonormal"
        drawing = replace(tokens, seed=seed, ensemble=starts if several else None)
        state = draw_tokens(drawing, entry[2]) if drawn is None else drawn
        if (
            several
            and drawn is None
            and not torch.equal(draw_tokens(replace(drawing, ensemble=1), entry[2]).points[0], state.points[0])
        ):
            raise InputError(
                f"--start {tokens.start} with noise: its points depend on how many starts are drawn; give uniform, hemisphere, "
                "gaussian, box or laplace"
            )
        if starts is not None and not state.batch_shape:
            state = state.with_points(state.points.expand(starts, *state.points.shape).clone())
        if entry[4] is None:
            entry[4] = build_law(law, entry[1], state.dim, state.n)
        random = None if starts is None else build_noise(replace(noise, noise_seed=seed))
        return System(entry[4], state, entry[0], random, options=entry[3])

    def __getstate__(self) -> dict[str, Any]:
        return {"parts": self.parts, "axes": self.axes, "words": self.words, "_known": {}}


@dataclass(frozen=True)
class NoisySystem(SimulateSystem):
    """The system of ``attractor simulate --noise``: the starts of a cell are members of one ensemble, with one seed of the noise."""

    def __call__(self, *, seed: int, starts: int, **values: Any) -> System:
        return self._build(seed, starts, values)


MEASURED = {
    command.__name__: command
    for command in (audit, check, density, gaussian, iterate, meanfield, predict, trace, train)
}


@cache
def measured_application() -> typer.Typer:
    """An application of the commands whose numbers can be swept."""
    application = typer.Typer(pretty_exceptions_enable=False)
    for function in MEASURED.values():
        add_command(application, function)
    return application


@dataclass(frozen=True)
class CommandSystem:
    """Numbers in the JSON of a command of attractor, for the values of a cell.

    Attributes
    ----------
    words : the command and its options.
    names : dotted places of the numbers, such as outcome.time.
    seeded : whether the command has ``--seed``.
    """

    words: tuple[str, ...]
    names: tuple[str, ...]
    seeded: bool
    measures: ClassVar[bool] = True  # returns numbers

    @property
    def identity(self) -> dict[str, str]:
        """The command line."""
        return {"command": shlex.join(self.words)}

    def read_files(self, axes: Mapping[str, Any]) -> dict[str, str]:
        """Digests of the files and folders that the command line and the values of axes name."""
        words = [*self.words[1:], *(value for values in axes.values() for value in values if isinstance(value, str))]
        named = {text for word in words for text in (word, word.partition("=")[2]) if text}
        return {text: digest for text in sorted(named) if (digest := digest_path(Path(text).expanduser()))}

    @property
    def rerun(self) -> str:
        """The command of one system, to which values and a seed are added."""
        return shlex.join(("attractor", *self.words))

    def __call__(self, *, seed: int, **values: Any) -> dict[str, Any]:
        words = [*self.words]
        for name, value in values.items():
            option = f"--{name.replace('_', '-')}"
            words += [option] if value is True else [] if value is False else [option, str(value)]
        words += ["--seed", str(seed)] if self.seeded else []
        printed, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
            code = run_command([*words, "--json", "--quiet"], measured_application())
        lines = printed.getvalue().strip().splitlines()
        if code or not lines:
            raise InputError(
                (errors.getvalue().strip().splitlines() or [f"attractor {words[0]} ended with exit code {code}"])[-1]
            )
        document = json.loads(lines[-1])
        return {name: find_number(document, name) for name in self.names}


def digest_path(path: Path) -> str:
    """Return a checksum of a file or of all files of a folder, empty if there is none; of large ones the size and the time of change."""
    try:
        parts = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
        if not path.exists() or not all(one.is_file() for one in parts):  # a pipe, for example
            return ""
        found = hashlib.sha256()
        for one in parts:
            size = one.stat().st_size
            with open(one, "rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest() if size <= HASHED else one.stat().st_mtime_ns
            found.update(f"{one.relative_to(path)} {size} {content}\n".encode())
    except (OSError, ValueError):  # no name of a file, or not readable
        return ""
    return found.hexdigest()[:16]


def find_number(document: Any, name: str) -> float:
    """Return the number at a dotted place of a JSON document; NaN for null."""
    found = document
    for step, part in enumerate(name.split(".")):
        if isinstance(found, list) and part.lstrip("-").isdigit() and -len(found) <= int(part) < len(found):
            found = found[int(part)]
        elif isinstance(found, dict) and part in found:
            found = found[part]
        else:
            where = ".".join(name.split(".")[:step]) or "the result"
            known = (
                list(found)
                if isinstance(found, dict)
                else [f"0 to {len(found) - 1}"]
                if isinstance(found, list)
                else []
            )
            close = closest(part, known)
            hint = f"did you mean {close!r}?" if close else f"it has {', '.join(known) or 'no parts'}"
            raise InputError(f"{where} has no {part!r}; {hint}")
    if isinstance(found, bool) or found is None:
        return math.nan if found is None else float(found)
    if not isinstance(found, (int, float)):
        raise InputError(f"{name} is no number: {str(found)[:60]}")
    return float(found)


def _interrupted(*parts: Any) -> str:
    out = next(part for part in parts if isinstance(part, SweepOptions)).out
    return f"interrupted; finished cells are kept in {out}, and the same command computes the others"


@dataclass(frozen=True)
class SweepResults(CommonOptions):
    """What is printed."""


@with_options(
    TokenOptions,
    LawOptions,
    SpaceOptions,
    NoiseOptions,
    RunOptions,
    SweepOptions,
    ExecutionOptions,
    SweepResults,
    interrupted=_interrupted,
)
def simulate(
    context: typer.Context,
    tokens: TokenOptions,
    law: LawOptions,
    space: SpaceOptions,
    noise: NoiseOptions,
    run: RunOptions,
    options: SweepOptions,
    execution: ExecutionOptions,
    output: SweepResults,
) -> None:
    """Integrate tokens under attention for every combination of values, from many starts, and keep observables in a folder.

    Cells that differ only in numbers are integrated as one ensemble. The folder survives interruptions: the same command continues,
    and more values, starts or observables are added to what is there. Exit code 0; 1 if cells failed, 2 for a bad argument.
    """
    check_numbers(context)
    if tokens.ensemble is not None:
        raise InputError("--ensemble is the number of starts of a cell: give --starts")
    kinds = {name: kind for name, kind in option_kinds(GROUPS).items() if name not in NOT_SWEPT}
    axes = parse_axes(options.over, kinds)
    spelled = given(context)
    for name in axes:
        if name in spelled:
            raise InputError(f"{spelled[name]} is given and swept over: leave one of them out")
    groups = {part.name for group in GROUPS for part in fields(group)}
    single = [name for name in spelled if name in groups and name not in ("seed", "save")]
    words = _command_of(context, single)
    random = any(name in axes or getattr(noise, name) is not None for name in NOISE)
    if "noise_seed" in spelled:
        raise InputError("--noise-seed: the seeds of noise derive from --seed and the values of a cell; leave it out")
    if random and run.step is None and "step" not in axes:
        raise InputError("noise needs steps of one size: give --step H")
    if not random:
        build_noise(noise)  # raises for options that belong to noise
    kind = NoisySystem if random else SimulateSystem
    system = kind((tokens, law, space, run, noise), tuple(axes), words)
    settings = flow_options(run)
    settings |= {"seed": tokens.seed, "device": tokens.device}
    run_sweep(context, system, axes, split_names(options.observe) or ["clusters"], options, execution, output, settings)


def _command_of(context: typer.Context, names: list[str]) -> str:
    """The command of one system, with some options of this command line."""
    others = tuple(name for name in given(context) if name not in names)
    words = shlex.split(command_line(context, without=others))
    return shlex.join(["attractor", "simulate", *words[3:]])


@dataclass(frozen=True)
class CommandOptions:
    """The command whose results are measured."""

    words: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="A command of attractor and its options, after --.")
    ]
    seed: Annotated[int, sweep_option("N", "Seed of the sweep.", min=0)] = 0


@with_options(CommandOptions, SweepOptions, ExecutionOptions, SweepResults, interrupted=_interrupted)
def command(
    context: typer.Context,
    what: CommandOptions,
    options: SweepOptions,
    execution: ExecutionOptions,
    output: SweepResults,
) -> None:
    """Run a command of attractor for every combination of values, and keep numbers of its JSON in a folder.

    The commands are audit, check, density, gaussian, iterate, meanfield, predict, trace and train: attractor sweep command --over
    beta=0.5:2:4 --observe outcome.time --out DIR -- gaussian --until 2. An observable is a place in the JSON, such as outcome.time or
    eigenvalues.0. Exit code 0; 1 if cells failed, 2 for a bad argument.
    """
    name = what.words[0]
    if name not in MEASURED:
        raise unknown(name, MEASURED, "command")
    found: Any = typer.main.get_command(measured_application()).commands[name]  # type: ignore[attr-defined]
    own = ("json", "quiet", "progress", "debug", "seed", "out", "resume")
    kinds = {part.name: None for part in found.params if part.param_type_name == "option" and part.name not in own}
    observe = split_names(options.observe)
    if not observe:
        raise InputError("give numbers of the JSON of the command, such as --observe outcome.time")
    axes = parse_axes(options.over, kinds)
    seeded = any(part.name == "seed" for part in found.params)
    if options.starts > 1 and not seeded:
        raise InputError(
            f"--starts {options.starts}: {name} has no --seed, so that all runs of a cell are the same: leave out --starts"
        )
    if seeded and any(word == "--seed" or word.startswith("--seed=") for word in what.words):
        raise InputError(f"{name} --seed: the seeds derive from --seed of the sweep, before the --; leave it out")
    system = CommandSystem(tuple(what.words), tuple(observe), seeded)
    run_sweep(context, system, axes, dict.fromkeys(observe), options, execution, output, {"seed": what.seed})


def run_sweep(
    context: typer.Context,
    system: Callable[..., Any],
    axes: dict[str, list[Any]],
    observe: Any,
    options: SweepOptions,
    execution: ExecutionOptions,
    output: SweepResults,
    settings: dict[str, Any],
) -> None:
    """Compute a sweep and print its summary."""
    from attractor.sweeps import sweep

    words = command_line(context, without=("words",))
    if isinstance(system, CommandSystem):
        words = f"{words} -- {shlex.join(system.words)}"
    costs: list[Cost] = []

    def confirm(cost: Cost) -> bool:
        costs.append(cost)
        if not output.quiet and cost.cells:
            typer.echo(f"attractor sweep: {cost}", err=True)
        if cost.seconds is not None and cost.seconds > HOUR and not execution.yes:
            if not sys.stdin.isatty():
                raise InputError(f"this sweep takes {cost}: give --yes to start it")
            return typer.confirm("Start?", err=True)
        return True

    found = sweep(
        system,
        axes,
        starts=options.starts,
        observe=observe,
        folder=options.out,
        executor=make_executor(execution),
        shard=execution.shard,
        retry=execution.retry,
        refine=execution.refine,
        confirm=confirm,
        progress=False if output.quiet and output.progress is None else output.progress,
        command=words,
        **settings,
    )
    if isinstance(system, CommandSystem) and found.starts > 1 and _repeats(found):
        note = "all runs of every cell gave the same numbers: this command does not depend on --seed here, and one start suffices"
        print_error(note, "attractor sweep command")
    failed = print_sweep(found, words, output, costs[0] if costs else None)
    if failed:
        raise typer.Exit(FAILED)


def _repeats(found: Sweep) -> bool:
    """Whether all starts of every cell have the same numbers."""
    return all(
        bool(((values == values[:, :, :1]) | (values != values)).all())
        for name in found.observables
        for _, values in found._blocks(name)
    )


def print_sweep(found: Sweep, command: str, output: CommonOptions, cost: Cost | None) -> int:
    """Print the summary and the table of a sweep; return the number of failed cells."""
    failed = found.failed
    columns = found.table()
    table = found.path / "table.parquet"
    rows = len(columns["reason"])
    document = {
        "axes": found.axes,
        "starts": found.starts,
        "cells": len(found.cells),
        "computed": None if cost is None else {"cells": cost.cells, "runs": cost.members},
        "observables": found.observables,
        "failed": [{"cell": failure.cell.arguments, "reason": failure.reason} for failure in failed],
        "table": columns if rows <= MOST_ROWS else None,
    }

    def print_tables() -> None:
        shown = [
            name for name in columns if not name.endswith(("_low", "_high")) and not (name == "reason" and not failed)
        ]
        if rows <= SHOWN:
            lines = [[_cell_text(columns, name, k) for name in shown] for k in range(rows)]
            print_table("", shown, lines, fixed=shown, right=shown)
        summary = {"cells": f"{len(found.cells):,} with {found.starts:,} starts each", "failed": f"{len(failed):,}"}
        for number, failure in enumerate(failed[:LISTED]):
            summary[f"failed {number + 1}"] = str(failure)
        if cost is not None and not cost.cells:
            summary["computed"] = "nothing: all cells were there"
        print_rows("Sweep", summary, wrap=False)

    outputs = Outputs(files=[table] if table.exists() else [], store=found.path)
    print_result(output, SCHEMA, command, document, outputs, print_tables, packages=("pyarrow",))
    if failed:
        print_error(f"{len(failed)} of {len(found.cells)} cells failed; the first: {failed[0]}", "attractor sweep")
    return len(failed)


def _cell_text(columns: Mapping[str, Any], name: str, row: int) -> str:
    """A cell of the table, with half the width of its interval where it has one."""
    value = columns[name][row]
    if not isinstance(value, float):
        return "" if value is None else format_number(value) if not isinstance(value, (str, bool)) else str(value)
    if math.isinf(value):
        return "never" if value > 0 else "-inf"
    text = "" if math.isnan(value) else format_number(value)
    low, high = columns.get(f"{name}_low"), columns.get(f"{name}_high")
    if text and low is not None and high is not None and high[row] > low[row]:
        return f"{text} ({format_number(float(low[row]))} to {_bound(float(high[row]))})"
    return text


def _bound(value: float) -> str:
    return "never" if math.isinf(value) else format_number(value)


@dataclass(frozen=True)
class DiagramOptions:
    """Which sweep, and what is drawn of it."""

    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a sweep.")]
    observable: Annotated[
        str | None, sweep_option("NAME", "An observable, or outcome_consensus, ...", default="the first one")
    ] = None
    x: Annotated[str | None, sweep_option("NAME", "Horizontal axis; time is that of --save.", default="a long one")] = (
        None
    )
    y: Annotated[str | None, sweep_option("NAME", "Vertical axis.", default="another long one")] = None
    at_time: Annotated[float | None, sweep_option("T", "Saved time of the values.", default="the last")] = None
    level: Annotated[list[float] | None, sweep_option("X", "Draw the contour line of this value; may be repeated.")] = (
        None
    )
    theory: Annotated[
        str | None,
        sweep_option(
            "NAME",
            "Draw a prediction: cluster_count (of beta), critical_noise (of beta and dim), orthogonal_tokens (over time and beta).",
            default="none",
        ),
    ] = None


@dataclass(frozen=True)
class DiagramResults(FigureOptions):
    """Where results go."""

    report: Annotated[
        Path | None, result_option("FILE.html", "Write a page: values under the pointer, commands of single systems.")
    ] = None


@with_options(DiagramOptions, DiagramResults)
def diagram(context: typer.Context, options: DiagramOptions, output: DiagramResults) -> None:
    """Draw the phase diagram of a sweep: a heat map for each value of the other axes, with intervals, contour lines and theory.

    Exit code 0; 1 if the folder cannot be read, 2 for a bad argument.
    """
    from attractor.cli.inputs import check_figure
    from attractor.sweeps import diagram as make_diagram
    from attractor.sweeps import load

    if output.plot is not None:
        check_figure(output.plot, still=True)
    if output.report is not None:
        from attractor.report import check_place

        check_place(output.report, "--report")
    words = command_line(context)
    found = make_diagram(
        load(options.folder),
        options.observable,
        options.x,
        options.y,
        time=options.at_time,
        levels=options.level or (),
        theory=options.theory,
    )
    if output.plot is not None:
        found.plot(output.plot)
    if output.report is not None:
        found.report(words).write(output.report)
    panels = [
        {"title": one.title, "x": list(one.x), "y": list(one.y), "values": one.values, "low": one.low, "high": one.high,
         "predicted": one.predicted}
        for one in found.maps
    ]  # fmt: skip
    document = {"observable": found.name, "axes": [found.x, found.y], "caption": found.caption, "panels": panels}

    def print_tables() -> None:
        size = f"{len(found.maps[0].x)} values of {found.x} by {len(found.maps[0].y)} of {found.y}"
        panels = f"{len(found.maps)} panel{'s' * (len(found.maps) > 1)}"
        print_rows(
            f"{found.name} over {found.x} and {found.y}", {"size": f"{panels}, {size}", "caption": found.caption}
        )

    print_result(output, DIAGRAM_SCHEMA, words, document, Outputs.given([output.plot], output.report), print_tables)


@dataclass(frozen=True)
class TableOptions:
    """Which sweep, and which part of its table."""

    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a sweep.")]
    times: Annotated[str, sweep_option("last|all|T,T,...", "Saved times.")] = "last"
    each_start: Annotated[bool, sweep_option("", "One line for each start, without statistics.", "--each-start")] = (
        False
    )


@dataclass(frozen=True)
class TableResults(CommonOptions):
    """Where the table goes."""

    out: Annotated[Path | None, result_option("FILE", "Write the table: .parquet or .csv.", "--out", "-o")] = None


@with_options(TableOptions, TableResults)
def table(context: typer.Context, options: TableOptions, output: TableResults) -> None:
    """Print or export the table of a sweep: means over starts with intervals of 95%, one line per cell and time.

    Exit code 0; 1 if the folder cannot be read, 2 for a bad argument.
    """
    from attractor.cli.inputs import check_file
    from attractor.cli.options import parse_numbers
    from attractor.sweeps import load

    if output.out is not None:
        check_file(output.out, "--out")
        if output.out.suffix not in (".parquet", ".csv"):
            raise InputError(f"--out {output.out}: a table is written as .parquet or .csv")
    found = load(options.folder)
    times = options.times if options.times in ("last", "all") else parse_numbers(options.times, "--times")
    frame = found.starts_frame(times) if options.each_start else found.frame(times)
    if output.out is not None:
        from attractor.files import write_atomic

        with write_atomic(output.out) as temporary:
            frame.to_csv(temporary, index=False) if output.out.suffix == ".csv" else frame.to_parquet(temporary)
    columns = {str(name): frame[name].tolist() for name in frame.columns}
    document = {
        "axes": found.axes,
        "starts": found.starts,
        "cells": len(found.cells),
        "observables": found.observables,
        "failed": [{"cell": failure.cell.arguments, "reason": failure.reason} for failure in found.failed],
        "table": columns if len(frame) <= MOST_ROWS else None,
    }

    def print_tables() -> None:
        shown = [name for name in columns if not name.endswith(("_low", "_high"))]
        shown = [name for name in shown if name != "reason" or found.failed]
        lines = [[_cell_text(columns, name, k) for name in shown] for k in range(min(SHOWN, len(frame)))]
        print_table("", shown, lines, fixed=shown, right=shown)
        if len(frame) > SHOWN:
            print_rows("", {"lines": f"{SHOWN} of {len(frame):,}; --out FILE writes all"})

    print_result(output, TABLE_SCHEMA, command_line(context), document, Outputs.given(files=[output.out]), print_tables)
