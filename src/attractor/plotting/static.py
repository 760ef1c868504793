"""Static figures with matplotlib: snapshots of tokens above observables along time."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attractor.errors import missing
from attractor.plotting import preparation as globe
from attractor.plotting import style
from attractor.plotting.preparation import Drawing
from attractor.plotting.scene import select_frames, subsample
from attractor.plotting.time_axis import format_quantity, log_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRAILS, TRAIL_STEPS = 150, 32
MANY = 3000
LETTER = 0.56 * 6.5 / 72  # inches of a letter of a label


def draw_backdrop(axes: Axes, drawing: Drawing) -> None:
    """Draw the surface with its grid, the axes of a plane, or the box of a space."""
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
    across, up = 1.12 * np.abs(outline).max(axis=0)
    axes.set(xlim=(-across, across), ylim=(-up, up), aspect="equal")
    axes.set_axis_off()
    edge = Polygon(outline, closed=True, facecolor="none", edgecolor=style.FAINT, linewidth=0.7, zorder=2)
    axes.add_patch(edge)
    if drawing.dim == 2:
        return
    # the shading is clipped by the outline, which keeps the edge sharp
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
    """Draw meridians and parallels, fainter at the back; two broken lines keep vector files small."""
    lines = np.stack(globe.graticule(surface))
    front = (
        drawing.camera.facing(lines, surface) > 0
        if drawing.projection.on_surface
        else np.zeros(lines.shape[:2], dtype=bool)
    )
    places = drawing.camera.screen(lines)
    for side, alpha in ((front, 0.75), (~front, 0.25)):
        # one more point at each end, so that the two lines meet
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
    """Draw a cube seen by the camera, with rulings on its three hidden faces and names of axes."""
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
    width = f"box {format_quantity(2 * half)} wide"
    axes.text(0.5, 0.0, width, transform=axes.transAxes, ha="center", va="bottom", fontsize=6, color=style.QUIET)


def _room(axes: Axes, away: float, inches: float) -> float:
    """Return half the range of an axis on which a text of this many inches fits, centred this far from its middle."""
    side = axes.bbox.width / axes.get_figure(root=True).dpi  # type: ignore[union-attr]
    return away / max(0.3, 1 - inches / side)


def strength(facing: np.ndarray, on_surface: bool) -> np.ndarray:
    """Return opacities: on a surface the back is faded at once, in a solid gradually."""
    return np.where(facing >= 0, 1.0, 0.22) if on_surface else 0.35 + 0.65 * (facing + 1) / 2


def discs_at(drawing: Drawing, index: int, full: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return places (m, 2), areas and colours (m, 4) of the discs, the farthest first; ``full`` points is the diameter of all mass."""
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
    """Return segments (m, 2, 2) and colours (m, 4) of the paths of some discs between two saved times, older parts fainter."""
    steps = start + select_frames(drawing.progress[start : index + 1] - drawing.progress[start], TRAIL_STEPS)
    if steps.size < 2:
        return np.zeros((0, 2, 2)), np.zeros((0, 4))
    apart = drawing.discs(start)[0]
    tokens = apart[subsample(apart.size, TRAILS)]
    paths, age = along_surface(drawing.projection.coordinates[np.ix_(steps, tokens)], drawing)
    pieces = np.stack([paths[:-1], paths[1:]], axis=2)
    alpha = (0.08 + 0.5 * age[1:, None]) * strength(drawing.facing(pieces.mean(axis=2)), drawing.projection.on_surface)
    hues = np.broadcast_to(drawing.colours.tokens[tokens], (*alpha.shape, 3))
    colours = np.concatenate([hues, alpha[..., None]], axis=2)
    return drawing.camera.screen(pieces).reshape(-1, 2, 2), colours.reshape(-1, 4)


def along_surface(paths: np.ndarray, drawing: Drawing) -> tuple[np.ndarray, np.ndarray]:
    """Return paths (T, m, k) whose long steps follow the surface, and the recency of each point in [0, 1]."""
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


def draw_snapshot(axes: Axes, drawing: Drawing, index: int, start: int, full: float) -> tuple[Any, Any]:
    """Draw trails and discs at a saved time; return both collections, so that an animation can update them."""
    from matplotlib.collections import LineCollection

    segments, hues = trails_at(drawing, start, index)
    trails = LineCollection(list(segments), colors=hues, linewidths=0.7, zorder=3)
    axes.add_collection(trails, autolim=False)
    places, areas, colours = discs_at(drawing, index, full)
    # thousands of vector discs would make a large file
    discs: Any = axes.scatter(
        *places.T,
        s=areas,
        c=colours,
        linewidths=rim_widths(areas).tolist(),
        zorder=4,
        rasterized=len(places) > MANY,
        clip_on=False,
    )
    discs.set_edgecolor(rim_colours(colours))
    return trails, discs


def rim_widths(areas: np.ndarray) -> np.ndarray:
    """Return widths of the rims, small enough to keep the colour of the smallest discs."""
    return np.minimum(0.4, 0.1 * np.sqrt(areas))


def rim_colours(colours: np.ndarray) -> np.ndarray:
    """Return white rims that fade with their discs."""
    return np.column_stack([np.ones((len(colours), 3)), colours[:, 3]])


def time_label(drawing: Drawing, index: int) -> str:
    """Return the time of a snapshot, and the unit of length if norms grow."""
    words = f"{drawing.scene.symbol} = {format_quantity(float(drawing.scene.times[index]))}"
    return (
        f"{words}, unit {format_quantity(float(drawing.projection.scale[index]))}"
        if drawing.projection.rescaled
        else words
    )


LINES = 400


def set_time_axis(axes: Axes, drawing: Drawing, label: bool = True, most: int = 5) -> None:
    """Set the time axis that all strips share."""
    low, high = drawing.time_axis.limits
    margin = 0.02 * (high - low)
    axes.set_xlim(low - margin, high + margin)
    if drawing.time_axis.logarithmic:
        positions, labels = drawing.time_axis.ticks(most)
        axes.set_xticks(positions, labels)
    else:
        axes.locator_params(axis="x", nbins=most)
    if label:
        axes.set_xlabel(drawing.scene.clock, labelpad=1)


def mark_times(axes: Axes, drawing: Drawing, snapshots: np.ndarray) -> None:
    """Draw dotted lines at the snapshots and ticks at the merges."""
    above = axes.get_xaxis_transform()
    for letter, place in zip("abcdefghijklmnop", drawing.time_axis.place(drawing.scene.times[snapshots]), strict=False):
        axes.axvline(float(place), color=style.FAINT, linewidth=0.6, linestyle=(0, (1, 2)), zorder=0)
        if len(snapshots) > 1:
            axes.text(
                float(place), 1.02, letter, transform=above, fontsize=5.5, color=style.QUIET, ha="center", va="bottom"
            )
    times = np.array([time for time, _ in drawing.scene.events if np.isfinite(time)])
    if times.size:
        places = np.unique(drawing.time_axis.place(times[subsample(times.size, 1000)]))
        axes.plot(
            places, np.zeros(places.size), "|", color=style.INK, markersize=4, markeredgewidth=0.6, transform=above,
            clip_on=False, zorder=5,
        )  # fmt: skip


def draw_curve(axes: Axes, drawing: Drawing, label: str, colour: str = style.PALETTE[0]) -> None:
    """Draw one observable against time, on a logarithmic scale if it is positive and spans three decades."""
    values = drawing.scene.curves[label]
    places = drawing.time_axis.place(drawing.scene.times)
    sound = np.isfinite(values)
    whole = bool(sound.any()) and bool(np.equal(np.mod(values[sound], 1.0), 0).all())
    axes.plot(places, np.where(sound, values, np.nan), color=colour, linewidth=1.1, drawstyle="steps-post" if whole else "default",
              marker="o" if places.size == 1 else None, markersize=3)  # fmt: skip
    sound_values = values[sound]
    if label in drawing.scene.bands:
        low, high = drawing.scene.bands[label]
        axes.fill_between(places, low, high, color=colour, alpha=0.18, linewidth=0)
        sound_values = np.concatenate((sound_values, low[np.isfinite(low)], high[np.isfinite(high)]))
    if needs_log_scale(sound_values, 20 if whole else 1e3):
        set_log_axis(axes, float(sound_values.min()), float(sound_values.max()))
    else:
        axes.locator_params(axis="y", nbins=4, integer=whole)
    axes.set_title(label, loc="left", pad=9, parse_math=False)


def needs_log_scale(values: np.ndarray, ratio: float) -> bool:
    """Whether values are positive and span more than ``ratio``."""
    return bool(values.size and values.min() > 0 and values.max() > ratio * values.min())


def set_log_axis(axes: Axes, low: float, high: float) -> None:
    axes.set_yscale("log")
    axes.minorticks_off()
    ticks = log_ticks(low, high)
    axes.set_yticks(ticks, [format_quantity(tick) for tick in ticks])


def draw_angles(axes: Axes, drawing: Drawing) -> None:
    """Draw the angles of tokens on a circle against time."""
    draw_threads(axes, drawing, drawing.angles())
    axes.set(ylim=(-180, 180), yticks=[-180, -90, 0, 90, 180], yticklabels=["−180°", "−90°", "0°", "90°", "180°"])
    axes.set_title("angle of each token", loc="left", pad=9)


def draw_positions(axes: Axes, drawing: Drawing) -> None:
    """Draw the positions of tokens on a line against time."""
    draw_threads(axes, drawing, drawing.projection.coordinates[..., 0])
    axes.locator_params(axis="y", nbins=5)
    name = "x / extent" if drawing.projection.rescaled else "x"
    axes.set_title(f"position {name} of each token", loc="left", pad=4)


def draw_threads(axes: Axes, drawing: Drawing, values: np.ndarray) -> None:
    from matplotlib.collections import LineCollection

    places = drawing.time_axis.place(drawing.scene.times)
    tokens = subsample(drawing.tokens.size, LINES)
    colours = drawing.colours.tokens[tokens]
    if places.size == 1:
        axes.scatter(np.repeat(places, tokens.size), values[0, tokens], s=6, c=colours, linewidths=0)
    else:
        lines = [np.column_stack([places, values[:, token]]) for token in tokens]
        alpha = 0.9 if tokens.size <= 60 else 0.5
        axes.add_collection(LineCollection(lines, colors=colours, linewidths=0.7, alpha=alpha))
        axes.autoscale_view()


CURVES = 6
LEFT, RIGHT, GAP = 0.46, 0.12, 0.5
STRIP, STRIP_GAP, HEADING = 1.05, 0.42, 0.22
LOW_STRIP, LOW_GAP = 0.72, 0.06  # of strips below each other, which share the time axis of the last


def compose(
    drawing: Drawing,
    *,
    width: str | float | None = None,
    snapshots: int | Sequence[float] | None = None,
    caption: bool = True,
) -> Figure:
    """Return a matplotlib figure without using or changing global state."""
    across, make = style.inches(width), figure_class()
    with style.use_style():
        figure = make()
        Page(figure, drawing, across, snapshots, caption).fill()
    return figure


def figure_class() -> type[Figure]:
    """Return a figure class that displays itself in notebooks without pyplot."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise missing("matplotlib", "plot") from None

    class NotebookFigure(Figure):
        def _repr_png_(self) -> bytes:
            buffer = BytesIO()
            save(self, buffer, 144, "png")
            return buffer.getvalue()

    return NotebookFigure


def save(figure: Figure, place: Path | BytesIO, dpi: int, kind: str) -> None:
    """Write a figure as png, pdf or svg; the same figure gives the same bytes."""
    dateless: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with style.use_style():
        figure.savefig(place, format=kind, dpi=dpi, metadata=dateless.get(kind))


class Page:
    """Layout of the panels from top to bottom, in inches."""

    def __init__(
        self,
        figure: Figure,
        drawing: Drawing,
        width: float,
        snapshots: int | Sequence[float] | None,
        caption: bool,
    ) -> None:
        self.figure, self.drawing, self.width = figure, drawing, width
        wanted = snapshots if snapshots is not None else (3 if width > 5 else 2)
        if isinstance(wanted, int):
            self.indices = select_frames(drawing.progress, max(1, wanted))
        else:
            apart = np.abs(drawing.scene.times[:, None] - np.asarray(wanted)[None, :])
            self.indices = np.unique(apart.argmin(axis=0))
        self.caption = wrap(f"{drawing.caption} {self.usage_note()}", width) if caption else []
        self.title = wrap(drawing.scene.title, width, size=9.5, bold=True)
        self.verdict = wrap(drawing.verdict, width) if caption else []

    def fill(self) -> None:
        strip_names = self.strip_names()
        rows = -(-len(strip_names) // max(1, int(self.width // 2.2)))
        per_row = -(-len(strip_names) // max(1, rows)) or 1
        self.stacked = per_row == 1 and rows > 1
        self.strip, self.strip_gap = (LOW_STRIP, LOW_GAP) if self.stacked else (STRIP, STRIP_GAP)
        flat = self.drawing.dim == 2 and self.drawing.projection.surface is None
        pad = 0.42 if flat else 0.05
        count = len(self.indices)
        side = min((self.width - (LEFT if flat else 0.1) - 0.1 - (count - 1) * pad) / count, 3.4)
        tall = side * self.proportion()
        head = 0.1 + 0.19 * len(self.title) + 0.14 * len(self.verdict) + (0.05 if self.title or self.verdict else 0)
        top_row = HEADING + (1.7 if self.drawing.dim == 1 else tall + (0.3 if flat else 0.0))
        foot = 0.12 + 0.135 * len(self.caption)
        self.height = (
            head
            + top_row
            + rows * (HEADING + self.strip)
            + max(0, rows - 1) * self.strip_gap
            + ((rows > 0) + (self.drawing.dim == 1)) * STRIP_GAP
            + foot
            + 0.12
        )
        self.figure.set_size_inches(self.width, self.height)
        self.words(head)
        self.top = head + HEADING
        if self.drawing.dim == 1:
            self.long_strip()
        else:
            self.snapshots(side, tall, pad, flat)
        self.top = head + top_row + (STRIP_GAP if self.drawing.dim == 1 else 0.12)
        self.strips(strip_names, per_row)

    def usage_note(self) -> str:
        """Return a note on how to read the static figure."""
        drawing = self.drawing
        far = "Faded discs are on the far side." if drawing.projection.on_surface and drawing.dim == 3 else ""
        merges = "Ticks on the time axes are merges." if drawing.scene.events else ""
        return " ".join(part for part in (far, merges, drawing.left_out(CURVES)) if part)

    def strip_names(self) -> list[str | None]:
        """Return the curves to draw, preceded by None for the angles of tokens on a circle."""
        return [*([None] if self.drawing.circle else []), *list(self.drawing.scene.curves)[:CURVES]]

    def proportion(self) -> float:
        """Return the ratio of height to width of a snapshot, small for a flat ellipsoid."""
        surface = self.drawing.projection.surface
        if surface is None or self.drawing.dim == 1:
            return 1.0
        across, up = np.abs(globe.silhouette(surface, self.drawing.camera)).max(axis=0)
        return float(np.clip(up / across, 0.3, 1.6))

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        box = (left / self.width, 1 - (top + height) / self.height, width / self.width, height / self.height)
        return self.figure.add_axes(box)

    def words(self, head: float) -> None:
        up = 0.09
        for lines, size, step, weight, colour in (
            (self.title, 9.5, 0.19, "bold", style.INK),
            (self.verdict, 7, 0.14, "normal", style.QUIET),
        ):
            for line in lines:
                self.figure.text(0.1 / self.width, 1 - up / self.height, line, fontsize=size, fontweight=weight, color=colour,
                                 va="top", ha="left", parse_math=False)  # fmt: skip
                up += step
        for row, line in enumerate(reversed(self.caption)):
            self.figure.text(0.1 / self.width, (0.1 + 0.135 * row) / self.height, line, fontsize=6.5, color=style.QUIET,
                             va="bottom", ha="left", parse_math=False)  # fmt: skip

    def snapshots(self, side: float, tall: float, pad: float, flat: bool) -> None:
        left = LEFT if flat else (self.width - len(self.indices) * side - (len(self.indices) - 1) * pad) / 2
        start = 0
        for number, index in enumerate(self.indices):
            axes = self.axes(left + number * (side + pad), self.top, side, tall)
            draw_backdrop(axes, self.drawing)
            draw_snapshot(axes, self.drawing, int(index), start, full=side * 13)
            if flat and number:
                axes.set_ylabel("")
            self.heading(axes, number, int(index))
            start = int(index)

    def heading(self, axes: Axes, number: int, index: int) -> None:
        letter = f"{'abcdefghijklmnop'[number % 16]}  " if len(self.indices) > 1 else ""
        axes.set_title(f"{letter}{time_label(self.drawing, index)}", pad=3, parse_math=False)

    def long_strip(self) -> None:
        axes = self.axes(LEFT, self.top, self.width - LEFT - RIGHT, 1.7)
        draw_positions(axes, self.drawing)
        mark_times(axes, self.drawing, np.zeros(0, dtype=int))
        set_time_axis(axes, self.drawing, most=8)

    def strips(self, names: list[str | None], per_row: int) -> None:
        width = (self.width - LEFT - RIGHT - (per_row - 1) * GAP) / per_row
        marked = self.indices if self.drawing.dim > 1 else np.zeros(0, dtype=int)
        for number, name in enumerate(names):
            row, column = divmod(number, per_row)
            top = self.top + HEADING + row * (HEADING + self.strip + self.strip_gap)
            axes = self.axes(LEFT + column * (width + GAP), top, width, self.strip)
            if name is None:
                draw_angles(axes, self.drawing)
            else:
                draw_curve(axes, self.drawing, name)
            mark_times(axes, self.drawing, marked)
            last = not self.stacked or number == len(names) - 1
            set_time_axis(axes, self.drawing, label=last, most=max(3, int(width * 3)))
            if not last:
                axes.tick_params(labelbottom=False)


def wrap(text: str, width: float, size: float = 6.5, *, bold: bool = False) -> list[str]:
    """Wrap text: a letter is about 0.56 of the font size wide, a bold one 0.65."""
    return textwrap.wrap(text, max(12, int((width - 0.2) * 72 / ((0.65 if bold else 0.56) * size))))
