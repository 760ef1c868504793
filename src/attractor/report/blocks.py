"""Content blocks of a report: text, formulas, tables, cards, figures, heat maps."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import unescape
from typing import TYPE_CHECKING, Any, ClassVar
from xml.etree.ElementTree import tostring

import numpy as np

from attractor.errors import InputError, missing
from attractor.plotting import (
    AnimationFrames,
    Scene,
    animation_content,
    page_classes,
    prepare,
    shown_curves,
    style,
    usage_note,
)
from attractor.registry import check_name
from attractor.report.figures import figure_content

if TYPE_CHECKING:
    from markupsafe import Markup

# text has two kinds of markup: `code` and \( formulas \)
PARTS = re.compile(r"\\\((.*?)\\\)|`([^`]+)`", re.DOTALL)


def render_maths(latex: str, block: bool = False) -> Markup:
    """Return a formula as MathML, or its source if it cannot be parsed."""
    try:
        from latex2mathml.converter import convert_to_element
        from markupsafe import Markup
    except ImportError:
        raise missing("latex2mathml", "report") from None
    try:
        tree = convert_to_element(latex, display="block" if block else "inline")
    except Exception:
        return Markup("<code>{}</code>").format(latex)
    for element in tree.iter():
        element.text = None if element.text is None else unescape(element.text)
    return Markup(tostring(tree, encoding="unicode", short_empty_elements=False))


def render_words(text: str) -> Markup:
    r"""Return escaped text, with formulas between \( and \) and code between backticks."""
    try:
        from markupsafe import Markup, escape
    except ImportError:
        raise missing("jinja2", "report") from None
    parts, place = Markup(""), 0
    for found in PARTS.finditer(text):
        parts += escape(text[place : found.start()])
        latex, code = found.groups()
        parts += render_maths(latex) if latex is not None else Markup("<code>{}</code>").format(code)
        place = found.end()
    return parts + escape(text[place:])


TONES = ("plain", "good", "warn", "bad")


@dataclass(frozen=True)
class Badge:
    """A short word with a tone, for a cell or a card: ``Badge("holds", "good")``."""

    text: str
    tone: str = "plain"

    def __post_init__(self) -> None:
        check_name(self.tone, TONES, "tone")


@dataclass(frozen=True)
class Maths:
    """A formula in LaTeX, for a cell or a card."""

    latex: str


@dataclass(frozen=True)
class Code:
    """Code, for a cell or a card."""

    text: str


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    words: str
    tone: str = "plain"
    macro: ClassVar[str] = "text"


@dataclass(frozen=True)
class Formula:
    """A displayed formula."""

    latex: str
    macro: ClassVar[str] = "formula"


@dataclass(frozen=True)
class Commands:
    """Shell commands with explanations."""

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
        """Which columns hold only numbers and are aligned right."""
        filled = [[row[place] for row in self.rows if row[place] is not None] for place in range(len(self.columns))]
        return tuple(bool(cells) and all(is_number(cell) for cell in cells) for cells in filled)


@dataclass(frozen=True)
class Card:
    """Labels and values."""

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
    """A plotly figure."""

    content: dict[str, Any]
    caption: str
    alt: str
    command: str = ""
    height: int = 420
    numbers: Table | None = None
    macro: ClassVar[str] = "figure"


@dataclass(frozen=True)
class Picture:
    """A picture as a data URI."""

    content: str
    caption: str
    alt: str
    macro: ClassVar[str] = "picture"


@dataclass(frozen=True)
class Tile:
    """An entry of a gallery: a small picture, a linked title, a badge, and the command that makes it."""

    image: str
    title: str
    link: str
    badge: Badge
    words: str
    note: str
    command: str


@dataclass(frozen=True)
class Gallery:
    """Small pictures in rows, as many as fit."""

    tiles: tuple[Tile, ...]
    macro: ClassVar[str] = "gallery"


@dataclass(frozen=True)
class Heatmap:
    """A grid of cells; a click or the Enter key opens a cell."""

    content: dict[str, Any]
    caption: str
    alt: str
    command: str = ""
    macro: ClassVar[str] = "heatmap"


@dataclass(frozen=True)
class Animation:
    """Tokens along time, with a slider and curves."""

    content: dict[str, Any]
    title: str
    verdict: str
    caption: str
    shape: str
    strips: int
    command: str = ""
    macro: ClassVar[str] = "animation"


@dataclass(eq=False)
class Fold:
    """Collapsed blocks."""

    title: str
    blocks: list[Any] = field(default_factory=list)
    macro: ClassVar[str] = "fold"


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def format_value(value: Any) -> str:
    """Return a value in few digits: 12,345, 0.1235, 1.2e-9, ∞, not defined."""
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


SCALES = ("sequential", "diverging", "category")


@dataclass(frozen=True, eq=False)
class Measure:
    """One way to colour the grid.

    values: (rows, columns) numbers, NaN or None where there is none; or labels, with ``scale="category"``.
    scale: "sequential" (low to high), "diverging" (around zero) or "category" (one colour for each label).
    words: definition of the measure. limits: ends of the scale, by default those of the values.
    colours: for categories, label -> "#rrggbb"; by default the palette in order of appearance.
    """

    values: Any
    scale: str = "sequential"
    words: str = ""
    limits: tuple[float, float] | None = None
    colours: Mapping[str, str] | None = None


@dataclass(frozen=True, eq=False)
class CellFigures:
    """Figures in the panels of cells: traces of a cell (None: no figure), one plotly layout for all, and alt text."""

    traces: Callable[[int, int], Sequence[Mapping[str, Any]] | None]
    layout: Mapping[str, Any]
    words: str


def heatmap_content(
    measures: Mapping[str, Measure | Any],
    rows: Sequence[object],
    columns: Sequence[object],
    axes: tuple[str, str],
    detail: Callable[[int, int], Mapping[str, Any]] | None,
    figures: CellFigures | None = None,
) -> dict[str, Any]:
    """Return the data of the script: labels, measures as flat lists, rows and figure of every panel."""
    if not measures:
        raise InputError("a heatmap needs at least one measure")
    size = (len(rows), len(columns))
    content: dict[str, Any] = {"rows": [str(row) for row in rows], "columns": [str(column) for column in columns]}
    content |= {"axes": list(axes), "measures": [], "details": None}
    for name, measure in measures.items():
        content["measures"].append(
            measure_content(name, measure if isinstance(measure, Measure) else Measure(measure), size)
        )
    if detail is not None:
        panels = [[panel_rows(detail(row, column)) for column in range(size[1])] for row in range(size[0])]
        content["details"], content["phrases"] = share_phrases(panels)
    if figures is not None:
        cells = [[figures.traces(row, column) for column in range(size[1])] for row in range(size[0])]
        layout = figure_content({"data": [], "layout": figures.layout})["layout"]
        own, common = split_common(cells)
        content["figures"] = {"cells": own, "common": common, "layout": layout, "words": figures.words}
    return content


def share_phrases(panels: list[list[list[list[str]]]]) -> tuple[list[list[list[list[Any]]]], list[str]]:
    """Replace repeated texts of panels by indices into a list of phrases, which makes large pages smaller."""
    counts = Counter(phrase for line in panels for one in line for row in one for phrase in row)
    phrases = [phrase for phrase, count in counts.items() if count > 1 and len(phrase) > 4]
    places: dict[str, int] = {phrase: place for place, phrase in enumerate(phrases)}
    short = [[[[places.get(phrase, phrase) for phrase in row] for row in one] for one in line] for line in panels]
    return short, phrases


def split_common(cells: list[list[Any]]) -> tuple[list[list[Any]], list[dict[str, Any]]]:
    """Split the traces of cells into entries of their own and entries that all share."""
    drawn = [traces for line in cells for traces in line if traces is not None]
    if not drawn or len({len(traces) for traces in drawn}) > 1:
        return cells, []
    common = []
    for alike in zip(*drawn, strict=True):
        first = alike[0]
        common.append({name: value for name, value in first.items() if all(one.get(name) == value for one in alike)})
    own = lambda trace, shared: {name: value for name, value in trace.items() if name not in shared}  # noqa: E731
    return [
        [traces if traces is None else [own(*pair) for pair in zip(traces, common, strict=True)] for traces in line]
        for line in cells
    ], common


def measure_content(name: str, measure: Measure, size: tuple[int, int]) -> dict[str, Any]:
    """Return one measure for JSON; ``shown`` is the text of each cell, and values of a category are indices into ``kinds``."""
    check_name(measure.scale, SCALES, "scale")
    words = {"name": name, "scale": measure.scale, "words": measure.words}
    if measure.scale == "category":
        labels = np.array(measure.values, dtype=object)
        _check(labels, size, name)
        flat = [None if label is None else str(label) for label in labels.ravel()]
        kinds = list(dict.fromkeys(label for label in flat if label is not None))
        given = dict(measure.colours or {})
        colours = {kind: given.get(kind, style.PALETTE[place % len(style.PALETTE)]) for place, kind in enumerate(kinds)}
        places = {
            kind: place for place, kind in enumerate(kinds)
        }  # labels are stored once, which makes large pages smaller
        return {
            **words,
            "values": [None if label is None else places[label] for label in flat],
            "kinds": kinds,
            "colours": colours,
        }
    values = np.array(measure.values, dtype=float)
    _check(values, size, name)
    low, high = _limits(values, measure)
    flat = [float(f"{value:.4g}") if np.isfinite(value) else None for value in values.ravel()]  # finer than a colour
    return {**words, "values": flat, "shown": [format_value(float(value)) for value in values.ravel()], "low": low, "high": high,
            "ends": [format_value(low), format_value(high)]}  # fmt: skip


def _check(values: np.ndarray, size: tuple[int, int], name: str) -> None:
    if values.shape != size:
        raise InputError(f"the measure {name!r} has shape {values.shape}; rows and columns make it {size}")


def _limits(values: np.ndarray, measure: Measure) -> tuple[float, float]:
    if measure.limits is not None:
        return float(measure.limits[0]), float(measure.limits[1])
    sound = values[np.isfinite(values)]
    low, high = (float(sound.min()), float(sound.max())) if sound.size else (0.0, 1.0)
    if measure.scale == "diverging":
        high = max(abs(low), abs(high), 1e-300)
        return -high, high
    return (low, high) if high > low else (low, low + 1.0)  # a constant measure still needs a range


def panel_rows(detail: Mapping[str, Any]) -> list[list[str]]:
    """Return labels and texts of one panel."""
    return [
        [str(label), value.text if isinstance(value, Badge) else format_value(value)] for label, value in detail.items()
    ]


def make_animation(scene: Scene, caption: str, command: str, frames: int, tokens: int) -> Animation:
    """Return an animation with at most ``frames`` frames of ``tokens`` tokens."""
    drawing = prepare(scene, tokens=tokens, colour="auto", view=None)
    animation = AnimationFrames.of(drawing, frames)
    return Animation(
        animation_content(animation),
        scene.title or "Tokens",
        drawing.verdict,
        " ".join(part for part in (caption, drawing.caption, usage_note(drawing)) if part),
        page_classes(animation),
        len(shown_curves(drawing)) + drawing.circle,
        command,
    )
