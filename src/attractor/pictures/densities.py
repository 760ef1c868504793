"""The density of tokens on the line or in the plane, as small multiples along time."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attractor.errors import InputError, UnsupportedError
from attractor.pictures import style
from attractor.pictures.still import Grid, Still, written

GRID = 240  # points of a curve, and cells across the plane
TAIL = 0.002  # share of the mass that may lie outside of the drawn range on each side


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
    with style.applied():
        grid = Grid.of(len(points), 1.15, left=0.45, gap=0.3 if dim == 1 else 0.45, most=most)
        tall = min(1.35, 1.1 * grid.wide) if dim == 1 else grid.wide
        page = Still(title, caption, grid.rows * (tall + 0.55) + 0.1)
        for number, (time, state) in enumerate(zip(times, points, strict=True)):
            row, left = grid.place(number)
            axes = page.panel(left, 0.22 + row * (tall + 0.55), grid.wide, tall)
            axes.set_title(f"t = {time:.4g}", pad=3, parse_math=False)
            known = None if reference is None else (lambda x, k=number: reference(k, x))
            panel = line_density if dim == 1 else plane_density
            panel(axes, state, weights, known)
        return written(page.figure, path)


def line_density(axes: Any, points: np.ndarray, weights: np.ndarray, reference: Any = None) -> None:
    """A histogram, the kernel estimate over it, and a dashed reference."""
    x = points[:, 0]
    low, high = _range(x, weights)
    counts, edges = np.histogram(x, bins=min(60, max(10, int(np.sqrt(len(x))))), range=(low, high), weights=weights)
    axes.stairs(counts / np.diff(edges), edges, fill=True, color=style.PALETTE[5], alpha=0.45)
    grid = np.linspace(low, high, GRID)
    axes.plot(grid, kernel_estimate(x, weights, grid), color=style.PALETTE[0], linewidth=1.1)
    if reference is not None and (values := reference(grid)) is not None:
        axes.plot(grid, values, color=style.PALETTE[1], linewidth=1.0, linestyle="--")
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlim(low, high)
    axes.set_ylim(bottom=0)


def plane_density(axes: Any, points: np.ndarray, weights: np.ndarray, reference: Any = None) -> None:
    """The kernel estimate as shades on equal axes, contours of a reference over it."""
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
    """Gaussian kernel estimate on a grid, with Silverman's bandwidth."""
    width = _bandwidth(x, weights, dim=1)
    return np.exp(-(((grid[:, None] - x) / width) ** 2) / 2) @ weights / (width * np.sqrt(2 * np.pi))


def _bandwidth(x: np.ndarray, weights: np.ndarray, dim: int) -> float:
    """Silverman's rule from the smaller of deviation and quartiles, so that a far token does not blur the rest."""
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
