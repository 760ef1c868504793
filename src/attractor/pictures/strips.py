"""Strips along time with matplotlib: one observable each, or where the tokens are on a line or a circle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attractor.pictures import style
from attractor.pictures.drawing import Drawing
from attractor.pictures.selection import some
from attractor.pictures.time_axis import log_ticks, quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINES = 400


def time_ruler(axes: Axes, drawing: Drawing, label: bool = True, most: int = 5) -> None:
    """The common time axis of all strips."""
    low, high = drawing.time_axis.limits
    margin = 0.02 * (high - low)
    axes.set_xlim(low - margin, high + margin)
    if drawing.time_axis.logarithmic:
        positions, labels = drawing.time_axis.ticks(most)
        axes.set_xticks(positions, labels)
    else:
        axes.locator_params(axis="x", nbins=most)
    if label:
        axes.set_xlabel("time", labelpad=1)


def mark_times(axes: Axes, drawing: Drawing, snapshots: np.ndarray) -> None:
    """Dotted lines at the snapshots, ticks at the merge events."""
    above = axes.get_xaxis_transform()
    for letter, place in zip("abcdefghijklmnop", drawing.time_axis.place(drawing.scene.times[snapshots]), strict=False):
        axes.axvline(float(place), color=style.FAINT, linewidth=0.6, linestyle=(0, (1, 2)), zorder=0)
        if len(snapshots) > 1:
            axes.text(
                float(place), 1.02, letter, transform=above, fontsize=5.5, color=style.QUIET, ha="center", va="bottom"
            )
    times = np.array([time for time, _ in drawing.scene.events if np.isfinite(time)])
    if times.size:
        places = np.unique(drawing.time_axis.place(times[some(times.size, 1000)]))
        axes.plot(
            places, np.zeros(places.size), "|", color=style.INK, markersize=4, markeredgewidth=0.6, transform=above,
            clip_on=False, zorder=5,
        )  # fmt: skip


def curve(axes: Axes, drawing: Drawing, label: str, colour: str = style.PALETTE[0]) -> None:
    """One observable against time, on a logarithmic scale when it is positive and spans three decades."""
    values = drawing.scene.curves[label]
    places = drawing.time_axis.place(drawing.scene.times)
    sound = np.isfinite(values)
    whole = bool(sound.any()) and bool(np.equal(np.mod(values[sound], 1.0), 0).all())
    axes.plot(places, np.where(sound, values, np.nan), color=colour, linewidth=1.1, drawstyle="steps-post" if whole else "default",
              marker="o" if places.size == 1 else None, markersize=3)  # fmt: skip
    sound_values = values[sound]
    if logarithmic(sound_values, 20 if whole else 1e3):
        log_ruler(axes, float(sound_values.min()), float(sound_values.max()))
    else:
        axes.locator_params(axis="y", nbins=4, integer=whole)
    axes.set_title(label, loc="left", pad=9, parse_math=False)


def logarithmic(values: np.ndarray, ratio: float) -> bool:
    """Whether positive values span so much that only a logarithmic scale shows them all."""
    return bool(values.size and values.min() > 0 and values.max() > ratio * values.min())


def log_ruler(axes: Axes, low: float, high: float) -> None:
    axes.set_yscale("log")
    axes.minorticks_off()
    ticks = log_ticks(low, high)
    axes.set_yticks(ticks, [quantity(tick) for tick in ticks])


def angles(axes: Axes, drawing: Drawing) -> None:
    """Where tokens on a circle are, against time."""
    threads(axes, drawing, drawing.angles())
    axes.set(ylim=(-180, 180), yticks=[-180, -90, 0, 90, 180], yticklabels=["−180°", "−90°", "0°", "90°", "180°"])
    axes.set_title("angle of each token", loc="left", pad=9)


def positions(axes: Axes, drawing: Drawing) -> None:
    """Where tokens on a line are, against time."""
    threads(axes, drawing, drawing.projection.coordinates[..., 0])
    axes.locator_params(axis="y", nbins=5)
    name = "x / extent" if drawing.projection.rescaled else "x"
    axes.set_title(f"position {name} of each token", loc="left", pad=4)


def threads(axes: Axes, drawing: Drawing, values: np.ndarray) -> None:
    from matplotlib.collections import LineCollection

    places = drawing.time_axis.place(drawing.scene.times)
    tokens = some(drawing.tokens.size, LINES)
    colours = drawing.colours.tokens[tokens]
    if places.size == 1:
        axes.scatter(np.repeat(places, tokens.size), values[0, tokens], s=6, c=colours, linewidths=0)
    else:
        lines = [np.column_stack([places, values[:, token]]) for token in tokens]
        alpha = 0.9 if tokens.size <= 60 else 0.5
        axes.add_collection(LineCollection(lines, colors=colours, linewidths=0.7, alpha=alpha))
        axes.autoscale_view()
