"""HTML representations for notebooks: a title, a table and a small SVG figure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np
import torch

from attractor.serialization import Record

SIDE, LONG = 132, 220
MAX_POINTS = 400  # in a figure
SHOWN = 4  # size of the largest matrix that is displayed in full
BLUE, ORANGE = "#2f86c5", "#e0711a"
BOX = (
    "display:inline-flex;gap:18px;align-items:center;padding:10px 16px;border-radius:10px;font-size:13px;line-height:1.45;"
    "border:1px solid color-mix(in srgb,currentColor 22%,transparent)"
)
TABLE = "border:0;margin:0;color:inherit;font-size:inherit"


def html_card(title: str, rows: Mapping[str, Any], drawing: str = "") -> str:
    """Return a title, a table of labels and values, and a figure as HTML; all texts are escaped."""
    cells = "".join(
        f"<tr><td style='padding:0 14px 0 0;text-align:left;opacity:.7;vertical-align:top'>{escape(label)}</td>"
        f"<td style='padding:0;text-align:left'>{format_cell(value)}</td></tr>"
        for label, value in rows.items()
    )
    table = f"<table style='{TABLE};margin:4px 0 0'>{cells}</table>"
    return f"<div style='{BOX}'><div><b>{escape(title)}</b>{table}</div>{drawing}</div>"


def format_cell(value: Any) -> str:
    """Format a number with few digits, a small array as a table, anything else as text."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return format_array(value)
    return escape(f"{value:.6g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value))


def format_array(values: np.ndarray) -> str:
    """Format a vector or matrix in full if it is small, otherwise its shape."""
    if values.ndim == 0:
        return format_cell(values.item())
    if values.ndim > 2 or max(values.shape) > SHOWN or values.size == 0:
        return escape("x".join(map(str, values.shape)))
    if values.ndim == 1:
        return escape("(" + ", ".join(f"{number:.4g}" for number in values) + ")")
    lines = (
        "".join(f"<td style='padding:0 8px 0 0;text-align:right'>{number:.4g}</td>" for number in row) for row in values
    )
    return f"<table style='{TABLE}'>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def record_html(record: Record) -> str:
    """Return the fields of a record that are not None as HTML."""
    fields = [(field.name, getattr(record, field.name)) for field in dataclasses.fields(record) if field.init]  # type: ignore[arg-type]
    rows = {name.replace("_", " "): abbreviate(value) for name, value in fields if value is not None}
    return html_card(type(record).__name__, rows)


def abbreviate(value: Any) -> Any:
    """Shorten long texts; replace a list of records by their number and types."""
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], Record):
        return f"{len(value)}: {', '.join(dict.fromkeys(type(one).__name__ for one in value))}"
    text = value if isinstance(value, (torch.Tensor, np.ndarray, float, int)) else repr(value)
    return text if not isinstance(text, str) or len(text) < 120 else text[:117] + "..."


def svg(width: int, height: int, inside: str, words: str) -> str:
    """Return an SVG element with ``words`` as its label."""
    size = f"width='{width}' height='{height}' viewBox='0 0 {width} {height}'"
    return f"<svg style='flex:none' role='img' aria-label='{escape(words)}' {size}>{inside}</svg>"


def dots(points: Any, words: str) -> str:
    """Plot tokens in their first two coordinates."""
    places = np.asarray(points, dtype=float)[:MAX_POINTS, :2]
    if places.shape[1] < 2:
        places = np.column_stack([places, np.zeros(len(places))])
    middle = (places.max(0) + places.min(0)) / 2
    half = max(float(np.abs(places - middle).max()), 1e-300)
    if not np.isfinite(half):
        return ""
    at = SIDE / 2 + (places - middle) / half * (SIDE / 2 - 6) * [1, -1]
    circles = "".join(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='2.6'/>" for x, y in at)
    return svg(SIDE, SIDE, f"<g fill='{BLUE}' fill-opacity='.75'>{circles}</g>", words)


def ellipse(covariance: Any, words: str) -> str:
    """Plot the ellipse of a covariance in its first two coordinates."""
    matrix = np.asarray(covariance, dtype=float)[:2, :2]
    if matrix.shape != (2, 2) or not np.isfinite(matrix).all() or not np.trace(matrix) > 0:
        return ""
    spread, axes = np.linalg.eigh(matrix)
    long, wide = (SIDE / 2 - 8) * np.sqrt(np.maximum(spread[::-1], 0) / spread[-1])
    angle = -np.degrees(np.arctan2(axes[1, 1], axes[0, 1]))
    shape = f"<ellipse rx='{long:.1f}' ry='{max(wide, 1):.1f}' fill='{BLUE}' fill-opacity='.25' stroke='{BLUE}' stroke-width='2'/>"
    turned = f"<g transform='translate({SIDE / 2} {SIDE / 2}) rotate({angle:.1f})'>{shape}</g>"
    return svg(SIDE, SIDE, turned, words)


def curve(values: Any, words: str) -> str:
    """Plot one number per saved time, over the index of the time."""
    numbers = np.asarray(values, dtype=float)
    if numbers.ndim != 1 or len(numbers) < 2 or not np.isfinite(numbers).all():
        return ""
    low, size = float(numbers.min()), float(np.ptp(numbers)) or 1.0
    x = np.linspace(6, LONG - 6, len(numbers))
    y = 74 - (numbers - low) / size * 60
    line = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    drawn = f"<polyline points='{line}' fill='none' stroke='{BLUE}' stroke-width='2'/>"
    drawn += f"<circle cx='{x[-1]:.1f}' cy='{y[-1]:.1f}' r='3.5' fill='{ORANGE}'/>"
    label = f"<text x='6' y='93' font-size='11' fill='currentColor' opacity='.75'>{escape(words)}</text>"
    return svg(LONG, 98, drawn + label, words)


def format_number(value: Any) -> str:
    """Format a number with five significant digits; None is infinite."""
    if value is None:
        return "infinite"
    return f"{value:,}" if isinstance(value, int) else f"{value:.5g}"
