"""Snapshots with matplotlib: the tokens at one saved time, on a lit sphere, a circle, a plane or in a box."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from attractor.pictures import globe, style
from attractor.pictures.drawing import Drawing
from attractor.pictures.selection import frames, some
from attractor.pictures.time_axis import quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TRAILS, TRAIL_STEPS = 150, 32
MANY = 3000
LETTER = 0.56 * 6.5 / 72  # inches of a letter of a label


def backdrop(axes: Axes, drawing: Drawing) -> None:
    """What stands still: the surface with its grid, the axes of a plane, the box of a space."""
    if drawing.projection.surface is not None:
        paint_surface(axes, drawing)
    elif drawing.dim == 3:
        paint_box(axes, drawing)
    else:
        paint_plane(axes, drawing)


def paint_surface(axes: Axes, drawing: Drawing) -> None:
    from matplotlib.patches import Polygon

    surface, camera = drawing.projection.surface, drawing.camera
    assert surface is not None
    outline = globe.silhouette(surface, camera)
    reach = float(np.abs(outline).max())
    across, up = 1.07 * np.abs(outline).max(axis=0)
    axes.set(xlim=(-across, across), ylim=(-up, up), aspect="equal")
    axes.set_axis_off()
    edge = Polygon(outline, closed=True, facecolor="none", edgecolor=style.FAINT, linewidth=0.7, zorder=2)
    axes.add_patch(edge)
    if drawing.dim == 2:
        return
    # the picture of the shading is clipped by the outline, so its edge stays sharp at any size
    image = axes.imshow(
        globe.shading(surface, camera, reach),
        origin="lower",
        extent=(-reach, reach, -reach, reach),
        zorder=1,
        interpolation="bilinear",
    )
    image.set_clip_path(edge)
    paint_grid(axes, drawing, surface)


def paint_grid(axes: Axes, drawing: Drawing, surface: np.ndarray) -> None:
    """Meridians and parallels, fainter behind: two broken lines, which keep a vector file small."""
    lines = np.stack(globe.graticule(surface))
    front = (
        drawing.camera.facing(lines, surface) > 0
        if drawing.projection.on_surface
        else np.zeros(lines.shape[:2], dtype=bool)
    )
    places = drawing.camera.screen(lines)
    for side, alpha in ((front, 0.75), (~front, 0.25)):
        # one point beyond each end, so that the two lines meet
        kept = side.copy()
        kept[:, 1:] |= side[:, :-1]
        broken = np.where(kept[..., None], places, np.nan)
        broken = np.concatenate([broken, np.full((len(lines), 1, 2), np.nan)], axis=1).reshape(-1, 2)
        axes.plot(*broken.T, color=style.FAINT, alpha=alpha, linewidth=0.4, zorder=2, scalex=False, scaley=False)


def paint_plane(axes: Axes, drawing: Drawing) -> None:
    centre, half = drawing.box()
    axes.set(xlim=(centre[0] - half, centre[0] + half), ylim=(centre[1] - half, centre[1] + half), aspect="equal")
    axes.grid(color=style.HAIR, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.locator_params(nbins=5)
    axes.set_xlabel(drawing.projection.axes[0], labelpad=1)
    axes.set_ylabel(drawing.projection.axes[1], labelpad=0)


def paint_box(axes: Axes, drawing: Drawing) -> None:
    """A cube seen by the camera, its three hidden faces ruled, its axes named."""
    from matplotlib.collections import LineCollection

    centre, half = drawing.box()
    camera = drawing.camera
    across, up = camera.screen(centre)
    axes.set_axis_off()
    hidden = -np.where(camera.frame[2] >= 0, 1.0, -1.0)
    rules = []
    for axis, other, mark in product(range(3), range(3), np.linspace(-1, 1, 5)):
        if axis != other:
            ends = np.zeros((2, 3))
            ends[:, axis], ends[:, other], ends[:, 3 - axis - other] = hidden[axis], mark, (-1, 1)
            rules.append(centre + half * ends)
    segments = list(camera.screen(np.array(rules)))
    axes.add_collection(LineCollection(segments, colors=style.HAIR, linewidths=0.5, zorder=1), autolim=False)
    edges = hidden * np.array([[0, -1, 1], [-1, 0, 1], [1, -1, 0]])
    reach, names = 1.7 * half, drawing.projection.axes
    for name, (right, above) in zip(names, (camera.screen(centre + 1.2 * half * edge) for edge in edges), strict=True):
        axes.text(right, above, name, ha="center", va="center", color=style.QUIET, fontsize=6.5)
        reach = max(reach, _room(axes, abs(right - across), LETTER * len(name)), _room(axes, abs(above - up), 0.34))
    axes.set(xlim=(across - reach, across + reach), ylim=(up - reach, up + reach), aspect="equal")
    width = f"box {quantity(2 * half)} wide"
    axes.text(0.5, 0.0, width, transform=axes.transAxes, ha="center", va="bottom", fontsize=6, color=style.QUIET)


def _room(axes: Axes, away: float, inches: float) -> float:
    """Half the range of an axis on which words so many inches long, centred this far from its middle, still fit."""
    side = axes.bbox.width / axes.get_figure(root=True).dpi  # type: ignore[union-attr]
    return away / max(0.3, 1 - inches / side)


def strength(facing: np.ndarray, on_surface: bool) -> np.ndarray:
    """Opacity: on a surface the back is faded at once, in a solid by degrees."""
    return np.where(facing >= 0, 1.0, 0.22) if on_surface else 0.35 + 0.65 * (facing + 1) / 2


def discs_at(drawing: Drawing, index: int, full: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places (m, 2), areas and colours (m, 4) of the discs, the farthest first; ``full`` points across is all the mass."""
    drawn, shares = drawing.discs(index)
    points = drawing.projection.coordinates[index][drawn]
    facing = drawing.facing(points)
    order = (
        np.argsort(facing + 1e-9 * shares, kind="stable")
        if drawing.dim == 3
        else np.argsort(shares, kind="stable")[::-1]
    )
    alpha = strength(facing, drawing.projection.on_surface)
    colours = np.column_stack([drawing.colours.tokens[drawn], alpha])
    smallest = max(full * 0.055, 1.2)
    areas = np.square(np.maximum(full * np.sqrt(shares), smallest))
    return drawing.camera.screen(points)[order], areas[order], colours[order]


def trails_at(drawing: Drawing, start: int, index: int) -> tuple[np.ndarray, np.ndarray]:
    """Segments (m, 2, 2) and colours (m, 4) of the paths of some discs from one saved time to another, older parts fainter."""
    steps = start + frames(drawing.progress[start : index + 1] - drawing.progress[start], TRAIL_STEPS)
    if steps.size < 2:
        return np.zeros((0, 2, 2)), np.zeros((0, 4))
    apart = drawing.discs(start)[0]
    tokens = apart[some(apart.size, TRAILS)]
    paths, age = along_surface(drawing.projection.coordinates[np.ix_(steps, tokens)], drawing)
    pieces = np.stack([paths[:-1], paths[1:]], axis=2)
    alpha = (0.08 + 0.5 * age[1:, None]) * strength(drawing.facing(pieces.mean(axis=2)), drawing.projection.on_surface)
    hues = np.broadcast_to(drawing.colours.tokens[tokens], (*alpha.shape, 3))
    colours = np.concatenate([hues, alpha[..., None]], axis=2)
    return drawing.camera.screen(pieces).reshape(-1, 2, 2), colours.reshape(-1, 4)


def along_surface(paths: np.ndarray, drawing: Drawing) -> tuple[np.ndarray, np.ndarray]:
    """Paths (T, m, k) whose long steps follow the surface, and how recent each point of them is, in [0, 1]."""
    surface, age = drawing.projection.surface, np.linspace(0.0, 1.0, len(paths))
    if surface is None or not drawing.projection.on_surface:
        return paths, age
    longest = np.linalg.norm(np.diff(paths, axis=0), axis=2).max(axis=1) * np.sqrt(np.linalg.eigvalsh(surface)[0])
    counts = np.clip(np.ceil(longest / 0.08), 1, 40).astype(int)
    old = np.arange(len(paths))
    new = np.concatenate([step + np.arange(count) / count for step, count in enumerate(counts)] + [old[-1:]])
    below = np.minimum(new.astype(int), len(paths) - 2)
    part = (new - below)[:, None, None]
    fine = (1 - part) * paths[below] + part * paths[below + 1]
    length = np.sqrt(np.einsum("tmi,ij,tmj->tm", fine, surface, fine))[..., None]
    return fine / np.maximum(length, 1e-12), np.interp(new, old, age)


def snapshot(axes: Axes, drawing: Drawing, index: int, start: int, full: float) -> tuple[Any, Any]:
    """Trails and discs of the tokens at a saved time; the two collections, so that an animation can move them."""
    from matplotlib.collections import LineCollection

    segments, hues = trails_at(drawing, start, index)
    trails = LineCollection(list(segments), colors=hues, linewidths=0.7, zorder=3)
    axes.add_collection(trails, autolim=False)
    places, areas, colours = discs_at(drawing, index, full)
    # thousands of vector discs make a heavy file: they become one picture inside it
    discs: Any = axes.scatter(
        *places.T, s=areas, c=colours, linewidths=rims(areas).tolist(), zorder=4, rasterized=len(places) > MANY
    )
    discs.set_edgecolor(edges_of(colours))
    return trails, discs


def rims(areas: np.ndarray) -> np.ndarray:
    """Widths of the rims: thin enough to leave the smallest discs their colour."""
    return np.minimum(0.4, 0.1 * np.sqrt(areas))


def edges_of(colours: np.ndarray) -> np.ndarray:
    """White rims that fade with their discs."""
    return np.column_stack([np.ones((len(colours), 3)), colours[:, 3]])


def when(drawing: Drawing, index: int) -> str:
    """The time of a snapshot, and what a unit is worth if norms grow."""
    words = f"t = {quantity(float(drawing.scene.times[index]))}"
    return f"{words}, unit {quantity(float(drawing.projection.scale[index]))}" if drawing.projection.rescaled else words
