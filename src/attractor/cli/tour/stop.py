"""What a stop of the tour is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from attractor.report import Section

Say = Callable[[str], None]


class Skipped(Exception):
    """A stop that cannot be made here: why, and how to get what is missing."""


@dataclass(frozen=True)
class Settings:
    """What all stops share; ``small`` makes every one of them short, for tests and for the impatient."""

    seed: int = 0
    model: str = "minilm"
    text: str = ""
    small: bool = False


@dataclass(frozen=True)
class Stop:
    """One stop: it fills a section, says on the way what it is doing, and returns a sentence and numbers."""

    key: str
    title: str
    run: Callable[[Section, Settings, Say], tuple[str, dict[str, Any]]] = field(repr=False)
