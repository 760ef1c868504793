"""What a report is made of. Every block names the macro of ``templates/blocks.html`` that draws it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from attractor.errors import InputError

TONES = ("plain", "good", "warn", "bad")


@dataclass(frozen=True)
class Badge:
    """A short word with a tone, for a cell or a card: ``Badge("holds", "good")``."""

    text: str
    tone: str = "plain"

    def __post_init__(self) -> None:
        if self.tone not in TONES:
            raise InputError(f"tone {self.tone!r} is not known; give one of {', '.join(TONES)}")


@dataclass(frozen=True)
class Maths:
    """A formula in LaTeX, for a cell or a card."""

    latex: str


@dataclass(frozen=True)
class Code:
    """Something to be typed, for a cell or a card."""

    text: str


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    words: str
    tone: str = "plain"
    macro: ClassVar[str] = "text"


@dataclass(frozen=True)
class Formula:
    """A formula on a line of its own."""

    latex: str
    macro: ClassVar[str] = "formula"


@dataclass(frozen=True)
class Commands:
    """Lines for the shell, each with what it does."""

    lines: tuple[tuple[str, str], ...]
    macro: ClassVar[str] = "commands"


@dataclass(frozen=True)
class Table:
    """Rows of cells under named columns."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    caption: str = ""
    command: str = ""
    macro: ClassVar[str] = "table"

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Which columns hold nothing but numbers, and are set flush right."""
        filled = [[row[place] for row in self.rows if row[place] is not None] for place in range(len(self.columns))]
        return tuple(bool(cells) and all(is_number(cell) for cell in cells) for cells in filled)


@dataclass(frozen=True)
class Card:
    """Labels and values side by side."""

    rows: dict[str, Any]
    title: str = ""
    tone: str = "plain"


@dataclass(frozen=True)
class Cards:
    """Cards in a row, as many as fit."""

    cards: tuple[Card, ...]
    macro: ClassVar[str] = "cards"


@dataclass(frozen=True)
class Figure:
    """A picture that plotly draws."""

    content: dict[str, Any]
    caption: str
    alt: str
    command: str = ""
    height: int = 420
    numbers: Table | None = None
    macro: ClassVar[str] = "figure"


@dataclass(frozen=True)
class Heatmap:
    """A grid of cells; each is read by pointing at it and opened by a click or the Enter key."""

    content: dict[str, Any]
    caption: str
    alt: str
    command: str = ""
    macro: ClassVar[str] = "heatmap"


@dataclass(frozen=True)
class Film:
    """Tokens that move, with a slider and curves beside them."""

    content: dict[str, Any]
    title: str
    verdict: str
    caption: str
    shape: str
    strips: int
    command: str = ""
    macro: ClassVar[str] = "film"


@dataclass(eq=False)
class Fold:
    """Blocks behind a line that opens them."""

    title: str
    blocks: list[Any] = field(default_factory=list)
    macro: ClassVar[str] = "fold"


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def number(value: Any) -> str:
    """A value in few digits: 12,345, 0.1235, 1.2e-9, infinite, not defined."""
    if value is None:
        return "–"
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, (int, np.integer)):
        return f"{int(value):,}"
    if not isinstance(value, (float, np.floating)):
        return str(value)
    if math.isnan(value):
        return "not defined"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    text = f"{float(value):,.4g}" if abs(value) < 1e5 else f"{float(value):.4g}"
    return text.replace("-", "−") if text.startswith("-") else text
