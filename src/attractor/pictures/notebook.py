"""The interactive figure as an object, for notebooks: plotly's own slider and play button."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from attractor.errors import missing
from attractor.pictures import traces
from attractor.pictures.drawing import Drawing
from attractor.pictures.layouts import axis_suffix, curve_layout, has_strips, shown_curves, token_layout
from attractor.pictures.panels import when
from attractor.pictures.traces import Reel

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def token_figure(reel: Reel, leaders: np.ndarray) -> dict[str, Any]:
    """Traces and layout of the tokens at the first frame; the last trace is the discs."""
    drawing = reel.drawing
    discs = traces.disc_trace(reel, 0, leaders[0])
    if drawing.dim == 1:
        threads = traces.thread_traces(reel, reel.coordinates[..., 0], {"xaxis": "x9", "yaxis": "y9"})
        return {"data": [*threads, discs], "layout": token_layout(drawing)}
    return {"data": [*traces.surface_traces(drawing), discs], "layout": token_layout(drawing)}


def curve_figure(reel: Reel) -> dict[str, Any]:
    """Traces and layout of the observables: curves, then a dot on each at the first frame, then angles and merges."""
    drawing = reel.drawing
    labels = shown_curves(drawing)
    axes = [{"xaxis": "x", "yaxis": "y" + axis_suffix(number)} for number in range(len(labels))]
    curves = [{**traces.curve_trace(drawing, label), **axis} for label, axis in zip(labels, axes, strict=True)]
    dots = [
        {"type": "scatter", "mode": "markers", "x": reel.places[:1], "y": values_at(reel, label)[:1], "hoverinfo": "skip", "name": "now",
         "marker": {"size": 9, "color": "#D55E00"}, **axis}
        for label, axis in zip(labels, axes, strict=True)
    ]  # fmt: skip
    angles = (
        traces.thread_traces(reel, drawing.angles()[reel.indices], {"xaxis": "x", "yaxis": "y7"})
        if drawing.circle
        else []
    )
    events = traces.event_trace(drawing)
    lane = [{**events, "xaxis": "x", "yaxis": "y8"}] if events else []
    return {"data": [*curves, *dots, *angles, *lane], "layout": curve_layout(drawing)}


def values_at(reel: Reel, label: str) -> np.ndarray:
    """An observable (F,) at the frames, NaN where it is not finite."""
    values = reel.drawing.scene.curves[label][reel.indices]
    return np.where(np.isfinite(values), values, np.nan)


def figure(drawing: Drawing, frames: int) -> Figure:
    """One plotly figure: tokens on the left, observables on the right, frames with a slider below."""
    try:
        import plotly.graph_objects as graph_objects
    except ImportError:
        raise missing("plotly", "plot") from None
    reel = Reel.of(drawing, frames)
    leaders = reel.leaders()
    tokens, curves = token_figure(reel, leaders), curve_figure(reel)
    layout = side_by_side(tokens["layout"], curves["layout"], has_strips(drawing))
    layout.update(
        title={"text": escape(drawing.scene.title, quote=False), "x": 0.02},
        height=560,
        margin={"l": 20, "r": 20, "t": 60, "b": 90},
    )
    first_dot = len(tokens["data"]) + len(shown_curves(drawing))
    moving = [len(tokens["data"]) - 1, *range(first_dot, first_dot + len(shown_curves(drawing)))]
    steps = [frame_of(reel, leaders, number, moving) for number in range(len(reel.indices))]
    if len(steps) > 1:
        layout.update(controls(drawing, reel))
    return graph_objects.Figure(
        data=[*tokens["data"], *curves["data"]], layout=layout, frames=steps if len(steps) > 1 else None
    )


def side_by_side(tokens: dict[str, Any], curves: dict[str, Any], both: bool) -> dict[str, Any]:
    """The two layouts in one, each in its half of the width."""
    left, right = ([0.0, 0.56], [0.64, 1.0]) if both else ([0.0, 1.0], [0.99, 1.0])
    layout = {**tokens, **curves}
    if "scene" in layout:
        layout["scene"] = {**layout["scene"], "domain": {"x": left, "y": [0.0, 1.0]}}
    else:
        layout["xaxis9"] = {**layout["xaxis9"], "domain": left}
    layout["xaxis"] = {**layout["xaxis"], "domain": right, "visible": both}
    layout["annotations"] = [{**note, "x": right[0]} for note in layout["annotations"]]
    layout["shapes"] = layout["shapes"] if both else []
    return layout


def frame_of(reel: Reel, leaders: np.ndarray, number: int, moving: list[int]) -> dict[str, Any]:
    """What changes from one frame to the next: discs, dots and the line that marks the time."""
    discs = traces.disc_trace(reel, number, leaders[number])
    data = [
        {
            **{key: discs[key] for key in ("type", "x", "y", "z") if key in discs},
            "marker": {"size": discs["marker"]["size"]},
        }
    ]
    here = slice(number, number + 1)
    data += [
        {"type": "scatter", "x": reel.places[here], "y": values_at(reel, label)[here]}
        for label in shown_curves(reel.drawing)
    ]
    now = float(reel.places[number])
    shapes = (
        [{**shape, "x0": now, "x1": now} for shape in curve_layout(reel.drawing)["shapes"]]
        if has_strips(reel.drawing)
        else []
    )
    return {"name": str(number), "data": data, "traces": moving, "layout": {"shapes": shapes}}


def controls(drawing: Drawing, reel: Reel) -> dict[str, Any]:
    """Plotly's slider and buttons."""
    still = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}
    play = {"frame": {"duration": 60, "redraw": True}, "fromcurrent": True, "transition": {"duration": 0}}
    steps = [
        {"method": "animate", "label": when(drawing, int(index)).removeprefix("t = "), "args": [[str(number)], still]}
        for number, index in enumerate(reel.indices)
    ]
    buttons = [
        {"label": "Play", "method": "animate", "args": [None, play]},
        {"label": "Pause", "method": "animate", "args": [[None], still]},
    ]
    value = {"prefix": "t = ", "xanchor": "right"}
    slider = {"steps": steps, "x": 0.14, "len": 0.86, "y": -0.06, "currentvalue": value, "pad": {"t": 10}}
    place = {"x": 0.0, "y": -0.06, "xanchor": "left", "yanchor": "top", "pad": {"t": 20}}
    menu = {"type": "buttons", "direction": "left", "buttons": buttons, "showactive": False, **place}
    return {"sliders": [slider], "updatemenus": [menu]}
