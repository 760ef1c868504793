"""Interactive figures: plotly objects for notebooks and self-contained HTML files."""

from __future__ import annotations

import base64
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

import numpy as np

from attractor.errors import missing
from attractor.plotting import preparation as globe
from attractor.plotting import traces
from attractor.plotting.preparation import Drawing, matrix_power
from attractor.plotting.static import time_label
from attractor.plotting.traces import (
    AnimationFrames,
    PlotlySpec,
    axis_suffix,
    curve_layout,
    has_strips,
    shown_curves,
    token_layout,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def token_figure(animation: AnimationFrames, leaders: np.ndarray) -> PlotlySpec:
    """Return traces and layout of the tokens at the first frame; the last trace is the discs."""
    drawing = animation.drawing
    discs = traces.disc_trace(animation, 0, leaders[0])
    if drawing.dim == 1:
        threads = traces.thread_traces(animation, animation.coordinates[..., 0], {"xaxis": "x9", "yaxis": "y9"})
        return {"data": [*threads, discs], "layout": token_layout(drawing)}
    return {"data": [*traces.surface_traces(drawing), discs], "layout": token_layout(drawing)}


def curve_figure(animation: AnimationFrames) -> PlotlySpec:
    """Return traces and layout of the observables: curves, a dot on each at the first frame, angles, merges and bands."""
    drawing = animation.drawing
    labels = shown_curves(drawing)
    axes = [{"xaxis": "x", "yaxis": "y" + axis_suffix(number)} for number in range(len(labels))]
    curves = [{**traces.curve_trace(drawing, label), **axis} for label, axis in zip(labels, axes, strict=True)]
    dots = [
        {"type": "scatter", "mode": "markers", "x": animation.places[:1], "y": values_at(animation, label)[:1], "hoverinfo": "skip",
         "name": "now", "marker": {"size": 9, "color": "#D55E00"}, **axis}
        for label, axis in zip(labels, axes, strict=True)
    ]  # fmt: skip
    angles = (
        traces.thread_traces(animation, drawing.angles()[animation.indices], {"xaxis": "x", "yaxis": "y7"})
        if drawing.circle
        else []
    )
    events = traces.event_trace(drawing)
    lane = [{**events, "xaxis": "x", "yaxis": "y8"}] if events else []
    bands = [
        {**traces.band_trace(drawing, label), **axis}
        for label, axis in zip(labels, axes, strict=True)
        if label in drawing.scene.bands
    ]
    return {"data": [*curves, *dots, *angles, *lane, *bands], "layout": curve_layout(drawing)}


def values_at(animation: AnimationFrames, label: str) -> np.ndarray:
    """Return an observable (F,) at the frames, NaN where it is not finite."""
    values = animation.drawing.scene.curves[label][animation.indices]
    return np.where(np.isfinite(values), values, np.nan)


def figure(drawing: Drawing, frames: int) -> Figure:
    """Return a plotly figure: tokens on the left, observables on the right, frames with a slider below."""
    try:
        import plotly.graph_objects as graph_objects
    except ImportError:
        raise missing("plotly", "plot") from None
    animation = AnimationFrames.of(drawing, frames)
    leaders = animation.leaders()
    tokens, curves = token_figure(animation, leaders), curve_figure(animation)
    layout = join_layouts(tokens["layout"], curves["layout"], has_strips(drawing))
    layout.update(
        title={"text": escape(drawing.scene.title, quote=False), "x": 0.02},
        height=560,
        margin={"l": 20, "r": 20, "t": 60, "b": 90},
    )
    first_dot = len(tokens["data"]) + len(shown_curves(drawing))
    moving = [len(tokens["data"]) - 1, *range(first_dot, first_dot + len(shown_curves(drawing)))]
    steps = [make_frame(animation, leaders, number, moving) for number in range(len(animation.indices))]
    if len(steps) > 1:
        layout.update(controls(drawing, animation))
    return graph_objects.Figure(
        data=[*tokens["data"], *curves["data"]], layout=layout, frames=steps if len(steps) > 1 else None
    )


def join_layouts(tokens: PlotlySpec, curves: PlotlySpec, both: bool) -> PlotlySpec:
    """Join two layouts side by side."""
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


def make_frame(animation: AnimationFrames, leaders: np.ndarray, number: int, moving: list[int]) -> PlotlySpec:
    """Return what changes in a frame: discs, dots and the line that marks the time."""
    discs = traces.disc_trace(animation, number, leaders[number])
    data = [
        {
            **{key: discs[key] for key in ("type", "x", "y", "z") if key in discs},
            "marker": {"size": discs["marker"]["size"]},
        }
    ]
    here = slice(number, number + 1)
    data += [
        {"type": "scatter", "x": animation.places[here], "y": values_at(animation, label)[here]}
        for label in shown_curves(animation.drawing)
    ]
    now = float(animation.places[number])
    shapes = (
        [{**shape, "x0": now, "x1": now} for shape in curve_layout(animation.drawing)["shapes"]]
        if has_strips(animation.drawing)
        else []
    )
    return {"name": str(number), "data": data, "traces": moving, "layout": {"shapes": shapes}}


def controls(drawing: Drawing, animation: AnimationFrames) -> PlotlySpec:
    """Return plotly's slider and buttons."""
    still = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}
    play = {"frame": {"duration": 60, "redraw": True}, "fromcurrent": True, "transition": {"duration": 0}}
    steps = [
        {
            "method": "animate",
            "label": time_label(drawing, int(index)).removeprefix(f"{drawing.scene.symbol} = "),
            "args": [[str(number)], still],
        }
        for number, index in enumerate(animation.indices)
    ]
    buttons = [
        {"label": "Play", "method": "animate", "args": [None, play]},
        {"label": "Pause", "method": "animate", "args": [[None], still]},
    ]
    value = {"prefix": f"{drawing.scene.symbol} = ", "xanchor": "right"}
    slider = {"steps": steps, "x": 0.14, "len": 0.86, "y": -0.06, "currentvalue": value, "pad": {"t": 10}}
    place = {"x": 0.0, "y": -0.06, "xanchor": "left", "yanchor": "top", "pad": {"t": 20}}
    menu = {"type": "buttons", "direction": "left", "buttons": buttons, "showactive": False, **place}
    return {"sliders": [slider], "updatemenus": [menu]}


def write_page(drawing: Drawing, path: Path, frames: int) -> None:
    path.write_text(page(drawing, frames), encoding="utf-8")


def page(drawing: Drawing, frames: int) -> str:
    """Return the HTML of the page."""
    try:
        from plotly.io.json import to_json_plotly
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise missing("plotly", "plot") from None
    animation = AnimationFrames.of(drawing, frames)
    read = files("attractor.plotting").joinpath
    shape = page_classes(animation)
    # "<" is escaped so that no text can close the script element
    content = str(to_json_plotly(animation_content(animation))).replace("<", "\\u003c")
    return Template(read("page.html").read_text(encoding="utf-8")).substitute(
        title=escape(drawing.scene.title or "Tokens"),
        verdict=escape(drawing.verdict),
        caption=escape(f"{drawing.caption} {usage_note(drawing)}"),
        shape=shape,
        strips=len(shown_curves(drawing)) + drawing.circle,
        style=read("page.css").read_text(encoding="utf-8"),
        animation_style=read("animation.css").read_text(encoding="utf-8"),
        animation=read("animation.js").read_text(encoding="utf-8"),
        script=read("page.js").read_text(encoding="utf-8"),
        plotly=get_plotlyjs(),
        data=content,
    )


def page_classes(animation: AnimationFrames) -> str:
    """Return CSS classes of the page: "lone" without curves, "still" without frames."""
    return " ".join(
        [*([] if has_strips(animation.drawing) else ["lone"]), *([] if len(animation.indices) > 1 else ["still"])]
    )


def usage_note(drawing: Drawing) -> str:
    """Return a note on how to use the interactive figure."""
    turn = (
        "Drag to turn, scroll to come closer, point at a disc to read it."
        if drawing.dim == 3
        else "Point at a disc to read it."
    )
    jump = "Click on a curve to go to that time." if shown_curves(drawing) else ""
    return " ".join(part for part in (turn, jump, drawing.left_out(traces.CURVES)) if part)


def animation_content(animation: AnimationFrames) -> PlotlySpec:
    """Return the data of the script; places are 16-bit fractions of the box, finer than a pixel."""
    drawing = animation.drawing
    leaders = animation.leaders()
    centre, half = drawing.box()
    grid = np.rint((animation.coordinates - centre) / half * 32767).clip(-32767, 32767)
    return {
        "dim": drawing.dim,
        "labels": [time_label(drawing, int(index)) for index in animation.indices],
        "places": animation.places.tolist(),
        "masses": drawing.scene.masses.tolist(),
        "tokens": [escape(str(name), quote=False) for name in drawing.names()],
        "centre": centre.tolist(),
        "half": half,
        "coordinates": encode_base64(grid, "<i2"),
        "leaders": encode_base64(leaders, "<u2"),
        "trails": animation.trail_tokens().tolist(),
        "trail_steps": traces.TRAIL_STEPS,
        "fine": traces.FINE,
        "full": traces.FULL,
        "smallest": traces.SMALLEST,
        "pause": 60,
        "values": [
            [None if np.isnan(value) else float(value) for value in values_at(animation, label)]
            for label in shown_curves(drawing)
        ],
        "on_surface": drawing.projection.on_surface,
        "matrix": None if drawing.projection.surface is None else drawing.projection.surface.tolist(),
        "strips": has_strips(drawing),
        "surface": surface_of(drawing),
        "figures": {"tokens": add_trails(token_figure(animation, leaders), drawing), "curves": curve_figure(animation)},
    }


def surface_of(drawing: Drawing) -> PlotlySpec | None:
    """Return what the script needs to turn the lens to the viewer: M^(1/2), M^(-1/2), points of the unit disc, the light."""
    matrix = drawing.projection.surface
    if matrix is None or drawing.dim != 3:
        return None
    return {"root": matrix_power(matrix, 0.5).tolist(), "inverse": matrix_power(matrix, -0.5).tolist(),
            "lens": globe.lens()[0].round(5).tolist(), "light": (globe.LIGHT / np.linalg.norm(globe.LIGHT)).tolist()}  # fmt: skip


def add_trails(figure: PlotlySpec, drawing: Drawing) -> PlotlySpec:
    """Return the figure with traces that the script updates: trails below the discs, and a lens instead of the shell."""
    matrix = drawing.projection.surface
    still = [
        traces.lens_trace(matrix) if trace["name"] == "shell" and matrix is not None else trace
        for trace in figure["data"][:-1]
    ]
    discs = figure["data"][-1]
    discs = {**discs, "hovertemplate": discs["hovertemplate"].replace("<extra>", "<br>%{customdata[2]}<extra>")}
    return {**figure, "data": [*still, *([traces.trail_trace(drawing)] if drawing.dim > 1 else []), discs]}


def encode_base64(values: np.ndarray, dtype: str) -> str:
    """Return little-endian bytes in base 64."""
    return base64.b64encode(np.ascontiguousarray(values.astype(dtype)).tobytes()).decode("ascii")
