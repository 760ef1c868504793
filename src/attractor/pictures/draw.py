"""One door: a scene becomes a file, by the ending of its name, or a figure."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

from attractor.errors import InputError
from attractor.pictures import notebook
from attractor.pictures.animation import animate
from attractor.pictures.drawing import prepare
from attractor.pictures.figure import compose, save
from attractor.pictures.page import write_page
from attractor.pictures.scene import Scene
from attractor.pictures.writing import atomic, target

PAGE, STILL, MOVING = (".html",), (".png", ".pdf", ".svg"), (".gif", ".mp4")
BACKENDS = ("matplotlib", "plotly")
# Tokens drawn at most: a browser moves them, a printer does not.
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
    snapshots: int | None = None,
    caption: bool = True,
    dpi: int | None = None,
    frames: int = 120,
    fps: int = 20,
    progress: Callable[[int, int], None] | None = None,
) -> Any:
    """Write a picture of a scene to ``path``, or return a figure if there is none.

    The ending of the name decides: ``.html`` is a self-contained interactive page, ``.png``, ``.pdf`` and ``.svg`` are
    static, ``.gif`` and ``.mp4`` move. Without a path the figure comes back, matplotlib's or (``backend="plotly"``) plotly's;
    with one, the path.

    colour: "auto", "cluster" (where tokens end), "start" (where they start) or "index"; view: azimuth and elevation in
    degrees; tokens: the most to draw; width: "one" or "two" columns or inches, by default those of ``paper`` around it, or
    two columns; snapshots: panels of a static picture; frames, fps: of what moves, at most so many frames; progress: called
    with (frames done, all frames) by an animation.
    """
    check(backend=backend, snapshots=snapshots, tokens=tokens, frames=frames, fps=fps, dpi=dpi)
    place = None if path is None else target(path)
    suffix = None if place is None else known_suffix(place)
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
    return figure if place is None else written(place, write)


def written(path: Path, write: Callable[[Path], object]) -> Path:
    """The path, once ``write`` has filled a temporary file that takes its place."""
    with atomic(path) as temporary:
        write(temporary)
    return path


def known_suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in (*PAGE, *STILL, *MOVING):
        ending = f"the ending {path.suffix!r}" if path.suffix else "a name without an ending"
        raise InputError(f"a picture cannot be written to {ending}; give one of {', '.join((*PAGE, *STILL, *MOVING))}")
    return suffix


def check(*, backend: str, **counts: int | None) -> None:
    if backend not in BACKENDS:
        raise InputError(f"backend {backend!r} is not known; give one of {', '.join(BACKENDS)}")
    for name, count in counts.items():
        if count is not None and not (isinstance(count, Integral) and count >= 1):
            raise InputError(f"{name} must be a whole number of at least 1, got {count!r}")
