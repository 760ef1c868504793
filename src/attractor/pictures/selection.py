"""Which saved times and which tokens a picture shows."""

from __future__ import annotations

import numpy as np

from attractor.pictures.time_axis import TimeAxis


def pace(times: np.ndarray, points: np.ndarray) -> np.ndarray:
    """How far the story has come at each saved time, from 0 to 1: half by distance travelled, half by the time axis."""
    moved = np.sqrt(np.square(np.diff(points, axis=0)).sum(axis=2).mean(axis=1))
    travelled = np.concatenate([[0.0], np.cumsum(moved)])
    placed = TimeAxis.of(times).place(times)
    parts = [values - values[0] for values in (travelled, placed)]
    parts = [values / values[-1] for values in parts if values[-1] > 0]
    if not parts:
        return np.linspace(0.0, 1.0, times.size) if times.size > 1 else np.zeros(1)
    return np.mean(parts, axis=0)


def frames(progress: np.ndarray, most: int) -> np.ndarray:
    """Indices of at most ``most`` saved times, evenly paced, first and last among them."""
    if progress.size <= most:
        return np.arange(progress.size)
    if most == 1:
        return np.array([progress.size - 1])
    nearest = np.abs(progress[None, :] - np.linspace(0.0, 1.0, most)[:, None]).argmin(axis=1)
    nearest[0], nearest[-1] = 0, progress.size - 1
    return np.unique(nearest)


def some(count: int, most: int) -> np.ndarray:
    """Indices of at most ``most`` of ``count`` things, the same ones each time."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, most, replace=False))
