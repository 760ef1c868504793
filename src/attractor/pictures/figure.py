"""The static picture: snapshots in a row, strips along time under them, a title above and a caption below."""

from __future__ import annotations

import textwrap
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attractor.errors import missing
from attractor.pictures import globe, panels, strips, style
from attractor.pictures.drawing import Drawing
from attractor.pictures.selection import frames

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVES = 6
LEFT, RIGHT, GAP = 0.46, 0.12, 0.5
STRIP, STRIP_GAP, HEADING = 1.05, 0.42, 0.22


def compose(
    drawing: Drawing, *, width: str | float | None = None, snapshots: int | None = None, caption: bool = True
) -> Figure:
    """A matplotlib figure that belongs to no global state and leaves the user's settings as they are."""
    across, figure_class = style.inches(width), picture_class()
    with style.applied():
        figure = figure_class()
        Page(figure, drawing, across, snapshots, caption).fill()
    return figure


def picture_class() -> type[Figure]:
    """A figure that shows itself in a notebook although pyplot knows nothing of it."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise missing("matplotlib", "plot") from None

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            buffer = BytesIO()
            save(self, buffer, 144, "png")
            return buffer.getvalue()

    return Picture


def save(figure: Figure, place: Path | BytesIO, dpi: int, kind: str) -> None:
    """Write a figure as png, pdf or svg; the same figure gives the same bytes."""
    dateless: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with style.applied():
        figure.savefig(place, format=kind, dpi=dpi, metadata=dateless.get(kind))


class Page:
    """Lays out panels from the top down, in inches."""

    def __init__(self, figure: Figure, drawing: Drawing, width: float, snapshots: int | None, caption: bool) -> None:
        self.figure, self.drawing, self.width = figure, drawing, width
        wanted = snapshots if snapshots is not None else (3 if width > 5 else 2)
        self.indices = frames(drawing.progress, max(1, wanted))
        self.caption = wrap(f"{drawing.caption} {self.reading()}", width) if caption else []
        self.title = wrap(drawing.scene.title, width, size=9.5, bold=True)
        self.verdict = wrap(drawing.verdict, width) if caption else []

    def fill(self) -> None:
        strip_names = self.strip_names()
        rows = -(-len(strip_names) // max(1, int(self.width // 2.2)))
        per_row = -(-len(strip_names) // max(1, rows)) or 1
        flat = self.drawing.dim == 2 and self.drawing.projection.surface is None
        pad = 0.42 if flat else 0.05
        count = len(self.indices)
        side = min((self.width - (LEFT if flat else 0.1) - 0.1 - (count - 1) * pad) / count, 3.4)
        tall = side * self.proportion()
        head = 0.1 + 0.19 * len(self.title) + 0.14 * len(self.verdict) + (0.05 if self.title or self.verdict else 0)
        top_row = HEADING + (1.7 if self.drawing.dim == 1 else tall + (0.3 if flat else 0.0))
        foot = 0.12 + 0.135 * len(self.caption)
        self.height = (
            head + top_row + rows * (HEADING + STRIP) + (rows + (self.drawing.dim == 1)) * STRIP_GAP + foot + 0.12
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

    def reading(self) -> str:
        """How to read what only the printed picture has."""
        drawing = self.drawing
        far = "Faded discs are on the far side." if drawing.projection.on_surface and drawing.dim == 3 else ""
        merges = "Ticks on the time axes are merges." if drawing.scene.events else ""
        return " ".join(part for part in (far, merges, drawing.left_out(CURVES)) if part)

    def strip_names(self) -> list[str | None]:
        """Curves to draw, preceded by None for the angles of tokens on a circle."""
        return [*([None] if self.drawing.circle else []), *list(self.drawing.scene.curves)[:CURVES]]

    def proportion(self) -> float:
        """Height of a snapshot for its width: an ellipsoid may lie flat."""
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
            panels.backdrop(axes, self.drawing)
            panels.snapshot(axes, self.drawing, int(index), start, full=side * 13)
            if flat and number:
                axes.set_ylabel("")
            self.heading(axes, number, int(index))
            start = int(index)

    def heading(self, axes: Axes, number: int, index: int) -> None:
        letter = f"{'abcdefghijklmnop'[number % 16]}  " if len(self.indices) > 1 else ""
        axes.set_title(f"{letter}{panels.when(self.drawing, index)}", pad=3, parse_math=False)

    def long_strip(self) -> None:
        axes = self.axes(LEFT, self.top, self.width - LEFT - RIGHT, 1.7)
        strips.positions(axes, self.drawing)
        strips.mark_times(axes, self.drawing, np.zeros(0, dtype=int))
        strips.time_ruler(axes, self.drawing, most=8)

    def strips(self, names: list[str | None], per_row: int) -> None:
        width = (self.width - LEFT - RIGHT - (per_row - 1) * GAP) / per_row
        marked = self.indices if self.drawing.dim > 1 else np.zeros(0, dtype=int)
        for number, name in enumerate(names):
            row, column = divmod(number, per_row)
            top = self.top + HEADING + row * (HEADING + STRIP + STRIP_GAP)
            axes = self.axes(LEFT + column * (width + GAP), top, width, STRIP)
            if name is None:
                strips.angles(axes, self.drawing)
            else:
                strips.curve(axes, self.drawing, name)
            strips.mark_times(axes, self.drawing, marked)
            strips.time_ruler(axes, self.drawing, most=max(3, int(width * 3)))


def wrap(text: str, width: float, size: float = 6.5, *, bold: bool = False) -> list[str]:
    """Lines that fit: a letter of the font is about 0.56 of its size wide, a bold one 0.65."""
    return textwrap.wrap(text, max(12, int((width - 0.2) * 72 / ((0.65 if bold else 0.56) * size))))
