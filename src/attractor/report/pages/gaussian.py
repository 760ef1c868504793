"""Report page of ``attractor gaussian``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from attractor.html_repr import format_number
from attractor.plotting import PlotlySpec, style
from attractor.report.figures import axes_layout, escape_text, scatter
from attractor.report.report import Report, Section
from attractor.solvers import Trajectory, factor_eigenvalues

if TYPE_CHECKING:
    from attractor.meanfield import BlowUpApproach

ELLIPSES = 12


def gaussian_report(
    tables: list[tuple[str, dict[str, str]]], add_figure: Callable[[Section], object], command: str
) -> Report:
    """Build the page of ``attractor gaussian`` from titled tables and a function that adds the figure to a section."""
    lead = tables[0][0].rstrip(".") + "."
    report = Report("Gaussian flow", command, kicker="attractor gaussian", lead=lead)
    add_figure(report.section("Figure"))
    numbers = report.section("Numbers")
    for title, rows in tables:
        numbers.table(list(rows.items()), ("of the run", "value"), caption=title)
    return report


def gaussian_curves(
    run: Trajectory, approach: BlowUpApproach | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return times (S,), eigenvalues (S, d) and means (S, d) of a run; the last state of a blow-up is left out.

    With ``approach`` the states that it resolves are among them.
    """
    times, values = run.times.numpy(), factor_eigenvalues(run.points[:, 1:].mT.numpy())
    means = run.means.numpy()
    if run.outcome.name == "blow_up":  # the last state is the blow-up within rounding, 22 decades above the others
        kept = times < run.outcome.time
        times, values, means = times[kept], values[kept], means[kept]
    if approach is not None:
        kept = times < approach.times[0]
        times = np.concatenate((times[kept], approach.times))
        values = np.concatenate((values[kept], approach.eigenvalues))
        means = np.concatenate((means[kept], approach.means))
    return times, values, means


def add_gaussian(
    section: Section, run: Trajectory, approach: BlowUpApproach | None = None, command: str = ""
) -> Section:
    """Add the eigenvalues of the covariance along time and, in the plane, its ellipses."""
    end = run.outcome
    times, values, _ = gaussian_curves(run, approach)
    if len(times) == 0:
        return section.text("The run saved no states: give save times to draw it.", tone="warn")
    if run.dim == 2:
        section.figure(
            ellipses(run, approach),
            ellipse_caption(run),
            f"Ellipses of the covariance at up to {ELLIPSES} times.",
            command=command,
        )
    blown = end.name == "blow_up"
    words = f" up to the blow-up at t = {end.time:.6g}" if blown else ""
    if approach is not None:
        words += f", where they are: {approach.describe_limits()}"
    rows = [
        {"time": float(time), **{f"eigenvalue {place + 1}": float(value) for place, value in enumerate(row)}}
        for time, row in zip(times, values, strict=True)
    ]
    return section.figure(
        eigenvalue_figure(times, values, end.time if blown else None),
        f"Eigenvalues of the covariance along time{words}. Values that are zero to rounding are not drawn.",
        f"{values.shape[1]} eigenvalues from t = 0 to t = {times[-1]:.4g}.",
        command=command,
        numbers=rows[:: max(1, len(rows) // 40)],
    )


def eigenvalue_figure(times: np.ndarray, values: np.ndarray, blow_up: float | None) -> PlotlySpec:
    """Return the curves on a logarithmic scale."""
    floor = np.full((len(values), 1), 0.0) if blow_up is not None else 1e-14 * values[:, :1]
    decades = np.ptp(np.log10(values[values > floor])) if (values > floor).any() else 0.0
    data = [
        scatter(
            times, np.where(column > floor[:, 0], column, np.nan), name=f"eigenvalue {place + 1}", line={"width": 2.5}
        )
        for place, column in enumerate(values.T)
    ]
    scale = {"type": "log", "exponentformat": "power", "dtick": "D2" if decades < 3 else None}
    layout = axes_layout("time", "eigenvalue", yaxis=scale)
    if blow_up is not None:
        line = {"color": style.PALETTE[1], "dash": "dash", "width": 2}
        ends = {"xref": "x", "yref": "paper", "x0": blow_up, "x1": blow_up, "y0": 0, "y1": 1}
        layout["shapes"] = [{"type": "line", "line": line, **ends}]
        label = {"text": f"T* = {blow_up:.5g}", "showarrow": False, "xanchor": "right", "yanchor": "top", "xshift": -8}
        layout["annotations"] = [{"x": blow_up, "y": 1, "yref": "paper", **label}]
    return {"data": data, "layout": layout}


def ellipses(run: Trajectory, approach: BlowUpApproach | None = None) -> PlotlySpec:
    """Return ellipses one standard deviation from the mean, coloured by time; of trace one if they blow up."""
    times, means, covariances = run.times.numpy(), run.means.numpy(), run.covariances.numpy()
    if approach is not None:
        kept = times < approach.times[0]
        times = np.concatenate((times[kept], approach.times))
        means = np.concatenate((means[kept], approach.means))
        covariances = np.concatenate((covariances[kept], approach.factors @ approach.factors.swapaxes(1, 2)))
    chosen = np.unique(np.linspace(0, len(times) - 1, ELLIPSES).round().astype(int))
    circle = np.stack([np.cos(np.linspace(0, 2 * np.pi, 121)), np.sin(np.linspace(0, 2 * np.pi, 121))])
    colours = style.to_hex(style.ramp(np.arange(len(chosen)) / max(len(chosen) - 1, 1)))
    data = []
    for place, index in enumerate(chosen):
        covariance, mean = covariances[index], means[index]
        if run.outcome.name == "blow_up":
            covariance, mean = covariance / np.trace(covariance), 0 * mean
        spread, axes = np.linalg.eigh(covariance)
        x, y = mean[:, None] + axes @ (np.sqrt(np.maximum(spread, 0.0))[:, None] * circle)
        label = f"t = {float(times[index]):.7g}"
        line = {"color": colours[place], "width": 2}
        data.append(scatter(x, y, name=label, line=line, hovertemplate=f"{label}<extra></extra>"))
    shape = {"xaxis": {"constrain": "domain"}, "yaxis": {"scaleanchor": "x"}}
    return {"data": data, "layout": axes_layout("first coordinate", "second coordinate", showlegend=False, **shape)}


def ellipse_caption(run: Trajectory) -> str:
    """Return the caption of the ellipses."""
    if run.outcome.name == "blow_up":
        return "Shape of the covariance along time, from blue to pink; each ellipse has trace one, since the size becomes infinite."
    return "The covariance along time, from blue to pink: points one standard deviation from the mean. Point at one to read its time."


def add_phase(section: Section, ways: list[np.ndarray], kinds: list[str], words: str) -> Section:
    """Add paths of covariances of trace one in the disc (S11 - S22, 2 S12), coloured by outcome."""
    names = list(dict.fromkeys(kinds))
    data: list[PlotlySpec] = [rim()]
    for place, name in enumerate(names):
        colour = style.PALETTE[place % len(style.PALETTE)]
        paths = [way for way, kind in zip(ways, kinds, strict=True) if kind == name]
        shapes = [way[:, :2] / np.maximum(way[:, 2:], 1e-300) for way in paths]
        broken = [np.concatenate([shape[:, axis], [np.nan]]) for axis in (0, 1) for shape in shapes]
        x, y = np.concatenate(broken[: len(paths)]), np.concatenate(broken[len(paths) :])
        starts, ends = (np.array([shape[index] for shape in shapes]) for index in (0, -1))
        label = escape_text(name.replace("_", " "))
        group = {"name": label, "legendgroup": name}
        data.append(scatter(x, y, line={"color": colour, "width": 1.5}, hoverinfo="skip", **group))
        for places, marker in (
            (starts, {"size": 5}),
            (ends, {"size": 10, "line": {"color": style.QUIET, "width": 1.5}}),
        ):
            look = {"mode": "markers", "marker": {"color": colour, **marker}, "cliponaxis": False}
            data.append(scatter(*places.T, **look, showlegend=False, **group))
    layout = disc_layout()
    return section.figure(
        {"data": data, "layout": layout}, words, f"Paths of {len(ways)} covariances in the unit disc.", height=560
    )


def add_blow_up_map(section: Section, places: np.ndarray, times: np.ndarray) -> Section:
    """Add the blow-up times of covariances of trace one."""
    finite = np.isfinite(times)
    hover = [f"{'no blow-up' if not math.isfinite(time) else f'T* = {format_number(float(time))}'}" for time in times]
    colours = np.where(finite, np.log10(np.where(finite, times, 1.0)), np.nan)
    marker = {"size": 12, "color": colours, "colorscale": "Viridis", "colorbar": {"title": {"text": "log₁₀ T*"}}}
    dots = scatter(*places[:, :2].T, mode="markers", text=hover, hovertemplate="%{text}<extra></extra>", marker=marker)
    layout = disc_layout(showlegend=False)
    words = f"Blow-up times of covariances of trace one; {int(finite.sum())} of {len(times)} blow up, the others are not coloured."
    return section.figure(
        {"data": [rim(), dots], "layout": layout}, words, "A disc of dots coloured by blow-up time.", height=560
    )


def rim() -> PlotlySpec:
    """Return the circle of covariances of rank one."""
    angle = np.linspace(0, 2 * np.pi, 181)
    line = {"color": style.FAINT, "width": 1}
    return scatter(np.cos(angle), np.sin(angle), line=line, hoverinfo="skip", showlegend=False)


def disc_layout(**more: Any) -> PlotlySpec:
    """Return the layout of the disc of covariances of trace one."""
    limits = {"range": [-1.1, 1.1]}
    axes = {"xaxis": {"constrain": "domain", **limits}, "yaxis": {"scaleanchor": "x", **limits}}
    return axes_layout("(Σ₁₁ − Σ₂₂) / trace", "2Σ₁₂ / trace", **axes, **more)


def add_ranks(section: Section, panels: dict[str, dict[str, dict[str, int]]], words: str) -> Section:
    """Add bars of ranks for each dimension."""
    for title, groups in panels.items():
        data = [
            {
                "type": "bar",
                "name": escape_text(name),
                "x": [f"rank {label}" if label.isdigit() else label for label in counts],
                "y": list(counts.values()),
            }
            for name, counts in groups.items()
        ]
        rows = [{"procedure": name, **counts} for name, counts in groups.items()]
        layout = {"yaxis": {"title": {"text": "draws"}}, "bargroupgap": 0.1}
        section.figure(
            {"data": data, "layout": layout},
            f"{title}: {words}",
            f"Counts of ranks, {title}.",
            height=300,
            numbers=rows,
        )
    return section
