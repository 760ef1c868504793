"""Figures that are not of tokens along time: one way to size, caption and write them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attractor.errors import InputError
from attractor.pictures.figure import picture_class, save, wrap
from attractor.pictures.style import COLUMNS, QUIET
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


class Still:
    """A figure of the width of a page with a title above and a caption below; panels are placed in inches between."""

    def __init__(self, title: str, caption: str, height: float) -> None:
        self.width = COLUMNS["two"]
        titles, lines = wrap(title, self.width, size=9.5), wrap(caption, self.width)
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

    def panel(self, left: float, top: float, width: float, height: float) -> Any:
        """Axes with the upper left corner at (left, top) below the title, in inches."""
        bottom = self.height - self.top - top - height
        return self.figure.add_axes((left / self.width, bottom / self.height, width / self.width, height / self.height))


def written(figure: Figure, path: str | os.PathLike[str] | None, dpi: int = 200) -> Any:
    """The figure, or the path it was written to."""
    if path is None:
        return figure
    suffix, place = still_suffix(path), target(path)
    with atomic(place) as temporary:
        save(figure, temporary, dpi, suffix[1:])
    return place
