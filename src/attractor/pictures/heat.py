"""Numbers over the disc of covariances of trace one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from attractor.pictures import style
from attractor.pictures.cone import rim
from attractor.pictures.still import Grid, Still, written
from attractor.pictures.time_axis import log_ticks, quantity


def draw_map(
    places: np.ndarray, values: np.ndarray, path: Path | str | None = None, *, title: str = "", caption: str = ""
) -> Any:
    """Times (n,) at places (n, 2) of the disc, infinite ones in grey; beside it the share of starts that have blown up by then."""
    finite = np.isfinite(values)
    with style.applied():
        grid = Grid.of(2, 2.3, left=0.55, gap=1.4, right=0.15)
        map_wide = grid.wide - (0.65 if grid.across == 1 else 0.0)  # beside it stands the scale of colours
        share_tall = map_wide if grid.across > 1 else 1.4
        page = Still(title, caption, map_wide + 0.55 + (grid.rows - 1) * (share_tall + 0.55))
        disc = page.panel(grid.left, 0.1, map_wide, map_wide)
        rim(disc)
        size = max(4.0, 5200.0 / len(places)) * (map_wide / 3.0) ** 2
        disc.scatter(*places[~finite].T, s=size, color=style.FAINT)
        if finite.any():
            _times(page, disc, places[finite], values[finite], size, grid.left + map_wide + 0.08, map_wide)
        row, left = grid.place(1)
        _share(page.panel(left, 0.1 + row * (map_wide + 0.55), grid.wide, share_tall), values)
        return written(page.figure, path)


def _times(
    page: Still, disc: Any, places: np.ndarray, values: np.ndarray, size: float, left: float, tall: float
) -> None:
    from matplotlib.colors import LogNorm

    low, high = float(values.min()), float(values.max())
    norm = LogNorm(low, max(high, low * (1 + 1e-9)))
    drawn = disc.scatter(*places.T, c=values, s=size, norm=norm, cmap="viridis")
    bar = page.figure.colorbar(drawn, cax=page.panel(left, 0.1 + 0.1 * tall, 0.09, 0.8 * tall))
    bar.set_label("blow-up time")
    _plain(bar.ax.yaxis, low, high)


def _share(axes: Any, values: np.ndarray) -> None:
    """The empirical distribution of the finite times, as a share of all starts."""
    times = np.sort(values[np.isfinite(values)])
    share = np.arange(1, len(times) + 1) / len(values)
    axes.step(times, share, where="post", color=style.PALETTE[0], linewidth=1.1)
    if len(times):
        axes.set_xscale("log")
        _plain(axes.xaxis, float(times[0]), float(times[-1]))
    axes.set(xlabel="t", ylabel="share that has blown up", ylim=(0, 1.03))


def _plain(axis: Any, low: float, high: float) -> None:
    """Round numbers written out: 0.6 rather than 6 x 10^-1."""
    from matplotlib.ticker import MaxNLocator, NullLocator

    near = high < 5 * low  # a log scale has no two round numbers there
    ticks = [float(tick) for tick in MaxNLocator(4).tick_values(low, high)] if near else log_ticks(low, high, most=5)
    ticks = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
    axis.set_ticks(ticks, labels=[quantity(tick) for tick in ticks])
    axis.set_minor_locator(NullLocator())
