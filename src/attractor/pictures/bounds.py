"""What was measured along time, and the bound above it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attractor.pictures import style
from attractor.pictures.still import Grid, Still, written


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
    """One panel beside the other, or below it in one column; lines are runs, the upper edge of the shaded part is the bound."""
    tall = 2.1
    with style.applied():
        grid = Grid.of(len(panels), 1.9)
        page = Still(title, caption, grid.rows * (tall + 0.75))
        for number, panel in enumerate(panels):
            row, left = grid.place(number)
            axes = page.panel(left, 0.25 + row * (tall + 0.75), grid.wide, tall)
            _panel(axes, panel, style.PALETTE[number % len(style.PALETTE)])
        return written(page.figure, path)


def _panel(axes: Any, panel: Bounded, colour: str) -> None:
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
    if panel.note:  # the bound has left the frame, so the corner beyond it is free
        axes.text(0.99, 0.97, panel.note, transform=axes.transAxes, ha="right", va="top", fontsize=6.5, color=style.QUIET,
                  parse_math=False)  # fmt: skip
    axes.set_xlabel("time t")
    axes.set_ylabel(panel.label, parse_math=False)
