"""``attractor meanfield``: rates, stability and blow-up in the mean-field limit."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import partial, singledispatch
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from attractor.cli.console import Outputs, print_rows, print_table
from attractor.cli.inputs import check_figure, read_array
from attractor.cli.options import (
    FigureOptions,
    check_numbers,
    command_line,
    given,
    panel,
    parse_numbers,
    print_result,
    seed_option,
    with_options,
)
from attractor.cli.system_options import LawOptions, build_law, read_law, read_vector
from attractor.errors import InputError
from attractor.meanfield import LABELS, Branch, PastBlowUp, Rates, Stability
from attractor.registry import check_name

if TYPE_CHECKING:
    from attractor.laws import Attention
    from attractor.states import Gaussian, Tokens


@singledispatch
def result_document(found: Any) -> dict[str, Any]:
    """Return the result for JSON."""
    raise NotImplementedError


@result_document.register(Rates)
def _rates_document(found: Rates) -> dict[str, Any]:
    slopes = {name: asdict(slope) for name, slope in found.slopes.items()}
    return {
        "sizes": list(found.sizes),
        "repeats": found.repeats,
        "until": found.until,
        "against": found.against,
        "errors": {name: values.tolist() for name, values in found.errors.items()},
        "rms": {name: found.rms(name).tolist() for name in found.errors},
        "slopes": slopes,
        "tilt": {"times": found.tilt_times.tolist(), "values": found.tilt.tolist()},
        "notes": list(found.notes),
    }


@result_document.register(Stability)
def _stability_document(found: Stability) -> dict[str, Any]:
    constants = found.constants
    return {
        "order": found.order,
        "times": found.times.tolist(),
        "distance": found.distance.tolist(),
        "ratio": found.ratio.tolist(),
        "log_bound": found.log_bound.tolist(),
        "radius": found.radius.tolist(),
        "radius_bound": found.radius_bound.tolist(),
        "constants": {
            "radius": constants.radius,
            "point": constants.point,
            "influence": constants.influence,
            "hardy": constants.hardy,
        },
        "explicit": found.explicit,
        "holds": found.holds,
        "notes": list(found.notes),
    }


@result_document.register(PastBlowUp)
def _beyond_document(found: PastBlowUp) -> dict[str, Any]:
    return {
        "blow_up": found.blow_up,
        "times": found.times.tolist(),
        "sizes": list(found.sizes),
        "variance": found.variance.tolist(),
        "median": found.median.tolist(),
        "gaussian": found.gaussian.tolist(),
        "notes": list(found.notes),
    }


@result_document.register(Branch)
def _branch_document(found: Branch) -> dict[str, Any]:
    return found.row()


def print_found(found: Any, problem: Problem) -> None:
    """Print the table of a study, and its notes."""
    print_study(found, problem)
    notes = {f"note {n}" if n > 1 else "note": note for n, note in enumerate(getattr(found, "notes", ()), 1)}
    if notes:
        print_rows("", notes)


@singledispatch
def print_study(found: Any, problem: Problem) -> None:
    raise NotImplementedError


@print_study.register(Rates)
def _rates_table(found: Rates, problem: Problem) -> None:
    against = {"closure": "the Gaussian closure", "pair": "an independent system of the same size"}
    reference = against.get(str(found.against), f"{found.against} tokens")
    print_rows(
        f"Root mean square errors at t = {found.until:g} against {reference}, {found.repeats} runs each.",
        {"law": str(problem.law), "start": problem.start},
    )
    print_table("", ("tokens", *(f"{size:,}" for size in found.sizes)), _errors(found), right=None)
    rows = {LABELS[name]: _slope(slope) for name, slope in found.slopes.items()}
    print_rows("Slopes in n, with 95% intervals", rows)
    if len(found.tilt):
        meaning = "largest singular value of Sigma^(1/2) A Sigma^(1/2); above 1/2 errors fall more slowly than n^(-1/2)"
        print_rows("", {"tilt": f"{found.tilt[0]:.3g} at the start, {found.tilt.max():.3g} at most ({meaning})"})


@print_study.register(Stability)
def _stability_table(found: Stability, problem: Problem) -> None:
    constants, last = found.constants, found.times[-1]
    kind = "bound" if found.explicit else "estimate"
    influence = "no formula" if constants.influence is None else f"{constants.influence:.4g}"
    factor = f" times {constants.hardy:.3g} (Hardy)" if constants.hardy != 1.0 else ""
    distance = "conditional W" if problem.law.mask is not None else "W"
    ends = found.distance[0].mean(), found.distance[-1].mean()
    rows = {
        "law": str(problem.law),
        "start": f"{problem.start}, {found.radius.shape[1]} pairs of {problem.sizes[0]:,} tokens",
        f"{distance}{found.order:g}": f"{ends[0]:.4g} at the start, {ends[1]:.4g} at t = {last:g} (means)",
        "ratio": f"{found.ratio.max():.4g} at most, logarithm {np.log(found.ratio.max()):.4g}",
        f"{kind} of log": f"{found.log_bound[-1].max():.4g} at t = {last:g}",
        "constants": f"L_x = {constants.point:.4g}, L_mu = {influence}{factor} in the ball of radius {constants.radius:.4g}",
        "radius": f"{found.radius.max():.4g} at most, bound {found.radius_bound[-1].max():.4g}",
    }
    below = "Every distance and radius is below its bound."
    if not found.explicit:
        below = "Every radius is below its bound, and every distance below an estimate of one."
    print_rows(below if found.holds else "A distance or a radius is ABOVE its bound.", rows)


@print_study.register(PastBlowUp)
def _beyond_table(found: PastBlowUp, problem: Problem) -> None:
    shown = [int(np.abs(found.times / found.blow_up - share).argmin()) for share in (0.0, 0.5, 0.9, 1.0, 1.2)]
    shown = list(dict.fromkeys(shown))
    columns = ("t / T*", *(f"{found.times[k] / found.blow_up:.4g}" for k in shown))
    rows = [["Gaussian", *(f"{found.gaussian[k]:.4g}" for k in shown)]]
    for index, n in enumerate(found.sizes):
        rows.append([f"n = {n:,}", *(f"{found.median[index, k]:.4g}" for k in shown)])
        low, high = found.variance[index].min(0), found.variance[index].max(0)
        rows.append([f"range, {n:,}", *(f"{low[k]:.3g}-{high[k]:.3g}" for k in shown)])
    title = f"The Gaussian blows up at T* = {found.blow_up:.8g}; total variance of tokens (median of {found.variance.shape[1]} draws)."
    print_rows(title, {"law": str(problem.law)})
    print_table("", columns, rows, right=None)


@print_study.register(Branch)
def _branch_table(found: Branch, problem: Problem) -> None:
    from attractor.meanfield import is_subcritical

    place = "the circle" if found.dim == 2 else f"the sphere of dimension {found.dim}"
    kind = "discontinuous" if is_subcritical(found.beta, found.kernel, found.dim) else "continuous"
    rows = {"law": str(problem.law), "critical noise": f"{found.critical:.10g}; the transition is {kind}"}
    for amplitude, noise in found.folds:
        share = noise / found.critical
        rows["fold"] = f"noise {noise:.10g}, {share:.8g} times the critical one, at the mean cosine {amplitude:.4g}"
    if found.free_energy is not None and found.transition is not None:
        amplitude, noise = found.transition
        share = noise / found.critical
        rows["equal free energy"] = (
            f"noise {noise:.10g}, {share:.8g} times the critical one, at the mean cosine {amplitude:.4g}"
        )
    print_rows(f"Stationary densities with one maximum on {place}.", rows)
    shown = np.unique(np.linspace(0, len(found.amplitude) - 1, 9).astype(int))
    table = [["noise", *(f"{found.noise[k]:.5g}" for k in shown)]]
    table.append(["stable", *("yes" if found.stable[k] else "no" for k in shown)])
    if found.free_energy is not None:
        table.append(["free energy", *(f"{found.free_energy[k]:.3g}" for k in shown)])
    print_table("", ("mean cosine", *(f"{found.amplitude[k]:.3g}" for k in shown)), table, right=None)


def _errors(found: Rates) -> list[list[str]]:
    return [[LABELS[name], *(f"{value:.3e}" for value in found.rms(name))] for name in found.errors]


def _slope(slope: Any) -> str:
    if not math.isfinite(slope.value):
        return "none: exact at some n"
    interval = f"   {slope.low:+.2f} to {slope.high:+.2f}" if math.isfinite(slope.low) else ""
    return f"{slope.value:+.2f}{interval}"


SCHEMA = "attractor.meanfield/2"
STUDIES = ("rates", "stability", "blow-up", "bifurcation")
BELONGS = {"against": "rates", "measures": "rates", "raw": "rates", "order": "stability", "apart": "stability"}
SIZES = {"rates": "100,200,400,800", "stability": "100", "blow-up": "200,1000,5000"}
REPEATS = {"rates": 12, "stability": 6, "blow-up": 5}
DIM = {"rates": 2, "stability": 2, "blow-up": 1, "bifurcation": 2}
SPREAD = {"rates": 1.0, "stability": 1.0, "blow-up": 0.5**0.5}  # with the default law, the Gaussian blows up at t = 1
study_option, start_option = panel("Study"), panel("Start")


@dataclass(frozen=True)
class StudyOptions:
    """What is measured."""

    study: Annotated[
        str,
        study_option(
            "NAME",
            "rates: errors of n tokens and their power of n; stability: distance of two close measures over time, and its bound; "
            "blow-up: tokens near and past the blow-up time of the Gaussian; bifurcation: stationary densities on the sphere with noise.",
        ),
    ] = "rates"
    until: Annotated[
        float | None,
        study_option(
            "T", "Final time; for blow-up, in units of the blow-up time.", "--until", "-t", default="1; blow-up: 1.2"
        ),
    ] = None
    sizes: Annotated[
        str | None,
        study_option("N,N,...", "Numbers of tokens.", default="; ".join(f"{k}: {v}" for k, v in SIZES.items())),
    ] = None
    repeats: Annotated[
        int | None, study_option("N", "Runs for each number of tokens.", min=1, default="12; stability: 6; blow-up: 5")
    ] = None
    against: Annotated[
        str | None,
        study_option(
            "WHAT",
            "closure (the Gaussian), pair (a second system of the same size) or a larger number of tokens.",
            default="closure if the start is Gaussian and the law keeps it so, else pair",
        ),
    ] = None
    measures: Annotated[str, study_option("NAME,...", "Measures of rates: w2, sliced, energy, mean, covariance.")] = (
        "w2,sliced,energy,mean,covariance"
    )
    raw: Annotated[bool, study_option("", "Do not set the moments of each draw to those of the Gaussian.", "--raw")] = (
        False
    )
    order: Annotated[float, study_option("P", "Order of the distance for stability.")] = 2.0
    apart: Annotated[float, study_option("X", "Relative displacement of the second start for stability.")] = 0.1
    rtol: Annotated[float, study_option("X", "Relative error of a step.")] = 1e-6


@dataclass(frozen=True)
class StartOptions:
    """The distribution of the initial tokens."""

    dim: Annotated[
        int | None, start_option("D", "Dimension.", "--dim", "-d", default="that of the files, or 2; blow-up: 1")
    ] = None
    start: Annotated[
        str | None,
        start_option(
            "NAME",
            "gaussian, uniform, ball, box, shell:0.8, ellipse:2,1, mixture:3, student:5 or laplace.",
            default="ball; blow-up: gaussian",
        ),
    ] = None
    spread: Annotated[
        float | None,
        start_option(
            "X",
            "Scale of the start; for gaussian, its standard deviation.",
            default="1; blow-up: 0.7071, for a time of 1",
        ),
    ] = None
    mean: Annotated[
        str | None, start_option("X,X,...|FILE", "Mean of --start gaussian: numbers, or a file.", default="0")
    ] = None
    covariance: Annotated[
        str | None,
        start_option("X,X;X,X|FILE", "Its covariance: rows separated by semicolons, or a file.", default="spread^2 I"),
    ] = None
    seed: Annotated[int, seed_option("Seed of all random draws.", "Start")] = 0


@dataclass(frozen=True)
class Problem:
    """A law, numbers of tokens, and a start that is a Gaussian or a name."""

    law: Attention
    dim: int
    sizes: list[int]
    repeats: int
    start: str
    gaussian: Gaussian | None
    study: StudyOptions
    spread: float
    seed: int


@with_options(StudyOptions, StartOptions, LawOptions, FigureOptions)
def meanfield(
    context: typer.Context, study: StudyOptions, start: StartOptions, law: LawOptions, output: FigureOptions
) -> None:
    """Measure the mean-field limit: the rates at which n tokens approach it, its stability, and tokens past a blow-up.

    Without options: tokens of the unit disc under isotropic softmax attention until t = 1, two independent systems of each size, with
    the slopes in n of five distances. Results go to stdout, progress and errors to stderr.
    """
    check_numbers(context)
    check_study(context, study.study)
    if output.plot is not None:
        check_figure(output.plot, still=True)
    problem = build_problem(study, start, law, context)
    with output.show_progress("mean field", count=False) as update:
        found = run_study(problem, lambda share, text: update(share, 1.0, text))
    if output.plot is not None:
        found.plot(output.plot)
    values = {**asdict(study), **asdict(start), **asdict(law)}
    arguments = {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
    document: dict[str, Any] = {"arguments": arguments, "study": study.study, **result_document(found)}
    outputs = Outputs.given([output.plot])
    print_result(output, SCHEMA, command_line(context), document, outputs, lambda: print_found(found, problem))


def check_study(context: typer.Context, name: str) -> None:
    check_name(name, STUDIES, "--study", "studies")
    for option, spelled in given(context).items():
        if BELONGS.get(option, name) != name:
            raise InputError(f"{spelled} belongs to --study {BELONGS[option]}, not to {name}")


def build_problem(study: StudyOptions, start: StartOptions, law: LawOptions, context: typer.Context) -> Problem:
    """Read files, which determine the dimension, and build the rest to fit them."""
    if study.study == "bifurcation":
        return _bifurcation_problem(study, start, law, context)
    sizes = [int(n) for n in parse_numbers(study.sizes or SIZES[study.study], "--sizes") if n == int(n)]
    if not sizes or min(sizes) < 2:
        raise InputError(f"--sizes must be whole numbers of at least 2 separated by commas, got {study.sizes}")
    matrices = read_law(law)
    arrays = {} if start.mean is None else {"mean": read_vector(start.mean, "--mean")}
    if start.covariance is not None:
        arrays["covariance"] = read_array(Path(start.covariance), "--covariance")
    dims = [
        part.shape[-1] for name, part in (*matrices.items(), *arrays.items()) if name in ("query", "mean", "covariance")
    ]
    dim = start.dim or (dims[0] if dims else DIM[study.study])
    name = start.start or ("gaussian" if arrays or study.study == "blow-up" else "ball")
    if arrays and name != "gaussian":
        raise InputError(f"--mean and --covariance belong to --start gaussian, not to {name}")
    if study.until is not None and study.until <= 0:
        raise InputError(f"--until {study.until:g} is not after the start at t = 0: give a positive time")
    built = build_law(law, matrices, dim, sizes[-1])
    if built.dim != dim:
        raise InputError(f"--dim {dim} does not fit the law, which moves tokens of dimension {built.dim}")
    spread = SPREAD[study.study] if start.spread is None else start.spread
    gaussian = _gaussian(arrays, dim, spread) if name == "gaussian" else None
    repeats = study.repeats or REPEATS[study.study]
    return Problem(built, dim, sizes, repeats, name, gaussian, study, spread, start.seed)


def _bifurcation_problem(study: StudyOptions, start: StartOptions, law: LawOptions, context: typer.Context) -> Problem:
    """The law and the dimension; stationary densities have no start and no sizes."""
    allowed = {"study", "dim", "kernel", "beta", "plot", "json", "quiet", "progress", "debug", "out", "width"}
    other = [spelled for name, spelled in given(context).items() if name not in allowed]
    if other:
        raise InputError(f"--study bifurcation takes --beta, --kernel and --dim: leave out {', '.join(other)}")
    dim = DIM["bifurcation"] if start.dim is None else start.dim
    if dim < 2:
        raise InputError(f"the sphere needs a dimension of at least 2, got --dim {dim}")
    return Problem(build_law(law, {}, dim, 1), dim, [1], 1, "none", None, study, 1.0, 0)


def _gaussian(arrays: dict[str, Any], dim: int, spread: float) -> Gaussian:
    import torch

    from attractor.states import Gaussian

    mean = arrays.get("mean", torch.zeros(dim, dtype=torch.float64))
    return Gaussian(mean, arrays.get("covariance", spread**2 * torch.eye(dim, dtype=torch.float64)))


def run_study(problem: Problem, progress: Any) -> Any:
    """Run the study."""
    studies = {"rates": _rates, "stability": _stability, "blow-up": _blow_up, "bifurcation": _bifurcation}
    return studies[problem.study.study](problem, progress)


def _draw(problem: Problem, n: int, seed: int, ensemble: int) -> Tokens:
    from attractor.meanfield import sample
    from attractor.states import Tokens

    if problem.gaussian is not None:
        return sample(problem.gaussian, n, seed, ensemble=ensemble)
    return Tokens.sample(problem.start, n, problem.dim, seed, problem.spread, ensemble)


def _rates(problem: Problem, progress: Any) -> Any:
    from attractor.laws import closure_obstacle
    from attractor.meanfield import measure_rates

    options = problem.study
    closed = problem.gaussian is not None and not closure_obstacle(problem.law)
    against: Any = options.against or ("closure" if closed else "pair")
    if against not in ("closure", "pair"):
        if not against.isdigit():
            raise InputError(f"--against must be closure, pair or a number of tokens, got {against!r}")
        against = int(against)
    return measure_rates(
        problem.law,
        partial(_draw, problem) if problem.gaussian is None else problem.gaussian,
        until=1.0 if options.until is None else options.until,
        sizes=problem.sizes,
        repeats=problem.repeats,
        against=against,
        measures=[name.strip() for name in options.measures.split(",") if name.strip()],
        whitened=not options.raw,
        seed=problem.seed,
        progress=progress,
        rtol=options.rtol,
    )


def _stability(problem: Problem, progress: Any) -> Any:
    from attractor.meanfield import measure_stability, perturb

    options = problem.study
    if len(problem.sizes) > 1:
        raise InputError(f"--study stability takes one number of tokens, got --sizes {options.sizes}")
    progress(0.0, f"{problem.repeats} pairs of {problem.sizes[0]:,} tokens")
    first = _draw(problem, problem.sizes[0], problem.seed, problem.repeats)
    second = perturb(first, options.apart, problem.seed)
    until = 1.0 if options.until is None else options.until
    return measure_stability(problem.law, first, second, until=until, p=options.order, rtol=options.rtol)


def _blow_up(problem: Problem, progress: Any) -> Any:
    from attractor.meanfield import SHARES, simulate_past_blow_up

    if problem.gaussian is None:
        raise InputError(
            f"--study blow-up starts from --start gaussian, whose blow-up it passes, not from {problem.start}"
        )
    end = 1.2 if problem.study.until is None else problem.study.until
    shares = [share for share in SHARES if share < end] + [end]
    options = {"sizes": problem.sizes, "repeats": problem.repeats, "shares": shares, "seed": problem.seed}
    return simulate_past_blow_up(problem.law, problem.gaussian, progress=progress, rtol=problem.study.rtol, **options)


def _bifurcation(problem: Problem, progress: Any) -> Any:
    from attractor.meanfield import stationary_branch

    beta = problem.law.beta
    if beta is None:
        raise InputError("--study bifurcation needs an isotropic law: give --beta")
    progress(0.0, "stationary densities")
    return stationary_branch(beta, problem.law.kernel.label, problem.dim)
