"""Option groups shared by commands."""

from __future__ import annotations

import functools
import inspect
import math
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from attractor.cli.inputs import check_picture, check_store
from attractor.errors import InputError


def panel(title: str) -> Callable[..., Any]:
    """Options under one heading of the help: ``option(metavar, help, *names, default=what the help says of it)``."""

    def option(metavar: str, help: str, *names: str, default: str | None = None, **limits: Any) -> Any:
        shown = default if default is not None else bool(metavar)
        return typer.Option(*names, metavar=metavar, help=help, rich_help_panel=title, show_default=shown, **limits)

    return option


def grouped(*groups: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let ``command(context, *values of the groups)`` take every field of the groups as an option."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints: dict[str, Any] = {"context": typer.Context}
        parameters = [inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
        for group in groups:
            annotations = get_type_hints(group, include_extras=True)
            for field in fields(group):
                kind = inspect.Parameter.KEYWORD_ONLY
                default = inspect.Parameter.empty if field.default is MISSING else field.default
                parameters.append(
                    inspect.Parameter(field.name, kind, default=default, annotation=annotations[field.name])
                )
                hints[field.name] = annotations[field.name]

        @functools.wraps(command)
        def parsed(*, context: typer.Context, **values: Any) -> None:
            parts = [group(**{field.name: values[field.name] for field in fields(group)}) for group in groups]
            command(context, *parts)

        # typer reads options from the signature; a wrapped function would show the inner one
        del parsed.__wrapped__  # type: ignore[attr-defined]
        parsed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        parsed.__annotations__ = hints
        return parsed

    return decorate


def given(context: typer.Context) -> dict[str, str]:
    """Options named on this command line: their parameter names and how they are spelled."""
    spelled: dict[str, str] = {}
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name and source is not None and source.name == "COMMANDLINE":
            value = context.params[parameter.name]
            negative = value is False and parameter.secondary_opts
            spelled[parameter.name] = (parameter.secondary_opts if negative else parameter.opts)[0]
    return spelled


def replay(context: typer.Context, without: tuple[str, ...] = ()) -> str:
    """The command line again, in the words of the shell; how much of it is said is no part of it."""
    words = context.command_path.split()
    for name, option in given(context).items():
        value = context.params[name]
        if name in without or name == "quiet":
            continue
        if isinstance(value, bool):
            words.append(option)
            continue
        for item in value if isinstance(value, (list, tuple)) else [value]:
            words += [option, _word(item)] if option.startswith("-") else [_word(item)]
    return shlex.join(words)


def _word(value: Any) -> str:
    """A value as it may be typed: 1e+06 rather than 1000000.0 where that is the same number."""
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def check_numbers(context: typer.Context) -> None:
    """Refuse NaN and infinity wherever a number is given."""
    for name, option in given(context).items():
        value = context.params[name]
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{option} must be a finite number, got {value}")


def numbers(text: str, option: str) -> list[float]:
    """Numbers from a comma-separated list."""
    values: list[float] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            values.append(float(part))
        except ValueError:
            raise InputError(
                f"{option} must be numbers separated by commas, such as 1,2.5,10; {part!r} is none"
            ) from None
    if not all(math.isfinite(value) for value in values):
        raise InputError(f"{option} must be finite numbers, got {text}")
    return values


def paragraphs(text: str) -> str:
    """A docstring with one line for each paragraph, so that help wraps it by itself."""
    return "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", inspect.cleandoc(text)))


figure_option = panel("Results")


@dataclass(frozen=True)
class PictureOptions:
    """The size of what is drawn."""

    width: Annotated[
        str, figure_option("one|two|INCHES", "Width of printed pictures: one column (3.4 in), two (7 in), or inches.")
    ] = "two"

    @contextmanager
    def sized(self) -> Iterator[None]:
        """Pictures drawn inside are this wide."""
        from attractor.plotting import use_width

        with use_width(self.width):
            yield


output_option = panel("Results")
WITH_RESUME = {
    "resume",
    "plot",
    "density",
    "report",
    "member",
    "width",
    "observe",
    "json",
    "quiet",
    "progress",
    "debug",
    "max_seconds",
    "max_evaluations",
}


@dataclass(frozen=True)
class OutputOptions:
    """What becomes of the run."""

    out: Annotated[Path | None, output_option("PATH", "Stream the run into this new Zarr store.", "--out", "-o")] = None
    resume: Annotated[
        Path | None, output_option("PATH", "Go on with the run in this store; it knows its law, tokens and tolerances.")
    ] = None
    plot: Annotated[
        list[Path] | None,
        output_option("FILE", "Draw the run: .html, .png, .pdf, .svg, .gif or .mp4; may be repeated."),
    ] = None
    density: Annotated[
        Path | None, output_option("FILE", "Draw the density of tokens on a line or in a plane: .png, .pdf or .svg.")
    ] = None
    report: Annotated[
        Path | None,
        output_option("FILE.html", "Write a page: the animation, the theory beside it, observables and costs."),
    ] = None
    member: Annotated[int, output_option("I", "Which member of an ensemble is drawn.", min=0)] = 0
    observe: Annotated[
        list[str] | None,
        output_option("NAME", "Report this observable too, with --json at all saved times; may be repeated."),
    ] = None
    json: Annotated[bool, output_option("", "Print one JSON object.", "--json")] = False
    quiet: Annotated[
        bool, output_option("", "Print nothing but errors (and the object of --json).", "--quiet", "-q")
    ] = False
    progress: Annotated[
        bool | None,
        output_option("", "A bar on stderr.", "--progress/--no-progress", default="if stderr is a terminal"),
    ] = None
    debug: Annotated[bool, output_option("", "Show the traceback of an error.", "--debug")] = False

    @property
    def shows_progress(self) -> bool:
        if self.progress is not None:
            return self.progress
        return sys.stderr.isatty() and not self.quiet


def check_output(options: OutputOptions, context: typer.Context) -> None:
    """Everything about the results that can be known to fail, before the run starts."""
    from attractor.observables import find_observable

    if options.resume is not None:
        other = [option for name, option in given(context).items() if name not in WITH_RESUME]
        if other:
            raise InputError(f"--resume goes on with the run as it was defined: leave out {', '.join(other)}")
        if not options.resume.exists():
            raise InputError(f"--resume {options.resume}: there is no such store")
        if not (options.resume / "zarr.json").is_file():
            raise InputError(f"--resume {options.resume} is not a run of attractor: there is no zarr.json in it")
    for name in options.observe or ():
        find_observable(name)
    for path in options.plot or ():
        check_picture(path)
    if options.density is not None:
        check_picture(options.density, "--density", still=True)
    if options.report is not None:
        from attractor.report import check_place

        check_place(options.report, "--report")
    if options.out is not None:
        check_store(options.out)
