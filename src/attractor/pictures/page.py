"""The interactive picture as one self-contained file: plotly inside, compact frames, nothing fetched."""

from __future__ import annotations

import base64
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from attractor.errors import missing
from attractor.pictures import globe, traces
from attractor.pictures.drawing import Drawing
from attractor.pictures.layouts import has_strips, shown_curves
from attractor.pictures.notebook import curve_figure, token_figure, values_at
from attractor.pictures.panels import when
from attractor.pictures.projection import root
from attractor.pictures.traces import Reel


def write_page(drawing: Drawing, path: Path, frames: int) -> None:
    path.write_text(page(drawing, frames), encoding="utf-8")


def page(drawing: Drawing, frames: int) -> str:
    """The whole page."""
    try:
        from plotly.io.json import to_json_plotly
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise missing("plotly", "plot") from None
    reel = Reel.of(drawing, frames)
    read = files("attractor.pictures").joinpath
    shape = shape_of(reel)
    # "<" is written as an escape so that no text can close the script element it travels in
    content = str(to_json_plotly(content_of(reel))).replace("<", "\\u003c")
    return Template(read("page.html").read_text(encoding="utf-8")).substitute(
        title=escape(drawing.scene.title or "Tokens"),
        verdict=escape(drawing.verdict),
        caption=escape(f"{drawing.caption} {reading(drawing)}"),
        shape=shape,
        strips=len(shown_curves(drawing)) + drawing.circle,
        style=read("page.css").read_text(encoding="utf-8"),
        film_style=read("film.css").read_text(encoding="utf-8"),
        film=read("film.js").read_text(encoding="utf-8"),
        script=read("page.js").read_text(encoding="utf-8"),
        plotly=get_plotlyjs(),
        reel=content,
    )


def shape_of(reel: Reel) -> str:
    """Classes of the page: without curves, without frames to play."""
    return " ".join([*([] if has_strips(reel.drawing) else ["lone"]), *([] if len(reel.indices) > 1 else ["still"])])


def reading(drawing: Drawing) -> str:
    """How to handle what only the interactive picture has."""
    turn = (
        "Drag to turn, scroll to come closer, point at a disc to read it."
        if drawing.dim == 3
        else "Point at a disc to read it."
    )
    jump = "Click on a curve to go to that time." if shown_curves(drawing) else ""
    return " ".join(part for part in (turn, jump, drawing.left_out(traces.CURVES)) if part)


def content_of(reel: Reel) -> dict[str, Any]:
    """Everything the script needs; places are 16-bit fractions of the box, which is finer than a pixel."""
    drawing = reel.drawing
    leaders = reel.leaders()
    centre, half = drawing.box()
    grid = np.rint((reel.coordinates - centre) / half * 32767).clip(-32767, 32767)
    return {
        "dim": drawing.dim,
        "labels": [when(drawing, int(index)) for index in reel.indices],
        "places": reel.places.tolist(),
        "masses": drawing.scene.masses.tolist(),
        "tokens": [escape(str(name), quote=False) for name in drawing.names()],
        "centre": centre.tolist(),
        "half": half,
        "coordinates": packed(grid, "<i2"),
        "leaders": packed(leaders, "<u2"),
        "trails": reel.trail_tokens().tolist(),
        "trail_steps": traces.TRAIL_STEPS,
        "fine": traces.FINE,
        "full": traces.FULL,
        "smallest": traces.SMALLEST,
        "pause": 60,
        "values": [
            [None if np.isnan(value) else float(value) for value in values_at(reel, label)]
            for label in shown_curves(drawing)
        ],
        "on_surface": drawing.projection.on_surface,
        "matrix": None if drawing.projection.surface is None else drawing.projection.surface.tolist(),
        "strips": has_strips(drawing),
        "surface": surface_of(drawing),
        "figures": {"tokens": with_trails(token_figure(reel, leaders), drawing), "curves": curve_figure(reel)},
    }


def surface_of(drawing: Drawing) -> dict[str, Any] | None:
    """What the script needs to turn the lens to the eye: W^(1/2) and W^(-1/2), its points in the unit disc, the light."""
    matrix = drawing.projection.surface
    if matrix is None or drawing.dim != 3:
        return None
    return {"root": root(matrix, 0.5).tolist(), "inverse": root(matrix, -0.5).tolist(), "lens": globe.lens()[0].round(5).tolist(),
            "light": (globe.LIGHT / np.linalg.norm(globe.LIGHT)).tolist()}  # fmt: skip


def with_trails(figure: dict[str, Any], drawing: Drawing) -> dict[str, Any]:
    """The figure with what only the script can keep up: trails below the discs, and a lens in place of the plain shell."""
    matrix = drawing.projection.surface
    still = [
        traces.lens_trace(matrix) if trace["name"] == "shell" and matrix is not None else trace
        for trace in figure["data"][:-1]
    ]
    discs = figure["data"][-1]
    discs = {**discs, "hovertemplate": discs["hovertemplate"].replace("<extra>", "<br>%{customdata[2]}<extra>")}
    return {**figure, "data": [*still, *([traces.trail_trace(drawing)] if drawing.dim > 1 else []), discs]}


def packed(values: np.ndarray, dtype: str) -> str:
    """Little-endian bytes in base 64."""
    return base64.b64encode(np.ascontiguousarray(values.astype(dtype)).tobytes()).decode("ascii")
