"""Write a scene or a chart to a file chosen by its suffix."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attractor.errors import InputError
from attractor.files import check_target, write_atomic
from attractor.plotting import interactive as notebook
from attractor.plotting.animation import animate
from attractor.plotting.interactive import write_page
from attractor.plotting.preparation import prepare
from attractor.plotting.scene import Scene
from attractor.plotting.static import compose, figure_class, save, wrap
from attractor.plotting.style import QUIET, inches
from attractor.registry import check_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE, STILL, MOVING = (".html",), (".png", ".pdf", ".svg"), (".gif", ".webp", ".mp4")
LINE = 0.135  # inches of a line of the caption


def static_suffix(path: str | os.PathLike[str]) -> str:
    """Return the suffix of a static figure; raise for other suffixes."""
    suffix = Path(path).suffix.lower()
    if suffix not in STILL:
        raise InputError(f"{path}: this figure is written as {', '.join(STILL)}, not as {suffix or 'a bare name'!r}")
    return suffix


@dataclass(frozen=True)
class Grid:
    """Panels in rows, as many per row as the width allows, in inches."""

    across: int
    rows: int
    wide: float
    left: float
    gap: float

    @staticmethod
    def of(
        count: int, least: float, *, left: float = 0.6, gap: float = 0.65, right: float = 0.15, most: int = 4
    ) -> Grid:
        """Return a grid of ``count`` panels that are at least ``least`` wide, at most ``most`` in a row."""
        room = inches() - left - right
        across = max(1, min(count, most, int((room + gap + 1e-9) / (least + gap))))
        return Grid(across, -(-count // across), (room - gap * (across - 1)) / across, left, gap)

    def place(self, number: int) -> tuple[int, float]:
        """Return the row of a panel and its distance from the left."""
        row, column = divmod(number, self.across)
        return row, self.left + column * (self.wide + self.gap)


class StaticFigure:
    """A figure of the width of the paper, with a title, a caption, and panels placed in inches between them."""

    def __init__(self, title: str, caption: str, height: float) -> None:
        self.width = inches()
        titles, lines = wrap(title, self.width, size=9.5, bold=True), wrap(caption, self.width)
        self.top = 0.14 + 0.19 * len(titles)
        self.foot = 0.12 + LINE * len(lines)
        self.height = self.top + height + self.foot
        self.figure: Figure = figure_class()(figsize=(self.width, self.height))
        for row, line in enumerate(titles):
            self._write(line, 1 - (0.09 + 0.19 * row) / self.height, size=9.5, weight="bold", va="top")
        for row, line in enumerate(reversed(lines)):
            self._write(line, (0.08 + LINE * row) / self.height, size=6.5, color=QUIET, va="bottom")

    def _write(self, line: str, y: float, **words: Any) -> None:
        self.figure.text(0.1 / self.width, y, line, ha="left", parse_math=False, **words)

    def panel(self, left: float, top: float, width: float, height: float, **words: Any) -> Any:
        """Add axes with the upper left corner at (left, top) below the title, in inches."""
        bottom = self.height - self.top - top - height
        box = (left / self.width, bottom / self.height, width / self.width, height / self.height)
        return self.figure.add_axes(box, **words)

    def text(self, words: str, top: float, **look: Any) -> None:
        """Write a line ``top`` inches below the title."""
        self._write(words, 1 - (self.top + top) / self.height, **{"size": 8.0, "va": "center", **look})

    def legend(self, handles: Any, names: Any, top: float, **words: Any) -> None:
        """Add a legend ``top`` inches below the title."""
        place = (0.06 / self.width, 1 - (self.top + top) / self.height)
        look = {"loc": "upper left", "frameon": False, "fontsize": 6.5, "borderpad": 0.2, "handlelength": 1.6}
        self.figure.legend(handles, names, bbox_to_anchor=place, **{**look, **words})


def write_chart(figure: Figure, path: str | os.PathLike[str] | None, dpi: int = 200) -> Any:
    """Write a figure and return its path; return the figure without a path."""
    if path is None:
        return figure
    suffix, place = static_suffix(path), check_target(path)
    with write_atomic(place) as temporary:
        save(figure, temporary, dpi, suffix[1:])
    return place


BACKENDS = ("matplotlib", "plotly")
# largest numbers of tokens in interactive and in other figures
FEW, MANY = 2000, 5000


def draw(
    scene: Scene,
    path: str | os.PathLike[str] | None = None,
    *,
    backend: str = "matplotlib",
    colour: str = "auto",
    view: tuple[float, float] | None = None,
    tokens: int | None = None,
    width: str | float | None = None,
    snapshots: int | Sequence[float] | None = None,
    caption: bool = True,
    dpi: int | None = None,
    frames: int = 120,
    fps: int = 20,
    progress: Callable[[int, int], None] | None = None,
) -> Any:
    """Draw a scene to ``path``, or return the figure without one.

    The suffix selects the format: ``.html`` is a self-contained interactive page, ``.png``, ``.pdf`` and ``.svg`` are static, ``.gif``,
    ``.webp`` and ``.mp4`` are animations.

    Parameters
    ----------
    backend : of the returned figure, "matplotlib" or "plotly".
    colour : "auto", "cluster" (final cluster), "start" (initial position) or "index".
    view : azimuth and elevation in degrees.
    tokens : largest number of tokens to draw.
    width : "one" or "two" columns or inches; by default that of ``paper``, or two columns.
    snapshots : panels of a static figure, or their times, for which the nearest saved times are taken.
    caption : whether a static figure has a caption.
    dpi : resolution of raster formats.
    frames, fps : largest number of frames, and frames per second.
    progress : called with (frames done, all frames) by an animation.
    """
    if isinstance(snapshots, Sequence) and not isinstance(snapshots, str):
        snapshots = check_times(scene, snapshots)
    count = None if isinstance(snapshots, tuple) else snapshots
    check(backend=backend, snapshots=count, tokens=tokens, frames=frames, fps=fps, dpi=dpi)  # type: ignore[arg-type]
    place = None if path is None else check_target(path)
    suffix = None if place is None else check_suffix(place)
    interactive = suffix in PAGE or (place is None and backend == "plotly")
    most = min(tokens or (FEW if interactive else MANY), 65_000 if interactive else 1_000_000)
    drawing = prepare(scene, tokens=most, colour=colour, view=view)
    if suffix in STILL or (place is None and not interactive):
        figure = compose(drawing, width=width, snapshots=snapshots, caption=caption)
        write = partial(save, figure, dpi=dpi or 200, kind=(suffix or "")[1:])
    elif interactive:
        figure = notebook.figure(drawing, frames) if place is None else None
        write = partial(write_page, drawing, frames=frames)
    else:
        figure = None
        write = partial(animate, drawing, width=width, dpi=dpi or 110, frames=frames, fps=fps, progress=progress)
    if place is None:
        return figure
    with write_atomic(place) as temporary:
        write(temporary)
    return place


def check_suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in (*PAGE, *STILL, *MOVING):
        ending = f"the ending {path.suffix!r}" if path.suffix else "a name without an ending"
        raise InputError(f"a figure cannot be written to {ending}; give one of {', '.join((*PAGE, *STILL, *MOVING))}")
    return suffix


def check_times(scene: Scene, times: Sequence[float]) -> tuple[float, ...]:
    """Return the times of snapshots; raise if they are not increasing times of the scene."""
    found, first, last = tuple(map(float, times)), float(scene.times[0]), float(scene.times[-1])
    if not found or any(later <= earlier for earlier, later in pairwise(found)):
        raise InputError(f"times of snapshots must increase, got {found}")
    if found[0] < first or found[-1] > last:
        raise InputError(
            f"times of snapshots must lie between {first:g} and {last:g}, the times of the run; got {found}"
        )
    return found


def check(*, backend: str, **counts: int | None) -> None:
    check_name(backend, BACKENDS, "backend")
    for name, count in counts.items():
        if count is not None and not (isinstance(count, Integral) and count >= 1):
            raise InputError(f"{name} must be a whole number of at least 1, got {count!r}")
