"""Small multiples of curves: data in, one captioned figure out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attractor.errors import InputError
from attractor.pictures import style
from attractor.pictures.figure import picture_class, save, wrap
from attractor.pictures.writing import atomic, target

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".pdf", ".svg")
HEIGHT, LEFT, GAP, FOOT, LINE = 2.3, 0.72, 0.72, 0.55, 0.135  # inches


@dataclass(frozen=True)
class Curve:
    """``y`` over ``x``; ``dashed`` for what was predicted, ``dots`` for points that no line joins."""

    x: Sequence[float]
    y: Sequence[float]
    name: str = ""
    dashed: bool = False
    dots: bool = False


@dataclass(frozen=True)
class Panel:
    """Curves over one pair of axes; ``circle`` draws the unit circle and keeps the aspect."""

    curves: tuple[Curve, ...]
    x: str = "time"
    y: str = ""
    title: str = ""
    log_x: bool = False
    log_y: bool = False
    circle: bool = False


def draw_panels(
    panels: Sequence[Panel], title: str, caption: str, path: str | os.PathLike[str] | None = None, dpi: int = 200
) -> Any:
    """The panels side by side as a figure, or the path it was written to (.png, .pdf or .svg)."""
    if path is not None and Path(path).suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: this picture is written as {', '.join(SUFFIXES)}")
    with style.applied():
        figure = _compose(panels, title, caption)
        if path is None:
            return figure
        place = target(path)
        with atomic(place) as temporary:
            save(figure, temporary, dpi, place.suffix.lower()[1:])
        return place


def _compose(panels: Sequence[Panel], title: str, caption: str) -> Figure:
    width = style.COLUMNS["two"]
    titles, lines = wrap(title, width, size=11.0), wrap(caption, width)
    top, foot = 0.3 + 0.19 * len(titles), 0.14 + LINE * len(lines)
    height = top + HEIGHT + FOOT + foot
    figure = picture_class()(figsize=(width, height))
    for row, line in enumerate(titles):
        place = 1 - (0.09 + 0.19 * row) / height
        figure.text(0.1 / width, place, line, size=9.5, weight="bold", va="top", ha="left", parse_math=False)
    for row, line in enumerate(reversed(lines)):
        place = (0.08 + LINE * row) / height
        figure.text(0.1 / width, place, line, size=6.5, color=style.QUIET, va="bottom", ha="left", parse_math=False)
    each = (width - LEFT - 0.12 - GAP * (len(panels) - 1)) / len(panels)
    for index, panel in enumerate(panels):
        left, bottom = LEFT + index * (each + GAP), foot + FOOT
        axes = figure.add_axes((left / width, bottom / height, each / width, HEIGHT / height))
        _fill(axes, panel)
    return figure


def _fill(axes: Any, panel: Panel) -> None:
    if panel.circle:
        turn = np.linspace(0.0, 2 * np.pi, 200)
        axes.plot(np.cos(turn), np.sin(turn), color=style.HAIR, linewidth=0.8, zorder=0)
        axes.set_aspect("equal")
    for index, curve in enumerate(panel.curves):
        look: dict[str, Any] = {"color": style.PALETTE[index % len(style.PALETTE)], "linewidth": 1.1}
        look |= {"linestyle": "--", "color": style.QUIET, "linewidth": 0.9} if curve.dashed else {}
        look |= {"linestyle": "", "marker": "o", "markersize": 3.2} if curve.dots else {}
        axes.plot(np.asarray(curve.x), np.asarray(curve.y), label=curve.name or None, **look)
    axes.set_xscale("log" if panel.log_x else "linear")
    axes.set_yscale("log" if panel.log_y else "linear")
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    axes.set_title(panel.title, loc="left")
    if any(curve.name for curve in panel.curves):
        axes.legend(fontsize=6, frameon=False, handlelength=1.6)
