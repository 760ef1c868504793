"""Options that commands share, and the decorator that turns groups of options into a command."""

from __future__ import annotations

import functools
import inspect
import math
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from attractor.cli.console import Outputs, exit_codes, print_error, print_json
from attractor.cli.environment import versions
from attractor.errors import InputError
from attractor.progress import Update, progress_bar

# the last options of every command, in this order
LAST = ("out", "resume", "report", "plot", "width", "json", "quiet", "progress", "debug")
PRESENTATION = ("json", "quiet", "progress", "debug")  # no part of the command line that repeats a run


def panel(title: str) -> Callable[..., Any]:
    """Return ``option(metavar, help, *names, default=text)``, which declares options under one heading of the help."""

    def option(metavar: str, help: str, *names: str, default: str | None = None, **limits: Any) -> Any:
        shown = default if default is not None else bool(metavar)
        return typer.Option(*names, metavar=metavar, help=help, rich_help_panel=title, show_default=shown, **limits)

    return option


result_option = panel("Results")


def seed_option(help: str, title: str) -> Any:
    """Declare ``--seed``."""
    return panel(title)("N", help, min=0)


@dataclass(frozen=True)
class CommonOptions:
    """Options of every command; the options on results of a command are a subclass."""

    json: Annotated[bool, result_option("", "Print one JSON object instead of tables.", "--json")] = False
    quiet: Annotated[
        bool, result_option("", "Print nothing but errors (and the object of --json).", "--quiet", "-q")
    ] = False
    progress: Annotated[
        bool | None,
        result_option("", "Show progress on stderr.", "--progress/--no-progress", default="if stderr is a terminal"),
    ] = None
    debug: Annotated[bool, result_option("", "Print the traceback of an error.", "--debug")] = False

    def show_progress(self, label: str, **options: Any) -> AbstractContextManager[Update]:
        """Return a progress bar that is shown according to ``--progress`` and ``--quiet``."""
        return progress_bar(label, self.progress, self.quiet, **options)

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Discard standard output under ``--quiet``, unless ``--json`` is given."""
        if not self.quiet or self.json:
            yield
            return
        with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
            yield


@dataclass(frozen=True)
class RunOptions:
    """Where and in which precision a model runs."""

    device: Annotated[str | None, panel("Model")("NAME", "Device: cpu, or cuda for an NVIDIA GPU.", default="cpu")] = (
        None
    )
    dtype: Annotated[
        str | None, panel("Model")("NAME", "float64, float32, bfloat16 or float16.", default="that of the files")
    ] = None
    layers: Annotated[
        int | None, panel("Model")("N", "Only the first N blocks; no more are loaded.", min=1, default="all")
    ] = None


@dataclass(frozen=True)
class WidthOptions(CommonOptions):
    """Options of commands that draw figures."""

    width: Annotated[
        str, result_option("one|two|INCHES", "Width of printed figures: one column (3.4 in), two (7 in), or inches.")
    ] = "two"

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Also draw figures with the chosen width."""
        from attractor.plotting import use_width

        with super().apply(), use_width(self.width):
            yield


@dataclass(frozen=True)
class FigureOptions(WidthOptions):
    """Options of commands that draw one figure."""

    plot: Annotated[Path | None, result_option("FILE", "Draw the result: .png, .pdf or .svg.")] = None


def with_options(
    *groups: type[Any], interrupted: Callable[..., str] = lambda *parts: "interrupted", epilog: str = ""
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn ``command(context, *values of the groups)`` into a command that has every field of the groups as an option.

    One of the groups is a subclass of :class:`CommonOptions`. Exceptions become exit codes (see ``exit_codes``);
    ``interrupted(*values of the groups)`` is the message after Ctrl-C, ``epilog`` the end of the help.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints: dict[str, Any] = {}
        parameters = []
        for group in groups:
            annotations = get_type_hints(group, include_extras=True)
            for field in fields(group):
                default = inspect.Parameter.empty if field.default is MISSING else field.default
                kind, annotation = inspect.Parameter.KEYWORD_ONLY, annotations[field.name]
                parameters.append(inspect.Parameter(field.name, kind, default=default, annotation=annotation))
                hints[field.name] = annotation
        parameters.sort(key=lambda part: LAST.index(part.name) if part.name in LAST else -1)
        first = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)

        @functools.wraps(command)
        def run(*, context: typer.Context, **values: Any) -> None:
            parts = [group(**{field.name: values[field.name] for field in fields(group)}) for group in groups]
            common = next(part for part in parts if isinstance(part, CommonOptions))
            with (
                exit_codes(context.command_path, common.debug, interrupted=lambda: interrupted(*parts)),
                common.apply(),
            ):
                command(context, *parts)

        # typer reads options from the signature; a wrapped function would show the inner one
        del run.__wrapped__  # type: ignore[attr-defined]
        run.__signature__ = inspect.Signature([first, *parameters])  # type: ignore[attr-defined]
        run.__annotations__ = {"context": typer.Context, **hints}
        run.epilog = epilog  # type: ignore[attr-defined]
        return run

    return decorate


def given(context: typer.Context) -> dict[str, str]:
    """Return the options on this command line: their parameter names and spellings."""
    spellings: dict[str, str] = {}
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name and source is not None and source.name == "COMMANDLINE":
            value = context.params[parameter.name]
            negative = value is False and parameter.secondary_opts
            spellings[parameter.name] = (parameter.secondary_opts if negative else parameter.opts)[0]
    return spellings


def command_line(context: typer.Context, without: tuple[str, ...] = ()) -> str:
    """Return the command line that repeats a run, quoted for the shell."""
    words = context.command_path.split()
    for name, option in given(context).items():
        value = context.params[name]
        if name in without or name in PRESENTATION:
            continue
        if isinstance(value, bool):
            words.append(option)
            continue
        for item in value if isinstance(value, (list, tuple)) else [value]:
            words += [option, _word(item)] if option.startswith("-") else [_word(item)]
    return shlex.join(words)


def _word(value: Any) -> str:
    """Return a value as it may be typed: 1e+06 rather than 1000000.0 where that is the same number."""
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def print_result(
    options: CommonOptions,
    schema: str,
    command: str,
    document: Mapping[str, Any],
    outputs: Outputs,
    print_tables: Callable[[], None],
    *,
    packages: tuple[str, ...] = (),
) -> None:
    """Print the result of a command: one JSON object under ``--json``, otherwise tables and the files written."""
    if options.json:
        head = {"schema": schema, "command": command}
        print_json({**head, **document, "outputs": outputs.row(), "versions": versions(*packages)})
        return
    print_tables()
    outputs.print(command)


def check_numbers(context: typer.Context) -> None:
    """Raise if NaN or infinity is given for a number."""
    for name, option in given(context).items():
        value = context.params[name]
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{option} must be a finite number, got {value}")


def parse_ranges(text: str, option: str) -> list[int]:
    """Return the numbers of a list such as "0,3,8-11"."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = [first, last] if dash else [first]
        if not all(end.isdecimal() for end in ends) or int(ends[0]) > int(ends[-1]):
            raise InputError(f"{option} must be numbers and ranges such as 0,3,8-11, got {text!r}")
        found += range(int(ends[0]), int(ends[-1]) + 1)
    return list(dict.fromkeys(found))


def parse_numbers(text: str, option: str) -> list[float]:
    """Return the numbers of a comma-separated list."""
    values: list[float] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            values.append(float(part))
        except ValueError:
            raise InputError(
                f"{option} must be numbers separated by commas, such as 1,2.5,10; {part!r} is not a number"
            ) from None
    if not all(math.isfinite(value) for value in values):
        raise InputError(f"{option} must be finite numbers, got {text}")
    return values


def parse_seeds(text: str) -> list[int]:
    """Return the distinct seeds of a comma-separated list, in their order."""
    try:
        return list(dict.fromkeys(int(seed) for seed in text.split(",")))
    except ValueError:
        raise InputError(f"--seeds {text} is not a list of whole numbers: write --seeds 0,1,2") from None


def unwrap_paragraphs(text: str) -> str:
    """Return a docstring with one line per paragraph, so that the help wraps it to the terminal."""
    return "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", inspect.cleandoc(text)))


def add_command(group: typer.Typer, command: Callable[..., None], heading: str | None = None) -> None:
    """Add a command under a heading of the help, with its docstring as the help text."""
    options = {"epilog": getattr(command, "epilog", None), "rich_help_panel": heading}
    group.command(help=unwrap_paragraphs(command.__doc__ or ""), **options)(command)


def describe_columns(meanings: Mapping[str, str], shown: Iterable[str]) -> str:
    """The end of a help: one line for each column of the terminal's tables."""
    lines = [f"[cyan]{name}[/]: {meanings[name]}" for name in shown]
    return "\n\n".join(("[bold]Columns[/] of the terminal (--columns prints all)", *lines))


def _command_path(command: Any, arguments: Sequence[str], name: str) -> str:
    """Return the name of the command that the first arguments select."""
    for argument in arguments:
        command = getattr(command, "commands", {}).get(argument)
        if command is None:
            break
        name = f"{name} {argument}"
    return name


def run_command(arguments: Sequence[str], application: typer.Typer, name: str = "attractor") -> int:
    """Run one command of an application and return its exit code."""
    command = typer.main.get_command(application)
    try:
        return command.main(args=list(arguments), prog_name=name, standalone_mode=False) or 0
    except typer.Abort:
        print_error("interrupted", name)
        return 130
    except Exception as error:
        # usage errors of typer; their class is in click or in typer, depending on its version
        format_message = getattr(error, "format_message", None)
        if format_message is None:
            raise
        context = getattr(error, "ctx", None)
        command_path = context.command_path if context is not None else _command_path(command, arguments, name)
        message = format_message().strip().rstrip(".")
        if not message:  # a group without a command: its help has been printed
            return 0
        separator = " See" if message.endswith("?") else "; see"
        print_error(f"{message}{separator} {command_path} --help", command_path)
        return int(getattr(error, "exit_code", 2))
