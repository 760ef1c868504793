"""Results of a sweep: tables with confidence intervals, arrays, failed cells."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from attractor.errors import InputError, StoreError, missing
from attractor.files import write_atomic
from attractor.registry import closest, unknown
from attractor.solvers import MEANINGS
from attractor.sweeps.cells import Cell, Value, canonical, derive_seed, order_values
from attractor.sweeps.folder import TABLE, Folder, Index, arrow, describe_values

if TYPE_CHECKING:
    import pandas
    import xarray  # pyright: ignore[reportMissingImports]

LEVEL = 1.959963984540054  # quantile of the normal distribution for intervals of 95 %
RESAMPLES = 200  # of the bootstrap
MANY_STARTS = 256  # above which the normal approximation replaces the bootstrap
ROWS = 1 << 20  # numbers of a bootstrap held at once
FEW_PARTS = 16  # entries of an array-valued observable up to which they are columns


@dataclass(frozen=True)
class Failure:
    """A cell that could not be computed, and the reason."""

    cell: Cell
    reason: str

    def __str__(self) -> str:
        return f"{self.cell}: {self.reason}"


@dataclass(frozen=True)
class Estimate:
    """A statistic over starts with an interval of 95 %: arrays (cells, times, ...)."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def summarise(values: np.ndarray, binary: bool = False) -> Estimate:
    r"""Summarise values (cells, times, starts) over starts.

    The value is the mean, or the median where a value is infinite (times of events that do not happen). Intervals of 95 % are
    Wilson's for frequencies (``binary``), those of the order statistics for medians, and otherwise percentiles of 200 bootstrap
    means (up to 256 starts) or :math:`\pm 1.96\,s/\sqrt{N}`.
    """
    values = np.ascontiguousarray(values, dtype=np.float64)
    cells, times, starts = values.shape
    with np.errstate(invalid="ignore"):
        value = values.mean(-1) if starts else np.full((cells, times), np.nan)
    low, high = value.copy(), value.copy()
    if starts < 2:
        return Estimate(value, low, high)
    endless = np.isinf(values).any((1, 2))
    for kind, which in (("median", endless), ("binomial" if binary else "mean", ~endless)):
        if not which.any():
            continue
        chosen = values[which]
        if kind == "median":
            value[which], low[which], high[which] = _median(chosen)
        elif kind == "binomial":
            low[which], high[which] = _wilson(value[which], starts)
        elif starts > MANY_STARTS:
            with np.errstate(invalid="ignore"):
                error = LEVEL * chosen.std(-1, ddof=1) / math.sqrt(starts)
            low[which], high[which] = value[which] - error, value[which] + error
        else:
            low[which], high[which] = _bootstrap(chosen)
    return Estimate(value, low, high)


def _wilson(share: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's interval of a probability."""
    square = LEVEL**2 / count
    middle = (share + square / 2) / (1 + square)
    reach = LEVEL / (1 + square) * np.sqrt(share * (1 - share) / count + square / (4 * count))
    return np.where(share == 0, 0.0, middle - reach), np.where(share == 1, 1.0, middle + reach)


def _median(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Median and its interval from order statistics, with the binomial distribution of ranks."""
    from scipy.stats import binom

    ordered, count = np.sort(values, axis=-1), values.shape[-1]
    below = int(binom.ppf(0.025, count, 0.5))
    with np.errstate(invalid="ignore"):
        middle = 0.5 * (ordered[..., (count - 1) // 2] + ordered[..., count // 2])
    middle = np.where(np.isnan(middle) & ~np.isnan(ordered[..., -1]), np.inf, middle)
    return middle, ordered[..., max(0, below - 1)], ordered[..., min(count - 1, count - below)]


def _bootstrap(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Percentile interval of the mean; every row is resampled in the same way, so that nothing depends on the others."""
    count = values.shape[-1]
    draws = np.random.default_rng(count).integers(0, count, (RESAMPLES, count))
    weights = np.stack([np.bincount(row, minlength=count) for row in draws]) / count
    flat = values.reshape(-1, count)
    low, high = np.empty(len(flat)), np.empty(len(flat))
    step = max(1, ROWS // RESAMPLES)
    for begin in range(0, len(flat), step):
        # einsum adds in an order that does not depend on the number of rows, a matrix product may
        means = np.sort(np.einsum("rs,bs->rb", flat[begin : begin + step], weights), axis=-1)
        low[begin : begin + step] = means[:, round(0.025 * (RESAMPLES - 1))]
        high[begin : begin + step] = means[:, round(0.975 * (RESAMPLES - 1))]
    return low.reshape(values.shape[:-1]), high.reshape(values.shape[:-1])


class Sweep:
    """Results of a sweep, read from its folder.

    Attributes
    ----------
    folder : the folder.
    manifest : what the sweep is: system, arguments of ``flow``, seed, axes, starts, observables, versions and history.
    """

    def __init__(self, path: str | os.PathLike[str], keep: Any = None) -> None:
        self.folder = Folder(path)
        self.manifest: dict[str, Any] = self.folder.manifest()
        self._index: Index = self.folder.index()
        self._keep = keep  # a temporary folder that is removed with the results

    @property
    def path(self) -> Any:
        """The folder as a path."""
        return self.folder.path

    @property
    def observables(self) -> list[str]:
        """Names of what was measured."""
        found = dict.fromkeys(
            name for places in self._index.places.values() for place in places for name in place.names
        )
        order = list(self.manifest["observables"])
        return sorted(found, key=lambda name: (order.index(name) if name in order else len(order), name))

    @cached_property
    def axes(self) -> dict[str, list[Value]]:
        """The values of each axis that occur, sorted."""
        names = list(self.manifest["axes"])
        pairs = {pair for cell in self._index.cells.values() for pair in cell.values}
        found: dict[str, dict[Any, Value]] = {name: {} for name in names}
        for name, value in sorted(pairs, key=str):
            found[name].setdefault(canonical(value), value)
        return {name: order_values(found[name].values()) for name in names}

    @cached_property
    def cells(self) -> list[Cell]:
        """All cells that were computed or failed, sorted by their values."""
        places = {name: {canonical(value): k for k, value in enumerate(values)} for name, values in self.axes.items()}

        order = list(self.axes)

        def rank(cell: Cell) -> tuple[int, ...]:
            if [name for name, _ in cell.values] == order:
                return tuple([places[name][canonical(value)] for name, value in cell.values])
            given = cell.arguments
            return tuple([places[name][canonical(given[name])] for name in order])

        return sorted(self._index.cells.values(), key=rank)

    @property
    def failed(self) -> list[Failure]:
        """Cells that could not be computed."""
        reasons = self._index.failures()
        return [Failure(cell, reasons[cell.key]) for cell in self.cells if cell.key in reasons]

    @property
    def starts(self) -> int:
        """Number of starts of every cell."""
        return int(self.manifest["starts"])

    def seed(self, cell: Cell, start: int | None = None) -> int:
        """Return the seed of a cell, or of one of its starts."""
        return derive_seed(int(self.manifest["base"]["seed"]), cell, start)

    def cell(self, **values: Value) -> Cell:
        """Return the cell with the given values; those of axes of one value may be left out."""
        for name in values:
            if name not in self.axes:
                raise unknown(name, self.axes, "axis", "axes")
        wanted = {name: canonical(value) for name, value in values.items()}
        found = [
            cell
            for cell in self.cells
            if all(canonical(cell.arguments[name]) == value for name, value in wanted.items())
        ]
        if len(found) == 1:
            return found[0]
        if not found:
            raise InputError(
                f"there is no cell with {', '.join(f'{k} = {v}' for k, v in values.items())}; the axes are {self._describe()}"
            )
        raise InputError(f"{len(found)} cells have these values: give all of {', '.join(self.axes)}")

    def _describe(self) -> str:
        return "; ".join(f"{name}: {describe_values(values)}" for name, values in self.axes.items())

    def _check_observable(self, name: str) -> None:
        if name in self.observables:
            return
        if name.startswith("outcome_"):
            if name.removeprefix("outcome_") in MEANINGS:
                return
            raise unknown(name, [f"outcome_{known}" for known in MEANINGS], "outcome")
        close = closest(name, self.observables)
        hint = f"did you mean {close!r}?" if close else f"it has {', '.join(self.observables)}"
        raise InputError(f"the sweep has no observable {name!r}; {hint}")

    def _is_binary(self, name: str) -> bool:
        """Whether the values of an observable are True or False."""
        return name.startswith("outcome_") or name in self.manifest["binary"]

    def _blocks(self, name: str, starts: int | None = None) -> Iterator[tuple[list[str], np.ndarray]]:
        """Keys, and values (cells, times, starts, ...)."""
        keys = [cell.key for cell in self.cells]
        if name.startswith("outcome_"):
            for found, values in self.folder.read_values(self._index, keys, "outcomes", starts):
                yield found, (values == name.removeprefix("outcome_")).astype(np.float64)[:, None, :]
            return
        yield from self.folder.read_values(self._index, keys, name, starts)

    def values(self, name: str, **values: Value) -> np.ndarray:
        """Return what was measured in one cell: (times, starts, ...).

        Parameters
        ----------
        name : an observable, or "outcome_consensus", ... for runs that ended so (1) or not (0).
        values : those of the axes.
        """
        self._check_observable(name)
        cell = self.cell(**values)
        reasons = self._index.failures()
        if name.startswith("outcome_"):
            for _, found in self.folder.read_values(self._index, [cell.key], "outcomes"):
                return (found[0] == name.removeprefix("outcome_")).astype(np.float64)[None]
        for _, found in self.folder.read_values(self._index, [cell.key], name):
            return found[0]
        raise InputError(f"the cell {cell} has no {name}: {reasons.get(cell.key, 'it was not measured there')}")

    def times(self, **values: Value) -> np.ndarray:
        """Return the saved times of one cell; without values those that all cells have in common, or raise."""
        if values:
            key = self.cell(**values).key
            return next((found[0] for _, found in self.folder.read_values(self._index, [key], "times")), np.zeros(0))
        found = self.cell_times()
        distinct = list({times.tobytes(): times for times in found.values()}.values())
        if len(distinct) > 1:
            raise InputError(
                f"the cells have {len(distinct)} different lists of saved times: give the values of one cell"
            )
        return distinct[0] if distinct else np.zeros(0)

    def cell_times(self) -> dict[str, np.ndarray]:
        """Return the saved times of every cell that was computed, by its key; cells differ where ``until`` or ``save`` do."""
        keys = [cell.key for cell in self.cells]
        rows = self.folder.read_values(self._index, keys, "times")
        return {key: row for found, times in rows for key, row in zip(found, times, strict=True)}

    def summary(self, name: str) -> tuple[list[Cell], list[Estimate]]:
        """Return the cells that have an observable, and its mean and interval over starts at each time (1, times)."""
        self._check_observable(name)
        found: dict[str, Estimate] = {}
        for keys, values in self._blocks(name):
            if values.ndim > 3 and math.prod(values.shape[3:]) == 1:
                values = values.reshape(values.shape[:3])
            if values.ndim > 3:
                raise InputError(
                    f"{name} is an array for every state, not a number; read it with values({name!r}, ...)"
                )
            estimate = summarise(values, self._is_binary(name))
            for k, key in enumerate(keys):
                found[key] = Estimate(*(part[k : k + 1] for part in (estimate.value, estimate.low, estimate.high)))
        cells = [cell for cell in self.cells if cell.key in found]
        return cells, [found[cell.key] for cell in cells]

    def table(self, times: str | Sequence[float] = "last", intervals: bool = True) -> dict[str, np.ndarray | list[Any]]:
        """Return the columns of :meth:`frame`."""
        cells = self.cells
        order = {cell.key: k for k, cell in enumerate(cells)}
        saved = [np.zeros(0)] * len(cells)
        for keys, found in self.folder.read_values(self._index, order, "times"):
            for key, row in zip(keys, found, strict=True):
                saved[order[key]] = row
        known: dict[bytes, np.ndarray] = {}
        picked = [known.setdefault(row.tobytes(), _pick_times(row, times)) for row in saved]
        counts = np.array([max(1, len(rows)) for rows in picked], dtype=np.int64)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        columns: dict[str, Any] = {}
        for name in self.axes:
            column = [cell.arguments[name] for cell in cells]
            columns[name] = [value for value, count in zip(column, counts, strict=True) for _ in range(count)]
        total = int(offsets[-1])
        columns["time"] = np.full(total, np.nan)
        columns["starts"] = np.zeros(total, dtype=np.int64)
        for k, rows in enumerate(picked):
            if len(rows):
                columns["time"][offsets[k] : offsets[k + 1]] = saved[k][rows]
        outcomes: dict[str, np.ndarray] = {}
        for keys, values in self.folder.read_values(self._index, order, "outcomes"):
            groups = _group_lines(np.array([order[key] for key in keys]), picked, offsets)
            for name in sorted({str(item) for item in np.unique(values.astype(str))}) if values.size else ():
                share = (values == name).mean(-1)
                column = outcomes.setdefault(name, np.zeros(total))
                for which, lines, _ in groups:
                    column[lines] = share[which][:, None]
            for _, lines, _ in groups:
                columns["starts"][lines] = values.shape[1]
        for name in self.observables:
            self._add_observable(columns, name, order, picked, offsets, intervals)
        outcomes.pop("computed", None)  # by a function that returned numbers
        if not outcomes:
            del columns["time"]
        columns |= {
            f"outcome_{name}": np.where(columns["starts"] > 0, outcomes[name], np.nan) for name in sorted(outcomes)
        }
        reasons = self._index.failures()
        why = [reasons.get(cell.key, "") for cell in cells]
        columns["reason"] = [text for text, count in zip(why, counts, strict=True) for _ in range(count)]
        return columns

    def _add_observable(
        self,
        columns: dict[str, Any],
        name: str,
        order: Mapping[str, int],
        picked: list[np.ndarray],
        offsets: np.ndarray,
        intervals: bool,
    ) -> None:
        total = int(offsets[-1])
        for keys, values in self._blocks(name):
            size = math.prod(values.shape[3:])
            if size > FEW_PARTS:
                continue
            groups = _group_lines(np.array([order[key] for key in keys]), picked, offsets)
            flat = values.reshape(*values.shape[:3], size)
            for part in range(size):
                label = name if size == 1 else f"{name}[{part}]"
                estimate = summarise(flat[..., part], self._is_binary(name))
                kinds = (("", estimate.value), ("_low", estimate.low), ("_high", estimate.high))
                for kind, found in kinds if intervals and flat.shape[2] > 1 else kinds[:1]:
                    column = columns.setdefault(label + kind, np.full(total, np.nan))
                    for which, lines, rows in groups:
                        chosen = rows if found.shape[1] > 1 else np.zeros(lines.shape[1], dtype=np.int64)
                        column[lines] = found[which][:, chosen]

    def frame(self, times: str | Sequence[float] = "last", intervals: bool = True) -> pandas.DataFrame:
        """Return a table with one line per cell and saved time.

        Parameters
        ----------
        times : "last", "all", or a list of times; of these the nearest saved ones are taken.
        intervals : whether to add the columns NAME_low and NAME_high, the ends of intervals of 95 % (see ``summarise``).
        """
        try:
            import pandas
        except ImportError:
            raise missing("pandas", "pandas") from None
        return pandas.DataFrame(self.table(times, intervals))

    def starts_frame(self, times: str | Sequence[float] = "last") -> pandas.DataFrame:
        """Return a table with one line per cell, start and saved time, without statistics."""
        try:
            import pandas
        except ImportError:
            raise missing("pandas", "pandas") from None
        frames: dict[str, dict[str, np.ndarray]] = {}
        saved = {}
        for keys, found in self.folder.read_values(self._index, [cell.key for cell in self.cells], "times"):
            saved |= dict(zip(keys, found, strict=True))
        for name in self.observables:
            for keys, values in self._blocks(name):
                if values.ndim == 3:
                    for key, value in zip(keys, values, strict=True):
                        frames.setdefault(key, {})[name] = value
        parts = []
        for cell in self.cells:
            if cell.key not in frames:
                continue
            rows = _pick_times(saved[cell.key], times)
            starts = max(value.shape[1] for value in frames[cell.key].values())
            part: dict[str, Any] = {name: [value] * (len(rows) * starts) for name, value in cell.values}
            part["time"] = np.repeat(saved[cell.key][rows], starts)
            part["start"] = np.tile(np.arange(starts), len(rows))
            for name, value in frames[cell.key].items():
                kept = value[rows] if len(value) > 1 else np.repeat(value, len(rows), axis=0)
                part[name] = np.pad(kept, ((0, 0), (0, starts - kept.shape[1])), constant_values=np.nan).reshape(-1)
            parts.append(pandas.DataFrame(part))
        return pandas.concat(parts, ignore_index=True) if parts else pandas.DataFrame()

    def to_xarray(self) -> xarray.Dataset:
        """Return the means over starts as an xarray Dataset with the axes and the time as dimensions."""
        try:
            import xarray  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise missing("xarray", "sweep") from None
        saved = list({times.tobytes(): times for times in self.cell_times().values()}.values())
        times = saved[0] if saved else np.zeros(0)
        if len(saved) > 1:
            if max(map(len, saved)) > 1:
                raise InputError("the cells have different saved times, which one array cannot hold; use frame('all')")
            times = np.zeros(0)  # each cell has its own end
        shape = [len(values) for values in self.axes.values()]
        places = {name: {canonical(value): k for k, value in enumerate(values)} for name, values in self.axes.items()}
        data = {}
        for name in self.observables:
            try:
                cells, found = self.summary(name)
            except InputError:  # an array for every state
                continue
            count = max((estimate.value.shape[1] for estimate in found), default=1)
            for kind, attribute in (("", "value"), ("_low", "low"), ("_high", "high")):
                array = np.full((*shape, count), np.nan)
                for cell, estimate in zip(cells, found, strict=True):
                    array[tuple(places[axis][canonical(value)] for axis, value in cell.values)] = getattr(
                        estimate, attribute
                    )[0]
                over_time = count > 1 or len(times) == 1
                data[name + kind] = ((*self.axes, "time"), array) if over_time else (tuple(self.axes), array[..., 0])
        coordinates: dict[str, Any] = {name: list(values) for name, values in self.axes.items()}
        coordinates |= {"time": times} if len(times) else {}
        return xarray.Dataset(data, coords=coordinates, attrs={"sweep": str(self.path)})

    def write_table(self) -> Any:
        """Write the table of the last times to ``table.parquet`` in the folder; return its path."""
        pa, path = arrow(), self.path / TABLE
        columns = {name: _plain_column(pa, column) for name, column in self.table().items()}
        with write_atomic(path) as temporary:
            pa.parquet.write_table(pa.table(columns), temporary, compression="zstd")
        return path

    def __repr__(self) -> str:
        failed = len(self._index.failures())
        bad = f", {failed} failed" if failed else ""
        return f"Sweep({len(self._index.cells)} cells over {self._describe()}; {self.starts} starts; {', '.join(self.observables)}{bad})"


def _group_lines(
    places: np.ndarray, picked: list[np.ndarray], offsets: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Cells that take the same saved times: their numbers in a block, their lines (cells, times) and the times."""
    found = []
    kinds: dict[int, list[int]] = {}
    for k, place in enumerate(places.tolist()):
        kinds.setdefault(id(picked[place]), []).append(k)
    for members in kinds.values():
        which = np.array(members)
        rows = picked[places[members[0]]]
        found.append((which, offsets[places[which]][:, None] + np.arange(max(1, len(rows))), rows))
    return found


def _plain_column(pa: Any, column: Any) -> Any:
    """A column of one type; values of several types become texts."""
    kinds = {type(value) for value in column if value is not None} if isinstance(column, list) else set()
    if kinds == {int, float}:
        column = [None if value is None else float(value) for value in column]
    elif len(kinds) > 1:
        column = [None if value is None else str(value) for value in column]
    return pa.array(column)


def _pick_times(saved: np.ndarray, wanted: str | Sequence[float]) -> np.ndarray:
    """Indices of the saved times that are asked for."""
    if len(saved) == 0:
        return np.zeros(0, dtype=np.int64)
    if isinstance(wanted, str):
        if wanted not in ("last", "all"):
            raise InputError(f"times is 'last', 'all' or a list of times, got {wanted!r}")
        return np.arange(len(saved)) if wanted == "all" else np.array([len(saved) - 1])
    return np.array([int(np.argmin(np.abs(saved - float(time)))) for time in wanted], dtype=np.int64)


def load(folder: str | os.PathLike[str]) -> Sweep:
    """Return the results in a folder of :func:`sweep`."""
    found = Folder(folder)
    if not found.path.is_dir():
        raise StoreError(f"there is no folder {found.path}")
    return Sweep(folder)
