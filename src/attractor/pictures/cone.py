"""The cone of covariances in the plane and its trace-normalised disc, with the ways of many of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attractor.errors import InputError
from attractor.pictures import style
from attractor.pictures.draw import STILL, known_suffix, written
from attractor.pictures.figure import picture_class, save, wrap
from attractor.pictures.writing import target

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
    place = None if path is None else still(path)
    with style.applied():
        figure = picture_class()(figsize=(7.0, 3.75))
        left: Any = figure.add_axes((0.0, 0.1, 0.44, 0.8), projection="3d", computed_zorder=False)
        right = figure.add_axes((0.56, 0.17, 0.40, 0.70))
        for way, kind in zip(paths, kinds, strict=True):
            colour = style.PALETTE[COLOURS[kind]]
            _in_cone(left, way, colour)
            _in_disc(right, way, colour)
        _cone_shell(left, _height(paths))
        _rim(right)
        heading(figure, title, caption)
        marks = [kind for kind in COLOURS if kind in set(kinds)]
        handles = [figure.axes[1].plot([], [], color=style.PALETTE[COLOURS[kind]])[0] for kind in marks]
        figure.legend(handles, [WORDS[kind] for kind in marks], loc="lower left", frameon=False, ncols=3, fontsize=6.5)
    return figure if place is None else written(place, lambda temporary: save(figure, temporary, 200, place.suffix[1:]))


def heading(figure: Any, title: str, caption: str) -> None:
    """Title above, caption below it."""
    figure.text(0.012, 0.985, title, fontsize=9.5, va="top", parse_math=False)
    figure.text(
        0.012, 0.935, "\n".join(wrap(caption, 7.0)), fontsize=6.5, va="top", color=style.QUIET, parse_math=False
    )


def still(path: Path | str) -> Path:
    """The place of a picture that does not move."""
    place = target(path)
    if known_suffix(place) not in STILL:
        raise InputError(f"this picture is written to {', '.join(STILL)}, not to {place.suffix}")
    return place


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


def _rim(axes: Any) -> None:
    angle = np.linspace(0, 2 * np.pi, 181)
    axes.plot(np.cos(angle), np.sin(angle), color=style.QUIET, lw=0.8)
    axes.set(
        aspect="equal", xlim=(-1.06, 1.06), ylim=(-1.06, 1.06), xlabel="(Σ₁₁ − Σ₂₂) / trace", ylabel="2Σ₁₂ / trace"
    )
    axes.set_xticks([-1, 0, 1])
    axes.set_yticks([-1, 0, 1])
