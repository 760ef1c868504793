"""Eigenvalues of a covariance and the length of the mean, along time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from attractor.pictures import style
from attractor.pictures.cone import heading, still
from attractor.pictures.draw import written
from attractor.pictures.figure import picture_class, save


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
    place = None if path is None else still(path)
    with style.applied():
        figure = picture_class()(figsize=(7.0, 3.0))
        left = figure.add_axes((0.08, 0.14, 0.40, 0.62))
        right = figure.add_axes((0.57, 0.14, 0.40, 0.62))
        for number, values in enumerate(eigenvalues.T):
            shown = np.where(values > 0, values, np.nan)
            left.plot(times, shown, color=style.PALETTE[number % len(style.PALETTE)], lw=1.0)
        for number, values in enumerate(means.T):
            right.plot(times, values, color=style.PALETTE[number % len(style.PALETTE)], lw=1.0)
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
        heading(figure, title, caption)
    return figure if place is None else written(place, lambda temporary: save(figure, temporary, 200, place.suffix[1:]))
