"""Runs on disk: a Zarr group that is written during the run, and its checkpoints.

Every byte that is read is covered by a checksum: that of ``zarr.json`` covers the definition and the checksums of all files
written at the start, each saved state has a crc32c of its own, and the checkpoint ends with one. The checkpoint has the checksum
of its run and those of the saved states that it counts, so that files of other runs are found. Saved states are on the disk before
the checkpoint that counts them.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import platform
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attractor._version import __version__
from attractor.errors import AttractorError, StoreError, UnsupportedError, missing
from attractor.files import (
    DAMAGED,
    check_files,
    checksum_files,
    checksum_json,
    hold_lock,
    make_folder,
    pack_arrays,
    reason,
    remove_leftovers,
    replace_on_success,
    sync_file,
    sync_folder,
    unpack_arrays,
)
from attractor.laws import Law
from attractor.serialization import decode, encode, find_missing, find_modules
from attractor.solvers.merging import EventLog, MergeTree
from attractor.solvers.noise import AbsentNoise, Noise, Redrawn
from attractor.solvers.outcome import EventRecord, Outcome
from attractor.solvers.saving import Recorder, to_numpy
from attractor.spaces import Space
from attractor.states import Density, Equiangular, Gaussian, Tokens

if TYPE_CHECKING:
    from attractor.solvers.integration import Integration
    from attractor.solvers.process_group import ProcessGroup
    from attractor.solvers.termination import Event
    from attractor.solvers.trajectory import Trajectory

SCHEMA = "attractor.run/2"
UNSEALED = "attractor.run/1"  # of attractor 0.1 and 0.2: without checksums
INTERVAL = 1.0  # seconds between checkpoints
CHUNK = 1 << 18  # bytes of saved states in one file
SHARE = 0.05  # of the time that checkpoints may take


@dataclass(frozen=True)
class Definition:
    """What defines a run; a store holds it and is resumed only with the same.

    ``options`` are the keyword options of ``flow`` that affect the result. Read from a store, ``law`` and ``events`` are None
    if they were Python functions, and each part is None whose class has not been imported; ``noise`` is then ``AbsentNoise``.
    """

    law: Law | None
    state: Tokens | Gaussian | Density | Equiangular
    space: Space
    options: dict[str, Any]
    events: tuple[Event, ...] | None
    noise: Noise | Redrawn | None = None


@dataclass(frozen=True)
class RunRecord:
    """What a run has produced so far: saved and last states, outcomes, events and costs.

    Together with the definition of the run this is what a store holds of a run that has ended.
    """

    recorder: Recorder
    outcomes: tuple[Outcome | None, ...]
    finals: Sequence[Tensor | None]  # last state of each member that has ended, (n, d)
    events: tuple[EventRecord, ...]  # of the user
    merge_trees: tuple[MergeTree, ...]
    segment: int
    accepted: int
    rejected: int
    seconds: float
    evaluations: int
    engines: tuple[str, ...]
    method: str
    switches: tuple[tuple[int, float, str], ...] = ()  # member, time and name of the method from then on

    def to_arrays(self) -> dict[str, np.ndarray]:
        """The record as named arrays, apart from saved states that are complete."""
        recorder = self.recorder
        names = ("segment", "accepted", "rejected", "seconds", "evaluations", "method")
        words = {name: getattr(self, name) for name in names}
        words["engines"], words["switches"] = list(self.engines), [list(switch) for switch in self.switches]
        words["outcomes"] = [None if outcome is None else vars(outcome) for outcome in self.outcomes]
        words["events"] = [[event.kind, event.time, event.member] for event in self.events]
        arrays = {"next": recorder.next, "reached": recorder.reached, "ends": recorder.ends}
        arrays |= {"complete_rows": np.array(recorder.complete)}
        arrays |= {"rows": to_numpy(recorder.points[recorder.complete : recorder.rows])}
        arrays |= {f"final{k}": to_numpy(final) for k, final in enumerate(self.finals) if final is not None}
        arrays |= {f"tree{k}": tree.rows for k, tree in enumerate(self.merge_trees)}
        return arrays | {"json": np.array(json.dumps(words))}


class Store:
    """One run on disk."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._attributes: dict[str, Any] | None = None
        self._chunks: dict[int, int] = {}  # crc32 of the files of saved states that the checkpoint counts

    @property
    def exists(self) -> bool:
        return (self.path / "zarr.json").is_file()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock of the store, which has one writer at a time, and remove what killed writers left behind."""
        with ExitStack() as held:
            with _store_errors(self.path, "written"):
                held.enter_context(hold_lock(self.path / ".lock", f"the store {self.path}"))
                remove_leftovers(self.path / "checkpoint.npz")
                for partial in self.path.glob("points/**/*.partial"):  # of Zarr
                    partial.unlink(missing_ok=True)
            yield

    def create(
        self, definition: Any, arrays: dict[str, np.ndarray], times: np.ndarray, shape: tuple[int, ...], dtype: Any
    ) -> None:
        """Create an empty store: under a temporary name first, then moved into place."""
        zarr = _zarr()
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise self._occupied()
        filters = {"compressors": [zarr.codecs.ZstdCodec(level=0), zarr.codecs.Crc32cCodec()]}
        size = np.dtype(dtype).itemsize * math.prod(shape)
        rows = max(1, min(len(times), CHUNK // max(1, size)))
        with _store_errors(self.path, "created"):
            make_folder(self.path.parent)
        with _store_errors(self.path, "created"), _explain_occupied(self), replace_on_success(self.path, True) as draft:
            (draft / "definition.npz").write_bytes(pack_arrays(arrays))
            (draft / "checkpoint.npz").write_bytes(pack_arrays({}))
            group = zarr.create_group(store=str(draft), overwrite=False)
            group.create_array("times", data=times, **filters)
            group.create_array(
                "points", shape=(len(times), *shape), chunks=(rows, *shape), dtype=dtype, fill_value=np.nan,
                chunk_key_encoding={"name": "default", "separator": "."},  # all in one folder
                **filters,
            )  # fmt: skip
            files = checksum_files(draft)
            for changing in ("zarr.json", "checkpoint.npz"):
                del files[changing]
            sealed = {**definition, "files": files, "bound": True}
            group.update_attributes({**sealed, "checksum": checksum_json(sealed)})

    def _occupied(self) -> StoreError:
        kind = "holds a run already: resume it or choose another path" if self.exists else "exists and is not a store"
        return StoreError(f"{self.path} {kind}")

    def attributes(self) -> dict[str, Any]:
        """Return the attributes of the run, after a check of their checksum and of the files that were written at the start."""
        if self._attributes is not None:
            return self._attributes
        path = self.path / "zarr.json"
        if not path.is_file():
            raise StoreError(f"{self.path} is not a run of attractor: there is no zarr.json in it")
        try:
            attributes = json.loads(path.read_text(encoding="utf-8"))["attributes"]
            schema = attributes.get("schema")
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {reason(error)}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise StoreError(f"{self.path} cannot be read as a Zarr store: {_one_line(error)}; {DAMAGED}") from None
        if schema not in (SCHEMA, UNSEALED):
            raise StoreError(f"{self.path} is a store of {schema or 'something else'}, this version reads {SCHEMA}")
        sealed = {name: value for name, value in attributes.items() if name != "checksum"}
        if "checksum" in attributes or "files" in attributes or schema == SCHEMA:
            if attributes.get("checksum") != checksum_json(sealed):
                raise StoreError(f"{self.path} is damaged: its zarr.json does not have its checksum; {DAMAGED}")
            check_files(self.path, attributes["files"], str(self.path))
        self._attributes = attributes
        return attributes

    def open(self, mode: str = "r") -> Any:
        """Open the Zarr group."""
        zarr = _zarr()
        with _read_errors(self.path, "it cannot be read as a Zarr store"):
            return zarr.open_group(str(self.path), mode=mode)

    def read_times(self) -> np.ndarray:
        """Return the times to save."""
        group = self.open()
        with _read_errors(self.path, "its times cannot be read"):
            return np.asarray(group["times"][:])

    def read_points(self, count: int) -> np.ndarray:
        """Return the first saved states; Zarr checks their checksums."""
        group = self.open()
        with _read_errors(self.path, "saved states cannot be read"):
            points = group["points"]
            if not 0 <= count <= points.shape[0]:
                raise StoreError(
                    f"{self.path} is damaged: it has {points.shape[0]} saved states, not {count}; {DAMAGED}"
                )
            files = self._chunk_files(points, 0, count)
            for file in files.values():
                if not file.is_file():  # Zarr would return the fill value
                    raise StoreError(f"{self.path} is damaged: its saved states {file.name} are missing; {DAMAGED}")
            rows = np.asarray(points[:count])
            for index in files.keys() & self._chunks.keys():
                if zlib.crc32(files[index].read_bytes()) != self._chunks[index]:
                    raise StoreError(
                        f"{self.path} is damaged: its saved states {files[index].name} are not those that its checkpoint counts; {DAMAGED}"
                    )
            return rows

    def write_points(self, first: int, rows: np.ndarray) -> None:
        """Write saved states from index ``first`` on, and wait until they are on the disk."""
        zarr = _zarr()
        with zarr.config.set({"array.write_empty_chunks": True}):
            target = self.open("r+")["points"]
            target[first : first + len(rows)] = rows.reshape(len(rows), *target.shape[1:]).astype(target.dtype)
        files = self._chunk_files(target, first, first + len(rows))
        folders = {folder for file in files.values() for folder in file.parents if folder.is_relative_to(self.path)}
        for index, file in files.items():
            sync_file(file)
            self._chunks[index] = zlib.crc32(file.read_bytes())
        for folder in sorted(folders, key=lambda folder: -len(folder.parts)):
            sync_folder(folder)

    def _chunk_files(self, points: Any, first: int, end: int) -> dict[int, Path]:
        """Files of the chunks that hold the saved states from ``first`` to ``end``, by their index."""
        rows, rest = points.chunks[0], (0,) * (len(points.shape) - 1)
        chunks = range(first // rows, -(-end // rows))
        return {chunk: self.path / "points" / points.metadata.encode_chunk_key((chunk, *rest)) for chunk in chunks}

    def write_checkpoint(self, arrays: dict[str, np.ndarray]) -> None:
        """Replace the checkpoint atomically; it names its run, and has the checksums of the saved states that it counts."""
        chunks = np.array(sorted(self._chunks.items()), dtype=np.int64).reshape(-1, 2)
        arrays = {**arrays, "chunks": chunks, "run": np.array(self.attributes().get("checksum", ""))}
        with replace_on_success(self.path / "checkpoint.npz") as draft:
            draft.write_bytes(pack_arrays(arrays))

    def read_checkpoint(self, sealed: bool) -> dict[str, np.ndarray] | None:
        """Return the checkpoint, or None if the run was interrupted before its first; with ``sealed`` it has a checksum."""
        path = self.path / "checkpoint.npz"
        if not sealed and not path.exists():
            return None
        try:
            arrays = unpack_arrays(path.read_bytes(), sealed)
            arrays = _upgrade(arrays) if arrays else None
        except FileNotFoundError:
            raise StoreError(f"{self.path} is damaged: its checkpoint.npz is missing; {DAMAGED}") from None
        except Exception as error:  # of NumPy, zipfile and JSON
            raise StoreError(f"the checkpoint {path} is damaged: {_one_line(error)}; {DAMAGED}") from None
        attributes = self.attributes()
        if arrays is not None and (attributes.get("bound") or "run" in arrays):
            if str(arrays.get("run", "")) != attributes.get("checksum", ""):
                raise StoreError(f"the checkpoint {path} is that of another run; put back its own, or run it again")
            self._chunks = {int(index): int(crc) for index, crc in arrays["chunks"]}
        return arrays

    def write_record(self, record: RunRecord, arrays: dict[str, np.ndarray], written: int) -> int:
        """Write saved states from index ``written`` on that fill chunks, then a checkpoint; return how many are written.

        Chunks are written once. The states of the last one are in the checkpoint until it is full or the run has ended.
        """
        recorder, complete = record.recorder, record.recorder.complete
        if "members" in arrays and complete < len(recorder.times):
            complete -= complete % self.open()["points"].chunks[0]
        if complete > written:
            self.write_points(written, to_numpy(recorder.points[written:complete]))
        rest = to_numpy(recorder.points[complete : recorder.rows])
        self.write_checkpoint({**arrays, "complete_rows": np.array(complete), "rows": rest})
        return complete


class Checkpointer:
    """Writes a run to its store from time to time."""

    def __init__(self, store: Store, run: Integration, after_step: Callable[[Integration], None], written: int) -> None:
        self.store, self.run, self.show = store, run, after_step
        self.written = written  # number of saved states in the store
        self.next = time.perf_counter() + INTERVAL

    def after_step(self, run: Integration) -> None:
        """Show progress, and write a checkpoint if it is time for one."""
        self.show(run)
        if time.perf_counter() >= self.next:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Write saved states that are complete, then the checkpoint that refers to them."""
        began = time.perf_counter()
        reached = float(self.run.t.min()) if len(self.run.t) else self.run.plan.until
        advice = f"the run is kept up to its last checkpoint (now at t = {reached:.6g})"
        with _store_errors(self.store.path, "written", advice):
            self.written = self.store.write_record(self.run.record(), self.run.snapshot(), self.written)
        now = time.perf_counter()
        self.next = now + max(INTERVAL, (now - began) / SHARE)


def _upgrade(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a checkpoint under its present names; attractor 0.1 used others."""
    if "complete_rows" in arrays:
        return arrays
    arrays = {f"tree{name[6:]}" if name.startswith("forest") else name: array for name, array in arrays.items()}
    words, members = json.loads(str(arrays["json"])), arrays.pop("who")
    termination = {"deferred": words.pop("noted"), "values": words.pop("values")}
    words["events"] = words.pop("log")
    if len(members):  # of a run that has not ended
        arrays |= {"members": members, "termination": np.array(json.dumps(termination))}
    complete = min(arrays["next"].min(initial=np.iinfo(np.int64).max), arrays["reached"].max(initial=0))
    return arrays | {"complete_rows": np.array(complete), "json": np.array(json.dumps(words))}


def read_snapshot(store: Store) -> dict[str, np.ndarray] | None:
    """Return the last checkpoint of a store with the saved states it refers to, or None if there is none."""
    arrays = store.read_checkpoint(sealed=store.attributes()["schema"] == SCHEMA)
    if arrays is None:
        return None
    arrays["complete"] = store.read_points(int(arrays["complete_rows"]))
    return arrays


def restore_snapshot(store: Store, run: Integration, arrays: dict[str, np.ndarray]) -> None:
    """Set a run to a checkpoint of its store."""
    try:
        run.restore(arrays)
    except (KeyError, ValueError, TypeError, IndexError, RuntimeError, AttributeError) as error:
        raise StoreError(f"the checkpoint of {store.path} does not belong to its run: {_one_line(error)}") from None


def run_with_store(
    run: Integration,
    path: str | Path,
    definition: Definition,
    resume: bool,
    after_step: Callable[[Integration], None],
    group: ProcessGroup | None = None,
) -> None:
    """Integrate and write to a store; with ``resume`` continue from its last checkpoint.

    Of several processes the first reads and writes; it sends the checkpoint to the others.
    """
    if group is not None and group.rank > 0:
        arrays = group.broadcast(None)
        if arrays is not None:
            run.restore(arrays)
        run.run(after_step)
        return
    store = Store(path)
    resume = resume and store.exists
    if resume:
        _check_same(store, definition)
    else:
        create_store(store, run.recorder, definition)
    with store.writing():
        arrays = read_snapshot(store) if resume else None
        if arrays is not None and not run.can_restore(arrays):
            arrays = None
        if arrays is not None:
            restore_snapshot(store, run, arrays)
        if group is not None:
            group.broadcast(arrays)
        checkpointer = Checkpointer(store, run, after_step, 0 if arrays is None else len(arrays["complete"]))
        run.advance(checkpointer.after_step)
        checkpointer.checkpoint()
    run.end_remaining()


def create_store(store: Store, recorder: Recorder, definition: Definition) -> None:
    """Create an empty store for a run."""
    words, arrays = describe(definition)
    words["precision"] = _name(recorder.points.dtype)
    state, shape = definition.state, (*definition.state.batch_shape, *recorder.points.shape[2:])
    saved = state.points.dtype if isinstance(state, Tokens) else recorder.points.dtype
    store.create(words, arrays, recorder.times, shape, _name(saved))


def read_precision(store: Store) -> torch.dtype | None:
    """Return the type in which a stored run is integrated, None for that of its state: small float32 runs use float64."""
    return {"float64": torch.float64, "float32": torch.float32}.get(store.attributes().get("precision", ""))


def find_precision(path: str | Path, resume: bool, group: ProcessGroup | None) -> torch.dtype | None:
    """Return the type in which a run that is resumed started, None for a new one; the first process reads it."""
    store, precision = Store(path), None
    if resume and (group is None or group.rank == 0) and store.exists:
        precision = read_precision(store) or _stored_state(store).points.dtype
    if group is None:
        return precision
    arrays = group.broadcast(None if precision is None else {"precision": np.array(_name(precision))})
    return None if arrays is None else getattr(torch, str(arrays["precision"]))


def _stored_state(store: Store) -> Tokens:
    state = read_definition(store)[0].state
    return state if isinstance(state, Tokens) else Tokens.unchecked(state.rows())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def write_run(record: RunRecord, definition: Definition, path: str | Path) -> None:
    """Write a run that has ended to a new store."""
    store = Store(path)
    create_store(store, record.recorder, definition)
    with store.writing():
        store.write_record(record, record.to_arrays(), 0)


def write_log_run(run: Trajectory, path: str | Path) -> None:
    """Write a run in logarithmic time to a new store; ``times`` in it are logarithms."""
    assert run.definition is not None
    assert run.given_log_times is not None
    assert run.given_sigma is not None
    words, arrays = describe(run.definition)
    points, events = to_numpy(run.points), run.events
    words["precision"] = str(points.dtype)
    names = ("evaluations", "accepted", "seconds", "method", "merges", "peak_memory")
    record = {
        "outcomes": [vars(outcome) for outcome in run.outcomes],
        "stats": {name: getattr(run.stats, name) for name in names},
    }
    assert isinstance(events, EventLog)
    held = {f"tree{k}": tree.rows for k, tree in enumerate(events.trees)}
    held |= {f"errors{k}": errors for k, errors in enumerate(events.log_errors or ())}
    held |= {"final": to_numpy(run.final.points), "sigma": to_numpy(run.given_sigma)}  # type: ignore[union-attr]
    store = Store(path)
    store.create(words, arrays, run.given_log_times.numpy(), points.shape[1:], str(points.dtype))
    with store.writing(), _store_errors(store.path, "written"):
        if len(points):
            store.write_points(0, points)
        store.write_checkpoint({**held, "complete_rows": np.array(len(points)), "json": np.array(json.dumps(record))})


def check_log_store(path: str | Path, definition: Definition, resume: bool) -> bool:
    """Whether a store holds this run in logarithmic time; raise if it holds another, or if the path is in use."""
    store = Store(path)
    if resume and store.exists:
        _check_same(store, definition)
        return True
    if store.path.exists() and (not store.path.is_dir() or any(store.path.iterdir())):
        raise store._occupied()
    return False


def describe(definition: Definition) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the definition of a run as attributes and arrays, with a fingerprint of each part."""
    arrays: dict[str, np.ndarray] = {}
    words: dict[str, Any] = {}
    prints: dict[str, str] = {}
    for name, value in vars(definition).items():
        if name == "noise" and value is None:  # stores of runs without noise are as before there was any
            continue
        own: dict[str, np.ndarray] = {}
        try:
            data = encode(value, own)[0]
        except UnsupportedError:
            data, own = {"opaque": type(value).__name__}, {}
        words[name], prints[name] = (
            _rename_arrays(data, lambda key, name=name: f"{name}_{key}"),
            _fingerprint(data, own),
        )
        arrays |= {f"{name}_{key}": array for key, array in own.items()}
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scipy": _scipy_version(),
    }
    attributes = {
        "schema": SCHEMA,
        "attractor": __version__,
        "versions": versions,
        "definition": words,
        "fingerprints": prints,
        "modules": find_modules(list(words.values())),
    }
    return attributes, arrays


@cache
def _scipy_version() -> str:
    return version("scipy")  # read from files, which takes some milliseconds


def _fingerprint(data: Any, arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode())
    for key in sorted(arrays):
        digest.update(str(arrays[key].dtype).encode() + str(arrays[key].shape).encode() + arrays[key].tobytes())
    return digest.hexdigest()


def read_definition(store: Store) -> tuple[Definition, dict[str, str]]:
    """Read the definition of a stored run, and compare it with its fingerprints.

    Returns also, for each part of it that is None because its class has not been imported, what to import.
    """
    attributes = store.attributes()
    with _read_errors(store.path, "its definition cannot be read"):
        if attributes["schema"] == SCHEMA:
            arrays = unpack_arrays((store.path / "definition.npz").read_bytes(), sealed=True)
        else:
            group = store.open()
            held = group["definition"].arrays() if "definition" in group else ()
            arrays = {name: np.asarray(array) for name, array in held}
        words = attributes["definition"]
        for name, data in words.items():
            head = f"{name}_"
            own = {key.removeprefix(head): array for key, array in arrays.items() if key.startswith(head)}
            if (
                _fingerprint(_rename_arrays(data, lambda key, head=head: key.removeprefix(head)), own)
                != attributes["fingerprints"][name]
            ):
                raise StoreError(f"{store.path} is damaged: its {name} does not have its fingerprint; {DAMAGED}")
        absent = {
            name: _name_classes(found, attributes) for name, data in words.items() if (found := find_missing(data))
        }
        unread = {name for name, data in words.items() if name in absent or _is_opaque(data)}
        parts: dict[str, Any] = {name: None if name in unread else decode(data, arrays) for name, data in words.items()}
        if "noise" in unread:
            parts["noise"] = AbsentNoise()
        if parts["options"] is None:  # a rule of one's own
            plain = {name: data for name, data in words["options"]["dict"].items() if not find_missing(data)}
            parts["options"] = dict.fromkeys(words["options"]["dict"]) | decode({"dict": plain}, arrays)
        lists = {name: list(value) for name, value in parts["options"].items() if isinstance(value, tuple)}
        return Definition(**{**parts, "options": {**parts["options"], **lists}}), absent


def _name_classes(names: list[str], attributes: dict[str, Any]) -> str:
    modules = attributes.get("modules", {})
    return ", ".join(f"{name} of the module {modules[name]}" if name in modules else name for name in names)


def _is_opaque(data: Any) -> bool:
    return isinstance(data, dict) and "opaque" in data


def _rename_arrays(data: Any, rename: Callable[[str], str]) -> Any:
    """Rename the arrays of a part of the definition: in a store their names begin with that of the part."""
    if isinstance(data, dict):
        if set(data) == {"array"}:
            return {"array": rename(data["array"])}
        return {key: _rename_arrays(value, rename) for key, value in data.items()}
    return [_rename_arrays(item, rename) for item in data] if isinstance(data, list) else data


def _check_same(store: Store, definition: Definition) -> None:
    """Raise if a store was made by a run with another definition."""
    stored, asked = store.attributes()["fingerprints"], describe(definition)[0]["fingerprints"]
    different = sorted(name for name in {*stored, *asked} if stored.get(name) != asked.get(name))
    if different:
        raise StoreError(
            f"{store.path} is the store of another run: its {', '.join(different)} differ(s) from what was asked for"
        )


def _zarr() -> Any:
    try:
        import zarr
    except ImportError:
        raise missing("zarr", "store") from None
    return zarr


@contextmanager
def _explain_occupied(store: Store) -> Iterator[None]:
    """Raise the error of a path in use if another process created a store there first."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise store._occupied() from None
        raise


@contextmanager
def _store_errors(path: Path, verb: str, more: str = "") -> Iterator[None]:
    """Raise errors of the file system as ``StoreError``."""
    try:
        yield
    except OSError as error:
        if isinstance(error, AttractorError):
            raise
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        why = "the disk is full" if full else (error.strerror or _one_line(error))
        advice = f"; {more}; make room and resume" if more else ""
        raise StoreError(f"the store {path} cannot be {verb}: {why}{advice}") from None


@contextmanager
def _read_errors(path: Path, what: str) -> Iterator[None]:
    """Raise what Zarr, its codecs and JSON raise for damaged files as ``StoreError``."""
    try:
        yield
    except AttractorError:
        raise
    except Exception as error:
        raise StoreError(f"{path} is damaged: {what} ({_one_line(error)}); {DAMAGED}") from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
