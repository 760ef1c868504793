"""``attractor meanfield``."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import partial, singledispatch
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from attractor.cli.console import Written, ending, print_rows
from attractor.cli.inputs import check_picture
from attractor.cli.options import PictureOptions, check_numbers, given, grouped, numbers, panel, replay
from attractor.cli.system_options import LawOptions, build_law, read_law, read_matrix, read_vector
from attractor.errors import InputError
from attractor.meanfield import LABELS, PastBlowUp, Rates, Stability
from attractor.progress import progress_bar
from attractor.registry import check_name

if TYPE_CHECKING:
    from attractor.laws import Attention
    from attractor.states import Gaussian, Tokens


@singledispatch
def document(found: Any) -> dict[str, Any]:
    """The result, ready for JSON."""
    raise NotImplementedError


@document.register(Rates)
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


@document.register(Stability)
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


@document.register(PastBlowUp)
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


def print_found(found: Any, question: Question, written: Written, command: str) -> None:
    """A table, what is worth a warning, and where things are."""
    table(found, question)
    notes = {f"note {number}" if number > 1 else "note": note for number, note in enumerate(found.notes, 1)}
    if notes:
        print_rows("", notes)
    written.tell(command)


@singledispatch
def table(found: Any, question: Question) -> None:
    raise NotImplementedError


@table.register(Rates)
def _rates_table(found: Rates, question: Question) -> None:
    against = {"closure": "the Gaussian closure", "pair": "an independent system of the same size"}
    reference = against.get(str(found.against), f"{found.against} tokens")
    print_rows(
        f"Root mean square errors at t = {found.until:g} against {reference}, {found.repeats} runs each.",
        {"law": str(question.law), "start": question.start, **_errors(found)},
    )
    rows = {LABELS[name]: _slope(slope) for name, slope in found.slopes.items()}
    print_rows("Slopes in n, with 95% intervals", rows)
    if len(found.tilt):
        print_rows("", {"tilt": f"{found.tilt[0]:.3g} at the start, {found.tilt.max():.3g} at most"})


@table.register(Stability)
def _stability_table(found: Stability, question: Question) -> None:
    constants, last = found.constants, found.times[-1]
    kind = "bound" if found.explicit else "estimate"
    influence = "no formula" if constants.influence is None else f"{constants.influence:.4g}"
    factor = f" times {constants.hardy:.3g} (Hardy)" if constants.hardy != 1.0 else ""
    distance = "conditional W" if question.law.mask is not None else "W"
    ends = found.distance[0].mean(), found.distance[-1].mean()
    rows = {
        "law": str(question.law),
        "start": f"{question.start}, {found.radius.shape[1]} pairs of {question.sizes[0]:,} tokens",
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


@table.register(PastBlowUp)
def _beyond_table(found: PastBlowUp, question: Question) -> None:
    shown = [int(np.abs(found.times / found.blow_up - share).argmin()) for share in (0.0, 0.5, 0.9, 1.0, 1.2)]
    shown = list(dict.fromkeys(shown))
    rows = {
        "t / T*": "".join(f"{found.times[k] / found.blow_up:>12.4g}" for k in shown),
        "Gaussian": "".join(f"{found.gaussian[k]:>12.4g}" for k in shown),
    }
    for index, n in enumerate(found.sizes):
        rows[f"n = {n:,}"] = "".join(f"{found.median[index, k]:>12.4g}" for k in shown)
        low, high = found.variance[index].min(0), found.variance[index].max(0)
        rows[f"  range, {n:,}"] = "".join(f"{f'{low[k]:.3g}-{high[k]:.3g}':>12}" for k in shown)
    title = f"The Gaussian blows up at T* = {found.blow_up:.8g}; total variance of tokens (median of {found.variance.shape[1]} draws)."
    print_rows(title, {"law": str(question.law), **rows})


def _errors(found: Rates) -> dict[str, str]:
    head = "".join(f"{size:>12,}" for size in found.sizes)
    rows = {"tokens": head}
    for name in found.errors:
        rows[LABELS[name]] = "".join(f"{value:>12.3e}" for value in found.rms(name))
    return rows


def _slope(slope: Any) -> str:
    if not math.isfinite(slope.value):
        return "none: exact at some n"
    interval = f"   {slope.low:+.2f} to {slope.high:+.2f}" if math.isfinite(slope.low) else ""
    return f"{slope.value:+.2f}{interval}"


SCHEMA = "attractor.meanfield/1"
STUDIES = ("rates", "stability", "blow-up")
BELONGS = {"against": "rates", "measures": "rates", "raw": "rates", "order": "stability", "apart": "stability"}
SIZES = {"rates": "100,200,400,800", "stability": "100", "blow-up": "200,1000,5000"}
REPEATS = {"rates": 12, "stability": 6, "blow-up": 5}
DIM = {"rates": 2, "stability": 2, "blow-up": 1}
SPREAD = {"rates": 1.0, "stability": 1.0, "blow-up": 0.5**0.5}  # with the default law, the Gaussian blows up at t = 1
of_study, of_start, of_report = panel("Study"), panel("Start"), panel("Results")


@dataclass(frozen=True)
class StudyOptions:
    """What is measured."""

    study: Annotated[
        str,
        of_study(
            "NAME",
            "rates: errors of n tokens and their power of n; stability: how far two close measures part, beside the bound; "
            "blow-up: tokens near and past the time at which the Gaussian is infinite.",
        ),
    ] = "rates"
    until: Annotated[
        float | None,
        of_study(
            "T", "The time to reach; of blow-up, in units of that time.", "--until", "-t", default="1; blow-up: 1.2"
        ),
    ] = None
    sizes: Annotated[
        str | None, of_study("N,N,...", "Numbers of tokens.", default="; ".join(f"{k}: {v}" for k, v in SIZES.items()))
    ] = None
    repeats: Annotated[
        int | None, of_study("N", "Runs for each number of tokens.", min=1, default="12; stability: 6; blow-up: 5")
    ] = None
    against: Annotated[
        str | None,
        of_study(
            "WHAT",
            "closure (the Gaussian), pair (as many tokens again) or a larger number of tokens.",
            default="closure if the start is Gaussian and stays so, else pair",
        ),
    ] = None
    measures: Annotated[str, of_study("NAME,...", "Of rates: some of w2, sliced, energy, mean, covariance.")] = (
        "w2,sliced,energy,mean,covariance"
    )
    raw: Annotated[
        bool, of_study("", "Keep the moments of each draw instead of setting them to those of the Gaussian.", "--raw")
    ] = False
    order: Annotated[float, of_study("P", "Order of the distance of stability.")] = 2.0
    apart: Annotated[
        float, of_study("X", "How far the second start of stability is moved, as a share of the first.")
    ] = 0.1
    rtol: Annotated[float, of_study("X", "Relative error of a step.")] = 1e-6


@dataclass(frozen=True)
class StartOptions:
    """What the tokens are drawn from."""

    dim: Annotated[
        int | None, of_start("D", "Dimension.", "--dim", "-d", default="that of the files, or 2; blow-up: 1")
    ] = None
    start: Annotated[
        str | None,
        of_start(
            "NAME",
            "gaussian, uniform, ball, box, shell:0.8, ellipse:2,1, mixture:3, student:5 or laplace.",
            default="ball; blow-up: gaussian",
        ),
    ] = None
    spread: Annotated[
        float | None,
        of_start(
            "X",
            "Factor of the start; of gaussian, its standard deviation.",
            default="1; blow-up: 0.7071, for a time of 1",
        ),
    ] = None
    mean: Annotated[
        str | None, of_start("X,X,...|FILE", "Mean of --start gaussian: numbers, or a file.", default="0")
    ] = None
    covariance: Annotated[
        str | None,
        of_start("X,X;X,X|FILE", "Its covariance: rows separated by semicolons, or a file.", default="spread^2 I"),
    ] = None
    seed: Annotated[int, of_start("N", "Seed of everything random.", min=0)] = 0


@dataclass(frozen=True)
class ReportOptions:
    """What becomes of the figures."""

    json: Annotated[bool, of_report("", "Print one JSON object.", "--json")] = False
    plot: Annotated[Path | None, of_report("FILE", "Draw the result: .png, .pdf or .svg.")] = None
    quiet: Annotated[bool, of_report("", "Print nothing but errors (and the object of --json).", "--quiet", "-q")] = (
        False
    )
    progress: Annotated[
        bool | None, of_report("", "A bar on stderr.", "--progress/--no-progress", default="if stderr is a terminal")
    ] = None
    debug: Annotated[bool, of_report("", "Show the traceback of an error.", "--debug")] = False


@dataclass(frozen=True)
class Question:
    """The options, read: a law, sizes, and a start that is a Gaussian or a name."""

    law: Attention
    dim: int
    sizes: list[int]
    repeats: int
    start: str
    gaussian: Gaussian | None
    study: StudyOptions
    spread: float
    seed: int


@grouped(StudyOptions, StartOptions, LawOptions, ReportOptions, PictureOptions)
def meanfield(
    context: typer.Context,
    study: StudyOptions,
    start: StartOptions,
    law: LawOptions,
    report: ReportOptions,
    pictures: PictureOptions,
) -> None:
    """Measure the mean-field limit: the rates at which n tokens approach it, its stability, and tokens past a blow-up.

    Without options: tokens of the unit disc under isotropic softmax attention until t = 1, two independent systems of each size, with
    the slopes in n of five distances. Results go to stdout, progress and errors to stderr.
    """
    with ending("attractor meanfield", report.debug), pictures.sized():
        check_numbers(context)
        check_study(context, study.study)
        check_report(report)
        question = asked(study, start, law)
        with progress_bar("mean field", report.progress, report.quiet, count=False) as update:
            found = answer(question, lambda share, text: update(share, 1.0, text))
        if report.plot is not None:
            found.plot(report.plot)
        arguments = {**asdict(study), **asdict(start), **asdict(law)}
        tell(found, question, arguments, report, replay(context, without=("json", "quiet", "progress", "debug")))


def check_study(context: typer.Context, name: str) -> None:
    check_name(name, STUDIES, "--study", "studies")
    for option, spelled in given(context).items():
        if BELONGS.get(option, name) != name:
            raise InputError(f"{spelled} belongs to --study {BELONGS[option]}, not to {name}")


def check_report(report: ReportOptions) -> None:
    if report.plot is not None:
        check_picture(report.plot, still=True)


def asked(study: StudyOptions, start: StartOptions, law: LawOptions) -> Question:
    """Files first, since they know the dimension; then what is made to fit them."""
    sizes = [int(n) for n in numbers(study.sizes or SIZES[study.study], "--sizes") if n == int(n)]
    if not sizes or min(sizes) < 2:
        raise InputError(f"--sizes must be whole numbers of at least 2 separated by commas, got {study.sizes}")
    matrices = read_law(law)
    arrays = {} if start.mean is None else {"mean": read_vector(start.mean, "--mean")}
    if start.covariance is not None:
        arrays["covariance"] = read_matrix(start.covariance, "--covariance")
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
    return Question(built, dim, sizes, repeats, name, gaussian, study, spread, start.seed)


def _gaussian(arrays: dict[str, Any], dim: int, spread: float) -> Gaussian:
    import torch

    from attractor.states import Gaussian

    mean = arrays.get("mean", torch.zeros(dim, dtype=torch.float64))
    return Gaussian(mean, arrays.get("covariance", spread**2 * torch.eye(dim, dtype=torch.float64)))


def answer(question: Question, progress: Any) -> Any:
    """Run the study."""
    return {"rates": _rates, "stability": _stability, "blow-up": _blow_up}[question.study.study](question, progress)


def _draw(question: Question, n: int, seed: int, ensemble: int) -> Tokens:
    from attractor.meanfield import sample
    from attractor.states import Tokens

    if question.gaussian is not None:
        return sample(question.gaussian, n, seed, ensemble=ensemble)
    return Tokens.sample(question.start, n, question.dim, seed, question.spread, ensemble)


def _rates(question: Question, progress: Any) -> Any:
    from attractor.laws import closure_obstacle
    from attractor.meanfield import measure_rates

    options = question.study
    closed = question.gaussian is not None and not closure_obstacle(question.law)
    against: Any = options.against or ("closure" if closed else "pair")
    if against not in ("closure", "pair"):
        if not against.isdigit():
            raise InputError(f"--against must be closure, pair or a number of tokens, got {against!r}")
        against = int(against)
    return measure_rates(
        question.law,
        partial(_draw, question) if question.gaussian is None else question.gaussian,
        until=1.0 if options.until is None else options.until,
        sizes=question.sizes,
        repeats=question.repeats,
        against=against,
        measures=[name.strip() for name in options.measures.split(",") if name.strip()],
        whitened=not options.raw,
        seed=question.seed,
        progress=progress,
        rtol=options.rtol,
    )


def _stability(question: Question, progress: Any) -> Any:
    from attractor.meanfield import measure_stability, perturb

    options = question.study
    if len(question.sizes) > 1:
        raise InputError(f"--study stability takes one number of tokens, got --sizes {options.sizes}")
    progress(0.0, f"{question.repeats} pairs of {question.sizes[0]:,} tokens")
    first = _draw(question, question.sizes[0], question.seed, question.repeats)
    second = perturb(first, options.apart, question.seed)
    until = 1.0 if options.until is None else options.until
    return measure_stability(question.law, first, second, until=until, p=options.order, rtol=options.rtol)


def _blow_up(question: Question, progress: Any) -> Any:
    from attractor.meanfield import SHARES, simulate_past_blow_up

    if question.gaussian is None:
        raise InputError(
            f"--study blow-up starts from --start gaussian, whose blow-up it passes, not from {question.start}"
        )
    end = 1.2 if question.study.until is None else question.study.until
    shares = [share for share in SHARES if share < end] + [end]
    options = {"sizes": question.sizes, "repeats": question.repeats, "shares": shares, "seed": question.seed}
    return simulate_past_blow_up(
        question.law, question.gaussian, progress=progress, rtol=question.study.rtol, **options
    )


def tell(found: Any, question: Question, arguments: dict[str, Any], report: ReportOptions, command: str) -> None:
    """Print the result: one JSON object, or a table for people."""
    from attractor.cli.console import print_json
    from attractor.cli.environment import versions

    written = Written.of([report.plot])
    words = {name: str(value) if isinstance(value, Path) else value for name, value in arguments.items()}
    if report.json:
        head = {"schema": SCHEMA, "command": command, "arguments": words, "study": question.study.study}
        print_json({**head, **document(found), "written": written.row(), "versions": versions()})
    elif not report.quiet:
        print_found(found, question, written, command)
