"""Eigenvalues of a covariance and the length of the mean, along time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from attractor.pictures import style
from attractor.pictures.still import Grid, Still, written


def draw_spectrum(
    times: np.ndarray,
    eigenvalues: np.ndarray,
    means: np.ndarray,
    path: Path | str | None = None,
    *,
    end: float | None = None,
    title: str = "",
    caption: str = "",
) -> Any:
    """Eigenvalues (S, d) and means (S, d) at times (S,); ``end`` marks a blow-up."""
    with style.applied():
        grid = Grid.of(2, 1.9, left=0.62, gap=0.6)
        tall = 1.9
        page = Still(title, caption, grid.rows * (tall + 0.62))
        places = [grid.place(number) for number in range(2)]
        left, right = (page.panel(x, 0.22 + row * (tall + 0.62), grid.wide, tall) for row, x in places)
        _lines(left, times, np.where(eigenvalues > 0, eigenvalues, np.nan))
        _lines(right, times, means)
        if (eigenvalues > 0).any():
            left.set_yscale("log")
        span = float(times[-1] - times[0]) if len(times) else 0.0
        for axes, name in ((left, "eigenvalues of the covariance"), (right, "coordinates of the mean")):
            axes.set_title(name, pad=3)
            axes.set_xlabel("t")
            if span > 100.0:
                axes.set_xscale("symlog", linthresh=1.0)
            if end is not None:
                axes.axvline(end, color=style.QUIET, lw=0.7, ls=":")
        if np.abs(means).max(initial=0.0) > 1e4:
            right.set_yscale("symlog")
        return written(page.figure, path)


def _lines(axes: Any, times: np.ndarray, values: np.ndarray) -> None:
    """A line for each column, the first ones wider, so that equal ones are all seen."""
    count = values.shape[1]
    for number, column in enumerate(values.T):
        wide = 1.0 + min(0.7, 1.6 / count) * (count - 1 - number)
        axes.plot(times, column, color=style.PALETTE[number % len(style.PALETTE)], lw=wide)
