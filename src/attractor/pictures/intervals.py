"""Numbers with their intervals, row by row, in panels that share the rows: data in, one captioned figure out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attractor.pictures import style
from attractor.pictures.still import Grid, Still, still_suffix, written

ROW, TOP, FOOT, GAP = 0.22, 0.25, 0.45, 0.18  # inches
LETTER = 0.56 * 6.5 / 72  # inches of a letter of a label


@dataclass(frozen=True)
class Interval:
    """A number between two ends; ``null`` is how far from zero chance alone takes it (drawn as a band)."""

    value: float
    low: float
    high: float
    null: float | None = None


@dataclass(frozen=True)
class Rows:
    """One panel: an interval for each of the shared rows."""

    title: str
    intervals: Sequence[Interval]


def draw_intervals(
    names: Sequence[str],
    groups: Sequence[str],
    panels: Sequence[Rows],
    title: str,
    caption: str,
    x: str,
    path: str | os.PathLike[str] | None = None,
    dpi: int = 200,
) -> Any:
    """Rows ``names``, coloured by ``groups``, and a panel beside the other (in one column, below it) for each set of intervals."""
    if path is not None:
        still_suffix(path)
    labels = [f"{name}  [{group}]" for name, group in zip(names, groups, strict=True)]
    order = list(dict.fromkeys(groups))
    colours = [style.PALETTE[order.index(group) % len(style.PALETTE)] for group in groups]
    with style.applied():
        room = 0.15 + LETTER * max(map(len, labels), default=0)
        grid = Grid.of(len(panels), 1.0, left=room, gap=GAP, right=0.12)
        tall = ROW * len(names)
        page = Still(title, caption, grid.rows * (TOP + tall + FOOT))
        for number, panel in enumerate(panels):
            row, left = grid.place(number)
            axes = page.panel(left, TOP + row * (TOP + tall + FOOT), grid.wide, tall)
            _fill(axes, panel, colours, x)
            axes.set_yticks(range(len(names)), [""] * len(names) if number % grid.across else labels, parse_math=False)
        return written(page.figure, path, dpi)


def _fill(axes: Any, panel: Rows, colours: Sequence[str], x: str) -> None:
    axes.axvline(0.0, color=style.FAINT, linewidth=0.7, zorder=0)
    for row, (one, colour) in enumerate(zip(panel.intervals, colours, strict=True)):
        if one.null is not None:
            axes.barh(row, 2 * one.null, left=-one.null, height=0.8, color=style.HAIR, linewidth=0, zorder=0)
        axes.plot((one.low, one.high), (row, row), color=colour, linewidth=1.3)
        axes.plot((one.value,), (row,), color=colour, marker="o", markersize=4)
    axes.set_ylim(len(panel.intervals) - 0.4, -0.6)
    axes.set_xlim(-1.05, 1.05)
    axes.set_xlabel(x)
    axes.set_title(panel.title, loc="left")
    axes.tick_params(axis="y", length=0)
