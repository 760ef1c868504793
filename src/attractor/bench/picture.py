"""The picture of a benchmark: every ratio with its spread beside its target, and how costs grow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from attractor.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".pdf", ".svg")
ROW = 0.17  # inches
LABELS = {"n": "tokens n", "d": "dimension d", "beta": "inverse temperature beta"}


def known_suffix(path: Path) -> str:
    """The kind of picture that a path asks for."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: a benchmark is drawn as {', '.join(SUFFIXES)}, not as {path.suffix or 'nothing'!r}")
    return path.suffix.lower()


def draw(report: dict[str, Any], path: Path) -> Path:
    """Write the picture of a report."""
    from attractor.pictures import style
    from attractor.pictures.figure import picture_class, save
    from attractor.pictures.writing import atomic, target

    suffix, place, figure_class = known_suffix(path), target(path), picture_class()
    rows = [
        (result["name"], entry)
        for result in report["contests"]
        for entry in result["contenders"]
        if entry["ratio"] is not None
    ]
    grown = [curve for curve in report["growth"] if curve["status"] == "timed"]
    variables = [name for name in LABELS if any(curve["variable"] == name for curve in grown)]
    with style.applied():
        names = 2 * len({name for name, _ in rows})
        tall = max(1.0, ROW * (len(rows) + names) + 0.6) if rows else 0.0
        height = tall + (2.6 if variables else 0.0) + 0.4
        figure = figure_class(figsize=(7.5, height))
        figure.text(0.01, 1 - 0.12 / height, _title(report), va="top", fontsize=7, parse_math=False)
        if rows:
            _ratios(figure.add_axes((0.42, (height - tall) / height + 0.02, 0.55, (tall - 0.6) / height)), rows)
        for place_number, variable in enumerate(variables):
            axes = figure.add_axes((0.09 + 0.32 * place_number, 0.45 / height, 0.22, 1.75 / height))
            _growth(axes, variable, [curve for curve in grown if curve["variable"] == variable])
        with atomic(place) as temporary:
            save(figure, temporary, 200, suffix[1:])
    return place


def _title(report: dict[str, Any]) -> str:
    machine = report["machine"]
    parts = [
        machine["processor"],
        machine["instruction_set"],
        f"{report['settings']['threads']} threads",
        machine["gpu"],
    ]
    kind = "quick run: sizes too small to say anything" if report["settings"]["quick"] else report["ended"]
    return ", ".join(str(part) for part in (*parts, kind) if part)


def _ratios(axes: Axes, rows: list[tuple[str, dict[str, Any]]]) -> None:
    from attractor.pictures import style

    height, before, ticks = 0.0, None, []
    for name, entry in rows:
        if name != before:
            height, before = height + 1.6, name
            axes.text(-0.02, height, name, transform=axes.get_yaxis_transform(), ha="right", va="center", fontsize=6,
                      fontweight="bold", parse_math=False)  # fmt: skip
            height += 1.0
        ratio, target = entry["ratio"], entry["target"]
        colour = style.PALETTE[2] if entry["met"] else style.PALETTE[1] if entry["met"] is False else style.QUIET
        axes.plot([ratio["least"], ratio["most"]], [height, height], color=colour, linewidth=1.0)
        axes.plot([ratio["median"]], [height], "o", color=colour, markersize=3.5)
        if target is not None:
            axes.plot([target["least"]], [height], "|", color=style.INK, markersize=8)
        ticks.append((height, entry["name"]))
        height += 1.0
    axes.set_xscale("log")
    axes.set_ylim(height, 0)
    axes.set_yticks([place for place, _ in ticks], [name for _, name in ticks], parse_math=False)
    axes.tick_params(axis="y", length=0, labelsize=6)
    axes.axvline(1.0, color=style.FAINT, linewidth=0.8, zorder=0)
    axes.grid(axis="x", color=style.HAIR, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.set_xlabel("time of the contender / our time (line: all rounds; |: target)")


def _growth(axes: Axes, variable: str, curves: list[dict[str, Any]]) -> None:
    from attractor.pictures import style

    for number, curve in enumerate(curves):
        label = f"{curve['name']}: slope {curve['slope']:.2f}, at the end {curve['tail']:.2f}"
        colour = style.PALETTE[number % len(style.PALETTE)]
        axes.loglog(curve["sizes"], curve["costs"], "o-", color=colour, markersize=2.5, linewidth=1.0, label=label)
    axes.set_xlabel(LABELS[variable])
    axes.set_ylabel(curves[0]["cost"])
    axes.legend(fontsize=4.2, frameon=False, loc="lower left", bbox_to_anchor=(-0.3, 1.0), borderpad=0)
