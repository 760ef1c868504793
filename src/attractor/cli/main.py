"""Entry point of the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from attractor._version import __version__
from attractor.cli import study, sweep
from attractor.cli.audit import audit
from attractor.cli.check import check
from attractor.cli.claims import claims
from attractor.cli.density import density
from attractor.cli.doctor import doctor
from attractor.cli.explore import explore
from attractor.cli.fetch import fetch
from attractor.cli.gaussian import gaussian
from attractor.cli.iterate import iterate
from attractor.cli.meanfield import meanfield
from attractor.cli.options import add_command, run_command
from attractor.cli.predict import predict
from attractor.cli.regimes import regimes
from attractor.cli.reproduce import reproduce
from attractor.cli.simulate import simulate
from attractor.cli.tour.command import tour
from attractor.cli.trace import trace
from attractor.cli.train import train

app = typer.Typer(
    name="attractor",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
)
COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {  # in the order of the help
    "Start": (tour, explore),
    "Simulate": (simulate, gaussian, density, meanfield),
    "Theory": (predict, regimes, check, claims, reproduce),
    "Real models": (fetch, audit, trace, iterate),
    "Training": (train,),
    "This machine": (doctor,),
}
STUDY = (study.run, study.results)  # attractor study run, attractor study results
SWEEP = (sweep.simulate, sweep.command, sweep.table, sweep.diagram)


studies, sweeps = (typer.Typer(no_args_is_help=True, rich_markup_mode="rich") for _ in range(2))
for command in STUDY:
    add_command(studies, command)
for command in SWEEP:
    add_command(sweeps, command)
for heading, commands in COMMANDS.items():
    for command in commands:
        add_command(app, command, heading)
    if heading == "Simulate":
        help_text = "Run simulate, or any command, for every combination of values; tables and phase diagrams."
        app.add_typer(sweeps, name="sweep", help=help_text, rich_help_panel=heading)
    if heading == "Training":
        help_text = "Train the arms of a study with several seeds (run), and compare them (results)."
        app.add_typer(studies, name="study", help=help_text, rich_help_panel=heading)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"attractor {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def attractor(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", metavar="", callback=_print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Where do a Transformer's tokens go? Attention as an interacting particle system."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code: 0, 1 for a failed run, 2 for a bad argument, 130 if interrupted."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str], application: typer.Typer = app, name: str = "attractor") -> int:
    """Run one command and return its exit code."""
    return run_command(arguments, application, name)
