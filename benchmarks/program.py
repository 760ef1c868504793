"""The benchmark program: rows, report and figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attractor.cli.environment import source_commit
from attractor.errors import InputError
from attractor.registry import unknown
from benchmarks import evaluations, gpu, gpu_solves, gradients, growth, machine, processes, solves
from benchmarks.racing import Contest, Settings, limit_threads, run_contest

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from attractor.plotting.drawing import StaticFigure

ROW, GROUP = 0.15, 0.34  # inches of a row, and of the name above a group of rows
AXIS = 0.42  # inches of the axis below
LABELS = {"n": "tokens n", "d": "dimension d", "beta": "inverse temperature beta"}
CAPTION = (
    "Dots: median over the rounds of (time of the contender) / (our time); lines: all rounds; bars: the target. "
    "Green: met, orange: missed, grey: no target."
)


def draw(report: dict[str, Any], path: Path | None = None) -> Any:
    """Draw a report: returns the figure, or the path it was written to."""
    from attractor.plotting import style
    from attractor.plotting.drawing import Grid, StaticFigure, static_suffix, write_chart
    from attractor.plotting.static import wrap
    from attractor.plotting.style import inches

    if path is not None:
        static_suffix(path)
    groups = {
        result["name"]: [entry for entry in result["contenders"] if entry["ratio"] is not None]
        for result in report["contests"]
    }
    groups = {name: entries for name, entries in groups.items() if entries}
    grown = [curve for curve in report["growth"] if curve["status"] == "timed"]
    variables = [name for name in LABELS if any(curve["variable"] == name for curve in grown)]
    with style.use_style():
        names = {name: wrap(name, inches(), size=6.5, bold=True) for name in groups}
        rows = sum(GROUP + 0.11 * (len(names[name]) - 1) + ROW * len(groups[name]) for name in groups)
        tall = rows + AXIS if groups else 0.0
        grid = Grid.of(len(variables) or 1, 1.5, left=0.55, gap=0.6)
        step = 2.1 + 0.19 * max((len([c for c in grown if c["variable"] == name]) for name in variables), default=0)
        page = StaticFigure(
            _title(report), CAPTION if groups else "", tall + 0.15 + (step * grid.rows if variables else 0.0)
        )
        if groups:
            _ratios(page, groups, names, rows)
        for number, variable in enumerate(variables):
            row, left = grid.place(number)
            axes = page.panel(left, tall + 0.15 + step * (row + 1) - 1.9, grid.wide, 1.5)
            _growth(axes, variable, [curve for curve in grown if curve["variable"] == variable])
        return write_chart(page.figure, path)


def _title(report: dict[str, Any]) -> str:
    found = report["machine"]
    parts = [found["processor"], found["instruction_set"], f"{report['settings']['threads']} threads", found["gpu"]]
    kind = "quick run: sizes too small to say anything" if report["settings"]["quick"] else report["ended"]
    return ", ".join(str(part) for part in (*parts, kind) if part)


def _ratios(
    page: StaticFigure, groups: dict[str, list[dict[str, Any]]], names: dict[str, list[str]], rows: float
) -> None:
    from attractor.plotting import style

    contenders = [entry["name"] for entries in groups.values() for entry in entries]
    labels = [page.figure.text(0, 0, name, fontsize=6, parse_math=False) for name in contenders]
    left = max(label.get_window_extent().width for label in labels) / page.figure.dpi + 0.25
    axes = page.panel(left, 0.0, page.width - left - 0.15, rows)
    height, ticks = 0.0, []
    for name, entries in groups.items():
        # each name has its own line from the left edge, so that long names are not cut
        height += GROUP - 0.11
        for line in names[name]:
            place = (0.1 / page.width, 1 - (page.top + height + 0.02) / page.height)
            page.figure.text(*place, line, va="center", fontsize=6.5, fontweight="bold", parse_math=False)
            height += 0.11
        for entry in entries:
            _ratio(axes, height + ROW / 2, entry)
            ticks.append((height + ROW / 2, entry["name"]))
            height += ROW
    for label in labels:
        label.remove()
    axes.set_xscale("log")
    axes.set_ylim(rows, 0)
    axes.set_yticks([place for place, _ in ticks], [name for _, name in ticks], parse_math=False)
    axes.tick_params(axis="y", length=0, labelsize=6)
    axes.spines["left"].set_visible(False)
    axes.axvline(1.0, color=style.FAINT, linewidth=0.8, zorder=0)
    axes.grid(axis="x", color=style.HAIR, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.set_xlabel("time of the contender / our time")


def _ratio(axes: Axes, height: float, entry: dict[str, Any]) -> None:
    from attractor.plotting import style

    ratio, target = entry["ratio"], entry["target"]
    colour = style.PALETTE[2] if entry["met"] else style.PALETTE[1] if entry["met"] is False else style.QUIET
    axes.plot([ratio["least"], ratio["most"]], [height, height], color=colour, linewidth=1.0)
    axes.plot([ratio["median"]], [height], "o", color=colour, markersize=3.5)
    if target is not None:
        axes.plot([target["least"]], [height], "|", color=style.INK, markersize=8)


def _growth(axes: Axes, variable: str, curves: list[dict[str, Any]]) -> None:
    from attractor.plotting import style

    for number, curve in enumerate(curves):
        label = f"{curve['name']}\nslope {curve['slope']:.2f}, at the end {curve['tail']:.2f}"
        colour = style.PALETTE[number % len(style.PALETTE)]
        axes.loglog(curve["sizes"], curve["costs"], "o-", color=colour, markersize=2.5, linewidth=1.0, label=label)
    axes.set_xlabel(LABELS[variable])
    axes.set_ylabel(curves[0]["cost"])
    axes.legend(fontsize=5, frameon=False, loc="lower left", bbox_to_anchor=(-0.2, 1.0), borderpad=0, handlelength=1.2)


SCHEMA = "benchmarks/1"
ProgressCallback = Callable[[float, str], None]  # share that is done, and what is being done
Keep = Callable[[dict[str, Any]], None]  # receives the report so far

CONTESTS: dict[str, Callable[[Settings], list[Contest]]] = {
    "evaluation": evaluations.evaluation_contests,
    "solves": solves.contests,
    "small": solves.small_contests,
    "gradients": gradients.contests,
    "phase": gradients.phase_contests,
    "merging": solves.merging_contests,
    "stiff": solves.stiff_contests,
    "noise": solves.noise_contests,
    "spectral": evaluations.spectral_contests,
    "ensembles": evaluations.ensemble_contests,
    "processes": processes.contests,
    "gpu": gpu.contests,
    "gpu_solves": gpu_solves.contests,
    "gpu_gradients": gpu_solves.gradient_contests,
    "gpu_noise": gpu_solves.noise_contests,
    "gpu_phase": gpu_solves.phase_contests,
}
GROUPS = (*CONTESTS, "growth")
GPU = ("gpu", "gpu_solves", "gpu_gradients", "gpu_noise", "gpu_phase")
CPU = tuple(name for name in GROUPS if name not in GPU)


def choose_rows(names: Iterable[str]) -> tuple[str, ...]:
    """Groups by name, in the order of the table."""
    names = list(names)
    for name in names:
        if name not in GROUPS:
            raise unknown(name, GROUPS, "row")
    if not names:
        raise InputError(f"no rows are named; the rows are {', '.join(GROUPS)}")
    return tuple(name for name in GROUPS if name in names)


def benchmark(
    groups: Iterable[str],
    settings: Settings,
    progress: ProgressCallback = lambda share, text: None,
    keep: Keep = lambda report: None,
    command: str = "",
) -> dict[str, Any]:
    """Run the groups and return the report, which JSON can hold; ``keep`` receives the report after every contest."""
    groups = choose_rows(groups)
    contests = [contest for name in groups if name in CONTESTS for contest in CONTESTS[name](settings)]
    curves = growth.curves(settings) if "growth" in groups else []
    head = {
        "schema": SCHEMA,
        "command": command,
        "began": machine.timestamp(),
        "settings": {"rows": list(groups), **asdict(settings)},
        "machine": machine.describe_machine(),
        "versions": machine.versions(),
        "commit": source_commit(),
    }
    results: list[dict[str, Any]] = []
    grown: list[dict[str, Any]] = []

    def report() -> dict[str, Any]:
        done = len(results) + len(grown) == len(contests) + len(curves)
        body = {"ceilings": limits, "contests": results, "growth": grown, "summary": summary(results)}
        return {**head, "ended": machine.timestamp(), "finished": done, **body}

    with limit_threads(settings.threads):
        progress(0.0, "ceilings of the machine")
        limits = machine.measure_ceilings(groups, settings, GPU)
        for number, item in enumerate([*contests, *curves]):
            tell = _teller(progress, number / (len(contests) + len(curves)), item.name)
            if isinstance(item, Contest):
                limit = machine.limit(limits[item.device], item.dtype, item.dim)
                results.append(run_contest(item, settings, limit, tell))
            else:
                grown.append(growth.measure(item, settings, tell))
            keep(report())
    return report()


def _teller(progress: ProgressCallback, share: float, name: str) -> Callable[[str], None]:
    return lambda text: progress(share, f"{name}: {text}")


def summary(results: list[dict[str, Any]]) -> dict[str, int]:
    """Numbers of targets met and missed, and of contenders skipped, wrong or failed."""
    entries = [entry for result in results for entry in result["contenders"]]
    counted = {"met": sum(entry["met"] is True for entry in entries), "missed": sum(map(is_missed, entries))}
    return counted | {
        status: sum(entry["status"] == status for entry in entries) for status in ("skipped", "wrong", "failed")
    }


def is_missed(entry: dict[str, Any]) -> bool:
    """Whether a measured target was not met, or our own contender was wrong or failed."""
    return entry["met"] is False or (entry["ours"] and entry["status"] in ("wrong", "failed"))
