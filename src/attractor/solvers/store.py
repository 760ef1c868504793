"""Runs on disk: a Zarr group that is written during the run, and its checkpoints."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attractor._version import __version__
from attractor.errors import StoreError, UnsupportedError, missing
from attractor.files import replace_on_success
from attractor.laws import Law
from attractor.serialization import decode, encode
from attractor.solvers.merging import MergeTree
from attractor.solvers.outcome import EventRecord, Outcome
from attractor.solvers.saving import Recorder, to_numpy
from attractor.spaces import Space
from attractor.states import Gaussian, Tokens

if TYPE_CHECKING:
    from attractor.solvers.integration import Integration
    from attractor.solvers.process_group import ProcessGroup
    from attractor.solvers.termination import Event

SCHEMA = "attractor.run/1"
INTERVAL = 1.0  # seconds between checkpoints
SHARE = 0.05  # of the time that checkpoints may take


@dataclass(frozen=True)
class Definition:
    """What defines a run; a store holds it and is resumed only with the same.

    ``options`` are the keyword options of ``flow`` that affect the result. Read from a store, ``law`` and ``events`` are None
    if they were Python functions.
    """

    law: Law | None
    state: Tokens | Gaussian
    space: Space
    options: dict[str, Any]
    events: tuple[Event, ...] | None


@dataclass(frozen=True)
class RunRecord:
    """What a run has produced so far: saved and last states, outcomes, events and costs.

    Together with the definition of the run this is what a store holds of a run that has ended.
    """

    recorder: Recorder
    outcomes: tuple[Outcome | None, ...]
    finals: tuple[Tensor | None, ...]  # last state of each member that has ended, (n, d)
    events: tuple[EventRecord, ...]  # of the user
    merge_trees: tuple[MergeTree, ...]
    segment: int
    accepted: int
    rejected: int
    seconds: float
    evaluations: int
    engines: tuple[str, ...]

    def to_arrays(self) -> dict[str, np.ndarray]:
        """The record as named arrays, apart from saved states that are complete."""
        recorder = self.recorder
        words = {name: getattr(self, name) for name in ("segment", "accepted", "rejected", "seconds", "evaluations")}
        words["engines"] = list(self.engines)
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

    @property
    def exists(self) -> bool:
        return (self.path / "zarr.json").is_file()

    def create(
        self, definition: Any, arrays: dict[str, np.ndarray], times: np.ndarray, shape: tuple[int, ...], dtype: Any
    ) -> None:
        """Create an empty store: under a temporary name first, then moved into place."""
        zarr = _zarr()
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            kind = (
                "holds a run already: resume it or choose another path" if self.exists else "exists and is not a store"
            )
            raise StoreError(f"{self.path} {kind}")
        with _store_errors(self.path, "created"), replace_on_success(self.path, folder=True) as draft:
            group = zarr.create_group(store=str(draft), attributes=definition)
            for name, array in arrays.items():
                group.create_array(f"definition/{name}", data=array)
            group.create_array("times", data=times)
            group.create_array("points", shape=(len(times), *shape), chunks=(1, *shape), dtype=dtype, fill_value=np.nan)

    def open(self, mode: str = "r") -> Any:
        """Open the Zarr group and check that it holds a run."""
        zarr = _zarr()
        if not self.exists:
            raise StoreError(f"{self.path} is not a run of attractor: there is no zarr.json in it")
        try:
            group = zarr.open_group(str(self.path), mode=mode)
            schema = group.attrs.get("schema")
        except Exception as error:
            raise StoreError(f"{self.path} cannot be read as a Zarr store: {_one_line(error)}") from None
        if schema != SCHEMA:
            raise StoreError(f"{self.path} is a store of {schema or 'something else'}, this version reads {SCHEMA}")
        return group

    def write_checkpoint(self, arrays: dict[str, np.ndarray]) -> None:
        """Replace the checkpoint atomically."""
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # type: ignore[arg-type]
        with replace_on_success(self.path / "checkpoint.npz") as draft, open(draft, "wb") as file:
            file.write(buffer.getbuffer())
            file.flush()
            os.fsync(file.fileno())

    def read_checkpoint(self) -> dict[str, np.ndarray] | None:
        """Return the checkpoint, or None if the run was interrupted before its first."""
        path = self.path / "checkpoint.npz"
        if not path.exists():
            return None
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
                return _upgrade({name: file[name] for name in file.files})
        except Exception as error:
            raise StoreError(f"the checkpoint {path} is damaged: {_one_line(error)}") from None

    def write_record(self, record: RunRecord, arrays: dict[str, np.ndarray], written: int) -> int:
        """Write saved states from index ``written`` on that are complete, then a checkpoint; return how many are written."""
        recorder = record.recorder
        if recorder.complete > written:
            rows = recorder.points[written : recorder.complete].detach().cpu().numpy()
            target = self.open("r+")["points"]
            target[written : recorder.complete] = rows.reshape(len(rows), *target.shape[1:])
        self.write_checkpoint(arrays)
        return recorder.complete


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
    group, arrays = store.open(), store.read_checkpoint()
    if arrays is None:
        return None
    arrays["complete"] = np.asarray(group["points"][: int(arrays["complete_rows"])])
    if np.isnan(arrays["complete"]).any():
        raise StoreError(f"{store.path} is damaged: saved states are missing from it")
    return arrays


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
    if resume and store.exists:
        _check_same(store, describe(definition)[0])
    else:
        create_store(store, run.recorder, definition)
    arrays = read_snapshot(store)
    if arrays is not None and not run.resumable and "members" in arrays:
        arrays = None
    if arrays is not None:
        run.restore(arrays)
    if group is not None:
        group.broadcast(arrays)
    checkpointer = Checkpointer(store, run, after_step, 0 if arrays is None else len(arrays["complete"]))
    run.advance(checkpointer.after_step)
    checkpointer.checkpoint()
    run.end_remaining()


def create_store(store: Store, recorder: Recorder, definition: Definition) -> None:
    """Create an empty store for a run."""
    words, arrays = describe(definition)
    shape = (*definition.state.batch_shape, *recorder.points.shape[2:])
    store.create(words, arrays, recorder.times, shape, str(recorder.points.dtype).removeprefix("torch."))


def write_run(record: RunRecord, definition: Definition, path: str | Path) -> None:
    """Write a run that has ended to a new store."""
    store = Store(path)
    create_store(store, record.recorder, definition)
    with _store_errors(store.path, "written"):
        store.write_record(record, record.to_arrays(), 0)


def describe(definition: Definition) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the definition of a run as attributes and arrays, with a fingerprint of each part."""
    arrays: dict[str, np.ndarray] = {}
    words: dict[str, Any] = {}
    prints: dict[str, str] = {}
    for name, value in vars(definition).items():
        own: dict[str, np.ndarray] = {}
        try:
            data = encode(value, own)[0]
        except UnsupportedError:
            data, own = {"opaque": type(value).__name__}, {}
        digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode())
        for key in sorted(own):
            digest.update(str(own[key].dtype).encode() + str(own[key].shape).encode() + own[key].tobytes())
        words[name], prints[name] = _prefix_arrays(data, name), digest.hexdigest()
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
    }
    return attributes, arrays


@cache
def _scipy_version() -> str:
    return version("scipy")  # read from files, which takes some milliseconds


def read_definition(group: Any) -> Definition:
    """Read the definition of a stored run."""
    arrays = {name: np.asarray(array) for name, array in group["definition"].arrays()} if "definition" in group else {}
    words = group.attrs["definition"]
    parts: dict[str, Any] = {name: None if _is_opaque(data) else decode(data, arrays) for name, data in words.items()}
    lists = {name: list(value) for name, value in parts["options"].items() if isinstance(value, tuple)}
    return Definition(**{**parts, "options": {**parts["options"], **lists}})


def _is_opaque(data: Any) -> bool:
    return isinstance(data, dict) and "opaque" in data


def _prefix_arrays(data: Any, prefix: str) -> Any:
    """Prefix the names of arrays with their part of the definition."""
    if isinstance(data, dict):
        if set(data) == {"array"}:
            return {"array": f"{prefix}_{data['array']}"}
        return {key: _prefix_arrays(value, prefix) for key, value in data.items()}
    return [_prefix_arrays(item, prefix) for item in data] if isinstance(data, list) else data


def _check_same(store: Store, words: dict[str, Any]) -> None:
    """Raise if a store was made by a run with another definition."""
    stored = store.open().attrs["fingerprints"]
    different = sorted(
        name for name in {*stored, *words["fingerprints"]} if stored.get(name) != words["fingerprints"].get(name)
    )
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
def _store_errors(path: Path, verb: str, more: str = "") -> Iterator[None]:
    """Raise errors of the file system as ``StoreError``."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        reason = "the disk is full" if full else (error.strerror or _one_line(error))
        advice = f"; {more}; make room and resume" if more else ""
        raise StoreError(f"the store {path} cannot be {verb}: {reason}{advice}") from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
