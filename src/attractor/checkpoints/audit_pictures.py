"""The pictures of an audit's page, as plotly traces: the spectra of a head, layers along depth, the rotary family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attractor.pictures import style
from attractor.report import plain

if TYPE_CHECKING:
    from attractor.checkpoints.audit import Audit
    from attractor.checkpoints.auditing import Spectra

LAYOUT: dict[str, Any] = {
    "height": 600,
    "margin": {"l": 48, "r": 12, "t": 64, "b": 40},
    "xaxis": {"title": {"text": "real part"}, "domain": [0, 1], "zeroline": True},
    "yaxis": {"title": {"text": "imaginary part"}, "domain": [0.56, 1], "zeroline": True, "scaleanchor": "x"},
    "xaxis2": {"title": {"text": "rank of the eigenvalue"}, "anchor": "y2", "domain": [0, 1]},
    "yaxis2": {"title": {"text": "eigenvalue"}, "domain": [0, 0.38], "zeroline": True, "anchor": "x2"},
    "legend": {"orientation": "h", "x": 0, "y": 1.03, "xanchor": "left", "yanchor": "bottom", "font": {"size": 11}},
    "showlegend": True,
}


def traces(spectra: Spectra, head: dict[str, Any], most: int | None = None) -> list[dict[str, Any]]:
    """The eigenvalues of the value in the plane, with the disc of a random head, and those of the symmetric forms by rank; of each at
    most so many, the extreme ones among them."""
    value = spectra.value.numpy()
    value = _thinned(value, most)
    made = [
        {
            **_dots("value O V", _few(np.real(value)), _few(np.imag(value)), style.PALETTE[0]),
            "hovertemplate": "%{x:.3g} + %{y:.3g}i<extra></extra>",
        }
    ]
    null = ((head.get("nulls") or {}).get("value_abscissa") or {}).get("random")
    if null:
        angle = np.linspace(0, 2 * np.pi, 25)
        circle = {"x": _few(null["mean"] * np.cos(angle)), "y": _few(null["mean"] * np.sin(angle))}
        made.append(
            {"type": "scatter", "mode": "lines", "name": "reach of a random head", "hoverinfo": "skip", **circle}
            | {"line": {"color": style.QUIET, "dash": "dot", "width": 1, "shape": "spline"}}
        )
    forms = {
        "sym W": spectra.interaction,
        "sym W, reduced": spectra.reduced_interaction,
        "metric form": spectra.reduced_metric,
    }
    for (name, values), colour in zip(forms.items(), style.PALETTE[1:], strict=False):
        rank = np.arange(len(values)) / max(len(values) - 1, 1)
        shown = _chosen(len(values), most)
        dots = _dots(name, _few(rank[shown]), _few(values.numpy()[shown]), colour)
        made.append(
            {**dots, "xaxis": "x2", "yaxis": "y2", "hovertemplate": "%{y:.3g}<extra>" + plain(name) + "</extra>"}
        )
    return made


def _thinned(value: np.ndarray, most: int | None) -> np.ndarray:
    """Of eigenvalues of a real matrix those that lie evenly by size, whole conjugate pairs, with the ends that numbers are named after:
    largest and smallest real part, largest |1 + x| and |x|."""
    if most is None or len(value) <= most:
        return value[np.argsort(-np.abs(value), kind="stable")]
    upper = value[np.imag(value) >= 0]
    upper = upper[np.argsort(-np.abs(upper), kind="stable")]
    ends = [np.argmax(np.real(upper)), np.argmin(np.real(upper)), np.argmax(np.abs(1 + upper)), 0]
    for count in range(most, 0, -1):
        kept = upper[np.union1d(_chosen(len(upper), count), ends).astype(int)]
        both = np.concatenate((kept, np.conj(kept[np.imag(kept) > 0])))
        if len(both) <= most:
            return both
    return upper[np.unique(ends)]


def _chosen(count: int, most: int | None) -> np.ndarray:
    """Places that lie evenly, both ends among them."""
    if most is None or count <= most:
        return np.arange(count)
    return np.unique(np.round(np.linspace(0, count - 1, most)).astype(int))


def _dots(name: str, x: list[float], y: list[float], colour: str) -> dict[str, Any]:
    return {"type": "scatter", "mode": "markers", "name": name, "x": x, "y": y, "marker": {"size": 4, "color": colour}}


def _few(values: np.ndarray) -> list[float]:
    """Four digits: finer than a pixel."""
    return [float(f"{value:.4g}") for value in values]


def layer_figure(audit: Audit) -> dict[str, Any]:
    """Radius, growth and residual along depth."""
    curves = {"discrete radius": "value_radius", "growth at consensus": "growth_consensus", "residual": "residual"}
    names = [row["name"].removeprefix("layer ") for row in audit.layers]
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": title,
            "x": names,
            "y": [row.get(name) for row in audit.layers],
        }
        for title, name in curves.items()
    ]
    return {
        "data": data,
        "layout": {"xaxis": {"title": {"text": "layer"}, "type": "category"}, "yaxis": {"rangemode": "tozero"}},
    }


def offset_figure(audit: Audit) -> dict[str, Any]:
    """Median and quartiles of the index and the change over heads, at each offset."""
    found: dict[int, list[dict[str, Any]]] = {}
    for head in audit.heads:
        for row in head["offsets"]:
            found.setdefault(row["offset"], []).append(row)
    offsets = sorted(found)
    data = []
    for name, colour in (("index", style.PALETTE[0]), ("change", style.PALETTE[1])):
        columns = [np.quantile([row[name] for row in found[offset]], (0.25, 0.5, 0.75)) for offset in offsets]
        low, middle, high = (list(map(float, part)) for part in zip(*columns, strict=True))
        error = {"type": "data", "symmetric": False, "array": [b - a for a, b in zip(middle, high, strict=True)]}
        error |= {"arrayminus": [b - a for a, b in zip(low, middle, strict=True)], "thickness": 1}
        trace = {"type": "scatter", "mode": "lines+markers", "name": name, "x": [str(offset) for offset in offsets]}
        data.append({**trace, "y": middle, "error_y": error, "line": {"color": colour}})
    return {"data": data, "layout": {"xaxis": {"title": {"text": "key minus query"}, "type": "category"}}}
