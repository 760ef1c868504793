"""Figures of covariances and densities: cone, disc, spectra, density estimates, densities on the circle."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attractor.errors import InputError, UnsupportedError
from attractor.plotting import style
from attractor.plotting.drawing import Grid, StaticFigure, static_suffix, write_chart
from attractor.plotting.time_axis import format_quantity, log_ticks

COLOURS = {"collapse": 0, "low_rank": 2, "full_rank": 5, "blow_up": 1, "diverged": 3, "undecided": 6}
COLOURS |= {"tolerance": 4, "cap": 1, "spent": 6}  # ends of a procedure that classifies nothing
WORDS = {
    "collapse": "goes to zero",
    "low_rank": "limit of rank one",
    "full_rank": "limit of full rank",
    "blow_up": "blows up",
    "diverged": "grows without bound",
    "undecided": "undecided",
    "tolerance": "met its tolerance",
    "cap": "passed its largest trace",
    "spent": "spent its steps",
}
HEIGHT = 3.0  # traces above are left out of the cone


def draw_cone(
    paths: Sequence[np.ndarray],
    kinds: Sequence[str],
    path: Path | str | None = None,
    *,
    title: str = "",
    caption: str = "",
) -> Any:
    """Draw paths (k, 3) in the coordinates of the cone, coloured by outcome: the cone, and the disc seen from above."""
    return draw_cones({"": (paths, kinds)}, path, title=title, caption=caption)


def draw_cones(
    cases: Mapping[str, tuple[Sequence[np.ndarray], Sequence[str]]],
    path: Path | str | None = None,
    *,
    title: str = "",
    caption: str = "",
    others: Mapping[str, tuple[Sequence[np.ndarray], Sequence[str]]] | None = None,
    other_title: str = "",
) -> Any:
    """Draw several cones one below the other: names, each with its paths and kinds as in ``draw_cone``.

    ``others`` has further paths and kinds of the same names, for a further disc with a title.
    """
    from matplotlib.lines import Line2D

    every = [*cases.values(), *(others or {}).values()]
    marks = [kind for kind in COLOURS if any(kind in set(kinds) for _, kinds in every)]
    with style.use_style():
        grid = Grid.of(3 if others else 2, 1.7 if others else 2.2, left=0.2, gap=0.62 if others else 0.85, right=0.3)
        tall = min(2.75, grid.wide)
        heading = 0.25 if any(cases) else 0.0
        block = grid.rows * (tall + 0.45) + heading
        page = StaticFigure(title, caption, len(cases) * block + 0.3)
        (row, beside), across = grid.place(1), grid.wide - (0.35 if grid.across == 1 else 0.0)
        for number, (name, (paths, kinds)) in enumerate(cases.items()):
            top = number * block + heading
            page.text(name, top - 0.15)
            box = (0.0, top, grid.wide + (0.1 if grid.across > 1 else -0.1), tall + 0.2)
            left: Any = page.panel(*box, projection="3d", computed_zorder=False)
            right = page.panel(beside + grid.wide - across, top + 0.1 + row * (tall + 0.45), across, tall)
            for way, kind in zip(paths, kinds, strict=True):
                colour = style.PALETTE[COLOURS[kind]]
                _in_cone(left, way, colour)
                _in_disc(right, way, colour)
            _cone_shell(left, _height(paths), bare=bool(others))
            rim(right)
            if others and name in others:
                third, far = grid.place(2)
                other = page.panel(far, top + 0.1 + third * (tall + 0.45), across, tall)
                for way, kind in zip(*others[name], strict=True):
                    _in_disc(other, way, style.PALETTE[COLOURS[kind]])
                rim(other)
                other.set_title(other_title, loc="left", fontsize=6.5)
        handles = [Line2D([], [], color=style.PALETTE[COLOURS[kind]]) for kind in marks]
        page.legend(handles, [WORDS[kind] for kind in marks], len(cases) * block + 0.05, ncols=4 if others else 3)
        return write_chart(page.figure, path)


def _height(paths: Sequence[np.ndarray]) -> float:
    tallest = max((float(way[:, 2].max()) for way in paths), default=1.0)
    return min(max(tallest, 1.0), HEIGHT)


def _in_cone(axes: Any, way: np.ndarray, colour: str) -> None:
    inside = way[way[:, 2] <= HEIGHT]
    if len(inside):
        axes.plot(*inside.T, color=colour, lw=0.6, alpha=0.6, zorder=2)
        axes.scatter(*inside[:1].T, color=colour, s=3, zorder=3)
        if len(inside) == len(way):
            axes.scatter(*inside[-1:].T, color=colour, s=10, edgecolors=style.INK, linewidths=0.4, zorder=4)


def _in_disc(axes: Any, way: np.ndarray, colour: str) -> None:
    shape = way[:, :2] / np.maximum(way[:, 2:], 1e-300)
    axes.plot(*shape.T, color=colour, lw=0.6, alpha=0.7)
    axes.plot(*shape[0], ".", color=colour, ms=2.5, clip_on=False)
    axes.plot(*shape[-1], "o", color=colour, ms=3.5, mec=style.INK, mew=0.4, clip_on=False)


def _cone_shell(axes: Any, top: float, bare: bool) -> None:
    """Draw the cone of rank one up to a trace; ``bare`` leaves out the axes and fills the panel."""
    angle = np.linspace(0, 2 * np.pi, 73)
    for height in np.linspace(0, top, 5)[1:]:
        axes.plot(height * np.cos(angle), height * np.sin(angle), height, color=style.FAINT, lw=0.5)
    for turn in angle[:-1:6]:
        axes.plot([0, top * np.cos(turn)], [0, top * np.sin(turn)], [0, top], color=style.HAIR, lw=0.5)
    axes.set(xlabel="Σ₁₁ − Σ₂₂", ylabel="2Σ₁₂", zlabel="trace", zlim=(0, top))
    axes.view_init(elev=18, azim=-62)
    if bare:
        axes.set_axis_off()
        axes.set_box_aspect((1, 1, 1), zoom=1.32)
        return
    for axis in (axes.xaxis, axes.yaxis, axes.zaxis):
        axis.pane.set_visible(False)
        axis._axinfo["grid"]["linewidth"] = 0
        axis.set_tick_params(pad=-2)
    axes.zaxis.labelpad = -4
    axes.locator_params(nbins=5)


def rim(axes: Any) -> None:
    """Draw the circle of covariances of trace one and rank one."""
    angle = np.linspace(0, 2 * np.pi, 181)
    axes.plot(np.cos(angle), np.sin(angle), color=style.QUIET, lw=0.8)
    axes.set(
        aspect="equal", xlim=(-1.06, 1.06), ylim=(-1.06, 1.06), xlabel="(Σ₁₁ − Σ₂₂) / trace", ylabel="2Σ₁₂ / trace"
    )
    axes.set_xticks([-1, 0, 1])
    axes.set_yticks([-1, 0, 1])


def draw_map(
    places: np.ndarray, values: np.ndarray, path: Path | str | None = None, *, title: str = "", caption: str = ""
) -> Any:
    """Draw times (n,) at places (n, 2) of the disc, infinite ones in grey, and the share of starts that have blown up by then."""
    finite = np.isfinite(values)
    with style.use_style():
        grid = Grid.of(2, 2.3, left=0.55, gap=1.4, right=0.15)
        map_wide = grid.wide - (0.65 if grid.across == 1 else 0.0)  # room for the colour scale
        share_tall = map_wide if grid.across > 1 else 1.4
        page = StaticFigure(title, caption, map_wide + 0.55 + (grid.rows - 1) * (share_tall + 0.55))
        disc = page.panel(grid.left, 0.1, map_wide, map_wide)
        rim(disc)
        size = max(4.0, 5200.0 / len(places)) * (map_wide / 3.0) ** 2
        disc.scatter(*places[~finite].T, s=size, color=style.FAINT)
        if finite.any():
            _times(page, disc, places[finite], values[finite], size, grid.left + map_wide + 0.08, map_wide)
        row, left = grid.place(1)
        _share(page.panel(left, 0.1 + row * (map_wide + 0.55), grid.wide, share_tall), values)
        return write_chart(page.figure, path)


def _times(
    page: StaticFigure, disc: Any, places: np.ndarray, values: np.ndarray, size: float, left: float, tall: float
) -> None:
    from matplotlib.colors import LogNorm

    low, high = float(values.min()), float(values.max())
    norm = LogNorm(low, max(high, low * (1 + 1e-9)))
    drawn = disc.scatter(*places.T, c=values, s=size, norm=norm, cmap="viridis")
    bar = page.figure.colorbar(drawn, cax=page.panel(left, 0.1 + 0.1 * tall, 0.09, 0.8 * tall))
    bar.set_label("blow-up time")
    _plain(bar.ax.yaxis, low, high)


def _share(axes: Any, values: np.ndarray) -> None:
    """Return the empirical distribution of the finite times, as a share of all starts."""
    times = np.sort(values[np.isfinite(values)])
    share = np.arange(1, len(times) + 1) / len(values)
    axes.step(times, share, where="post", color=style.PALETTE[0], linewidth=1.1)
    if len(times):
        axes.set_xscale("log")
        _plain(axes.xaxis, float(times[0]), float(times[-1]))
    axes.set(xlabel="t", ylabel="share that has blown up", ylim=(0, 1.03))


def _plain(axis: Any, low: float, high: float) -> None:
    """Label ticks as 0.6 rather than 6 x 10^-1."""
    from matplotlib.ticker import MaxNLocator, NullLocator

    near = high < 5 * low  # too short for two round numbers on a log scale
    ticks = [float(tick) for tick in MaxNLocator(4).tick_values(low, high)] if near else log_ticks(low, high, most=5)
    ticks = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
    axis.set_ticks(ticks, labels=[format_quantity(tick) for tick in ticks])
    axis.set_minor_locator(NullLocator())


def draw_spectrum(
    times: np.ndarray,
    eigenvalues: np.ndarray,
    means: np.ndarray,
    path: Path | str | None = None,
    *,
    end: float | None = None,
    title: str = "",
    caption: str = "",
) -> Any:
    """Draw eigenvalues (S, d) and means (S, d) at times (S,); ``end`` marks a blow-up.

    A mean that does not move is stated in the caption instead of drawn.
    """
    panels = {"eigenvalues of the covariance": np.where(eigenvalues > 0, eigenvalues, np.nan)}
    size = np.abs(means).max(initial=0.0)
    if len(means) == 0 or np.ptp(means, axis=0).max(initial=0.0) <= 1e-12 * size:
        place = ", ".join(f"{value:.4g}" for value in means[0]) if len(means) else ""
        caption = f"{caption} The mean stays at ({place})." if place else caption
    else:
        panels["coordinates of the mean"] = means
    with style.use_style():
        grid = Grid.of(len(panels), 1.9, left=0.62, gap=0.6)
        tall = 1.9
        page = StaticFigure(title, caption.strip(), grid.rows * (tall + 0.62))
        span = float(times[-1] - times[0]) if len(times) else 0.0
        for number, (name, values) in enumerate(panels.items()):
            row, left = grid.place(number)
            axes = page.panel(left, 0.22 + row * (tall + 0.62), grid.wide, tall)
            _lines(axes, times, values)
            axes.set_title(name, pad=3)
            axes.set_xlabel("t")
            if span > 100.0:
                axes.set_xscale("symlog", linthresh=1.0)
            if end is not None:
                axes.axvline(end, color=style.QUIET, lw=0.7, ls=":")
            if number == 0 and (eigenvalues > 0).any():
                axes.set_yscale("log")
            elif number:
                if 1 < means.shape[1] <= len(style.PALETTE):
                    axes.legend([str(axis + 1) for axis in range(means.shape[1])], title="coordinate", frameon=False)
                if size > 100.0 * (first := np.abs(means[0]).max() or 1.0):
                    _symmetric_log(axes, means, first)
        return write_chart(page.figure, path)


def _symmetric_log(axes: Any, values: np.ndarray, first: float) -> None:
    """Logarithmic scale of values that grow far beyond ``first``; of both signs, if there are both, with few ticks."""
    from matplotlib.ticker import NullLocator

    known = values[np.isfinite(values)]
    low, high = float(known.min()), float(known.max())
    if low > 0:
        axes.set_yscale("log")
        return
    axes.set_yscale("symlog", linthresh=first)
    if low >= -first:  # no negative value is far from zero
        axes.set_ylim(bottom=-first)
    if high <= first:
        axes.set_ylim(top=first)
    lowest, highest = np.ceil(np.log10(first)), np.log10(max(high, -low, first))
    powers = 10.0 ** np.arange(lowest, highest + 1e-9, max(1.0, np.ceil((highest - lowest) / 4)))
    ticks = np.concatenate((-powers[::-1], [0.0], powers))
    axes.set_yticks(ticks[(ticks >= min(low, 0.0)) & (ticks <= max(high, 0.0))])
    axes.yaxis.set_minor_locator(NullLocator())


def _lines(axes: Any, times: np.ndarray, values: np.ndarray) -> None:
    """Draw a line for each column, earlier ones wider so that equal ones stay visible."""
    count = values.shape[1]
    for number, column in enumerate(values.T):
        wide = 1.0 + min(0.7, 1.6 / count) * (count - 1 - number)
        axes.plot(times, column, color=style.PALETTE[number % len(style.PALETTE)], lw=wide)


GRID = 240  # points of a curve, and cells across the plane
TAIL = 0.002  # mass fraction outside of the drawn range on each side


def draw_densities(
    times: Sequence[float],
    points: np.ndarray,
    masses: np.ndarray | None = None,
    *,
    title: str,
    caption: str,
    reference: Callable[[int, np.ndarray], np.ndarray | None] | None = None,
    path: str | os.PathLike[str] | None = None,
) -> Any:
    """Points (S, n, d), d = 1 or 2, at times (S,): a histogram with its kernel estimate, or the kernel estimate as shades.

    ``reference(k, x)`` gives a density to draw beside that of time k, on a line (dashed) or at points (..., 2) as contours; None
    where there is none.
    """
    dim = points.shape[-1]
    if dim > 2:
        raise UnsupportedError(f"densities are drawn in one or two dimensions, not in {dim}: project the tokens first")
    if len(points) == 0:
        raise InputError("there are no saved states to draw")
    weights = np.full(points.shape[1], 1.0 / points.shape[1]) if masses is None else masses / masses.sum()
    most = 3 if len(points) in (1, 2, 3, 5, 6, 9) else 4
    with style.use_style():
        grid = Grid.of(len(points), 1.15, left=0.55 if dim == 1 else 0.45, gap=0.35 if dim == 1 else 0.45, most=most)
        tall = min(1.35, 1.1 * grid.wide) if dim == 1 else grid.wide
        page = StaticFigure(title, caption, grid.rows * (tall + 0.55) + 0.1)
        for number, (time, state) in enumerate(zip(times, points, strict=True)):
            row, left = grid.place(number)
            axes = page.panel(left, 0.22 + row * (tall + 0.55), grid.wide, tall)
            axes.set_title(f"t = {time:.4g}", pad=3, parse_math=False)
            known = None if reference is None else (lambda x, k=number: reference(k, x))
            panel = line_density if dim == 1 else plane_density
            panel(axes, state, weights, known)
            if left > grid.left + 1e-9:  # the labels of the first column are those of all
                axes.set_ylabel("")
        return write_chart(page.figure, path)


def line_density(axes: Any, points: np.ndarray, weights: np.ndarray, reference: Any = None) -> None:
    """Draw a histogram, its kernel estimate and a dashed reference."""
    x = points[:, 0]
    low, high = _range(x, weights)
    counts, edges = np.histogram(x, bins=min(60, max(10, int(np.sqrt(len(x))))), range=(low, high), weights=weights)
    axes.stairs(counts / np.diff(edges), edges, fill=True, color=style.PALETTE[5], alpha=0.45)
    grid = np.linspace(low, high, GRID)
    axes.plot(grid, kernel_estimate(x, weights, grid), color=style.PALETTE[0], linewidth=1.1)
    if reference is not None and (values := reference(grid)) is not None:
        axes.plot(grid, values, color=style.PALETTE[1], linewidth=1.0, linestyle="--")
    axes.set(xlabel="x", ylabel="density")
    axes.locator_params(axis="y", nbins=3)
    axes.set_xlim(low, high)
    axes.set_ylim(bottom=0)


def plane_density(axes: Any, points: np.ndarray, weights: np.ndarray, reference: Any = None) -> None:
    """Draw the kernel estimate as shades on equal axes, with contours of a reference."""
    centre = np.array([sum(_range(points[:, k], weights)) / 2 for k in (0, 1)])
    half = max(float(np.diff(_range(points[:, k], weights))[0]) / 2 for k in (0, 1))
    edges = [np.linspace(c - half, c + half, GRID // 2 + 1) for c in centre]
    counts, _, _ = np.histogram2d(points[:, 0], points[:, 1], bins=edges, weights=weights)  # type: ignore[arg-type]
    shade = _smoothed(counts, points, weights, 2 * half / (GRID // 2))
    axes.imshow(shade.T, origin="lower", extent=(*edges[0][[0, -1]], *edges[1][[0, -1]]), cmap="Blues", aspect="equal",
                interpolation="bilinear", vmin=0)  # fmt: skip
    if reference is not None:
        places = np.stack(np.meshgrid(*edges, indexing="ij"), -1)
        if (values := reference(places)) is not None:
            levels = values.max() * np.exp(-np.array([4.5, 2.0, 0.5]))  # one, two and three standard deviations
            axes.contour(*edges, values.T, levels=levels, colors=style.PALETTE[1], linewidths=0.7, linestyles="--")


def kernel_estimate(x: np.ndarray, weights: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Return the Gaussian kernel estimate on a grid, with Silverman's bandwidth."""
    width = _bandwidth(x, weights, dim=1)
    return np.exp(-(((grid[:, None] - x) / width) ** 2) / 2) @ weights / (width * np.sqrt(2 * np.pi))


def _bandwidth(x: np.ndarray, weights: np.ndarray, dim: int) -> float:
    """Return Silverman's bandwidth from the smaller of deviation and quartiles, which is robust to outliers."""
    mean = weights @ x
    deviation = float(np.sqrt(weights @ (x - mean) ** 2))
    quartiles = float(np.diff(_quantiles(x, weights, [0.25, 0.75]))[0]) / 1.349
    spread = min(deviation, quartiles) if quartiles > 0 else deviation
    effective = 1.0 / float(weights @ weights)
    scale = spread if spread > 0 else max(1e-3 * abs(mean), 1e-12)
    return scale * (4 / ((dim + 2) * effective)) ** (1 / (dim + 4))


def _quantiles(x: np.ndarray, weights: np.ndarray, levels: list[float]) -> np.ndarray:
    order = np.argsort(x)
    return x[order][np.searchsorted(np.cumsum(weights[order]), levels).clip(0, len(x) - 1)]


def _range(x: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    low, high = _quantiles(x, weights, [TAIL, 1 - TAIL])
    margin = 0.12 * (high - low) or max(0.1 * abs(low), 1e-6)
    return float(low - margin), float(high + margin)


def _smoothed(counts: np.ndarray, points: np.ndarray, weights: np.ndarray, cell: float) -> np.ndarray:
    from scipy.ndimage import gaussian_filter

    widths = [_bandwidth(points[:, k], weights, dim=2) / cell for k in (0, 1)]
    return gaussian_filter(counts, np.clip(widths, 0.7, GRID / 12), mode="constant")


SHOWN = 4  # Fourier coefficients that are drawn


def draw_circle(
    times: np.ndarray,
    densities: np.ndarray,
    modes: np.ndarray,
    path: Path | str | None = None,
    *,
    title: str = "",
    caption: str = "",
    dpi: int = 200,
) -> Any:
    """Draw densities (S, N) on the circle along times (S,), and the sizes of their Fourier coefficients (S, m).

    Panels: the density over time and angle, its graph at the start and at the end, and the first coefficients.
    """
    if path is not None:
        static_suffix(path)
    angles = np.linspace(-np.pi, np.pi, densities.shape[1] + 1)
    rolled = np.roll(densities, densities.shape[1] // 2, axis=1)
    rolled = np.concatenate((rolled, rolled[:, :1]), axis=1)
    ticks = ([-np.pi, 0, np.pi], ["\u2212\u03c0", "0", "\u03c0"])
    largest = modes.max(axis=0)[1:13]
    shown = 1 + np.sort(np.argsort(-largest, kind="stable")[:SHOWN])
    with style.use_style():
        grid = Grid.of(3, 1.8, left=0.55, gap=0.68, right=0.2)
        tall = 1.9
        page = StaticFigure(title, caption, grid.rows * (tall + 0.72))
        panels = []
        for number, name in enumerate(("density over time", "density", "Fourier coefficients")):
            row, left = grid.place(number)
            axes = page.panel(left, 0.26 + row * (tall + 0.72), grid.wide, tall)
            axes.set_title(name, pad=3)
            panels.append(axes)
        heat, graph, lines = panels
        if len(times) > 1:
            heat.pcolormesh(times, angles, rolled.T, cmap="viridis", shading="gouraud", rasterized=True)
        heat.set_yticks(*ticks)
        heat.set_xlabel("t")
        heat.set_ylabel("angle")
        graph.axhline(0.5 / np.pi, color=style.HAIR, lw=0.8)
        graph.plot(angles, rolled[0], color=style.QUIET, lw=0.9, ls="--", label=f"t = {format_quantity(times[0])}")
        graph.plot(angles, rolled[-1], color=style.PALETTE[0], lw=1.2, label=f"t = {format_quantity(times[-1])}")
        graph.set_xticks(*ticks)
        graph.set_xlabel("angle")
        graph.set_ylim(bottom=0.0, top=1.3 * max(rolled[0].max(), rolled[-1].max()))
        graph.legend(fontsize=6, frameon=False, handlelength=1.4, loc="upper right")
        for number, order in enumerate(shown):
            lines.plot(
                times, np.maximum(modes[:, order], 1e-17), color=style.PALETTE[number], lw=1.1, label=f"|c{order}|"
            )
        lines.set_yscale("log")
        lines.set_ylim(bottom=max(1e-12, 0.3 * float(modes[:, shown].min())), top=2.0)
        lines.set_xlabel("t")
        lines.legend(fontsize=6, frameon=False, handlelength=1.4)
        return write_chart(page.figure, path, dpi)
