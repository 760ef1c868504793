"""Heat maps of two parameters: values of cells, contour lines with the ends of intervals, predictions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attractor.plotting import style
from attractor.plotting.drawing import Grid, StaticFigure, static_suffix, write_chart
from attractor.plotting.time_axis import format_quantity

ABOVE, BELOW, BAR = 0.28, 0.46, 0.62  # inches above a panel, below it, and for the colour scale
MOST_LINES = 40  # values of a prediction that is drawn as steps
TEXTS = 12  # labels of an axis of texts that are written


@dataclass(frozen=True)
class HeatMap:
    """Values over a grid.

    Attributes
    ----------
    x, y : values of the axes, numbers or texts.
    values : (y, x), NaN where there is none.
    low, high : ends of intervals of the values, (y, x).
    title : of the panel.
    levels : values whose contour lines are drawn; dotted lines are those of ``low`` and ``high``.
    predicted : what theory expects, (y, x).
    lines : what theory expects on a finer grid, as x, y and values (y, x): dashed lines between its values.
    curve : a threshold as points (x, y).
    absent : (y, x), cells that are no part of a grid that was refined in places: they take the colour of the nearest cell. Other cells
        without a value stay grey.
    """

    x: Sequence[Any]
    y: Sequence[Any]
    values: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    title: str = ""
    levels: tuple[float, ...] = ()
    predicted: np.ndarray | None = None
    lines: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    curve: tuple[np.ndarray, np.ndarray] | None = None
    absent: np.ndarray | None = None

    @property
    def gaps(self) -> np.ndarray:
        """Which cells take the colour of the nearest one, (y, x)."""
        return np.zeros(self.values.shape, dtype=bool) if self.absent is None else self.absent


@dataclass(frozen=True)
class _Axis:
    """Places of the values of an axis: numbers at their value or its logarithm, texts at whole numbers."""

    centres: np.ndarray
    edges: np.ndarray
    log: bool
    labels: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, values: Sequence[Any]) -> _Axis:
        if not is_numeric(values):
            centres = np.arange(len(values), dtype=float)
            return cls(centres, np.arange(len(values) + 1) - 0.5, False, [str(value) for value in values])
        centres = np.asarray(values, dtype=float)
        log = len(centres) > 2 and bool((centres > 0).all()) and is_geometric(centres)
        places = np.log(centres) if log else centres
        if len(places) == 1:
            edges = places[0] + np.array([-0.5, 0.5])
        else:
            middle = 0.5 * (places[1:] + places[:-1])
            edges = np.concatenate([[1.5 * places[0] - 0.5 * places[1]], middle, [1.5 * places[-1] - 0.5 * places[-2]]])
        return cls(centres, np.exp(edges) if log else edges, log)


def is_numeric(values: Sequence[Any]) -> bool:
    """Whether all values are numbers."""
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)


def is_geometric(values: np.ndarray) -> bool:
    """Whether ratios of neighbours vary less than their differences."""
    ratios, gaps = np.diff(np.log(values)), np.diff(values)
    return bool(np.std(ratios) / abs(np.mean(ratios)) < 0.5 * np.std(gaps) / abs(np.mean(gaps)))


def fill_gaps(values: np.ndarray, gaps: np.ndarray) -> np.ndarray:
    """Return values (y, x) with the gaps filled from the nearest other cell, for grids that were refined in places."""
    if not gaps.any() or gaps.all():
        return values
    from scipy.ndimage import distance_transform_edt

    nearest = np.asarray(distance_transform_edt(gaps, return_distances=False, return_indices=True))
    return values[nearest[0], nearest[1]]


def draw_heat_maps(
    maps: Sequence[HeatMap],
    names: tuple[str, str],
    label: str,
    path: str | os.PathLike[str] | None = None,
    *,
    title: str = "",
    caption: str = "",
    dpi: int = 200,
) -> Any:
    """Draw heat maps side by side with one colour scale; return the figure, or the path it was written to.

    Parameters
    ----------
    maps : the panels.
    names : of the horizontal and of the vertical axis.
    label : of the colour scale.
    """
    if path is not None:
        static_suffix(path)
    finite = np.concatenate([one.values[np.isfinite(one.values)].ravel() for one in maps])
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    high = high if high > low else low + 1.0
    with style.use_style():
        from matplotlib.colors import LogNorm, Normalize

        norm = LogNorm(low, high) if low > 0 and high > 200 * low else Normalize(low, high)
        right = BAR + 0.1
        rows = Grid.of(len(maps), 1.5, left=0.55, gap=0.5, right=right).rows
        # rows of about the same length
        grid = Grid.of(len(maps), 1.5, left=0.55, gap=0.5, right=right, most=-(-len(maps) // rows))
        tall = min(grid.wide, 2.6)
        page = StaticFigure(title, caption, grid.rows * (tall + ABOVE + BELOW))
        drawn = None
        for number, one in enumerate(maps):
            row, left = grid.place(number)
            axes = page.panel(left, ABOVE + row * (tall + ABOVE + BELOW), grid.wide, tall)
            drawn = _draw(axes, one, norm)
            axes.set_xlabel(names[0])
            axes.set_ylabel(names[1] if left <= grid.left + 1e-9 else "")
            axes.set_title(one.title, loc="left")
        assert drawn is not None
        bar = page.figure.colorbar(drawn, cax=page.panel(style.inches() - BAR, ABOVE, 0.1, tall))
        bar.set_label(label)
        bar.outline.set_linewidth(0.4)
        return write_chart(page.figure, path, dpi)


def _draw(axes: Any, one: HeatMap, norm: Any) -> Any:
    x, y = _Axis.of(one.x), _Axis.of(one.y)
    shown = fill_gaps(np.where(np.isposinf(one.values), norm.vmax, one.values), one.gaps)
    axes.set_facecolor(style.HAIR)
    mesh = axes.pcolormesh(
        x.edges, y.edges, np.ma.masked_invalid(shown), norm=norm, cmap="viridis", rasterized=shown.size > 4000
    )
    for axis, place in ((axes.xaxis, x), (axes.yaxis, y)):
        if place.labels:
            step = -(-len(place.labels) // TEXTS)
            axis.set_ticks(place.centres[::step], labels=place.labels[::step])
    for scale, place in ((axes.set_xscale, x), (axes.set_yscale, y)):
        if place.log:
            scale("log")
    if x.log:
        axes.xaxis.set_major_formatter(lambda value, _: format_quantity(value))
    if y.log:
        axes.yaxis.set_major_formatter(lambda value, _: format_quantity(value))
    if min(shown.shape) > 1:
        for level in one.levels:
            for values, look in ((one.low, ":"), (one.high, ":"), (one.values, "-")):
                _contour(
                    axes,
                    x,
                    y,
                    None if values is None else fill_gaps(values, one.gaps),
                    level,
                    linestyles=look,
                    colors="white",
                )
    if one.lines is not None:
        _draw_lines(axes, *one.lines)
    if one.curve is not None:
        axes.plot(*one.curve, color=style.PALETTE[1], linewidth=1.0, linestyle="--")
    axes.set_xlim(x.edges[0], x.edges[-1])
    axes.set_ylim(y.edges[0], y.edges[-1])
    for side in axes.spines.values():
        side.set_visible(False)
    return mesh


def _draw_lines(axes: Any, x: np.ndarray, y: np.ndarray, values: np.ndarray) -> None:
    """Draw dashed lines between predicted values, whose numbers stand at the upper edge; at most nine lines of many values."""
    known = np.unique(values[np.isfinite(values)])
    steps = len(known) <= MOST_LINES
    levels = 0.5 * (known[1:] + known[:-1]) if steps else np.linspace(known[0], known[-1], 11)[1:-1]
    if len(levels) == 0:
        return
    look: dict[str, Any] = {"levels": levels, "colors": style.PALETTE[1], "linewidths": 0.9, "linestyles": "--"}
    drawn = axes.contour(x, y, np.ma.masked_invalid(values), **look)
    if not steps:
        axes.clabel(drawn, fontsize=5.5, fmt="%g")
        return
    edges = np.flatnonzero(np.diff(values[-1]) != 0)
    for first, last in zip([0, *(edges + 1)], [*edges, len(x) - 1], strict=True):
        if last - first > len(x) // 40:
            words = {"ha": "center", "va": "bottom", "fontsize": 6, "color": style.PALETTE[1]}
            place = {"transform": axes.get_xaxis_transform(), **words}
            axes.text(x[(first + last) // 2], 1.01, f"{values[-1, first]:g}", **place)


def _contour(axes: Any, x: _Axis, y: _Axis, values: np.ndarray | None, level: float, **look: Any) -> None:
    """Draw the contour line of a level, if it occurs."""
    if values is None or not (np.nanmin(values) < level < np.nanmax(values)):
        return
    wide = 0.9 if look["linestyles"] != ":" else 0.6
    axes.contour(x.centres, y.centres, np.ma.masked_invalid(values), levels=[level], linewidths=wide, **look)
