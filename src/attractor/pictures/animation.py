"""Animations: the tokens move on the left, a line walks along the observables on the right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attractor.errors import missing
from attractor.pictures import panels, strips, style
from attractor.pictures.drawing import Drawing
from attractor.pictures.figure import wrap
from attractor.pictures.film import write_gif, write_mp4
from attractor.pictures.selection import frames as choose

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Progress = Callable[[int, int], None]
TRAIL = 16
CURVES = 3


def animate(
    drawing: Drawing,
    path: Path,
    *,
    width: str | float | None,
    dpi: int,
    frames: int,
    fps: int,
    progress: Progress | None,
) -> None:
    """Write a .gif or an .mp4."""
    if find_spec("matplotlib") is None:
        raise missing("matplotlib", "plot")
    indices = choose(drawing.progress, frames)
    with style.applied():
        pictures = Stage(drawing, indices, style.inches(width), dpi).pictures(progress)
        if path.suffix.lower() == ".gif":
            write_gif(pictures, path, fps, drawing.colours.tokens)
        else:
            write_mp4(pictures, path, fps)


class Stage:
    """One figure whose still parts are drawn once; each frame puts trails, discs and the time on top of them."""

    def __init__(self, drawing: Drawing, indices: np.ndarray, width: float, dpi: int) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.drawing, self.indices, self.width = drawing, indices, width
        self.labels = list(drawing.scene.curves)[:CURVES]
        strips_beside = bool(self.labels) and drawing.dim > 1
        side = 0.6 * width if strips_beside else min(width, 4.6)
        self.height = side + 0.5
        self.side, self.beside = side, strips_beside
        # an even number of pixels each way, which video formats ask for
        self.figure: Figure = Figure(
            figsize=(2 * round(width * dpi / 2) / dpi, 2 * round(self.height * dpi / 2) / dpi), dpi=dpi
        )
        self.canvas = FigureCanvasAgg(self.figure)
        self.moving: list[Any] = []
        self.lay_out()

    def lay_out(self) -> None:
        drawing = self.drawing
        title = wrap(drawing.scene.title, self.width - 1.6, size=9.5, bold=True)
        self.figure.text(
            0.02, 0.985, title[0] if title else "", fontsize=9.5, fontweight="bold", va="top", parse_math=False
        )
        self.clock = self.figure.text(0.98, 0.985, "", fontsize=9, va="top", ha="right", parse_math=False)
        room = self.side / self.width
        flat = drawing.dim == 1 or (drawing.projection.surface is None and drawing.dim == 2)
        box = (0.09, 0.11, room - 0.12, 0.78) if flat else (0.01, 0.02, room - 0.03, self.side / self.height - 0.05)
        left = self.figure.add_axes(box)
        if drawing.dim == 1:
            strips.positions(left, drawing)
            strips.time_ruler(left, drawing)
            self.strips = [left]
            self.trails = self.discs = None
        else:
            panels.backdrop(left, drawing)
            self.trails, self.discs = panels.snapshot(left, drawing, int(self.indices[0]), 0, full=self.side * 12)
            self.strips = self.lay_strips(room) if self.beside else []
        self.lines = [axes.axvline(0.0, color=style.PALETTE[1], linewidth=1.0) for axes in self.strips]
        self.moving = [artist for artist in (self.trails, self.discs, self.clock, *self.lines) if artist is not None]
        for artist in self.moving:
            artist.set_animated(True)

    def lay_strips(self, room: float) -> list[Any]:
        count = len(self.labels)
        tall = 0.82 / count
        made = []
        for number, label in enumerate(self.labels):
            axes = self.figure.add_axes((room + 0.06, 0.1 + (count - 1 - number) * tall, 0.92 - room, tall - 0.13))
            strips.curve(axes, self.drawing, label)
            strips.mark_times(axes, self.drawing, np.zeros(0, dtype=int))
            strips.time_ruler(axes, self.drawing, label=number == count - 1, most=4)
            made.append(axes)
        return made

    def pictures(self, progress: Progress | None) -> Iterator[np.ndarray]:
        """Pixels (height, width, 3) of each frame."""
        self.canvas.draw()
        still = self.canvas.copy_from_bbox(self.figure.bbox)
        for number, index in enumerate(self.indices):
            self.move(number, int(index))
            self.canvas.restore_region(still)
            for artist in self.moving:
                self.figure.draw_artist(artist)
            yield np.asarray(self.canvas.buffer_rgba())[..., :3].copy()
            if progress is not None:
                progress(number + 1, len(self.indices))

    def move(self, number: int, index: int) -> None:
        self.clock.set_text(panels.when(self.drawing, index))
        now = float(self.drawing.time_axis.place(self.drawing.scene.times[index]))
        for line in self.lines:
            line.set_xdata([now, now])
        if self.discs is None or self.trails is None:
            return
        segments, hues = panels.trails_at(self.drawing, int(self.indices[max(0, number - TRAIL)]), index)
        self.trails.set_segments(list(segments))
        self.trails.set_color(hues)
        places, areas, colours = panels.discs_at(self.drawing, index, self.side * 12)
        self.discs.set_offsets(places)
        self.discs.set_sizes(areas)
        self.discs.set_linewidths(panels.rims(areas))
        self.discs.set_facecolor(colours)
        self.discs.set_edgecolor(panels.edges_of(colours))
