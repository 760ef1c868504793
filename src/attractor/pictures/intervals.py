"""Numbers with their intervals, row by row, in panels that share the rows: data in, one captioned figure out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attractor.errors import InputError
from attractor.pictures import style
from attractor.pictures.curves import SUFFIXES
from attractor.pictures.figure import picture_class, save, wrap
from attractor.pictures.writing import atomic, target

ROW, TOP, FOOT, LABELS, GAP, LINE = 0.22, 0.42, 0.5, 2.35, 0.18, 0.135  # inches


@dataclass(frozen=True)
class Interval:
    """A number between two ends; ``null`` is how far from zero chance alone takes it (drawn as a band)."""

    value: float
    low: float
    high: float
    null: float | None = None


@dataclass(frozen=True)
class Rows:
    """One panel: an interval for each of the shared rows, on an axis from ``-reach`` to ``reach``; what lies beyond is not seen."""

    title: str
    intervals: Sequence[Interval]
    reach: float = 1.05


def draw_intervals(
    names: Sequence[str],
    groups: Sequence[str],
    panels: Sequence[Rows],
    title: str,
    caption: str,
    x: str,
    path: str | os.PathLike[str],
    dpi: int = 200,
    labels: float = LABELS,
    grouped: bool = True,
) -> Path:
    """Rows ``names``, coloured by ``groups``, and a panel beside the other for each set of intervals.

    Names have ``labels`` inches, and say their group where it is ``grouped``."""
    if Path(path).suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: this picture is written as {', '.join(SUFFIXES)}")
    with style.applied():
        shown = [f"{name}  [{group}]" for name, group in zip(names, groups, strict=True)] if grouped else names
        figure = _compose(shown, groups, panels, title, caption, x, labels)
        place = target(path)
        with atomic(place) as temporary:
            save(figure, temporary, dpi, place.suffix.lower()[1:])
        return place


def _compose(
    names: Sequence[str],
    groups: Sequence[str],
    panels: Sequence[Rows],
    title: str,
    caption: str,
    x: str,
    labels: float,
) -> Any:
    width = style.COLUMNS["two"]
    titles, lines = wrap(title, width, size=11.0), wrap(caption, width)
    top, foot = TOP + 0.19 * len(titles), 0.14 + LINE * len(lines)
    body = ROW * len(names)
    height = top + body + FOOT + foot
    figure = picture_class()(figsize=(width, height))
    for row, line in enumerate(titles):
        place = 1 - (0.09 + 0.19 * row) / height
        figure.text(0.1 / width, place, line, size=9.5, weight="bold", va="top", ha="left", parse_math=False)
    for row, line in enumerate(reversed(lines)):
        place = (0.08 + LINE * row) / height
        figure.text(0.1 / width, place, line, size=6.5, color=style.QUIET, va="bottom", ha="left", parse_math=False)
    each = (width - labels - 0.12 - GAP * (len(panels) - 1)) / len(panels)
    order = list(dict.fromkeys(groups))
    colours = [style.PALETTE[order.index(group) % len(style.PALETTE)] for group in groups]
    for index, panel in enumerate(panels):
        left = labels + index * (each + GAP)
        axes = figure.add_axes((left / width, (foot + FOOT) / height, each / width, body / height))
        _fill(axes, panel, colours, x)
        axes.set_yticks(range(len(names)), names)
        if index:
            axes.set_yticklabels([])
    return figure


def _fill(axes: Any, panel: Rows, colours: Sequence[str], x: str) -> None:
    axes.axvline(0.0, color=style.FAINT, linewidth=0.7, zorder=0)
    for row, (one, colour) in enumerate(zip(panel.intervals, colours, strict=True)):
        if one.null is not None:
            axes.barh(row, 2 * one.null, left=-one.null, height=0.8, color=style.HAIR, linewidth=0, zorder=0)
        axes.plot((one.low, one.high), (row, row), color=colour, linewidth=1.3)
        axes.plot((one.value,), (row,), color=colour, marker="o", markersize=4)
    axes.set_ylim(len(panel.intervals) - 0.4, -0.6)
    axes.set_xlim(-panel.reach, panel.reach)
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel(x)
    axes.set_title(panel.title, loc="left")
    axes.tick_params(axis="y", length=0)
