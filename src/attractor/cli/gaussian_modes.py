"""What ``attractor gaussian`` can be asked: each question returns its report, with lines for people beside the data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attractor.cli.bars import counted
from attractor.cli.gaussian import ManyOptions, ResultOptions, StartOptions, read_start
from attractor.cli.groups import numbers
from attractor.cli.law import LawOptions
from attractor.cli.printing import number
from attractor.errors import InputError


def one(start: StartOptions, law: LawOptions, many: ManyOptions, results: ResultOptions) -> dict[str, Any]:
    """One Gaussian, followed until a time or its blow-up."""
    from attractor.flow import flow
    from attractor.flow.summary import strict, summary

    moved, state = read_start(start, law)
    if start.save is not None:
        save: Any = numbers(start.save, "--save")
    else:
        save = None
    until = max(start.until, save[-1]) if save else start.until
    run = flow(moved, state, until=until, save=save, rtol=start.rtol, progress=bool(results.progress))
    shown = range(len(run.times)) if save else (0, len(run.times) - 1)
    states = [{"time": float(run.times[k]), **_moments(run.means[k], run.covariances[k])} for k in shown]
    report = {**summary(run), "states": states, "final": _moments(run.final.mean, run.final.covariance)}  # type: ignore[union-attr]
    report["bounds"] = _bounds(moved, state)
    report.pop("observables")
    if results.plot is not None:
        _plot_run(run, results)
    end = run.outcome
    rows = {"law": repr(moved), "evaluations": f"{run.stats.evaluations:,}"}
    if report["bounds"]:
        rows["T* between"] = " and ".join(
            number(side) for side in (report["bounds"]["lower"], report["bounds"]["upper"])
        )
    for state_row in states:
        mean, values = (", ".join(number(x) for x in state_row[name]) for name in ("mean", "eigenvalues"))
        rows[f"t = {number(state_row['time'])}"] = f"mean ({mean}), eigenvalues of the covariance ({values})"
    title = f"{end.name.replace('_', ' ').capitalize()} at t = {end.time:.12g}: {end.message}."
    return {
        **strict(report),
        "lines_for_people": [(title, rows)],
        "view": lambda section: pages().add_gaussian(section, run),
    }


def pages() -> Any:
    """What draws in reports, which not every run needs."""
    from attractor.cli import gaussianpage

    return gaussianpage


def _moments(mean: Any, covariance: Any) -> dict[str, Any]:
    values = np.linalg.eigvalsh(covariance.numpy())[::-1]
    return {"mean": mean.tolist(), "covariance": covariance.tolist(), "eigenvalues": np.maximum(values, 0.0).tolist()}


def _bounds(law: Any, state: Any) -> dict[str, Any] | None:
    """The a-priori interval of the blow-up time, where there is one."""
    from attractor.attention import Attention
    from attractor.errors import UnsupportedError
    from attractor.meanfield import blow_up_bounds

    if not isinstance(law, Attention):
        return None
    try:
        found = blow_up_bounds(law, state)
    except UnsupportedError:
        return None
    if not math.isfinite(found.upper):
        return None
    return {"lower": found.lower, "upper": found.upper}


def _plot_run(run: Any, results: ResultOptions) -> None:
    from attractor.pictures.spectrum import draw_spectrum

    values = np.maximum(np.linalg.eigvalsh(run.covariances.numpy()), 0.0)[:, ::-1]
    blown = run.outcome.time if run.outcome.name == "blow_up" else None
    title = f"A Gaussian under {run.law!r}" if run.law is not None else "A Gaussian"
    draw_spectrum(
        run.times.numpy(), values, run.means.numpy(), results.plot, end=blown, title=title, caption=str(run.outcome)
    )


def phase(start: StartOptions, law: LawOptions, many: ManyOptions, results: ResultOptions) -> dict[str, Any]:
    """Where covariances of trace one go."""
    from attractor.meanfield.phase import phase as follow

    moved, _ = read_start(start, law)
    with counted("phase", results.progress, results.quiet) as show:
        found = follow(moved, many.grid, progress=show)
    summary = found.summary()
    if results.plot is not None:
        _plot_phase(found, results, f"Covariances under {moved!r}", _sentence(summary))
    lines = [(f"{summary['starts']} starts of trace one", _rows(summary))]
    return {
        "phase": summary,
        "lines_for_people": lines,
        "view": lambda part: _phase_view(part, found, _sentence(summary)),
    }


def _plot_phase(found: Any, results: ResultOptions, title: str, caption: str) -> None:
    from attractor.pictures.cone import draw_cone

    draw_cone(_ways(found), [one.kind for one in found.limits], results.plot, title=title, caption=caption)


def _ways(found: Any) -> list[np.ndarray]:
    """Paths in the disc of covariances of trace one."""
    from attractor.meanfield.phase import cone

    pairs = zip(found.starts, found.limits, strict=True)
    return [cone(np.concatenate((start[None], one.path))) for start, one in pairs]


def _phase_view(section: Any, found: Any, words: str) -> None:
    pages().add_phase(section, _ways(found), [one.kind for one in found.limits], words)


def _sentence(summary: dict[str, Any]) -> str:
    kinds = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in summary["kinds"].items())
    return f"Outcomes of {summary['starts']} starts: {kinds}. Small dots are starts, ringed dots ends."


def _rows(summary: dict[str, Any]) -> dict[str, str]:
    rows = {"outcomes": ", ".join(f"{count} {name}" for name, count in summary["kinds"].items())}
    if summary["ranks"]:
        rows["ranks"] = ", ".join(f"rank {rank}: {count}" for rank, count in summary["ranks"].items())
    if summary["lines"]:
        rows["lines"] = ", ".join(f"({number(line[0])}, {number(line[1])})" for line in summary["lines"])
    if summary["blow_up_times"]:
        rows["blow-up"] = " to ".join(f"t = {number(time)}" for time in summary["blow_up_times"])
    return rows


def blow_up_map(start: StartOptions, law: LawOptions, many: ManyOptions, results: ResultOptions) -> dict[str, Any]:
    """When covariances of trace one blow up."""
    from attractor.flow.summary import strict
    from attractor.meanfield import blow_up
    from attractor.meanfield.phase import cone, disc
    from attractor.pictures.heat import draw_map
    from attractor.states import Gaussian

    moved, _ = read_start(start, law)
    if moved.dim != 2:
        raise InputError(f"a blow-up map is one of covariances in the plane, the law has dimension {moved.dim}")
    starts, found = disc(many.grid), []
    with counted("blow-up", results.progress, results.quiet) as show:
        for index, covariance in enumerate(starts):
            found.append(blow_up(moved, Gaussian(np.zeros(2), covariance), max_evaluations=20_000))  # type: ignore[arg-type]
            show(index + 1, len(starts))
    times = np.array([one.time for one in found])
    finite = times[np.isfinite(times)]
    entries = [
        {"covariance": covariance.tolist(), "time": one.time, "direction": one.direction, "outcome": one.outcome}
        for covariance, one in zip(starts, found, strict=True)
    ]
    if results.plot is not None:
        title = "Blow-up times from trace one"
        draw_map(
            cone(starts)[:, :2], times, results.plot, title=title, caption=f"{moved!r}. Grey: no blow-up by t = 10000."
        )
    rows = {"blow up": f"{len(finite)} of {len(times)}"}
    if len(finite):
        rows |= {"first": f"t = {number(float(finite.min()))}", "last": f"t = {number(float(finite.max()))}"}
    lines = [(f"{len(times)} starts of trace one", rows)]
    places = cone(starts)[:, :2]
    return {
        **strict({"map": entries}),
        "lines_for_people": lines,
        "view": lambda part: pages().add_blow_up_map(part, places, times),
    }


def case(start: StartOptions, law: LawOptions, many: ManyOptions, results: ResultOptions) -> dict[str, Any]:
    """A published case: the outcome of an accurate integrator beside what the published code concludes."""
    from attractor.experiments.gaussian_study import study

    with counted(str(many.case), results.progress, results.quiet) as show:
        found = study(
            str(many.case), many.grid, official_scaling=many.official_scaling, emulate=many.emulate, progress=show
        )
    sections = [
        (f"{found.case.name}: claimed that {found.case.claim} ({found.case.draw})", {"claim": found.case.claim})
    ]
    for kernel, (phase_found, emulated) in found.found.items():
        rows = _rows(phase_found.summary())
        if emulated:
            rows["emulated"] = f"{emulated['words']} (published procedure: Euler, projection, cut 0.1)"
            rows["agree"] = "yes" if emulated["agrees"] else "no: " + emulated["difference"]
        sections.append((kernel, rows))
    if results.plot is not None:
        kernel = next(iter(found.found))
        _plot_phase(found.found[kernel][0], results, f"Case {found.case.name}, {kernel}", found.case.claim)

    def view(section: Any) -> None:
        for kernel, (phase_found, _) in found.found.items():
            _phase_view(
                section, phase_found, f"{kernel}: {_sentence(phase_found.summary())} Claimed: {found.case.claim}."
            )

    return {"case": found.summary(), "lines_for_people": sections, "view": view}


def ranks(start: StartOptions, law: LawOptions, many: ManyOptions, results: ResultOptions) -> dict[str, Any]:
    """Ranks of limits of random laws."""
    from attractor.experiments.gaussian_ranks import rank_histogram
    from attractor.pictures.bars import draw_counts

    dims = [int(dim) for dim in numbers(many.dims, "--dims")]
    if not dims or min(dims) < 2 or max(dims) > 12:
        raise InputError(f"--dims must be dimensions from 2 to 12, got {many.dims}")
    with counted("ranks", results.progress, results.quiet) as show:
        found = rank_histogram(
            law.kernel, many.value_kind, dims, many.draws, many.seed, emulate=many.emulate, progress=show
        )
    sections = []
    for dim in dims:
        rows = {"accurate": _counts(found.accurate[dim])}
        if many.emulate:
            rows["emulated"] = (
                f"{_counts(found.emulated[dim])} (published procedure; dropped: rank above {(dim + 1) // 2})"
            )
        rows["dim ker S"] = str(found.kernel_dimension[dim])
        sections.append((f"{law.kernel}, V {many.value_kind}, d = {dim}, {many.draws} draws", rows))
    panels = {
        f"d = {dim}": {
            "accurate": found.accurate[dim],
            **({"published procedure, emulated": found.emulated[dim]} if many.emulate else {}),
        }
        for dim in dims
    }
    title = f"Ranks of limits under {law.kernel} attention, V {many.value_kind}"
    caption = f"{many.draws} draws in each dimension, seed {many.seed}."
    if results.plot is not None:
        draw_counts(panels, results.plot, title=title, caption=caption)
    view = lambda part: pages().add_ranks(part, panels, f"{title.lower()}; {caption}")  # noqa: E731
    return {"ranks": found.summary(), "lines_for_people": sections, "view": view}


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{'rank ' if label.isdigit() else ''}{label}: {count}" for label, count in counts.items())
