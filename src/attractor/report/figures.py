"""Plotly figures in one theme, as JSON that is safe inside a script element."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from html import escape
from typing import Any

from attractor.errors import InputError
from attractor.files import to_json
from attractor.plotting import CLEAR, FONT, PlotlySpec, style


def escape_text(text: object) -> str:
    """Escape text for hover labels, titles and ticks, in which plotly interprets some tags."""
    return escape(str(text), quote=False)


def scatter(x: Any, y: Any, mode: str = "lines", **more: Any) -> PlotlySpec:
    """Return a plotly scatter trace."""
    return {"type": "scatter", "mode": mode, "x": x, "y": y, **more}


def axes_layout(x: str, y: str, **more: Any) -> PlotlySpec:
    """Return a plotly layout with titles of both axes; entries of ``more`` that name an axis are added to it."""
    axes = {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}}
    return {
        **axes,
        **{name: {**axes.get(name, {}), **value} if name in axes else value for name, value in more.items()},
    }


def figure_content(figure: Any) -> PlotlySpec:
    """Return traces and layout of a plotly figure or of a mapping with ``data`` and ``layout``."""
    if hasattr(figure, "to_plotly_json"):
        figure = figure.to_plotly_json()
    if not isinstance(figure, Mapping) or "data" not in figure:
        raise InputError(f"a figure is a plotly figure or a dict with data and layout, not a {type(figure).__name__}")
    layout = copy.deepcopy(dict(figure.get("layout") or {}))
    layout.pop("template", None)  # plotly's template takes 7 kB in every figure
    return {"data": list(figure["data"]), "layout": apply_theme(layout)}


def apply_theme(layout: PlotlySpec) -> PlotlySpec:
    """Return a layout with the fonts, colours and margins of reports where it sets none."""
    theme: PlotlySpec = {
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "font": FONT,
        "colorway": list(style.PALETTE),
        "margin": {"l": 60, "r": 20, "t": 44 if title_of(layout) else 16, "b": 50},
        "hoverlabel": {"font": {"size": 13}},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "xanchor": "left", "yanchor": "bottom"},
        "modebar": {"bgcolor": CLEAR},
    }
    axes = {"zeroline": False, "automargin": True, "gridcolor": style.HAIR, "color": style.QUIET}
    flat = any(key.startswith(("xaxis", "yaxis")) for key in layout) or "scene" not in layout
    for name in {"xaxis", "yaxis", *(key for key in layout if key[:5] in ("xaxis", "yaxis"))} if flat else ():
        theme[name] = axes
    return merge(theme, layout)


def title_of(layout: PlotlySpec) -> str:
    title = layout.get("title")
    return (title.get("text") or "") if isinstance(title, dict) else (title or "")


def merge(under: PlotlySpec, over: PlotlySpec) -> PlotlySpec:
    """Merge two nested mappings; ``over`` has precedence."""
    both = {
        key: merge(under[key], value) if isinstance(value, dict) and isinstance(under.get(key), dict) else value
        for key, value in over.items()
    }
    return {**under, **both}


def encode_json(content: Any) -> str:
    """Return JSON for a script element, with "<", ">" and "&" escaped so that no text can close the element."""
    # seven digits are finer than a pixel and halve the file
    text = json.dumps(to_json(content, digits=7), allow_nan=False, separators=(",", ":"), default=str)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
