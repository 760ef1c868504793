"""Command line of the benchmark program: ``python -m benchmarks``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from attractor.cli.console import FAILED, Outputs, print_error, print_json, print_rows
from attractor.cli.main import add_command, run
from attractor.cli.options import FigureOptions, command_line, panel, result_option, seed_option, with_options
from attractor.errors import InputError

NAME = "python -m benchmarks"
UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def print_report(report: dict[str, Any]) -> None:
    """Machine, contests, growth, and the count of targets."""
    print_rows("machine", machine(report))
    for result in report["contests"]:
        print_rows(result["name"], {entry["name"]: line(entry, result) for entry in result["contenders"]})
    if report["growth"]:
        label = "cost against size on log-log axes: slope over all sizes (over the largest three)"
        print_rows(label, {f"{curve['variable']}: {curve['name']}": growth(curve) for curve in report["growth"]})
    print_rows("targets", {name: str(count) for name, count in report["summary"].items() if count or name == "met"})


def machine(report: dict[str, Any]) -> dict[str, str]:
    found = report["machine"]
    rows = {
        "processor": f"{found['processor']}, {report['settings']['threads']} of {found['cores']} cores, {found['instruction_set']}"
    }
    if found["gpu"]:
        rows["gpu"] = found["gpu"]
    if found["load"]:
        rows["load"] = f"{found['load'][0]:.1f} before the run"
    for device, ceilings in report["ceilings"].items():
        for dtype, rates in (ceilings or {"rates": {}})["rates"].items():
            most = f"{unit(rates['exponentials'])}exp/s, {unit(2 * rates['multiply_adds'])}FLOP/s"
            rows[f"{device} {dtype}"] = f"{most} ({ceilings['source']})"
    if report["settings"]["quick"]:
        rows["quick"] = "sizes are too small to measure speed, and targets are not judged"
    return rows


def line(entry: dict[str, Any], result: dict[str, Any]) -> str:
    """One contender: time, share of the limit, ratio with its spread, target."""
    if entry["status"] != "timed":
        return f"{entry['status']}: {entry['reason']}"
    parts = [f"{seconds(entry['median']):>9}"]
    if entry["rate"] is not None:
        share = "" if entry["percent_of_limit"] is None else f", {entry['percent_of_limit']:.0f}% of the limit"
        parts.append(f"{unit(entry['rate'])}pair/s{share}")
    ratio, target = entry["ratio"], entry["target"]
    if ratio is not None:
        parts.append(f"ratio {ratio['median']:.2f} ({ratio['least']:.2f} to {ratio['most']:.2f})")
    if target is not None:
        least = f"{target['least']:g}" if target["what"] == "ratio" else f"{unit(target['least'])}pair/s"
        verdict = {True: "met", False: "MISSED", None: "not judged"}[entry["met"]]
        parts.append(f"target {least}: {verdict}")
    parts.append(f"error {entry['error']:.0e}")
    return "   ".join(parts)


def growth(curve: dict[str, Any]) -> str:
    if curve["status"] != "timed":
        return f"{curve['status']}: {curve['reason']}"
    ends = f"from {curve['sizes'][0]:g} to {curve['sizes'][-1]:g}"
    return f"{curve['slope']:.2f} ({curve['tail']:.2f}) {ends}"


def unit(value: float) -> str:
    """A large number in few digits, with the prefix of its unit."""
    size, prefix = next(((size, prefix) for size, prefix in UNITS if value >= size), (1.0, ""))
    return f"{value / size:.3g} {prefix}"


def seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms" if value >= 1e-3 else f"{1e6 * value:.3g} us"


option = panel("Rows")


@dataclass(frozen=True)
class RowOptions:
    """Rows, sizes and repetitions."""

    rows: Annotated[str | None, option("NAME,...", "Which groups of rows.", default="all of the CPU")] = None
    gpu: Annotated[bool, option("", "The rows of the GPU; with --rows, these too.", "--gpu")] = False
    rounds: Annotated[int, option("N", "Rounds; every contender runs in each.", min=1)] = 5
    quick: Annotated[bool, option("", "A smoke run: sizes too small to measure speed.", "--quick")] = False
    seed: Annotated[int, seed_option("Seed of the tokens.", "Rows")] = 0
    threads: Annotated[
        int | None, option("N", "Threads of every contender.", min=1, default="those torch uses, at most all cores")
    ] = None


@dataclass(frozen=True)
class BenchResults(FigureOptions):
    """Where results go."""

    out: Annotated[
        Path | None, result_option("FILE", "Write the report as JSON, updated after each contest.", "--out", "-o")
    ] = None
    plot: Annotated[Path | None, result_option("FILE", "Draw ratios, targets and growth: .png, .pdf or .svg.")] = None
    check: Annotated[bool, result_option("", "Exit code 1 if a target that was measured is missed.", "--check")] = False


@with_options(RowOptions, BenchResults)
def bench(context: typer.Context, rows: RowOptions, report: BenchResults) -> None:
    """Measure attractor against other libraries in interleaved rounds, with targets and the peak rates of the machine.

    Rows: evaluation, solves, small, gradients, phase, merging, stiff, spectral, ensembles, noise, processes, growth; with --gpu gpu,
    gpu_solves, gpu_gradients, gpu_noise, gpu_phase. Peers that are not installed (the extra peers) are reported as skipped. Exit code 0
    if it ran; 1 with --check if a target is missed.
    """
    groups, settings = select_rows(rows)
    check_results(report)
    from benchmarks import benchmark

    command = command_line(context)
    with report.show_progress("bench", count=False) as update, quiet_stdout():
        progress = lambda share, text: update(share, 1.0, text)  # noqa: E731
        found = benchmark(groups, settings, progress, make_writer(report.out), command)
    print_results(found, report, command)
    if report.check and found["summary"]["missed"]:
        print_error(f"{found['summary']['missed']} of the measured targets missed", context.command_path)
        raise typer.Exit(FAILED)


def select_rows(options: RowOptions) -> tuple[tuple[str, ...], Any]:
    """Return the groups and the settings of the options."""
    import torch

    from benchmarks import CPU, GPU, Settings, choose_rows

    named = [name.strip() for name in (options.rows or "").split(",") if name.strip()]
    if options.rows is not None:
        groups = choose_rows([*named, *(GPU if options.gpu else ())])
    else:
        groups = GPU if options.gpu else CPU
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if options.threads is not None and options.threads > cores:
        raise InputError(f"--threads {options.threads} is more than the {cores} cores that this process may use")
    threads = options.threads or min(torch.get_num_threads(), cores)
    turn = 0.0 if options.quick else Settings.turn
    return groups, Settings(options.rounds, options.quick, options.seed, threads, turn)


def check_results(options: BenchResults) -> None:
    """Raise if results could not be written."""
    from attractor.cli.inputs import check_figure, check_file

    if options.out is not None:
        check_file(options.out, "--out")
    if options.plot is not None:
        check_figure(options.plot, still=True)


def make_writer(place: Path | None) -> Callable[[dict[str, Any]], None]:
    """Return a function that writes the results so far, so that an interrupted benchmark keeps them."""
    from attractor.files import write_json

    if place is None:
        return lambda report: None
    return lambda report: write_json(place, report, indent=1)


def print_results(found: dict[str, Any], options: BenchResults, command: str) -> None:
    """Draw the figure, and print one JSON object or tables."""
    if options.plot is not None:
        from benchmarks.program import draw

        draw(found, options.plot)
    outputs = Outputs.given([options.plot], files=[options.out])
    if options.json:
        print_json({**found, "outputs": outputs.row()})
        return
    print_report(found)
    outputs.print(command)


@contextmanager
def quiet_stdout() -> Iterator[None]:
    """Redirect the output of peers and their compilers to stderr: stdout is for results."""
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:
        yield
        return
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, context_settings={"help_option_names": ["--help", "-h"]}
)
add_command(app, bench)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark program and return its exit code."""
    return run(sys.argv[1:] if arguments is None else arguments, app, NAME)


if __name__ == "__main__":
    sys.exit(main())
