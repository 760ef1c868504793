"""Small multiples of curves: data in, one captioned figure out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attractor.pictures import style
from attractor.pictures.still import Grid, Still, still_suffix, written
from attractor.pictures.time_axis import quantity

HEIGHT, ABOVE, BELOW = 2.3, 0.25, 0.5  # inches of a panel, of its title and of its time axis


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
    """The panels side by side (in one column, one below the other) as a figure, or the path it was written to."""
    if path is not None:
        still_suffix(path)
    with style.applied():
        grid = Grid.of(len(panels), 1.8, left=0.72, gap=0.72, right=0.12)
        tall = min(HEIGHT, 0.85 * grid.wide) if grid.across == 1 else HEIGHT
        page = Still(title, caption, grid.rows * (tall + ABOVE + BELOW))
        for number, panel in enumerate(panels):
            row, left = grid.place(number)
            _fill(page.panel(left, ABOVE + row * (tall + ABOVE + BELOW), grid.wide, tall), panel)
        return written(page.figure, path, dpi)


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
    for axis, logarithmic in ((axes.xaxis, panel.log_x), (axes.yaxis, panel.log_y)):
        if logarithmic:
            _plain_ticks(axis)
    if not panel.log_x and all(_whole(curve.x) for curve in panel.curves):
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))  # no half of a layer
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    axes.set_title(panel.title, loc="left")
    if any(curve.name for curve in panel.curves):
        axes.legend(fontsize=6, frameon=False, handlelength=1.6)


def _plain_ticks(axis: Any) -> None:
    """A few plain numbers where a logarithmic axis is shorter than a decade, and would label every tick 7.8 x 10^-1."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    low, high = axis.get_view_interval()
    if 0 < low < high < 10 * low:
        axis.set_major_locator(MaxNLocator(5))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: quantity(value)))


def _whole(values: Any) -> bool:
    """Whether all are whole numbers, such as layers, passes or steps."""
    found = np.asarray(values, dtype=float)
    return bool(np.all(np.isfinite(found))) and bool(np.all(found == np.round(found)))
