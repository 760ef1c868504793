"""Scenes: the arrays and labels of a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from attractor.errors import InputError
from attractor.plotting.time_axis import TimeAxis


def group_tokens(points: np.ndarray, tolerance: float, grids: int = 6) -> np.ndarray:
    """Return labels (n,) of tokens chained by steps of about the tolerance.

    Tokens that share a cell in one of several shifted grids are joined, so the cost is linear in n even when thousands
    of tokens sit on one point.
    """
    # scipy is slow to import
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n, dim = points.shape
    generator = np.random.default_rng(0)
    mixers = generator.integers(1, 2**62, size=dim, dtype=np.int64) | 1
    tokens, cells, count = [], [], n
    for _ in range(grids):
        shifted = np.floor(points / tolerance + generator.random(dim))
        with np.errstate(over="ignore"):
            keys = (shifted.astype(np.int64) * mixers).sum(axis=1)
        _, cell = np.unique(keys, return_inverse=True)
        tokens.append(np.arange(n))
        cells.append(count + cell)
        count += int(cell.max()) + 1
    rows, columns = np.concatenate(tokens), np.concatenate(cells)
    graph = coo_array((np.ones(rows.size, dtype=np.int8), (rows, columns)), shape=(count, count))
    labels = connected_components(graph, directed=False)[1][:n]
    return np.unique(labels, return_inverse=True)[1]


def measure_progress(times: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return the progress of the run at each saved time, from 0 to 1: half by distance travelled, half by the time axis."""
    moved = np.sqrt(np.square(np.diff(points, axis=0)).sum(axis=2).mean(axis=1))
    travelled = np.concatenate([[0.0], np.cumsum(moved)])
    placed = TimeAxis.of(times).place(times) if times.min() >= 0 else times
    parts = [values - values[0] for values in (travelled, placed)]
    parts = [values / values[-1] for values in parts if values[-1] > 0]
    if not parts:
        return np.linspace(0.0, 1.0, times.size) if times.size > 1 else np.zeros(1)
    return np.mean(parts, axis=0)


def select_frames(progress: np.ndarray, most: int) -> np.ndarray:
    """Return indices of at most ``most`` saved times, evenly spaced in progress, first and last included."""
    if progress.size <= most:
        return np.arange(progress.size)
    if most == 1:
        return np.array([progress.size - 1])
    nearest = np.abs(progress[None, :] - np.linspace(0.0, 1.0, most)[:, None]).argmin(axis=1)
    nearest[0], nearest[-1] = 0, progress.size - 1
    return np.unique(nearest)


def subsample(count: int, most: int) -> np.ndarray:
    """Return at most ``most`` of ``count`` indices, always the same ones."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, most, replace=False))


@dataclass(frozen=True, eq=False)
class Scene:
    """Tokens along time, with observables and events; S saved times, n tokens, dimension d.

    Attributes
    ----------
    times, points, masses : (S,), (S, n, d) and (n,).
    surface : matrix (d, d) of the surface {x : x'Mx = 1} that holds the tokens; None in flat space.
    curves : observables (S,) by label.
    bands : lower and upper ends (2, S) of an interval around some curves, by label: members of an ensemble.
    title, caption : texts of the figure.
    events : (time, label) pairs.
    outcome, outcome_time : how the run ended, and when.
    labels : names of the tokens, all or none.
    clock, symbol : what ``times`` are, for the axis, and their symbol, for the labels of snapshots.
    """

    times: np.ndarray
    points: np.ndarray
    masses: np.ndarray
    surface: np.ndarray | None = None
    curves: Mapping[str, np.ndarray] = field(default_factory=dict)
    title: str = ""
    caption: str = ""
    events: Sequence[tuple[float, str]] = ()
    outcome: str = ""
    outcome_time: float = float("nan")
    labels: Sequence[str] = ()
    clock: str = "time"
    symbol: str = "t"
    bands: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("times", "points", "masses"):
            object.__setattr__(self, name, as_array(getattr(self, name), name))
        saved = self.times.shape[0] if self.times.ndim == 1 else 0
        if self.points.ndim != 3 or saved == 0 or self.points.shape[0] != saved or 0 in self.points.shape:
            raise InputError(
                "a figure needs times (S,) and points (S, n, d) of one ensemble member, "
                f"got times {self.times.shape} and points {self.points.shape}"
            )
        if not np.isfinite(self.times).all():
            raise InputError("the times of a figure must be finite")
        if self.labels and len(self.labels) != self.points.shape[1]:
            raise InputError(f"{len(self.labels)} labels do not name {self.points.shape[1]} tokens: give one for each")
        self._check_masses()
        self._check_surface()
        curves = {str(label): as_array(values, f"curve {label!r}") for label, values in self.curves.items()}
        for label, values in curves.items():
            if values.shape != (saved,):
                raise InputError(
                    f"curve {label!r} has shape {values.shape}; one value per saved time is needed: ({saved},)"
                )
        object.__setattr__(self, "curves", curves)
        bands = {str(label): as_array(values, f"the band of {label!r}") for label, values in self.bands.items()}
        for label, values in bands.items():
            if label not in curves or values.shape != (2, saved):
                raise InputError(
                    f"the band of {label!r} has shape {values.shape}; lower and upper ends of a curve are needed: (2, {saved})"
                )
        object.__setattr__(self, "bands", bands)
        object.__setattr__(self, "events", tuple((float(time), str(label)) for time, label in self.events))

    def _check_masses(self) -> None:
        masses = self.masses
        if masses.shape != self.points.shape[1:2]:
            raise InputError(
                f"masses have shape {masses.shape}; one mass per token is needed: {self.points.shape[1:2]}"
            )
        if not (np.isfinite(masses).all() and (masses >= 0).all() and masses.sum() > 0):
            raise InputError("masses must be finite, not negative and not all zero")

    def _check_surface(self) -> None:
        if self.surface is None:
            return
        dim = self.points.shape[2]
        matrix = as_array(self.surface, "the matrix of the surface")
        if matrix.shape != (dim, dim) or not np.isfinite(matrix).all():
            raise InputError(
                f"the matrix of the surface must be a finite ({dim}, {dim}) array, got shape {matrix.shape}"
            )
        if np.linalg.eigvalsh(matrix)[0] <= 0:
            raise InputError("the matrix of the surface must be positive definite")
        object.__setattr__(self, "surface", matrix)


def as_array(value: object, name: str) -> np.ndarray:
    """Return a float64 array; raise if the value is not a rectangular array of numbers."""
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{name} must be numbers in a rectangular array, got {type(value).__name__}: {error}"
        ) from None
