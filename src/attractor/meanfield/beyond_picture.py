"""The picture of tokens past the blow-up of their Gaussian, in words that explain it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attractor.meanfield.densities import normal_densities
from attractor.pictures import style
from attractor.pictures.densities import line_density, plane_density
from attractor.pictures.still import Grid, Still, written

if TYPE_CHECKING:
    from attractor.meanfield.beyond import Beyond

SHOWN = (0.0, 0.5, 0.9, 1.0, 1.2)  # shares of the blow-up time whose densities are drawn


def draw_beyond(found: Beyond, path: Any = None) -> Any:
    """Variance along time above, densities of the largest system below (in one or two dimensions)."""
    drawn = found.run.dim <= 2
    last = f"{found.sizes[-1]:,}"
    below = f" Below: the density of one run of {last} tokens; dashed: the Gaussian, while it exists." if drawn else ""
    caption = (
        f"Above: total variance along time, in units of the time T* = {found.blow_up:.6g} at which the Gaussian is infinite (dashed). "
        f"Lines are medians over {found.variance.shape[1]} draws, bands their range: tokens stay finite, and how large they are near T* "
        f"is decided by the few longest tokens of a draw.{below}"
    )
    with style.applied():
        chosen = _times(found) if drawn else []
        grid = Grid.of(len(chosen) or 1, 0.9, left=0.25, gap=0.15, right=0.1, most=5)
        page = Still("Tokens past the blow-up of their Gaussian", caption, 2.9 + (1.6 * grid.rows + 0.25) * drawn)
        _curves(page.panel(0.6, 0.15, page.width - 0.85, 2.2), found)
        _densities(page, found, chosen, grid)
        return written(page.figure, path)


def _curves(axes: Any, found: Beyond) -> None:
    shares = found.times / found.blow_up
    finite = np.isfinite(found.gaussian)
    top = 3.0 * float(found.variance.max())
    seen = finite & (found.gaussian < top)
    axes.plot(shares[seen], found.gaussian[seen], "--", color=style.INK, linewidth=1.1, label="Gaussian")
    for index, n in enumerate(found.sizes):
        colour = style.PALETTE[index % len(style.PALETTE)]
        runs = found.variance[index]
        axes.fill_between(shares, runs.min(0), runs.max(0), color=colour, alpha=0.15, linewidth=0)
        axes.plot(shares, found.median[index], color=colour, linewidth=1.2, label=f"n = {n:,}")
    axes.axvline(1.0, color=style.FAINT, linewidth=0.8, zorder=0)
    axes.annotate("blow-up of the Gaussian", (1.0, 0.03), xycoords=("data", "axes fraction"), textcoords="offset points",
                  xytext=(3, 0), fontsize=6.5, color=style.QUIET)  # fmt: skip
    axes.set_yscale("log")
    axes.set_xlabel("t / T*", parse_math=False)
    axes.set_ylabel("total variance")
    axes.legend(frameon=False, fontsize=6.5, loc="upper left")


def _times(found: Beyond) -> list[int]:
    """The saved times whose densities are drawn."""
    saved = found.run.times.numpy()
    return list(dict.fromkeys(int(np.abs(saved - share * found.blow_up).argmin()) for share in SHOWN))


def _densities(page: Still, found: Beyond, chosen: list[int], grid: Grid) -> None:
    saved = found.run.times.numpy()
    reference = normal_densities(found.gaussian_run, saved[chosen])
    weights = np.full(found.run.n, 1.0 / found.run.n)
    for number, index in enumerate(chosen):
        row, left = grid.place(number)
        axes = page.panel(left, 3.15 + 1.6 * row, grid.wide, 1.15)
        axes.set_title(f"t = {saved[index] / found.blow_up:.3g} T*", pad=3, fontsize=7, parse_math=False)
        panel = line_density if found.run.dim == 1 else plane_density
        points = found.run.points[index].detach().cpu().double().numpy()
        panel(axes, points, weights, lambda x, k=number: reference(k, x))
        axes.tick_params(labelsize=5.5)
