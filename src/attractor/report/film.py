"""Tokens along time as a block of a report: the interactive picture of ``pictures``, without its page."""

from __future__ import annotations

from attractor.pictures import Scene
from attractor.pictures.drawing import prepare
from attractor.pictures.layouts import shown_curves
from attractor.pictures.page import content_of, reading, shape_of
from attractor.pictures.traces import Reel
from attractor.report.blocks import Film


def filmed(scene: Scene, caption: str, command: str, frames: int, tokens: int) -> Film:
    """At most so many frames of at most so many tokens."""
    drawing = prepare(scene, tokens=tokens, colour="auto", view=None)
    reel = Reel.of(drawing, frames)
    return Film(
        content_of(reel),
        scene.title or "Tokens",
        drawing.verdict,
        " ".join(part for part in (caption, drawing.caption, reading(drawing)) if part),
        shape_of(reel),
        len(shown_curves(drawing)) + drawing.circle,
        command,
    )
