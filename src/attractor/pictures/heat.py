"""Numbers over the disc of covariances of trace one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from attractor.pictures import style
from attractor.pictures.cone import heading, still
from attractor.pictures.draw import written
from attractor.pictures.figure import picture_class, save


def draw_map(
    places: np.ndarray, values: np.ndarray, path: Path | str | None = None, *, title: str = "", caption: str = ""
) -> Any:
    """Values (n,) at places (n, 2) of the disc, on a logarithmic scale; infinite ones in grey."""
    from matplotlib.colors import LogNorm

    place = None if path is None else still(path)
    finite = np.isfinite(values)
    with style.applied():
        figure = picture_class()(figsize=(4.6, 4.2))
        axes = figure.add_axes((0.13, 0.11, 0.66, 0.72))
        angle = np.linspace(0, 2 * np.pi, 181)
        axes.plot(np.cos(angle), np.sin(angle), color=style.QUIET, lw=0.8)
        size = max(4.0, 5200.0 / len(places))
        axes.scatter(*places[~finite].T, s=size, color=style.FAINT)
        if finite.any():
            low, high = float(values[finite].min()), float(values[finite].max())
            norm = LogNorm(low, max(high, low * (1 + 1e-9)))
            drawn = axes.scatter(*places[finite].T, c=values[finite], s=size, norm=norm, cmap="viridis")
            figure.colorbar(drawn, cax=figure.add_axes((0.82, 0.14, 0.03, 0.64))).set_label("blow-up time")
        axes.set(
            aspect="equal", xlabel="(Σ₁₁ − Σ₂₂) / trace", ylabel="2Σ₁₂ / trace", xlim=(-1.06, 1.06), ylim=(-1.06, 1.06)
        )
        heading(figure, title, caption)
    return figure if place is None else written(place, lambda temporary: save(figure, temporary, 200, place.suffix[1:]))
