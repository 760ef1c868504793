"""Figures that are not of tokens along time: one way to size, caption and write them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attractor.errors import InputError
from attractor.pictures.figure import picture_class, save, wrap
from attractor.pictures.style import QUIET, inches
from attractor.pictures.writing import atomic, target

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".pdf", ".svg")
LINE = 0.135  # inches of a line of the caption


def still_suffix(path: str | os.PathLike[str]) -> str:
    """The kind of static picture that a path asks for."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(
            f"{path}: this picture is written as {', '.join(SUFFIXES)}, not as {suffix or 'a bare name'!r}"
        )
    return suffix


@dataclass(frozen=True)
class Grid:
    """Panels in rows, as many across as the width of the page has room for, in inches."""

    across: int
    rows: int
    wide: float
    left: float
    gap: float

    @staticmethod
    def of(
        count: int, least: float, *, left: float = 0.6, gap: float = 0.65, right: float = 0.15, most: int = 4
    ) -> Grid:
        """Room for ``count`` panels that are at least ``least`` wide, at most ``most`` of them in a row."""
        room = inches() - left - right
        across = max(1, min(count, most, int((room + gap + 1e-9) / (least + gap))))
        return Grid(across, -(-count // across), (room - gap * (across - 1)) / across, left, gap)

    def place(self, number: int) -> tuple[int, float]:
        """Row of a panel, and where it begins from the left."""
        row, column = divmod(number, self.across)
        return row, self.left + column * (self.wide + self.gap)


class Still:
    """A figure of the width of the paper with a title above and a caption below; panels are placed in inches between."""

    def __init__(self, title: str, caption: str, height: float) -> None:
        self.width = inches()
        titles, lines = wrap(title, self.width, size=9.5, bold=True), wrap(caption, self.width)
        self.top = 0.14 + 0.19 * len(titles)
        self.foot = 0.12 + LINE * len(lines)
        self.height = self.top + height + self.foot
        self.figure: Figure = picture_class()(figsize=(self.width, self.height))
        for row, line in enumerate(titles):
            self._write(line, 1 - (0.09 + 0.19 * row) / self.height, size=9.5, weight="bold", va="top")
        for row, line in enumerate(reversed(lines)):
            self._write(line, (0.08 + LINE * row) / self.height, size=6.5, color=QUIET, va="bottom")

    def _write(self, line: str, y: float, **words: Any) -> None:
        self.figure.text(0.1 / self.width, y, line, ha="left", parse_math=False, **words)

    def panel(self, left: float, top: float, width: float, height: float, **words: Any) -> Any:
        """Axes with the upper left corner at (left, top) below the title, in inches."""
        bottom = self.height - self.top - top - height
        box = (left / self.width, bottom / self.height, width / self.width, height / self.height)
        return self.figure.add_axes(box, **words)

    def legend(self, handles: Any, names: Any, top: float, **words: Any) -> None:
        """One row or several of signs and their names, ``top`` inches below the title."""
        place = (0.06 / self.width, 1 - (self.top + top) / self.height)
        look = {"loc": "upper left", "frameon": False, "fontsize": 6.5, "borderpad": 0.2, "handlelength": 1.6}
        self.figure.legend(handles, names, bbox_to_anchor=place, **{**look, **words})


def written(figure: Figure, path: str | os.PathLike[str] | None, dpi: int = 200) -> Any:
    """The figure, or the path it was written to."""
    if path is None:
        return figure
    suffix, place = still_suffix(path), target(path)
    with atomic(place) as temporary:
        save(figure, temporary, dpi, suffix[1:])
    return place
