"""Entry point of the command line."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from typing import Annotated, Any, get_type_hints

import typer

from attractor._version import __version__
from attractor.cli.audit import audit
from attractor.cli.check import check
from attractor.cli.claims import claims
from attractor.cli.console import complain
from attractor.cli.doctor import doctor
from attractor.cli.fetch import fetch
from attractor.cli.gaussian import gaussian
from attractor.cli.iterate import iterate
from attractor.cli.meanfield import meanfield
from attractor.cli.options import paragraphs
from attractor.cli.positions import positions
from attractor.cli.practice import practice
from attractor.cli.predict import predict
from attractor.cli.questions import questions
from attractor.cli.regimes import regimes
from attractor.cli.simulate import simulate
from attractor.cli.study import study, study_results
from attractor.cli.tour.command import tour
from attractor.cli.trace import trace
from attractor.cli.train import train

HELP = "Print nothing but errors (and the object of --json)."
OPTION = typer.Option("--quiet", "-q", metavar="", help=HELP, rich_help_panel="Results", show_default=False)


def quietable(command: Callable[..., None]) -> Callable[..., None]:
    """The command with ``--quiet``, unless it has one of its own: results go nowhere, and no progress is shown that was not asked for."""
    signature, hints = inspect.signature(command), get_type_hints(command, include_extras=True)
    if "quiet" in signature.parameters:
        return command
    panels = [getattr(getattr(hint, "__metadata__", [None])[0], "rich_help_panel", None) for hint in hints.values()]
    option = OPTION if any(panels) else typer.Option("--quiet", "-q", metavar="", help=HELP, show_default=False)

    @functools.wraps(command)
    def parsed(*, quiet: bool = False, **values: Any) -> None:
        if not quiet:
            return command(**values)
        if "progress" in values and values["progress"] is None:
            values["progress"] = False
        if values.get("json"):
            return command(**values)
        with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
            return command(**values)

    added = inspect.Parameter(
        "quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option]
    )
    del parsed.__wrapped__  # type: ignore[attr-defined]
    named = [
        part.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[part.name])
        for part in signature.parameters.values()
    ]
    parsed.__signature__ = signature.replace(parameters=[*named, added])  # type: ignore[attr-defined]
    parsed.__annotations__ = {**hints, "quiet": added.annotation}
    return parsed


app = typer.Typer(
    name="attractor",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
)
COMMANDS = {  # in the order of the help
    "Start": (tour,),
    "Simulate": (simulate, gaussian, meanfield),
    "Theory": (predict, regimes, check, positions, claims, questions),
    "Real models": (fetch, audit, trace, iterate, practice),
    "Training": (train, study, study_results),
    "This machine": (doctor,),
}
for heading, commands in COMMANDS.items():
    for command in commands:
        app.command(help=paragraphs(command.__doc__ or ""), rich_help_panel=heading)(quietable(command))


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"attractor {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def attractor(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", metavar="", callback=_version, is_eager=True, help="Print the version and stop."),
    ] = False,
) -> None:
    """Where do a Transformer's tokens go? Attention as an interacting particle system."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code: 0, 1 for a failed run, 2 for a bad argument, 130 if interrupted."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str], application: typer.Typer = app, name: str = "attractor") -> int:
    """Run one command and return its exit code."""
    command = typer.main.get_command(application)
    try:
        return command.main(args=list(arguments), prog_name=name, standalone_mode=False) or 0
    except typer.Abort:
        complain("interrupted", name)
        return 130
    except Exception as error:
        # typer's own complaints; their class lives in click or inside typer, depending on its version
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        context = getattr(error, "ctx", None)
        command_path = context.command_path if context is not None else name
        said = message().strip().rstrip(".")
        complain(f"{said}{' See' if said.endswith('?') else '; see'} {command_path} --help", command_path)
        return int(getattr(error, "exit_code", 2))
