"""The folder of a sweep: a manifest, finished cells in Parquet files that are written atomically, and a lock."""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attractor.errors import InputError, StoreError, missing
from attractor.files import hold_lock, make_folder, read_json, reason, remove_leftovers, write_atomic, write_json
from attractor.sweeps.cells import Cell, Value
from attractor.sweeps.systems import Request, Row

if TYPE_CHECKING:
    import pyarrow

SCHEMA = "attractor.sweep/1"
MANIFEST, PARTS, TABLE, LOCK = "manifest.json", "parts", "table.parquet", "lock"
SMALL_PART, LARGE_PART = 1 << 24, 1 << 26  # bytes: smaller files are joined, up to larger ones
MANY_PARTS = 64  # files below which they are left as they are
ROW_NAMES = ("key", "cell", "first", "count", "names", "reason", "outcomes", "ends", "times")


def arrow() -> Any:
    """Import pyarrow with its Parquet files."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise missing("pyarrow", "sweep") from None
    return pyarrow


def to_table(rows: Sequence[Row], names: Sequence[str]) -> pyarrow.Table:
    """Return results as a table with one line per request; ``names`` are those of the observables that were asked for."""
    pa = arrow()
    measured = list(dict.fromkeys(name for row in rows for name in row.observed)) or list(names)
    columns: dict[str, Any] = {
        "key": pa.array([row.request.cell.key for row in rows], pa.string()),
        "cell": pa.array([json.dumps(row.request.cell.values) for row in rows], pa.string()),
        "first": pa.array([row.request.first for row in rows], pa.int64()),
        "count": pa.array([row.request.count for row in rows], pa.int64()),
        "names": pa.array([json.dumps(list(names) or list(row.observed)) for row in rows], pa.string()),
        "reason": pa.array([row.reason for row in rows], pa.string()),
        "outcomes": pa.array([list(row.outcomes) for row in rows], pa.list_(pa.string())),
        "ends": _lists(pa, [row.ends for row in rows]),
        "times": _lists(pa, [row.times for row in rows]),
    }
    for name in measured:
        arrays = [np.asarray(row.observed.get(name, np.zeros(0)), dtype=np.float64) for row in rows]
        columns[f"value:{name}"] = _lists(pa, arrays)
        columns[f"shape:{name}"] = pa.array([list(array.shape) for array in arrays], pa.list_(pa.int64()))
    return pa.table(columns)


def _lists(pa: Any, arrays: Sequence[np.ndarray]) -> Any:
    """Arrays as one column of lists."""
    flat = [np.ascontiguousarray(array, dtype=np.float64).reshape(-1) for array in arrays]
    offsets = np.concatenate([[0], np.cumsum([len(array) for array in flat])])
    values = np.concatenate(flat) if flat else np.zeros(0)
    if offsets[-1] < 2**31:
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values))
    raise StoreError("the results of one task are larger than 2^31 numbers: save fewer times, or fewer starts at once")


class Place(NamedTuple):
    """Where the results of some starts of a cell are: a file and a row in it."""

    file: str
    row: int
    first: int
    starts: int
    reason: str
    names: tuple[str, ...]


@dataclass
class Index:
    """What a folder holds: the places of the results of every cell, by key, and the values of the axes of each."""

    places: dict[str, list[Place]] = field(default_factory=lambda: defaultdict(list))
    values: dict[str, str] = field(default_factory=dict)  # of the axes, as JSON

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """The cells by key."""
        keys, texts = list(self.values), list(self.values.values())
        parsed = json.loads(f"[{','.join(texts)}]")  # one document is read faster than many
        return {
            key: Cell(tuple([(name, value) for name, value in pairs]), key)
            for key, pairs in zip(keys, parsed, strict=True)
        }

    def has_all(self, key: str, names: Sequence[str], starts: int, retry: bool) -> bool:
        """Whether one row holds all observables of so many starts of a cell."""
        for place in self.places[key]:
            if place.first == 0 and place.starts >= starts and not (place.reason and retry):
                return all(name in place.names for name in names)
        return False

    def covered(self, key: str, name: str, retry: bool = False) -> int:
        """Number of starts of a cell, from the first on, that are there with an observable; failed ones count unless ``retry``."""
        reached = 0
        for place in sorted(self.places.get(key, ()), key=lambda place: place.first):
            counts = not (place.reason and retry) and (not name or name in place.names)
            if counts and place.first <= reached:
                reached = max(reached, place.first + place.starts)
        return reached

    def pieces(self, key: str, name: str, starts: int | None = None) -> list[tuple[Place, int, int]]:
        """Places that hold an observable of the first starts of a cell, each with the part of its starts that is used."""
        places = self.places.get(key, ())
        reached, found = 0, []
        for place in (
            sorted(places, key=lambda place: (place.first, -place.starts, place.file)) if len(places) > 1 else places
        ):
            if place.reason or (name and name not in place.names):
                continue
            end = place.first + place.starts if starts is None else min(starts, place.first + place.starts)
            if place.first <= reached < end:
                found.append((place, reached - place.first, end - place.first))
                reached = end
        return found

    def failures(self) -> dict[str, str]:
        """The reason of every cell that failed and was not computed later."""
        found = {}
        for key, places in self.places.items():
            bad = [place for place in places if place.reason]
            if not bad:
                continue
            good = {(place.first, name) for place in places if not place.reason for name in place.names or ("",)}
            open_ = [place for place in bad if any((place.first, name) not in good for name in place.names or ("",))]
            if open_:
                found[key] = open_[0].reason
        return found


class Folder:
    """The folder of a sweep."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser()

    @property
    def manifest_path(self) -> Path:
        return self.path / MANIFEST

    def exists(self) -> bool:
        """Whether there is a sweep in the folder; raises if there is something else."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file; a sweep is written to a folder of its own")
        if self.manifest_path.exists():
            return True
        others = (
            [name for name in os.listdir(self.path) if name != LOCK and not name.startswith(f"{LOCK}.")]
            if self.path.is_dir()
            else []
        )
        others = [name for name in others if not name.startswith(f".{Path(MANIFEST).stem}.") and name != PARTS]
        if others:
            raise InputError(f"{self.path} is not empty and holds no sweep ({others[0]} is in it): give a new folder")
        return False

    def manifest(self) -> dict[str, Any]:
        """The manifest: what the sweep is, its axes and its history."""
        try:
            found = read_json(self.manifest_path)
        except FileNotFoundError:
            raise StoreError(f"{self.path} holds no sweep: there is no {MANIFEST} in it") from None
        except (OSError, ValueError) as error:
            raise StoreError(f"{self.manifest_path} cannot be read: {error}") from None
        if not isinstance(found, dict) or found.get("schema") != SCHEMA:
            raise StoreError(f"{self.manifest_path} is not of the format {SCHEMA}: another version or program wrote it")
        return found

    def create(self) -> None:
        """Create the folder."""
        try:
            make_folder(self.path / PARTS)
        except OSError as error:
            raise StoreError(f"{self.path} cannot be created: {reason(error)}") from None

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Write the manifest."""
        write_json(self.manifest_path, {"schema": SCHEMA, **manifest}, indent=1)

    @contextmanager
    def locked(self, shard: tuple[int, int] | None = None) -> Iterator[None]:
        """Hold the lock of the folder, alone, or together with drivers of other shards of as many."""
        what = f"the sweep {self.path}"
        if shard is None:
            with hold_lock(self.path / LOCK, what):
                yield
            return
        with (
            hold_lock(self.path / LOCK, what, shared=True),
            hold_lock(self.path / f"{LOCK}.{shard[0]}-of-{shard[1]}", f"shard {shard[0]}/{shard[1]} of {what}"),
        ):
            yield

    def files(self) -> list[Path]:
        """The files of results, in the order of their names."""
        with suppress(FileNotFoundError):
            return sorted(
                path for path in (self.path / PARTS).iterdir() if path.suffix == ".parquet" and path.name[0] != "."
            )
        return []

    def remove_leftovers(self) -> None:
        """Remove temporary files of processes that were killed."""
        for name in os.listdir(self.path / PARTS):
            if name.startswith(".") and name.endswith(".parquet"):
                remove_leftovers(self.path / PARTS / f"{name.split('.')[1]}.parquet")

    def part_path(self, requests: Sequence[Request], names: Sequence[str]) -> Path:
        """The file of the results of requests; its name depends on what is in it."""
        content = json.dumps([[request.cell.key, request.first, request.count] for request in requests] + [list(names)])
        return self.path / PARTS / f"{hashlib.sha256(content.encode()).hexdigest()[:24]}.parquet"

    def has_part(self, requests: Sequence[Request], names: Sequence[str]) -> bool:
        """Whether the results of these requests were written."""
        return self.part_path(requests, names).exists()

    def write_part(self, rows: Sequence[Row], names: Sequence[str]) -> Path:
        """Write results as one file, atomically."""
        path = self.part_path([row.request for row in rows], names)
        self._write(to_table(rows, names), path)
        return path

    def _write(self, table: Any, path: Path) -> None:
        with write_atomic(path) as temporary:
            arrow().parquet.write_table(table, temporary, compression="zstd")

    def read(self, file: str, columns: Sequence[str] | None = None, rows: Sequence[int] | None = None) -> Any:
        """Read columns of a file of results, those that it has."""
        pq = arrow().parquet
        try:
            source = pq.ParquetFile(self.path / PARTS / file)
            present = set(source.schema_arrow.names)
            table = source.read(
                None if columns is None else [name for name in columns if name in present], use_threads=False
            )
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:  # Arrow's errors are of these classes
            raise StoreError(
                f"{self.path / PARTS / file} is damaged: {error}; delete the file, and resume the sweep"
            ) from None
        return table if rows is None else table.take(list(rows))

    def index(self) -> Index:
        """Read which cells are there."""
        found = Index()
        parsed: dict[str, tuple[str, ...]] = {}
        for path in self.files():
            try:
                table = self.read(path.name, ("key", "cell", "first", "count", "names", "reason"))
            except FileNotFoundError:  # another shard has joined it with others
                continue
            columns = [table.column(name).to_pylist() for name in ("key", "cell", "first", "count", "names", "reason")]
            for row, (key, cell, first, count, names, why) in enumerate(zip(*columns, strict=True)):
                if names not in parsed:
                    parsed[names] = tuple(json.loads(names))
                found.places[key].append(Place(path.name, row, first, count, why, parsed[names]))
                found.values[key] = cell
        return found

    def join_parts(self) -> None:
        """Join small files of results, so that many short cells stay quick to read."""
        pa = arrow()
        small = [path for path in self.files() if path.stat().st_size < SMALL_PART]
        if len(small) < MANY_PARTS:
            return
        group: list[Path] = []
        size = 0
        for path in [*small, None]:
            if path is None or size + path.stat().st_size > LARGE_PART:
                if len(group) > 1:
                    table = pa.concat_tables([self.read(part.name) for part in group], promote_options="default")
                    name = hashlib.sha256(json.dumps([part.name for part in group]).encode()).hexdigest()[:24]
                    self._write(table, self.path / PARTS / f"{name}.parquet")
                    for part in group:
                        part.unlink()
                group, size = [], 0
            if path is not None:
                group.append(path)
                size += path.stat().st_size

    def read_values(
        self, index: Index, keys: Iterable[str], name: str, starts: int | None = None
    ) -> Iterator[tuple[list[str], np.ndarray]]:
        """Yield keys of cells, and values of an observable (cells, times, starts, ...); measures of runs have one time.

        Cells whose results are in one row of a file come together, file by file, so that memory holds the values of one file.
        ``name`` may also be "outcomes" or "ends", (cells, starts).
        """
        special = name in ("outcomes", "ends", "times")
        column, wanted = (name, "") if special else (f"value:{name}", name)
        whole: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
        pieced: list[tuple[str, list[tuple[Place, int, int]]]] = []
        for key in keys:
            pieces = index.pieces(key, wanted, starts)
            if len(pieces) == 1 and pieces[0][1] == 0:
                whole[pieces[0][0].file].append((key, pieces[0][0].row, pieces[0][2]))
            elif pieces:
                pieced.append((key, pieces))
        for file, wanted_rows in whole.items():
            table = self.read(file, (column, f"shape:{name}", "count"))
            arrays = _arrays(table, column, None if special else f"shape:{name}")
            groups: dict[Any, list[tuple[str, np.ndarray]]] = defaultdict(list)
            for key, row, used in wanted_rows:
                array = arrays(row)
                array = array if name == "times" else array[:used] if special else array[:, :used]
                groups[array.shape].append((key, array))
            for members in groups.values():
                yield [key for key, _ in members], np.stack([array for _, array in members])
        cache: dict[str, Any] = {}
        for key, pieces in pieced:
            parts = []
            for place, begin, end in pieces[: 1 if name == "times" else None]:
                if place.file not in cache:
                    if len(cache) > 8:
                        cache.clear()
                    cache[place.file] = self.read(place.file, (column, f"shape:{name}", "count"))
                array = _arrays(cache[place.file], column, None if special else f"shape:{name}")(place.row)
                parts.append(array if name == "times" else array[begin:end] if special else array[:, begin:end])
            yield [key], np.concatenate(parts, axis=0 if special else 1)[None]


def _arrays(table: Any, column: str, shapes: str | None) -> Callable[[int], np.ndarray]:
    """Return a function that gives the array of a row."""
    values = table.column(column).combine_chunks()
    values = values.chunk(0) if hasattr(values, "chunk") else values
    offsets = values.offsets.to_numpy()
    flat = values.values.to_numpy(zero_copy_only=False)
    if shapes is None:
        return lambda row: flat[offsets[row] : offsets[row + 1]]
    sizes = table.column(shapes).to_pylist()
    return lambda row: flat[offsets[row] : offsets[row + 1]].reshape(sizes[row])


def describe_values(values: Iterable[Value]) -> str:
    """A few values of an axis as text."""
    texts = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
    return ", ".join(texts) if len(texts) <= 6 else f"{', '.join(texts[:3])}, ..., {texts[-1]} ({len(texts)} values)"
