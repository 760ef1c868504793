"""``attractor density``: a density on the circle under attention, with and without noise."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import numpy as np
import typer

from attractor.cli.console import FAILED, Outputs, print_error, print_rows, print_table
from attractor.cli.inputs import check_figure, check_store, read_array
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
from attractor.cli.system_options import LawOptions, build_law, read_law
from attractor.errors import InputError

if TYPE_CHECKING:
    from attractor.laws import Law
    from attractor.solvers import Trajectory
    from attractor.states import Density

SCHEMA = "attractor.density/1"
RANDOM_MODES = 12  # that --random excites
SHOWN = 4
start_option, run_option = panel("Density"), panel("Integration")


@dataclass(frozen=True)
class DensityOptions:
    """The initial density."""

    modes: Annotated[
        str | None, start_option("X,X,...", "Fourier coefficients c_1, c_2, ... of the start, real numbers.")
    ] = None
    concentration: Annotated[
        float | None, start_option("K", "Start from the von Mises density, proportional to exp(K cos angle).")
    ] = None
    values: Annotated[Path | None, start_option("FILE", "Start from these values at equal angles: .npy or .csv.")] = (
        None
    )
    random: Annotated[
        float | None,
        start_option("X", f"Start from {RANDOM_MODES} coefficients of size X with random phases.", default="0.01"),
    ] = None
    seed: Annotated[int, seed_option("Seed of the random phases.", "Density")] = 0
    angles: Annotated[int, start_option("N", "Angles of the grid; coefficients up to N/3 are kept.", min=12)] = 512


@dataclass(frozen=True)
class RunOptions:
    """Noise and times."""

    noise: Annotated[float, run_option("X", "Strength of noise.")] = 0.0
    until: Annotated[float, run_option("T", "Final time.", "--until", "-t")] = 20.0
    save: Annotated[str | None, run_option("T,T,...", "Save these times.", default="200 between start and end")] = None
    rtol: Annotated[float | None, run_option("X", "Error of the coefficients in a step.", default="1e-11")] = None


@dataclass(frozen=True)
class DensityResults(FigureOptions):
    """Where results go."""

    out: Annotated[Path | None, result_option("PATH", "Write the run to this new Zarr store.", "--out", "-o")] = None
    resume: Annotated[
        Path | None, result_option("PATH", "Continue the run in this store, as it was defined there.")
    ] = None


@with_options(DensityOptions, RunOptions, LawOptions, DensityResults)
def density(
    context: typer.Context, start: DensityOptions, run: RunOptions, law: LawOptions, results: DensityResults
) -> None:
    """Move a density on the circle, the limit of infinitely many tokens: the Vlasov and the Fokker-Planck equation.

    Without options: a nearly uniform density under softmax attention with beta = 1, without noise, until t = 20 or until its clusters
    are narrower than the grid resolves. Exit code 0; 1 if a run failed, 2 for a bad argument.
    """
    from attractor.files import to_json

    check_numbers(context)
    if results.plot is not None:
        check_figure(results.plot, still=True)
    found = (
        continue_run(results, context) if results.resume is not None else begin_run(start, run, law, results, context)
    )
    if results.plot is not None:
        found.plot(results.plot)
    strength = 0.0 if found.noise is None else found.noise.strength
    noise = strength if isinstance(strength, float) else None
    ends = [0, *([len(found.times) // 2] if len(found.times) > 2 else []), len(found.times) - 1]
    rows = range(len(found.times)) if run.save is not None else sorted(set(ends))
    states = [describe(found.state(k), float(found.times[k])) for k in rows]
    prediction = None if noise is None else predict(cast("Law", found.law), noise)
    document = {**found.summary(), "states": states, "prediction": prediction, "noise": noise}
    document.pop("observables")
    document["final"] = describe(found.final, found.outcome.time)
    command = command_line(context)

    def print_tables() -> None:
        strength = "in time" if noise is None else f"{noise:g}"
        rows = {"law": repr(found.law), "noise": strength, "evaluations": f"{found.stats.evaluations:,}"}
        if prediction is not None:
            k, rate = prediction["fastest_mode"], prediction["growth"]
            grows = f"mode {k} grows fastest, at the rate {rate:.4g}" if rate > 0 else "it is stable"
            rows["the uniform density"] = f"{grows}; stable above the noise {prediction['critical_noise']:.6g}"
        print_rows(found.outcome.sentence, rows)
        table = [
            [
                f"{state['time']:.5g}",
                *(f"{size:.5g}" for size in state["modes"][:SHOWN]),
                f"{state['entropy']:.5g}",
                str(state["peaks"]),
            ]
            for state in states
        ]
        print_table("", ("t", *(f"|c{k}|" for k in range(1, SHOWN + 1)), "entropy", "peaks"), table)

    outputs = Outputs([] if results.plot is None else [results.plot], store=results.out or results.resume)
    print_result(results, SCHEMA, command, to_json(document), outputs, print_tables)
    if found.outcome.name == "stalled":
        print_error(f"the run stalled at t = {found.outcome.time:.6g}: {found.outcome.message}", "attractor density")
        raise typer.Exit(FAILED)


def begin_run(
    start: DensityOptions, run: RunOptions, law: LawOptions, results: DensityResults, context: typer.Context
) -> Trajectory:
    """Integrate the density that the options define."""
    from attractor.solvers import Noise, flow

    if results.out is not None:
        check_store(results.out)
    return flow(
        build_law(law, read_law(law), 2, 1),
        read_start(start, context),
        noise=Noise(run.noise) if run.noise else None,
        until=run.until,
        save=None if run.save is None else parse_numbers(run.save, "--save"),
        rtol=run.rtol,
        store=results.out,
        progress=bool(results.progress),
    )


def continue_run(results: DensityResults, context: typer.Context) -> Trajectory:
    """Continue a stored run."""
    from attractor.solvers import resume
    from attractor.states import Density

    defined = {
        *DensityOptions.__dataclass_fields__,
        *RunOptions.__dataclass_fields__,
        *LawOptions.__dataclass_fields__,
        "out",
    }
    other = [spelled for name, spelled in given(context).items() if name in defined]
    if other:
        raise InputError(f"--resume continues the run as it was defined: leave out {', '.join(other)}")
    assert results.resume is not None
    if not (results.resume / "zarr.json").is_file():
        raise InputError(f"--resume {results.resume} is not a run of attractor: there is no zarr.json in it")
    found = resume(results.resume, progress=bool(results.progress))
    if not isinstance(found.initial, Density):
        raise InputError(f"--resume {results.resume} is a run of tokens or a Gaussian: use attractor simulate --resume")
    return found


def read_start(options: DensityOptions, context: typer.Context) -> Density:
    """Return the initial density."""
    from attractor.states import Density

    ways = ("modes", "concentration", "values", "random")
    used = [name for name in ways if getattr(options, name) is not None]
    if len(used) > 1:
        raise InputError(f"{' and '.join('--' + name for name in used)} exclude each other: give one of them")
    if options.values is not None:
        if "angles" in given(context):
            raise InputError("--angles is the number of values in --values: leave it out")
        return Density(read_array(options.values, "--values").reshape(-1))
    if options.modes is not None:
        return Density.from_modes(parse_numbers(options.modes, "--modes"), size=options.angles)
    if options.concentration is not None:
        return Density.von_mises(options.concentration, size=options.angles)
    size = 0.01 if options.random is None else options.random
    count = min(RANDOM_MODES, options.angles // 3)
    phases = np.exp(2j * np.pi * np.random.default_rng(options.seed).random(count))
    return Density.from_modes(size * phases, size=options.angles)


def describe(state: Any, time: float) -> dict[str, Any]:
    """One saved state: sizes of the coefficients c_1, ..., entropy and number of peaks."""
    sizes = np.abs(state.modes[1:13])
    return {"time": time, "modes": sizes.tolist(), "entropy": float(state.entropy()), "peaks": int(state.peaks())}


def predict(law: Law | None, noise: float) -> dict[str, Any] | None:
    """Linear stability of the uniform density, for isotropic laws."""
    from attractor.errors import AttractorError
    from attractor.laws import Attention
    from attractor.meanfield import critical_noise, mode_growth

    if not isinstance(law, Attention) or law.beta is None or law.beta <= 0:
        return None
    try:
        rates = mode_growth(law.beta, noise, count=int(3 * law.beta**0.5) + 10, kernel=law.kernel.label)
        critical = critical_noise(law.beta, law.kernel.label)
    except AttractorError:
        return None
    return {"critical_noise": critical, "fastest_mode": 1 + int(rates.argmax()), "growth": float(rates.max())}
