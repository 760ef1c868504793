"""Runs on disk: a Zarr group that is written during the run."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import platform
import time as clock
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attractor._version import __version__
from attractor.errors import StoreError, UnsupportedError, missing
from attractor.files import replace_on_success
from attractor.serialization import decode, encode
from attractor.solvers.integration import Integration
from attractor.solvers.merging import MergeTree
from attractor.solvers.outcome import EventRecord, Outcome

if TYPE_CHECKING:
    from attractor.solvers.process_group import Ranks

ROWS = ("who", "t", "t_low", "h", "retried", "ended")


def take(run: Integration) -> dict[str, np.ndarray]:
    """Everything that changes while a run marches, except saved rows that are complete."""
    arrays = {name: np.array(getattr(run, name)) for name in ROWS}
    arrays |= {"y": _numpy(run.y), "f": _numpy(run.f)}
    history, recorder, watch = run.history, run.recorder, run.watch
    arrays |= {"history_times": history.times, "history_count": history.count}
    arrays |= {"history_points": _numpy(history.points), "history_slopes": _numpy(history.slopes)}
    arrays |= {
        "next": recorder.next,
        "reached": recorder.reached,
        "ends": recorder.ends,
        "streak": watch.streak,
        "last": watch.last,
        "size": watch.size,
    }
    arrays |= {"anchor_points": _numpy(watch.anchor), "anchor_t": watch.anchor_t, "rest": watch.rest}
    arrays["rows"] = _numpy(recorder.points[recorder.complete : recorder.rows])
    arrays |= {f"final{member}": _numpy(final) for member, final in enumerate(run.finals) if final is not None}
    if run.merger is not None:
        arrays |= _take_merger(run)
    arrays["json"] = np.array(json.dumps(_words(run)))
    return arrays


def put(run: Integration, arrays: dict[str, np.ndarray]) -> None:
    """Set a fresh run of the same plan to a snapshot; complete saved rows are put back by the store."""
    device = run.y.device
    for name in ROWS:
        setattr(run, name, arrays[name])
    run.y, run.f = _tensor(arrays["y"], device), _tensor(arrays["f"], device)
    history, recorder, watch = run.history, run.recorder, run.watch
    history.times, history.count = arrays["history_times"], arrays["history_count"]
    history.points, history.slopes = (
        _tensor(arrays["history_points"], device),
        _tensor(arrays["history_slopes"], device),
    )
    recorder.next, recorder.reached, recorder.ends = arrays["next"], arrays["reached"], arrays["ends"]
    watch.streak, watch.last, watch.size = arrays["streak"], arrays["last"], arrays["size"]
    watch.anchor, watch.anchor_t, watch.rest = (
        _tensor(arrays["anchor_points"], device),
        arrays["anchor_t"],
        arrays["rest"],
    )
    rows = _tensor(arrays["rows"], device)
    recorder.points[recorder.complete : recorder.complete + len(rows)] = rows
    words = json.loads(str(arrays["json"]))
    run.outcomes = [None if outcome is None else Outcome(**outcome) for outcome in words["outcomes"]]
    run.finals = [
        _tensor(arrays[f"final{k}"], device) if f"final{k}" in arrays else None for k in range(len(run.outcomes))
    ]
    for member, final in enumerate(run.finals):
        if final is not None:
            recorder.points[int(recorder.reached[member]) :, member] = final
    watch.noted = {int(member): Outcome(**outcome) for member, outcome in words["noted"].items()}
    watch.values = {(number, member): value for number, member, value in words["values"]}
    watch.log = [EventRecord(kind, time, member=member) for kind, time, member in words["log"]]
    run.segment, run.accepted, run.rejected = words["segment"], words["accepted"], words["rejected"]
    run.seconds, run.field.evaluations = words["seconds"], words["evaluations"]
    run.engines |= set(words["engines"])
    run.field.keep(torch.from_numpy(run.who))
    if run.merger is not None:
        _put_merger(run, arrays)


def _words(run: Integration) -> dict[str, Any]:
    watch = run.watch
    return {
        "outcomes": [None if outcome is None else vars(outcome) for outcome in run.outcomes],
        "noted": {str(member): vars(outcome) for member, outcome in watch.noted.items()},
        "values": [[number, member, value] for (number, member), value in watch.values.items()],
        "log": [[event.kind, event.time, event.member] for event in watch.log],
        "segment": run.segment,
        "accepted": run.accepted,
        "rejected": run.rejected,
        "seconds": run.seconds,
        "evaluations": run.field.evaluations,
        "engines": sorted(run.engines),
    }


def _take_merger(run: Integration) -> dict[str, np.ndarray]:
    merger = run.merger
    assert merger is not None
    anchor = np.zeros(0) if merger.anchor is None else _numpy(merger.anchor)
    arrays = {"masses": _numpy(merger.masses), "alive": _numpy(merger.alive), "anchor": anchor, "slack": merger.slack}
    arrays |= {"row_of": merger.row_of, "node_of": merger.node_of, "merging": merger.who}
    return arrays | {f"forest{k}": forest.rows for k, forest in enumerate(merger.forest)}


def _put_merger(run: Integration, arrays: dict[str, np.ndarray]) -> None:
    merger, device = run.merger, run.y.device
    assert merger is not None
    merger.masses, merger.alive = _tensor(arrays["masses"], device), _tensor(arrays["alive"], device)
    merger.anchor = _tensor(arrays["anchor"], device) if arrays["anchor"].size else None
    merger.slack = arrays["slack"]
    merger.row_of, merger.node_of, merger.who = arrays["row_of"], arrays["node_of"], arrays["merging"]
    merger.forest = [MergeTree(merger.n, arrays[f"forest{k}"]) for k in range(len(merger.forest))]
    run.field.masses = merger.masses


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy().copy()


def _tensor(array: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.array(array)).to(device)


SCHEMA = "attractor.run/1"
INTERVAL = 1.0  # seconds between checkpoints
SHARE = 0.05  # of the time that checkpoints may take


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
        """Make an empty store: beside its place first, then moved there whole."""
        zarr = _zarr()
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            kind = (
                "holds a run already: resume it or choose another path" if self.exists else "exists and is not a store"
            )
            raise StoreError(f"{self.path} {kind}")
        with _explained(self.path, "created"), replace_on_success(self.path, folder=True) as draft:
            group = zarr.create_group(store=str(draft), attributes=definition)
            for name, array in arrays.items():
                group.create_array(f"definition/{name}", data=array)
            group.create_array("times", data=times)
            group.create_array("points", shape=(len(times), *shape), chunks=(1, *shape), dtype=dtype, fill_value=np.nan)

    def open(self, mode: str = "r") -> Any:
        """The Zarr group, known to be a run of ours."""
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
        """Replace the checkpoint as a whole."""
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # type: ignore[arg-type]
        with replace_on_success(self.path / "checkpoint.npz") as draft, open(draft, "wb") as file:
            file.write(buffer.getbuffer())
            file.flush()
            os.fsync(file.fileno())

    def read_checkpoint(self) -> dict[str, np.ndarray] | None:
        """The checkpoint, or None if the run was killed before its first."""
        path = self.path / "checkpoint.npz"
        if not path.exists():
            return None
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        except Exception as error:
            raise StoreError(f"the checkpoint {path} is damaged: {_one_line(error)}") from None


class Keeper:
    """Writes a run to its store from time to time."""

    def __init__(self, store: Store, run: Integration, show: Callable[[Integration], None]) -> None:
        self.store, self.run, self.show = store, run, show
        self.group = store.open("r+")
        self.written = 0
        self.next = clock.perf_counter() + INTERVAL

    def restore(self) -> dict[str, np.ndarray] | None:
        """Set the run to the last checkpoint, if there is one; what it took is returned for other processes."""
        arrays = self.store.read_checkpoint()
        if arrays is None:
            return None
        put(self.run, arrays)
        self.written = self.run.recorder.complete
        arrays["complete"] = np.asarray(self.group["points"][: self.written])
        if np.isnan(arrays["complete"]).any():
            raise StoreError(f"{self.store.path} is damaged: saved states are missing from it")
        _put_rows(self.run, arrays)
        return arrays

    def after_step(self, run: Integration) -> None:
        self.show(run)
        if clock.perf_counter() >= self.next:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Complete rows first, then the checkpoint that counts them."""
        began = clock.perf_counter()
        recorder = self.run.recorder
        with _explained(
            self.store.path, "written", f"the run is kept up to its last checkpoint (now at t = {self._time():.6g})"
        ):
            if recorder.complete > self.written:
                rows = recorder.points[self.written : recorder.complete].detach().cpu().numpy()
                target = self.group["points"]
                target[self.written : recorder.complete] = rows.reshape(len(rows), *target.shape[1:])
                self.written = recorder.complete
            self.store.write_checkpoint(take(self.run))
        now = clock.perf_counter()
        self.next = now + max(INTERVAL, (now - began) / SHARE)

    def _time(self) -> float:
        return float(self.run.t.min()) if len(self.run.t) else self.run.plan.until


def keep(
    run: Integration,
    path: str | Path,
    definition: dict[str, Any],
    resume: bool,
    show: Callable[[Integration], None],
    ranks: Ranks | None = None,
) -> None:
    """March with a store beside; with ``resume`` go on from its last checkpoint. Of several processes the first one writes."""
    if ranks is not None and ranks.rank > 0:
        arrays = ranks.share(None)
        if arrays is not None:
            put(run, arrays)
            _put_rows(run, arrays)
        run.run(show)
        return
    store = Store(path)
    if resume and store.exists:
        _check_same(store, describe(definition)[0])
    else:
        make(store, run, definition)
    keeper = Keeper(store, run, show)
    run.pause = min(run.pause, INTERVAL)
    arrays = keeper.restore()
    if ranks is not None:
        ranks.share(arrays)
    run.march(keeper.after_step)
    keeper.checkpoint()
    run.conclude()


def _put_rows(run: Integration, arrays: dict[str, np.ndarray]) -> None:
    """Saved states that were complete at the checkpoint."""
    points = run.recorder.points[: len(arrays["complete"])]
    points[:] = torch.from_numpy(arrays["complete"]).reshape(points.shape).to(points)


def make(store: Store, run: Integration, definition: dict[str, Any]) -> None:
    """An empty store for a run."""
    words, arrays = describe(definition)
    shape, dtype = (
        (*definition["state"].batch_shape, *run.recorder.points.shape[2:]),
        str(run.y.dtype).removeprefix("torch."),
    )
    store.create(words, arrays, run.recorder.times, shape, dtype)


def describe(definition: dict[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The definition of a run as attributes and arrays, with a fingerprint of all of it."""
    arrays: dict[str, np.ndarray] = {}
    words: dict[str, Any] = {}
    prints: dict[str, str] = {}
    for name, value in definition.items():
        own: dict[str, np.ndarray] = {}
        try:
            data = encode(value, own)[0]
        except UnsupportedError:
            data, own = {"opaque": type(value).__name__}, {}
        digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode())
        for key in sorted(own):
            digest.update(str(own[key].dtype).encode() + str(own[key].shape).encode() + own[key].tobytes())
        words[name], prints[name] = _renamed(data, name), digest.hexdigest()
        arrays |= {f"{name}_{key}": array for key, array in own.items()}
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scipy": _scipy(),
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
def _scipy() -> str:
    return version("scipy")  # read from files, which takes some milliseconds


def read_definition(group: Any) -> dict[str, Any]:
    """Law, state, space and options of a stored run; what was a Python function comes back as None."""
    arrays = {name: np.asarray(array) for name, array in group["definition"].arrays()} if "definition" in group else {}
    words = group.attrs["definition"]
    return {name: None if _opaque(data) else decode(data, arrays) for name, data in words.items()}


def _opaque(data: Any) -> bool:
    return isinstance(data, dict) and "opaque" in data


def _renamed(data: Any, prefix: str) -> Any:
    """Array names made unique to their part of the definition."""
    if isinstance(data, dict):
        if set(data) == {"array"}:
            return {"array": f"{prefix}_{data['array']}"}
        return {key: _renamed(value, prefix) for key, value in data.items()}
    return [_renamed(item, prefix) for item in data] if isinstance(data, list) else data


def _check_same(store: Store, words: dict[str, Any]) -> None:
    """A store may only be resumed by the run that made it."""
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
def _explained(path: Path, verb: str, more: str = "") -> Iterator[None]:
    """Errors of the file system as one sentence."""
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
