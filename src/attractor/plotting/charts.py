"""Charts with captions: curves, bars, bounds, decays and intervals."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attractor.plotting import style
from attractor.plotting.drawing import Grid, StaticFigure, static_suffix, write_chart
from attractor.plotting.time_axis import format_quantity

HEIGHT, ABOVE, BELOW = 2.3, 0.25, 0.5  # inches of a panel, of its title and of its time axis


@dataclass(frozen=True)
class Curve:
    """``y`` over ``x``.

    Attributes
    ----------
    dashed, dots, steps : for predictions, for points without a line, and for histograms.
    low, high : a band around the curve.
    colour : number of a colour of the palette; by default that of the curve's place in the panel.
    fine : a thin, pale line, for one of many paths.
    """

    x: Sequence[float] | np.ndarray
    y: Sequence[float] | np.ndarray
    name: str = ""
    dashed: bool = False
    dots: bool = False
    low: Sequence[float] | np.ndarray | None = None
    high: Sequence[float] | np.ndarray | None = None
    steps: bool = False
    colour: int | None = None
    fine: bool = False


@dataclass(frozen=True)
class Panel:
    """Curves over one pair of axes.

    Attributes
    ----------
    circle : draw the unit circle and keep the aspect.
    equal : keep the aspect.
    matrix : draw this matrix as an image below the curves, with its own colour scale, such as attention weights.
    extent : (left, right, bottom, top) of the image; by default rows are numbered from the top.
    level : draw this contour line of the matrix.
    """

    curves: tuple[Curve, ...]
    x: str = "time"
    y: str = ""
    title: str = ""
    log_x: bool = False
    log_y: bool = False
    circle: bool = False
    equal: bool = False
    matrix: Sequence[Sequence[float]] | None = None
    extent: tuple[float, float, float, float] | None = None
    level: float | None = None


def draw_panels(
    panels: Sequence[Panel], title: str, caption: str, path: str | os.PathLike[str] | None = None, dpi: int = 200
) -> Any:
    """Draw panels side by side (in one column, below each other); return the figure, or the path it was written to."""
    if path is not None:
        static_suffix(path)
    with style.use_style():
        images = any(panel.matrix is not None for panel in panels)  # with a colour scale on the right
        least, gap, right = (1.3, 1.05, 0.5) if images else (1.8, 0.72, 0.12)
        grid = Grid.of(len(panels), least, left=0.72, gap=gap, right=right)
        tall = min(HEIGHT, 0.85 * grid.wide) if grid.across == 1 else min(HEIGHT, grid.wide) if images else HEIGHT
        page = StaticFigure(title, caption, grid.rows * (tall + ABOVE + BELOW))
        for number, panel in enumerate(panels):
            row, left = grid.place(number)
            _fill(page.panel(left, ABOVE + row * (tall + ABOVE + BELOW), grid.wide, tall), panel)
        return write_chart(page.figure, path, dpi)


def _fill(axes: Any, panel: Panel) -> None:
    if panel.circle:
        turn = np.linspace(0.0, 2 * np.pi, 200)
        axes.plot(np.cos(turn), np.sin(turn), color=style.HAIR, linewidth=0.8, zorder=0)
        axes.set_aspect("equal")
    if panel.equal:
        axes.set_aspect("equal", adjustable="datalim")
    if panel.matrix is not None:
        _draw_matrix(axes, panel)
    for index, curve in enumerate(panel.curves):
        colour = style.PALETTE[(index if curve.colour is None else curve.colour) % len(style.PALETTE)]
        look: dict[str, Any] = {"color": colour, "linewidth": 1.1}
        look |= {"linewidth": 0.5, "alpha": 0.5} if curve.fine else {}
        look |= {"linestyle": "--", "color": style.QUIET, "linewidth": 0.9} if curve.dashed else {}
        look |= {"linestyle": "", "marker": "o", "markersize": 2.0 if curve.fine else 3.2} if curve.dots else {}
        look |= {"drawstyle": "steps-mid"} if curve.steps else {}
        axes.plot(np.asarray(curve.x), np.asarray(curve.y), label=curve.name or None, **look)
        if curve.low is not None and curve.high is not None:
            low, high = np.asarray(curve.low), np.asarray(curve.high)
            axes.fill_between(np.asarray(curve.x), low, high, color=look["color"], alpha=0.2, linewidth=0)
    axes.set_xscale("log" if panel.log_x else "linear")
    axes.set_yscale("log" if panel.log_y else "linear")
    for axis, logarithmic in ((axes.xaxis, panel.log_x), (axes.yaxis, panel.log_y)):
        if logarithmic:
            _plain_ticks(axis)
    if not panel.log_x and panel.curves and all(_whole(curve.x) for curve in panel.curves):
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))  # whole numbers
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    axes.set_title(panel.title, loc="left")
    if any(curve.name for curve in panel.curves):
        axes.legend(fontsize=6, frameon=False, handlelength=1.6)


def _draw_matrix(axes: Any, panel: Panel) -> None:
    values = np.asarray(panel.matrix, dtype=float)
    rows, columns = values.shape
    if panel.extent is None:
        image = axes.imshow(values, cmap="viridis", interpolation="nearest", aspect="equal")
    else:
        place: dict[str, Any] = {"extent": panel.extent, "origin": "lower"}
        image = axes.imshow(values, cmap="viridis", interpolation="nearest", aspect="auto", **place)
        if panel.level is not None and np.nanmin(values) < panel.level < np.nanmax(values):
            left, right, bottom, top = panel.extent
            x = left + (np.arange(columns) + 0.5) * (right - left) / columns
            y = bottom + (np.arange(rows) + 0.5) * (top - bottom) / rows
            axes.contour(x, y, values, levels=[panel.level], colors="white", linewidths=0.9)
    bar = axes.figure.colorbar(image, cax=axes.inset_axes((1.03, 0.0, 0.045, 1.0)))
    bar.outline.set_linewidth(0.4)
    bar.ax.tick_params(labelsize=5.5)


def _plain_ticks(axis: Any) -> None:
    """Label a logarithmic axis shorter than a decade with a few plain numbers instead of 7.8 x 10^-1."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    low, high = axis.get_view_interval()
    if 0 < low < high < 10 * low:
        axis.set_major_locator(MaxNLocator(5))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: format_quantity(value)))


def _whole(values: Any) -> bool:
    """Whether all are whole numbers, such as layers, passes or steps."""
    found = np.asarray(values, dtype=float)
    return bool(np.all(np.isfinite(found))) and bool(np.all(found == np.round(found)))


TALL, STEP = 1.6, 2.15  # inches


def draw_counts(
    panels: Mapping[str, Mapping[str, Mapping[str, int]]],
    path: Path | str | None = None,
    *,
    title: str = "",
    caption: str = "",
) -> Any:
    """Draw bars, one panel for each name: ``panels[name][series][label]`` is a count."""
    labels = sorted({label for panel in panels.values() for counts in panel.values() for label in counts}, key=_order)
    series = list(dict.fromkeys(name for panel in panels.values() for name in panel))
    with style.use_style():
        grid = Grid.of(len(panels), 0.3 * len(labels), left=0.42, gap=0.35)
        page = StaticFigure(title, caption, grid.rows * STEP + 0.22)
        for number, (name, panel) in enumerate(panels.items()):
            row, left = grid.place(number)
            _panel(page.panel(left, 0.25 + row * STEP, grid.wide, TALL), panel, labels, series)
            page.figure.axes[-1].set_title(name, pad=3, parse_math=False)
        colours = [style.PALETTE[k % len(style.PALETTE)] for k in range(len(series))]
        handles = [page.figure.axes[0].bar([0], [0], color=colour) for colour in colours]
        page.legend(handles, series, grid.rows * STEP, ncols=2 if page.width < 5 else 4)
        return write_chart(page.figure, path)


def _panel(axes: Any, panel: Mapping[str, Mapping[str, int]], labels: list[str], series: list[str]) -> None:
    each = 0.8 / len(series)
    for index, one in enumerate(series):
        counts = [panel.get(one, {}).get(label, 0) for label in labels]
        places = np.arange(len(labels)) + (index - (len(series) - 1) / 2) * each
        drawn = axes.bar(places, counts, each, color=style.PALETTE[index % len(style.PALETTE)])
        axes.bar_label(drawn, [str(count) if count else "" for count in counts], fontsize=5)
    axes.set_xticks(range(len(labels)), labels, rotation=0)


def _order(label: str) -> tuple[int, str]:
    return (int(label), "") if label.isdigit() else (1000, label)


@dataclass(frozen=True)
class Bounded:
    """A quantity (S, runs) along times (S,) and its bound (S, runs); ``note`` for what does not fit on the axis."""

    title: str
    label: str
    times: np.ndarray
    measured: np.ndarray
    bound: np.ndarray
    note: str = ""


def draw_bounded(
    panels: Sequence[Bounded], *, title: str, caption: str, path: str | os.PathLike[str] | None = None
) -> Any:
    """Draw quantities with their bounds, one panel each; lines are runs, the upper edge of the shaded part is the bound."""
    tall = 2.1
    with style.use_style():
        grid = Grid.of(len(panels), 1.9)
        page = StaticFigure(title, caption, grid.rows * (tall + 0.75))
        for number, panel in enumerate(panels):
            row, left = grid.place(number)
            axes = page.panel(left, 0.25 + row * (tall + 0.75), grid.wide, tall)
            _bounds_panel(axes, panel, style.PALETTE[number % len(style.PALETTE)])
        return write_chart(page.figure, path)


def _bounds_panel(axes: Any, panel: Bounded, colour: str) -> None:
    measured, bound = (part.reshape(len(panel.times), -1) for part in (panel.measured, panel.bound))
    axes.set_title(panel.title, parse_math=False)
    axes.plot(panel.times, measured, color=colour, linewidth=0.9, alpha=0.7)
    ceiling = bound.max(-1)
    floor = min(measured.min(), bound.min())
    seen = np.isfinite(ceiling)
    axes.plot(panel.times[seen], ceiling[seen], color=style.INK, linewidth=1.0, linestyle="--")
    axes.fill_between(panel.times[seen], floor, ceiling[seen], color=style.HAIR, alpha=0.5, linewidth=0)
    last = np.flatnonzero(seen)[-1]
    axes.annotate("bound", (panel.times[last], ceiling[last]), textcoords="offset points", xytext=(-7, -3), ha="right",
                  fontsize=6.5, color=style.INK)  # fmt: skip
    axes.annotate("measured", (panel.times[-1], measured[-1].max()), textcoords="offset points", xytext=(-2, 4), ha="right",
                  fontsize=6.5, color=colour)  # fmt: skip
    if panel.note:  # the bound is outside the frame, so this corner is free
        axes.text(0.99, 0.97, panel.note, transform=axes.transAxes, ha="right", va="top", fontsize=6.5, color=style.QUIET,
                  parse_math=False)  # fmt: skip
    axes.set_xlabel("time t")
    axes.set_ylabel(panel.label, parse_math=False)


@dataclass(frozen=True)
class Decay:
    """One quantity: errors (sizes, repeats), their rms (sizes,), the exponent and its interval (nan: none)."""

    name: str
    errors: np.ndarray
    rms: np.ndarray
    slope: float
    low: float
    high: float

    @property
    def words(self) -> str:
        if not np.isfinite(self.slope):
            return "exact at every n"
        interval = f" ({self.low:.2f} to {self.high:.2f})" if np.isfinite(self.low) else ""
        return f"slope {self.slope:.2f}{interval}"


def draw_decays(
    sizes: Sequence[int],
    decays: Sequence[Decay],
    *,
    title: str,
    caption: str,
    path: str | os.PathLike[str] | None = None,
) -> Any:
    """Draw errors over sizes, one panel for each quantity on shared axes; dashed: the power -1/2 of independent samples."""
    with style.use_style():
        grid = Grid.of(len(decays), 1.1, left=0.55, gap=0.5, most=3)
        tall, gap = min(1.75, 1.3 * grid.wide), 0.78
        page = StaticFigure(title, caption, grid.rows * (tall + gap) + 0.05)
        for number, decay in enumerate(decays):
            row, left = grid.place(number)
            axes = page.panel(left, 0.38 + row * (tall + gap), grid.wide, tall - 0.05)
            _decay_panel(axes, np.asarray(sizes, dtype=float), decay, style.PALETTE[number % len(style.PALETTE)])
            if number % grid.across == 0:
                axes.set_ylabel("error")
            if number + grid.across >= len(decays):
                axes.set_xlabel("tokens n")
        return write_chart(page.figure, path)


def _decay_panel(axes: Any, sizes: np.ndarray, decay: Decay, colour: str) -> None:
    from matplotlib.ticker import NullFormatter, NullLocator

    axes.set_title(f"{decay.name}\n{decay.words}", fontsize=7, parse_math=False)
    axes.set_xscale("log")
    axes.set_yscale("log")
    if np.all(decay.rms > 0):
        jitter = np.exp(0.03 * np.linspace(-1, 1, decay.errors.shape[1]))
        axes.plot((sizes[:, None] * jitter).ravel(), decay.errors.ravel(), ".", color=colour, alpha=0.25, markersize=3,
                  markeredgewidth=0)  # fmt: skip
        centre, middle = np.exp(np.log(sizes).mean()), np.exp(np.log(decay.rms).mean())
        axes.plot(sizes, middle * (sizes / centre) ** -0.5, "--", color=style.FAINT, linewidth=0.9)
        if np.isfinite(decay.slope):
            axes.plot(sizes, middle * (sizes / centre) ** decay.slope, "-", color=colour, linewidth=1.1)
        axes.plot(sizes, decay.rms, "o", color=colour, markersize=4)
    axes.set_xticks(sizes, [f"{int(n):,}" for n in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    if np.all(decay.rms > 0) and decay.errors.max() / decay.errors[decay.errors > 0].min() > 30:
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(which="minor", labelsize=5)


ROW, TOP, FOOT, GAP = 0.22, 0.25, 0.45, 0.18  # inches
LETTER = 0.56 * 6.5 / 72  # inches of a letter of a label


@dataclass(frozen=True)
class Interval:
    """A number with an interval; ``null`` is the half width of the band that chance alone explains."""

    value: float
    low: float
    high: float
    null: float | None = None


@dataclass(frozen=True)
class Rows:
    """One panel: an interval for each of the shared rows, on an axis from ``-reach`` to ``reach``."""

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
    path: str | os.PathLike[str] | None = None,
    dpi: int = 200,
    grouped: bool = True,
) -> Any:
    """Draw intervals in rows ``names`` coloured by ``groups``, one panel for each set; ``grouped`` adds the group to the names."""
    if path is not None:
        static_suffix(path)
    labels = [f"{name}  [{group}]" for name, group in zip(names, groups, strict=True)] if grouped else list(names)
    order = list(dict.fromkeys(groups))
    colours = [style.PALETTE[order.index(group) % len(style.PALETTE)] for group in groups]
    with style.use_style():
        room = 0.15 + LETTER * max(map(len, labels), default=0)
        grid = Grid.of(len(panels), 1.0, left=room, gap=GAP, right=0.12)
        tall = ROW * len(names)
        page = StaticFigure(title, caption, grid.rows * (TOP + tall + FOOT))
        for number, panel in enumerate(panels):
            row, left = grid.place(number)
            axes = page.panel(left, TOP + row * (TOP + tall + FOOT), grid.wide, tall)
            _intervals_fill(axes, panel, colours, x)
            axes.set_yticks(range(len(names)), [""] * len(names) if number % grid.across else labels, parse_math=False)
        return write_chart(page.figure, path, dpi)


def _intervals_fill(axes: Any, panel: Rows, colours: Sequence[str], x: str) -> None:
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
