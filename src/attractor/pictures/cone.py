"""The cone of covariances in the plane and its trace-normalised disc, with the ways of many of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attractor.pictures import style
from attractor.pictures.still import Grid, Still, written

COLOURS = {"collapse": 0, "low_rank": 2, "full_rank": 5, "blow_up": 1, "diverged": 3, "undecided": 6}
WORDS = {
    "collapse": "goes to zero",
    "low_rank": "limit of rank one",
    "full_rank": "limit of full rank",
    "blow_up": "blows up",
    "diverged": "grows without bound",
    "undecided": "undecided",
}
HEIGHT = 3.0  # traces above are left out of the cone


def draw_cone(
    paths: Sequence[np.ndarray],
    kinds: Sequence[str],
    path: Path | str | None = None,
    *,
    title: str = "",
    caption: str = "",
) -> Any:
    """Draw ways (k, 3) in the coordinates of the cone, coloured by what becomes of them: the cone, and the disc seen from above."""
    marks = [kind for kind in COLOURS if kind in set(kinds)]
    with style.applied():
        grid = Grid.of(2, 2.2, left=0.2, gap=0.85, right=0.3)
        tall = min(2.75, grid.wide)
        page = Still(title, caption, grid.rows * (tall + 0.45) + 0.3)
        (row, beside), across = grid.place(1), grid.wide - (0.35 if grid.across == 1 else 0.0)
        left: Any = page.panel(
            0.0, 0.0, grid.wide + (0.1 if grid.across > 1 else -0.1), tall + 0.2, projection="3d", computed_zorder=False
        )
        right = page.panel(beside + grid.wide - across, 0.1 + row * (tall + 0.45), across, tall)
        for way, kind in zip(paths, kinds, strict=True):
            colour = style.PALETTE[COLOURS[kind]]
            _in_cone(left, way, colour)
            _in_disc(right, way, colour)
        _cone_shell(left, _height(paths))
        rim(right)
        handles = [right.plot([], [], color=style.PALETTE[COLOURS[kind]])[0] for kind in marks]
        page.legend(handles, [WORDS[kind] for kind in marks], grid.rows * (tall + 0.45) + 0.05, ncols=3)
        return written(page.figure, path)


def _height(paths: Sequence[np.ndarray]) -> float:
    tallest = max((float(way[:, 2].max()) for way in paths), default=1.0)
    return min(max(tallest, 1.0), HEIGHT)


def _in_cone(axes: Any, way: np.ndarray, colour: str) -> None:
    inside = way[way[:, 2] <= HEIGHT]
    if len(inside):
        axes.plot(*inside.T, color=colour, lw=0.8)
        axes.scatter(*inside[:1].T, color=colour, s=3)
        if len(inside) == len(way):
            axes.scatter(*inside[-1:].T, color=colour, s=12, edgecolors=style.INK, linewidths=0.4)


def _in_disc(axes: Any, way: np.ndarray, colour: str) -> None:
    shape = way[:, :2] / np.maximum(way[:, 2:], 1e-300)
    axes.plot(*shape.T, color=colour, lw=0.8)
    axes.plot(*shape[0], ".", color=colour, ms=2.5)
    axes.plot(*shape[-1], "o", color=colour, ms=3.5, mec=style.INK, mew=0.4)


def _cone_shell(axes: Any, top: float) -> None:
    angle = np.linspace(0, 2 * np.pi, 73)
    for height in np.linspace(0, top, 5)[1:]:
        axes.plot(height * np.cos(angle), height * np.sin(angle), height, color=style.FAINT, lw=0.5)
    for turn in angle[:-1:6]:
        axes.plot([0, top * np.cos(turn)], [0, top * np.sin(turn)], [0, top], color=style.HAIR, lw=0.5)
    axes.set(xlabel="Σ₁₁ − Σ₂₂", ylabel="2Σ₁₂", zlabel="trace", zlim=(0, top))
    axes.view_init(elev=18, azim=-62)
    for axis in (axes.xaxis, axes.yaxis, axes.zaxis):
        axis.pane.set_visible(False)
        axis._axinfo["grid"]["linewidth"] = 0
        axis.set_tick_params(pad=-2)
    axes.zaxis.labelpad = -4
    axes.locator_params(nbins=5)


def rim(axes: Any) -> None:
    """The disc of covariances of trace one, whose rim is those of rank one."""
    angle = np.linspace(0, 2 * np.pi, 181)
    axes.plot(np.cos(angle), np.sin(angle), color=style.QUIET, lw=0.8)
    axes.set(
        aspect="equal", xlim=(-1.06, 1.06), ylim=(-1.06, 1.06), xlabel="(Σ₁₁ − Σ₂₂) / trace", ylabel="2Σ₁₂ / trace"
    )
    axes.set_xticks([-1, 0, 1])
    axes.set_yticks([-1, 0, 1])
