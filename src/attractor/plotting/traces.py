"""Plotly traces and layouts of tokens and observables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from attractor.plotting import preparation as globe
from attractor.plotting import style
from attractor.plotting.preparation import Drawing
from attractor.plotting.scene import select_frames, subsample
from attractor.plotting.static import needs_log_scale
from attractor.plotting.time_axis import format_quantity, log_ticks

PlotlySpec = dict[str, Any]  # a trace, a layout or a figure of both

FULL, SMALLEST = 64.0, 7.0
TRAIL_TOKENS, TRAIL_STEPS, FINE = 240, 14, 4
CURVE_POINTS, CURVES, THREADS, EVENTS = 600, 5, 200, 500


@dataclass(frozen=True, eq=False)
class AnimationFrames:
    """The frames of an interactive figure: indices of saved times and what is drawn at each."""

    drawing: Drawing
    indices: np.ndarray

    @staticmethod
    def of(drawing: Drawing, most: int) -> AnimationFrames:
        return AnimationFrames(drawing, select_frames(drawing.progress, most))

    @property
    def coordinates(self) -> np.ndarray:
        """Positions (F, n, k)."""
        return self.drawing.projection.coordinates[self.indices].astype(np.float32)

    @property
    def places(self) -> np.ndarray:
        """Frames (F,) on the time axis."""
        return self.drawing.time_axis.place(self.drawing.scene.times[self.indices])

    def leaders(self) -> np.ndarray:
        """Return for each frame and token (F, n) the token that is drawn for all at the same place."""
        return np.stack([self.drawing.leaders(int(index)) for index in self.indices])

    def sizes(self, leaders: np.ndarray) -> np.ndarray:
        """Return diameters (n,) in pixels of the discs of one frame; zero for tokens that another one represents."""
        shares = np.bincount(leaders, weights=self.drawing.fractions, minlength=leaders.size)
        own = leaders == np.arange(leaders.size)
        return np.where(own, np.maximum(FULL * np.sqrt(shares), SMALLEST), 0.0)

    def trail_tokens(self) -> np.ndarray:
        return subsample(self.drawing.tokens.size, TRAIL_TOKENS) if len(self.indices) > 1 else np.zeros(0, dtype=int)


def xyz(points: np.ndarray) -> dict[str, np.ndarray]:
    """Return columns of points (n, k) as plotly's x, y, z."""
    return {name: points[:, axis].astype(np.float32) for axis, name in zip(range(points.shape[1]), "xyz", strict=False)}


def axes_of(drawing: Drawing) -> dict[str, str]:
    """Return the plotly axes of tokens: the 3-D scene, or a pair that no observable uses."""
    return {"type": "scatter3d"} if drawing.dim == 3 else {"type": "scatter", "xaxis": "x9", "yaxis": "y9"}


def surface_traces(drawing: Drawing) -> list[PlotlySpec]:
    """Return a translucent sphere or ellipsoid with its grid, or a circle."""
    surface = drawing.projection.surface
    if surface is None or drawing.dim == 1:
        return []
    line = {"color": style.FAINT, "width": 1.5}
    if drawing.dim == 2:
        outline = globe.silhouette(surface, drawing.camera)
        return [
            {**axes_of(drawing), "mode": "lines", **xyz(outline), "line": line, "hoverinfo": "skip", "name": "grid"}
        ]
    gaps = [np.concatenate([path, [[np.nan] * 3]]) for path in globe.graticule(surface, count=61)]
    grid = {
        "type": "scatter3d",
        "mode": "lines",
        **xyz(np.concatenate(gaps)),
        "line": line,
        "hoverinfo": "skip",
        "name": "grid",
    }
    return [grid, shell_trace(surface)]


def shell_trace(surface: np.ndarray) -> PlotlySpec:
    """Return a translucent surface, slightly smaller than the true one so that tokens and grid stay visible."""
    sheet = (0.985 * globe.sheet(surface)).astype(np.float32)
    still = {axis: {"highlight": False} for axis in "xyz"}
    # no shading: WebGL does not sort the triangles, and overlaps would show as seams
    light = {"ambient": 1.0, "diffuse": 0.0, "specular": 0.0, "fresnel": 0.0}
    return {"type": "surface", "x": sheet[..., 0], "y": sheet[..., 1], "z": sheet[..., 2], "showscale": False, "opacity": 0.3,
            "hoverinfo": "skip", "name": "shell", "contours": still, "lighting": light,
            "colorscale": [[0, style.GLOBE_SHADE], [1, style.GLOBE_SHADE]]}  # fmt: skip


def lens_trace(surface: np.ndarray) -> PlotlySpec:
    """A disc through the middle of the surface that the page keeps turned to the eye.

    It spans the rim {x : x'Mx = 1, v'Mx = 0} seen along v and is painted as the front is lit: one sheet that fades what lies
    behind it, whatever the point of view, where a translucent shell would show its unsorted triangles.
    """
    points, triangles = globe.lens()
    corners = {letter: triangles[:, corner].astype(np.uint16) for corner, letter in enumerate("ijk")}
    flat = {"ambient": 1.0, "diffuse": 0.0, "specular": 0.0, "fresnel": 0.0}
    return {"type": "mesh3d", **xyz(np.column_stack([points, np.zeros(len(points))])), **corners, "intensity": np.zeros(len(points)),
            "cmin": 0.0, "cmax": 1.0, "colorscale": [[0, style.GLOBE_SHADE], [1, style.GLOBE_LIGHT]], "showscale": False, "opacity": 0.78,
            "lighting": flat, "hoverinfo": "skip", "name": "lens"}  # fmt: skip


def trail_trace(drawing: Drawing) -> PlotlySpec:
    """Return an empty trace that the script fills with recent positions of some tokens."""
    axes = {letter: [None] for letter in "xyz"[: drawing.dim]}
    width, opacity = (3, 1.0) if drawing.dim == 3 else (1, 0.6)
    look = {"line": {"color": style.FAINT, "width": width}, "opacity": opacity}
    return {**axes_of(drawing), "mode": "lines", "hoverinfo": "skip", "name": "trails", **axes, **look}


def disc_trace(animation: AnimationFrames, frame: int, leaders: np.ndarray) -> PlotlySpec:
    """Return the tokens of one frame, with index and mass as hover text."""
    drawing = animation.drawing
    points = animation.coordinates[frame]
    if drawing.dim == 1:
        points = np.column_stack([np.full(len(points), animation.places[frame]), points])
    marker = {"size": animation.sizes(leaders), "color": style.to_hex(drawing.colours.tokens), "opacity": 1.0, "sizemode": "diameter",
              "line": {"width": 0 if drawing.dim == 3 else 0.8, "color": "#ffffff"}}  # fmt: skip
    named = [
        [escape(str(name), quote=False), float(mass)]
        for name, mass in zip(drawing.names(), drawing.scene.masses, strict=True)
    ]
    whole = {"cliponaxis": False} if drawing.dim == 2 else {}  # discs at the edge are drawn whole
    return {**axes_of(drawing), **whole, "mode": "markers", "name": "tokens", **xyz(points), "marker": marker, "customdata": named,
            "hovertemplate": "token %{customdata[0]}<br>mass %{customdata[1]:.3g}<extra></extra>"}  # fmt: skip


def thread_traces(animation: AnimationFrames, values: np.ndarray, axes: dict[str, str]) -> list[PlotlySpec]:
    """Return paths of some tokens against time, values (F, n); tokens of similar colour share a trace, for speed."""
    tokens = subsample(animation.drawing.tokens.size, THREADS)
    colours = animation.drawing.colours.tokens[tokens]
    _, groups = np.unique(np.rint(colours * 5), axis=0, return_inverse=True)
    gap = np.full((1, tokens.size), np.nan)
    down, across = np.concatenate([values[:, tokens], gap]).T, np.append(animation.places, np.nan)
    made = []
    for group in range(int(groups.max()) + 1):
        own = groups.ravel() == group
        hue = style.to_hex(colours[own].mean(axis=0, keepdims=True))[0]
        look = {"line": {"color": hue, "width": 1.2}, "opacity": 0.6, "hoverinfo": "skip", "name": "threads"}
        paths = {"x": np.tile(across, int(own.sum())), "y": down[own].ravel()}
        made.append({"type": "scatter", "mode": "lines", **axes, **paths, **look})
    return made


def curve_trace(drawing: Drawing, label: str) -> PlotlySpec:
    """Return one observable; hover texts hold the times, since the axis may be transformed."""
    kept = select_frames(drawing.progress, CURVE_POINTS)
    values = drawing.scene.curves[label][kept]
    values = np.where(np.isfinite(values), values, np.nan)
    times = drawing.scene.times[kept]
    return {"type": "scatter", "mode": "lines" if kept.size > 1 else "markers", "x": drawing.time_axis.place(times), "y": values,
            "customdata": times, "line": {"color": style.PALETTE[0], "width": 2}, "name": escape(label, quote=False),
            "hovertemplate": f"{drawing.scene.symbol} = " "%{customdata:.4g}<br>%{y:.4g}<extra></extra>"}  # fmt: skip


def band_trace(drawing: Drawing, label: str) -> PlotlySpec:
    """Return the band around an observable, as one closed outline."""
    kept = select_frames(drawing.progress, CURVE_POINTS)
    ends = drawing.scene.bands[label][:, kept]
    sound = np.isfinite(ends).all(0)
    places, (low, high) = drawing.time_axis.place(drawing.scene.times[kept])[sound], ends[:, sound]
    return {"type": "scatter", "mode": "lines", "x": np.concatenate((places, places[::-1])), "y": np.concatenate((high, low[::-1])),
            "fill": "toself", "fillcolor": style.PALETTE[0], "opacity": 0.18, "line": {"width": 0}, "hoverinfo": "skip",
            "name": f"members of {escape(label, quote=False)}"}  # fmt: skip


def event_trace(drawing: Drawing) -> PlotlySpec | None:
    """Return merges as ticks on the time axis, with hover texts."""
    events = [(time, label) for time, label in drawing.scene.events if np.isfinite(time)]
    if not events:
        return None
    events = [events[i] for i in subsample(len(events), EVENTS)]
    times = np.array([time for time, _ in events])
    return {"type": "scatter", "mode": "markers", "x": drawing.time_axis.place(times), "y": np.zeros(times.size), "name": "events",
            "marker": {"symbol": "line-ns-open", "size": 9, "color": style.QUIET, "line": {"width": 1.2}},
            "customdata": [[float(time), escape(label, quote=False)] for time, label in events],
            "hovertemplate": f"{drawing.scene.symbol} = " "%{customdata[0]:.4g}<br>%{customdata[1]}<extra></extra>"}  # fmt: skip


CLEAR = "rgba(0,0,0,0)"
FONT = {
    "family": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif",
    "size": 13,
    "color": style.INK,
}


def base_layout(**more: Any) -> PlotlySpec:
    """Return what all layouts share: no legend, no background, a camera and zoom that survive updates."""
    buttons = {"bgcolor": CLEAR, "color": style.FAINT, "activecolor": style.QUIET}
    return {"showlegend": False, "paper_bgcolor": CLEAR, "plot_bgcolor": CLEAR, "font": FONT, "uirevision": "keep",
            "hoverlabel": {"font": {"size": 13}}, "modebar": buttons, **more}  # fmt: skip


def token_layout(drawing: Drawing) -> PlotlySpec:
    """Return axes of the tokens: hidden around a surface, ruled in flat space, time across for tokens on a line."""
    if drawing.dim == 3:
        return base_layout(margin=dict.fromkeys("lrtb", 0), scene=scene_layout(drawing))
    rule = {"gridcolor": style.HAIR, "zeroline": False, "showline": False, "ticks": "", "color": style.QUIET}
    if drawing.dim == 1:
        across = {**rule, **time_axis_layout(drawing), "showgrid": False}
        name = "x / extent" if drawing.projection.rescaled else "x"
        return base_layout(xaxis9={**across, "anchor": "y9"}, yaxis9={**rule, "title": {"text": name}, "anchor": "x9"},
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
    return base_layout(
        **axes, margin={"l": 10, "r": 10, "t": 10, "b": 10} if hidden else {"l": 60, "r": 20, "t": 20, "b": 50}
    )


def scene_layout(drawing: Drawing) -> PlotlySpec:
    centre, half = drawing.box()
    hidden = drawing.projection.surface is not None
    margin = 1.05 if hidden else 1.0  # what lies on the bounds of a scene may be cut off
    half *= margin
    axes = {
        f"{letter}axis": {"range": [float(middle - half), float(middle + half)], "visible": not hidden, "title": {"text": name},
                          "gridcolor": style.FAINT, "zeroline": False, "showbackground": False, "color": style.QUIET, "showspikes": False,
                          "tickfont": {"size": 11}, "nticks": 5}
        for letter, middle, name in zip("xyz", centre, drawing.projection.axes, strict=True)
    }  # fmt: skip
    # orthographic keeps the outline of a surface; perspective shows the depth of a box
    camera = {
        "eye": point(2.4 * drawing.camera.frame[2]),
        "up": point([0, 0, 1]),
        "center": point([0, 0, 0 if hidden else -0.12]),
        "projection": {"type": "orthographic" if hidden else "perspective"},
    }
    size = point([1.75 * margin if hidden else 1.0] * 3)
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


def time_axis_layout(drawing: Drawing) -> PlotlySpec:
    """Return the time axis; a logarithmic one has its own ticks, since plotly's has no zero."""
    axis, clock = drawing.time_axis, escape(drawing.scene.clock, quote=False)
    low, high = axis.limits
    margin = 0.02 * (high - low)
    ruler: PlotlySpec = {"range": [low - margin, high + margin], "title": {"text": clock, "standoff": 8}}
    if axis.logarithmic:
        positions, labels = axis.ticks(7)
        ruler.update(tickmode="array", tickvals=positions, ticktext=labels)
    return ruler


def shown_curves(drawing: Drawing) -> list[str]:
    return list(drawing.scene.curves)[:CURVES]


def has_strips(drawing: Drawing) -> bool:
    """Whether anything is drawn against time."""
    return bool(shown_curves(drawing)) or drawing.circle


def curve_layout(drawing: Drawing) -> PlotlySpec:
    """Return the layout of observables below each other, with a lane for merges and one time axis."""
    strips = [
        (
            label,
            axis_suffix(number),
            value_axis_layout(np.append(drawing.scene.curves[label], drawing.scene.bands.get(label, ()))),
        )
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
    layout: PlotlySpec = {}
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
                       **time_axis_layout(drawing)}  # fmt: skip
    now = float(drawing.time_axis.place(drawing.scene.times[0]))
    layout["shapes"] = [{"type": "line", "xref": "x", "yref": "paper", "x0": now, "x1": now, "y0": 0, "y1": 1 - gap,
                         "line": {"color": style.PALETTE[1], "width": 1.5}}]  # fmt: skip
    return base_layout(**layout, annotations=notes, margin={"l": 48, "r": 18, "t": 4, "b": 44}, hovermode="closest")


def value_axis_layout(values: np.ndarray) -> PlotlySpec:
    """Return a value axis: whole numbers for counts, logarithmic if needed."""
    sound = values[np.isfinite(values)]
    whole = bool(sound.size) and bool(np.equal(np.mod(sound, 1.0), 0).all())
    if needs_log_scale(sound, 20 if whole else 1e3):
        ticks = log_ticks(float(sound.min()), float(sound.max()))
        return {
            "type": "log",
            "tickmode": "array",
            "tickvals": ticks,
            "ticktext": [format_quantity(tick) for tick in ticks],
        }
    return {"tickformat": "d", **({"dtick": 1} if np.ptp(sound) < 4 else {})} if whole else {}


def axis_suffix(number: int) -> str:
    """Return plotly's suffix of an axis: y, y2, y3."""
    return "" if number == 0 else str(number + 1)
