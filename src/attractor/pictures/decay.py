"""Errors that fall with n on log-log axes: every run a dot, the fitted power a line, its exponent in words beside it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attractor.pictures import style
from attractor.pictures.still import Grid, Still, written


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
    """Small multiples, one for each quantity, on shared axes; dashed: the power -1/2 of independent samples."""
    with style.applied():
        grid = Grid.of(len(decays), 1.1, left=0.55, gap=0.5, most=3)
        tall, gap = min(1.75, 1.3 * grid.wide), 0.78
        page = Still(title, caption, grid.rows * (tall + gap) + 0.05)
        for number, decay in enumerate(decays):
            row, left = grid.place(number)
            axes = page.panel(left, 0.38 + row * (tall + gap), grid.wide, tall - 0.05)
            _panel(axes, np.asarray(sizes, dtype=float), decay, style.PALETTE[number % len(style.PALETTE)])
            if number % grid.across == 0:
                axes.set_ylabel("error")
            if number + grid.across >= len(decays):
                axes.set_xlabel("tokens n")
        return written(page.figure, path)


def _panel(axes: Any, sizes: np.ndarray, decay: Decay, colour: str) -> None:
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
