"""Plotly layouts: the scene that tokens move in, and the stack of observables that shares a time axis."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

import numpy as np

from attractor.pictures import style
from attractor.pictures.drawing import Drawing
from attractor.pictures.strips import logarithmic
from attractor.pictures.time_axis import TimeAxis, log_ticks, quantity
from attractor.pictures.traces import CURVES

CLEAR = "rgba(0,0,0,0)"
FONT = {
    "family": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif",
    "size": 13,
    "color": style.INK,
}


def plain(**more: Any) -> dict[str, Any]:
    """What every layout has: no legend, no background of its own, a camera and zoom that survive updates."""
    buttons = {"bgcolor": CLEAR, "color": style.FAINT, "activecolor": style.QUIET}
    return {"showlegend": False, "paper_bgcolor": CLEAR, "plot_bgcolor": CLEAR, "font": FONT, "uirevision": "keep",
            "hoverlabel": {"font": {"size": 13}}, "modebar": buttons, **more}  # fmt: skip


def token_layout(drawing: Drawing) -> dict[str, Any]:
    """Axes of the tokens: hidden around a surface, ruled in flat space, time across for tokens on a line."""
    if drawing.dim == 3:
        return plain(margin=dict.fromkeys("lrtb", 0), scene=scene_layout(drawing))
    rule = {"gridcolor": style.HAIR, "zeroline": False, "showline": False, "ticks": "", "color": style.QUIET}
    if drawing.dim == 1:
        across = {**rule, **time_ruler(drawing.time_axis), "showgrid": False}
        name = "x / extent" if drawing.projection.rescaled else "x"
        return plain(xaxis9={**across, "anchor": "y9"}, yaxis9={**rule, "title": {"text": name}, "anchor": "x9"},
                     margin={"l": 60, "r": 20, "t": 20, "b": 50})  # fmt: skip
    centre, half = drawing.box()
    hidden = drawing.projection.surface is not None
    half = 1.12 * half if hidden else half
    axes = {
        f"{letter}axis9": {**rule, "range": [float(middle - half), float(middle + half)], "visible": not hidden, "anchor": f"{other}9",
                           "constrain": "domain", "title": {"text": name}}
        for letter, other, middle, name in zip("xy", "yx", centre, drawing.projection.axes, strict=True)
    }  # fmt: skip
    axes["yaxis9"]["scaleanchor"] = "x9"
    return plain(
        **axes, margin={"l": 10, "r": 10, "t": 10, "b": 10} if hidden else {"l": 60, "r": 20, "t": 20, "b": 50}
    )


def scene_layout(drawing: Drawing) -> dict[str, Any]:
    centre, half = drawing.box()
    hidden = drawing.projection.surface is not None
    axes = {
        f"{letter}axis": {"range": [float(middle - half), float(middle + half)], "visible": not hidden, "title": {"text": name},
                          "gridcolor": style.FAINT, "zeroline": False, "showbackground": False, "color": style.QUIET, "showspikes": False,
                          "tickfont": {"size": 11}, "nticks": 5}
        for letter, middle, name in zip("xyz", centre, drawing.projection.axes, strict=True)
    }  # fmt: skip
    # orthographic around a surface, so that its outline stays where the surface is; in a box perspective shows the depth
    camera = {
        "eye": point(2.4 * drawing.camera.frame[2]),
        "up": point([0, 0, 1]),
        "center": point([0, 0, 0 if hidden else -0.12]),
        "projection": {"type": "orthographic" if hidden else "perspective"},
    }
    size = point([1.75 if hidden else 1.0] * 3)
    return {
        **axes,
        "aspectmode": "manual",
        "aspectratio": size,
        "bgcolor": CLEAR,
        "dragmode": "orbit",
        "camera": camera,
    }


def point(values: Iterable[float]) -> dict[str, float]:
    return {letter: float(value) for letter, value in zip("xyz", values, strict=True)}


def time_ruler(axis: TimeAxis) -> dict[str, Any]:
    """The time axis; a logarithmic one is placed and labelled by us, because plotly's has no zero."""
    low, high = axis.limits
    margin = 0.02 * (high - low)
    ruler: dict[str, Any] = {"range": [low - margin, high + margin], "title": {"text": "time", "standoff": 8}}
    if axis.logarithmic:
        positions, labels = axis.ticks(7)
        ruler.update(tickmode="array", tickvals=positions, ticktext=labels)
    return ruler


def shown_curves(drawing: Drawing) -> list[str]:
    return list(drawing.scene.curves)[:CURVES]


def has_strips(drawing: Drawing) -> bool:
    """Whether there is anything to draw against time beside the tokens."""
    return bool(shown_curves(drawing)) or drawing.circle


def curve_layout(drawing: Drawing) -> dict[str, Any]:
    """Observables one above the other (below the angles of tokens on a circle), a thin lane for merges, one time axis."""
    strips = [
        (label, axis_suffix(number), value_ruler(drawing.scene.curves[label]))
        for number, label in enumerate(shown_curves(drawing))
    ]
    if drawing.circle:
        degrees = {"range": [-180, 180], "tickvals": [-180, -90, 0, 90, 180], "ticksuffix": "°"}
        strips.insert(0, ("angle of each token", "7", degrees))
    low, gap = (0.07 if drawing.scene.events else 0.0), 0.09
    height = (1.0 - low - gap * len(strips)) / max(len(strips), 1)
    rule = {
        "gridcolor": style.HAIR,
        "zeroline": False,
        "color": style.QUIET,
        "anchor": "x",
        "nticks": 5,
        "automargin": True,
    }
    layout: dict[str, Any] = {}
    notes = []
    for number, (label, suffix, ruler) in enumerate(strips):
        top = 1.0 - gap * (number + 1) - height * number
        layout[f"yaxis{suffix}"] = {**rule, "domain": [max(top - height, 0.0), top], **ruler}
        notes.append({"text": f"<b>{escape(label, quote=False)}</b>", "x": 0, "y": top, "xref": "paper", "yref": "paper", "xanchor": "left",
                      "yanchor": "bottom", "showarrow": False, "font": {"size": 13}, "yshift": 2})  # fmt: skip
    if drawing.scene.events:
        layout["yaxis8"] = {**rule, "domain": [0.0, 0.04], "range": [-1, 1], "fixedrange": True, "showgrid": False, "tickvals": [0],
                            "ticktext": ["merges"]}  # fmt: skip
    layout["xaxis"] = {"gridcolor": style.HAIR, "zeroline": False, "color": style.QUIET, "anchor": "free", "position": 0.0,
                       **time_ruler(drawing.time_axis)}  # fmt: skip
    now = float(drawing.time_axis.place(drawing.scene.times[0]))
    layout["shapes"] = [{"type": "line", "xref": "x", "yref": "paper", "x0": now, "x1": now, "y0": 0, "y1": 1 - gap,
                         "line": {"color": style.PALETTE[1], "width": 1.5}}]  # fmt: skip
    return plain(**layout, annotations=notes, margin={"l": 48, "r": 18, "t": 4, "b": 44}, hovermode="closest")


def value_ruler(values: np.ndarray) -> dict[str, Any]:
    """Whole numbers for counts, a logarithmic scale where only that shows everything."""
    sound = values[np.isfinite(values)]
    whole = bool(sound.size) and bool(np.equal(np.mod(sound, 1.0), 0).all())
    if logarithmic(sound, 20 if whole else 1e3):
        ticks = log_ticks(float(sound.min()), float(sound.max()))
        return {"type": "log", "tickmode": "array", "tickvals": ticks, "ticktext": [quantity(tick) for tick in ticks]}
    return {"tickformat": "d", **({"dtick": 1} if np.ptp(sound) < 4 else {})} if whole else {}


def axis_suffix(number: int) -> str:
    """Plotly's name of the axis with a number: y, y2, y3."""
    return "" if number == 0 else str(number + 1)
