"""``sweep``: a grid of flows, computed by an executor and kept in a folder."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import math
import os
import re
import shutil
import sys
import tempfile
import textwrap
import time
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import numpy as np
import torch

from attractor._version import __version__
from attractor.errors import InputError, StoreError
from attractor.progress import progress_bar
from attractor.registry import closest
from attractor.solvers import flow
from attractor.states import Tokens
from attractor.sweeps.cells import Cell, Value, canonical, list_cells, make_cell, read_axes, read_cells
from attractor.sweeps.diagrams import refine_cells
from attractor.sweeps.executors import Executor, Task, executor_named
from attractor.sweeps.folder import TABLE, Folder, Index, arrow
from attractor.sweeps.results import Sweep, load
from attractor.sweeps.systems import (
    Experiment,
    Request,
    System,
    check_observables,
    compute,
    digest_system,
    one_thread,
    read_observables,
    signature,
)

TASK_SECONDS = (0.2, 4.0)  # that a task takes
TASK_MEMBERS, TASK_CELLS, TASK_BYTES = 1 << 13, 1 << 11, 1 << 26
GPU_MEMBERS, GPU_BYTES, GPU_SECONDS = 1 << 18, 1 << 30, 3600.0  # of a task on a GPU, which large ensembles keep busy
PROBES, PROBE_SECONDS, PROBE_STARTS = 6, 3.0, 4  # runs that measure the cost
ARRAY_NUMBERS = 64  # assumed size of an observable that is an array, in the size of tasks
Work = tuple[tuple[str, ...], Request]  # observables, and the starts of a cell that lack them
VERSIONS = ("torch", "numpy", "scipy", "pyarrow")


@dataclass(frozen=True)
class Cost:
    """What a sweep will take.

    Attributes
    ----------
    cells : cells to compute, some of them only in part.
    members : runs to integrate.
    known : cells that are there already.
    seconds : estimated time on this executor; None if no cell could be measured.
    workers : tasks at the same time.
    """

    cells: int
    members: int
    known: int
    seconds: float | None
    workers: int

    def __str__(self) -> str:
        text = f"{self.cells:,} cell{'s' * (self.cells != 1)}, {self.members:,} run{'s' * (self.members != 1)}"
        text += f", {self.known:,} cell{'s' * (self.known != 1)} known already" if self.known else ""
        if self.seconds is not None:
            text += f", about {format_seconds(self.seconds)} on {self.workers} worker{'s' * (self.workers != 1)}"
        return text


def format_seconds(seconds: float) -> str:
    """Return a duration as text, such as 3 min 20 s."""
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def sweep(
    make: Callable[..., Any],
    over: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *,
    starts: int = 1,
    observe: Any = "clusters",
    until: float | None = None,
    save: Any = None,
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
    executor: str | Executor = "local",
    workers: int | None = None,
    shard: tuple[int, int] | str | None = None,
    device: str = "cpu",
    retry: bool = False,
    refine: int = 0,
    confirm: Callable[[Cost], bool] | None = None,
    progress: bool | None = False,
    command: str = "",
    **options: Any,
) -> Sweep:
    """Integrate a system for every combination of values, from many starts, and keep what is observed.

    Cells that differ only in numbers are integrated as one ensemble. Seeds depend on the values of a cell, so that its numbers are
    the same bits in any order, in any process and on any executor. In a folder every cell that is finished stays: the same call
    continues after an interruption, and a call with more values, starts or observables computes what is missing.

    Parameters
    ----------
    make : function that returns the system of a cell, called with the values of the axes: ``(law, state, space)`` or a
        :class:`System`. With an argument ``seed`` it is called once for each start; with ``seed`` and ``starts`` once for all starts,
        which form the leading axis of the state and must be drawn one after the other. It may also return a mapping of numbers,
        measured in another way.
    over : values by the names of arguments, such as ``{"beta": at.grid(0.1, 9, 90), "dim": [8, 128]}``; or a list of cells,
        ``[{"beta": 0.1, "dim": 8}, ...]``.
    starts : number of starts of each cell.
    observe : what is measured, see ``observables``: names, "clusters(radius=0.2)", functions, or a mapping from names to them. Also
        "consensus_time", "first_merge", "blow_up_time" and "end_time" of a run, infinite where the event does not happen, and
        "merge_clusters", the number of tokens that merging has left; for Gaussians "trace", "mean_norm", "largest_eigenvalue" and
        "covariance_rank"; for densities "density_entropy", "density_peaks" and "density_order".
    until, save : final time, and saved times as in ``flow``; by default only the end.
    seed : seed of the sweep.
    folder : where results are kept; None keeps them as long as the object that is returned.
    executor : "local" (processes), "ray", "slurm", or an executor with its options.
    workers : tasks at the same time; one per core by default.
    shard : part of the cells, ``(3, 40)`` or "3/40" for the third of forty, which runs at the same time as the others; "auto" takes
        it from the job array of SLURM.
    device : "cpu", or "cuda" for a GPU, on which one process integrates large ensembles.
    retry : whether to compute cells again that failed.
    refine : number of rounds in which cells are added halfway between neighbours that differ in the first observable.
    confirm : function of the cost, called before anything is computed; False ends the sweep.
    progress : True for a progress bar, None for one where stderr is a terminal.
    command : text for the manifest.
    **options : further arguments of ``flow``.

    Returns
    -------
    Sweep
        ``frame()`` is a table with intervals, ``values(name, beta=..., ...)`` has every start, ``failed`` lists cells and reasons.
    """
    arrow()
    axes, listed = (read_axes(over), None) if isinstance(over, Mapping) else read_cells(over)
    if refine and shard is not None:
        raise InputError("refine needs the results of all cells: refine in a run without a shard")
    if isinstance(refine, bool) or not isinstance(refine, int) or refine < 0:
        raise InputError(f"refine is a number of rounds, got {refine!r}")
    starts = _positive(starts, "starts")
    chosen = executor_named(executor, workers)
    part = read_shard(shard)
    found = {} if observe is None else read_observables(observe)
    flow_options = {"until": until, "save": _plain_times(save), **options}
    _check_flow_options(flow_options)
    experiment = Experiment(make, found, flow_options, _seed(seed), _device(device))
    experiment.check_axes(axes)
    keep = None if folder is not None else _TemporaryFolder()
    place = Folder(folder if folder is not None else keep.name if keep else "")
    chosen.check()
    run = _Driver(experiment, axes, starts, place, chosen, part, retry, command, listed)
    run.check()
    place.exists()
    place.create()
    with place.locked(part):
        run.begin()
        going = run.compute(confirm, progress)
        for _ in range(refine if going else 0):
            new = _new_cells(Sweep(place.path), found)
            if not new:
                break
            run.replace_cells(new)
            run.begin()
            run.compute(None, progress)
    return Sweep(place.path, keep)


sweep.load = load  # pyright: ignore[reportFunctionMemberAccess]


def read_shard(shard: tuple[int, int] | str | None) -> tuple[int, int] | None:
    """Return the number of a shard, from 1, and how many there are; "auto" reads the job array of SLURM."""
    if shard is None:
        return None
    if shard == "auto":
        names = ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_COUNT")
        values = [os.environ.get(name, "") for name in names]
        if not values[0].isdigit() or not values[2].isdigit():
            raise InputError(
                "shard auto is for a job array of SLURM, and SLURM_ARRAY_TASK_ID is not set; give a shard such as 3/40"
            )
        return int(values[0]) - int(values[1] or 0) + 1, int(values[2])
    if isinstance(shard, str):
        match = re.fullmatch(r"\s*(\d+)\s*/\s*(\d+)\s*", shard)
        if not match:
            raise InputError(f"a shard is written as 3/40 (the third of forty), or auto; got {shard!r}")
        shard = int(match[1]), int(match[2])
    number, count = shard
    if not 1 <= number <= count:
        raise InputError(f"shards are numbered from 1 to their number, got {number}/{count}")
    return number, count


def _positive(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} must be a whole number, at least 1; got {value!r}")
    return value


def _seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed must be a whole number that is not negative, got {seed!r}")
    return seed


def _device(device: str) -> str:
    if device == "cpu" or (device.startswith("cuda") and torch.cuda.is_available()):
        return device
    raise InputError(f"device is 'cpu' or, where PyTorch finds a GPU, 'cuda'; got {device!r}")


def _plain_times(save: Any) -> Any:
    if save is None or isinstance(save, (int, str)):
        return save
    try:
        return [float(time) for time in save]
    except TypeError:
        raise InputError(f"save must be None, a number of intervals or a list of times, got {save!r}") from None


def _check_flow_options(options: Mapping[str, Any]) -> None:
    taken = ("law", "state", "space", "noise", "observe", "store", "resume", "progress", "distributed")
    known = [name for name in inspect.signature(flow).parameters if name not in taken]
    for name in options:
        if name not in known:
            close = closest(name, known)
            hint = f"did you mean {close!r}?" if close else f"further arguments are those of flow: {', '.join(known)}"
            raise InputError(f"a sweep has no argument {name!r}; {hint}")
    until = options.get("until")
    if until is not None and not (isinstance(until, (int, float)) and math.isfinite(until)):
        raise InputError(f"until must be a finite time, got {until!r}")


def _name_of(make: Callable[..., Any]) -> Any:
    """What identifies a system in the manifest."""
    name = getattr(make, "identity", None)
    return name if name is not None else getattr(make, "__qualname__", type(make).__name__)


def digest_source(make: Any) -> str:
    """Return a digest of a function, and of the functions and plain values of its module that it uses; without comments."""
    found: dict[str, str] = {}
    _collect_source(make, found)
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16]


def _collect_source(function: Any, found: dict[str, str]) -> None:
    name = getattr(function, "__qualname__", "")
    code = getattr(function, "__code__", None)
    if code is None or name in found:
        return
    try:
        text = ast.dump(ast.parse(textwrap.dedent(inspect.getsource(function))))
    except (OSError, TypeError, SyntaxError):  # typed in a session, or a part of a line
        text = repr((code.co_code, code.co_names, [c for c in code.co_consts if _is_plain(c)]))
    used = [cell.cell_contents for cell in function.__closure__ or ()] + list(function.__defaults__ or ())
    used += [function.__globals__[name] for name in _names_of(code) if name in function.__globals__]
    found[name] = text + repr([value for value in used if _is_plain(value)])
    for other in used:
        if inspect.isfunction(other) and other.__module__ == function.__module__:
            _collect_source(other, found)


def _names_of(code: types.CodeType) -> list[str]:
    """Names that a function and those inside it use."""
    inner = [name for part in code.co_consts if isinstance(part, types.CodeType) for name in _names_of(part)]
    return [*code.co_names, *inner]


def _digest(function: Any) -> str:
    """A digest of the source of a function and of the plain values that it captures; empty for those of this package."""
    if str(getattr(function, "__module__", "")).partition(".")[0] == "attractor":
        return ""
    code = getattr(function, "__code__", None)
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):  # typed in a session
        text = "" if code is None else repr((code.co_code, code.co_names, [c for c in code.co_consts if _is_plain(c)]))
    captured = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    values = [value for value in (*captured, *(getattr(function, "__defaults__", None) or ())) if _is_plain(value)]
    return " " + hashlib.sha256(repr((text, values)).encode()).hexdigest()[:16]


def _is_plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str, bytes, type(None)))


def _definition(name: str, function: Any) -> str:
    """What identifies an observable in the manifest."""
    if function is None:
        return "measure"
    if hasattr(function, "func"):
        options = ", ".join(f"{key}={value!r}" for key, value in sorted(function.keywords.items()))
        return f"{_definition(name, function.func)}({options})"
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
    return name + _digest(function)


def _new_cells(found: Sweep, observe: Mapping[str, Any]) -> list[dict[str, Value]]:
    """Cells that refine the first observable."""
    names = [*observe] or found.observables
    return refine_cells(found, names[0]) if names else []


class _TemporaryFolder:
    """A folder that is removed with the last reference to this object."""

    def __init__(self) -> None:
        self.name = tempfile.mkdtemp(prefix="attractor-sweep-")
        weakref.finalize(self, shutil.rmtree, self.name, ignore_errors=True)


class _Driver:
    """One call of ``sweep``."""

    def __init__(
        self,
        experiment: Experiment,
        axes: Mapping[str, tuple[Value, ...]],
        starts: int,
        folder: Folder,
        executor: Executor,
        shard: tuple[int, int] | None,
        retry: bool,
        command: str,
        listed: Sequence[tuple[tuple[str, Value], ...]] | None = None,
    ) -> None:
        self.experiment, self.axes, self.starts, self.folder = experiment, axes, starts, folder
        self.executor, self.shard, self.retry, self.command = executor, shard, retry, command
        options = {name: repr(value) for name, value in sorted(experiment.flow.items()) if value is not None}
        self.base = {
            "system": _name_of(experiment.make),
            "flow": options,
            "seed": experiment.seed,
            "axes": sorted(axes),
        }
        self.identity = hashlib.sha256(json.dumps(self.base, sort_keys=True).encode()).hexdigest()
        self.listed = None if listed is None else [make_cell(values, self.identity) for values in listed]
        self.failed = 0
        self.lost: list[str] = []
        self.measures = bool(getattr(experiment.make, "measures", False))  # whether the system returns numbers
        self.probes: list[tuple[int, float, float]] = []
        self.binary: list[str] = []  # observables that are True or False

    def replace_cells(self, over: Sequence[Mapping[str, Value]]) -> None:
        """Compute these cells from now on."""
        order = list(self.axes)
        rows = [{name: row[name] for name in order} for row in over]
        self.axes, listed = read_cells(rows)
        self.listed = [make_cell(values, self.identity) for values in listed]

    def _first_cell(self) -> Cell:
        if self.listed is not None:
            return self.listed[0]
        return next(list_cells({name: values[:1] for name, values in self.axes.items()}, self.identity))

    def check(self) -> None:
        """Raise if the first cells that can be built cannot be measured; a cell that cannot be built costs only itself."""
        if self.measures:  # whatever a cell costs, it is not computed for a check
            return
        began = time.perf_counter()
        try:
            with one_thread():
                system = self.experiment.build(Request(self._first_cell(), 0, 1))
        except Exception:  # counted as a failed cell
            return
        if not isinstance(system, System):
            self.measures, self.probes = True, [(0, time.perf_counter() - began, 8.0 * max(1, len(system[0])))]
        else:
            self.binary = _check_observables(self.experiment, system)

    def begin(self) -> None:
        """Write the manifest, or compare it with the one that is there."""
        definitions = {name: _definition(name, function) for name, function in self.experiment.observe.items()}
        entry = {
            "command": self.command or " ".join(sys.argv[:1]),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "executor": self.executor.name,
            "shard": None if self.shard is None else f"{self.shard[0]}/{self.shard[1]}",
            "starts": self.starts,
            "versions": _versions(),
        }
        axes = {name: list(values) for name, values in self.axes.items()}
        if not self.folder.exists():
            manifest = {
                "base": self.base,
                "identity": self.identity,
                "axes": axes,
                "starts": self.starts,
                "observables": definitions,
                "binary": self.binary,
                "rerun": getattr(self.experiment.make, "rerun", ""),
                "given": list(self.experiment.given),
                "samples": self._samples([self._first_cell()]),
                "fixed": getattr(self.experiment.make, "fixed", {}),
                "history": [entry],
            } | self._sources()
            self.folder.write_manifest(manifest)
            return
        manifest = self.folder.manifest()
        self._compare(manifest, definitions)
        now = self._sources()
        manifest |= {"source": now["source"], "files": {**manifest.get("files", {}), **now["files"]}}
        for name, values in axes.items():
            known = {canonical(value): value for value in [*manifest["axes"][name], *values]}
            manifest["axes"][name] = list(known.values())
        manifest["starts"] = max(self.starts, manifest["starts"])
        manifest["observables"] = {**manifest["observables"], **definitions}
        manifest["binary"] = sorted({*manifest["binary"], *self.binary})
        manifest["history"] = [*manifest["history"], entry]
        manifest.pop("schema")
        self.folder.write_manifest(manifest)

    def _sources(self) -> dict[str, Any]:
        """Digests of what returns the numbers of a cell: the function, and the files that a command reads."""
        make = self.experiment.make
        files = getattr(make, "read_files", None)
        return {
            "source": digest_source(make) if hasattr(make, "__code__") else "",
            "files": {} if files is None else files(self.axes),
        }

    def _compare_measured(self, manifest: Mapping[str, Any]) -> str:
        """Say how a system that returns numbers differs from the one that filled the folder; empty if nothing is known to."""
        now = self._sources()
        files = manifest.get("files", {})
        for name, digest in now["files"].items():
            if files.get(name, digest) != digest:
                return f"the file {name} has changed since"
        if not self.measures or manifest.get("source", "") in ("", now["source"]):
            return ""  # systems are compared by their content
        # another text may return the same numbers: those of some finished cells decide
        index = self.folder.index()
        failed = index.failures()
        done = [cell for cell in index.cells.values() if cell.key not in failed]
        for cell in [done[k] for k in sorted({0, len(done) // 2, len(done) - 1})] if done else ():
            row = compute(replace(self.experiment, observe={}), [Request(cell, 0, 1)])[0]
            for name in row.observed:
                for _, known in self.folder.read_values(index, [cell.key], name, 1):
                    if not np.array_equal(known[0], row.observed[name], equal_nan=True):
                        return f"the function returns another {name} for {cell}"
            if row.reason:
                return f"the function now fails for {cell} ({row.reason})"
        return ""

    def _samples(self, cells: Sequence[Cell]) -> list[dict[str, Any]]:
        """Checksums of the systems of some cells, which tell whether a function that makes them has changed."""
        found = []
        for cell in () if self.measures else cells:
            try:
                with one_thread():
                    checksum = digest_system(self.experiment.build(Request(cell, 0, 1)))
            except Exception:
                checksum = None
            found.append({"cell": cell.values, "checksum": checksum})
        return found

    def _compare(self, manifest: Mapping[str, Any], definitions: Mapping[str, str]) -> None:
        """Raise if the folder holds another sweep."""
        theirs, where = manifest["base"], f"{self.folder.path} holds another sweep"
        advice = "give another folder, or the same values"
        if theirs["axes"] != self.base["axes"]:
            raise InputError(
                f"{where}: its axes are {', '.join(theirs['axes'])}, not {', '.join(self.base['axes'])}; give another folder"
            )
        if theirs["system"] != self.base["system"]:
            raise InputError(f"{where}: {_difference(theirs['system'], self.base['system'], 'system')}; {advice}")
        if theirs["seed"] != self.base["seed"]:
            raise InputError(f"{where}: its seed is {theirs['seed']}, not {self.base['seed']}; {advice}")
        if theirs["flow"] != self.base["flow"]:
            raise InputError(f"{where}: {_difference(theirs['flow'], self.base['flow'], 'flow')}; {advice}")
        for name, definition in definitions.items():
            known = manifest["observables"].get(name, definition)
            if known != definition:
                raise InputError(f"{where}: its observable {name!r} is {known}, not {definition}; give another name")
        for sample in manifest["samples"]:
            cell = next(list_cells({name: (value,) for name, value in sample["cell"]}, self.identity))
            now = self._samples([cell])[0]["checksum"]
            if sample["checksum"] is not None and now is not None and now != sample["checksum"]:
                raise InputError(
                    f"{where}: the system of {cell} is not the one computed there; has the function changed? {advice}"
                )
        changed = self._compare_measured(manifest)
        if changed:
            raise InputError(f"{where}: {changed}; give another folder")

    def plan(self, index: Index) -> tuple[list[Work], int]:
        """Return what is to be computed, and the number of cells that are there."""
        names = tuple(self.experiment.observe)
        todo: list[Work] = []
        known = 0
        for cell in self._ordered_cells():
            if self.shard is not None and int(cell.key[:12], 16) % self.shard[1] != self.shard[0] - 1:
                continue
            if cell.key not in index.places:
                todo.append((names, Request(cell, 0, self.starts)))
                continue
            if index.has_all(cell.key, names, self.starts, self.retry):
                known += 1
                continue
            missing: dict[int, list[str]] = {}
            for name in names or ("",):
                reached = index.covered(cell.key, name, self.retry)
                if reached < self.starts:
                    missing.setdefault(reached, []).append(name)
            known += not missing
            for reached, wanted in missing.items():
                todo.append((tuple(name for name in wanted if name), Request(cell, reached, self.starts - reached)))
        return todo, known

    def _ordered_cells(self) -> Iterator[Cell]:
        """All cells; those that can be integrated together are next to each other."""
        if self.listed is not None:
            return iter(self.listed)
        numeric = [name for name in self.axes if self._is_numeric(name)]
        order = [name for name in self.axes if name not in numeric] + numeric
        return list_cells(self.axes, self.identity, order)

    def _is_numeric(self, axis: str) -> bool:
        """Whether systems of different values of an axis can be integrated as one ensemble."""
        values = self.axes[axis]
        if len(values) == 1 or self.measures:
            return True
        found = []
        for value in (values[0], values[-1]):
            cells = list_cells(
                {name: (value,) if name == axis else some[:1] for name, some in self.axes.items()}, self.identity
            )
            try:
                with one_thread():
                    system = self.experiment.build(Request(next(cells), 0, 1))
            except Exception:
                return False
            found.append(
                signature(system, self.experiment.flow, self.experiment.device) if isinstance(system, System) else None
            )
        return found[0] == found[1]

    def measure(self, todo: Sequence[Work]) -> list[tuple[int, float, float]]:
        """Seconds per run (and bytes of its values) of a few requests that are spread over the list: (place, seconds, bytes)."""
        if self.probes:
            return self.probes
        count = 1 if self.measures else min(PROBES, len(todo))
        places = sorted({round(k * (len(todo) - 1) / max(1, count - 1)) for k in range(count)})
        began, found = time.perf_counter(), []
        for place in [places[len(places) // 2], *places[: len(places) // 2], *places[len(places) // 2 + 1 :]]:
            names, request = todo[place]
            runs = 1 if self.measures else min(request.count, PROBE_STARTS)
            experiment = replace(self.experiment, observe={name: self.experiment.observe[name] for name in names})
            before = time.perf_counter()
            row = compute(experiment, [Request(request.cell, request.first, runs)])[0]
            if not row.reason:
                size = sum(array.nbytes for array in row.observed.values()) / runs
                found.append((place, (time.perf_counter() - before) / runs, size))
            if time.perf_counter() - began > PROBE_SECONDS:
                break
        return sorted(found)

    def tasks(self, todo: Sequence[Work], probes: list[tuple[int, float, float]]) -> tuple[list[Task], float | None]:
        """Divide requests among tasks; return them and the estimated seconds of all."""
        places = np.arange(len(todo))
        if probes:
            known, seconds, sizes = (np.array(column, dtype=float) for column in zip(*probes, strict=True))
            each, size = np.exp(np.interp(places, known, np.log(np.maximum(seconds, 1e-7)))), float(sizes.max())
        else:
            each, size = np.full(len(todo), 1e-3), 8.0 * ARRAY_NUMBERS
        total = float(sum(each[k] * request.count for k, (_, request) in enumerate(todo)))
        target = min(TASK_SECONDS[1], max(TASK_SECONDS[0], total / (8 * self.executor.workers)))
        most_members, most_bytes = TASK_MEMBERS, TASK_BYTES
        if self.experiment.device != "cpu":
            target, most_members, most_bytes = GPU_SECONDS, GPU_MEMBERS, GPU_BYTES
        found: list[Task] = []
        group: list[Request] = []
        names, cost, members = (), 0.0, 0

        def close() -> None:
            nonlocal group, cost, members
            if group:
                found.append(Task(names, tuple(group)))
            group, cost, members = [], 0.0, 0

        for k, (wanted, request) in enumerate(todo):
            for piece in _split(request, float(each[k]), target, most_members, most_bytes / max(size, 1.0)):
                seconds = float(each[k]) * piece.count
                full = cost + seconds > 1.5 * target or members + piece.count > most_members or len(group) >= TASK_CELLS
                if wanted != names or full or (members + piece.count) * size > most_bytes:
                    close()
                names = wanted
                group.append(piece)
                cost, members = cost + seconds, members + piece.count
        close()
        return found, total / min(self.executor.workers, max(1, len(found))) if probes else None

    def compute(self, confirm: Callable[[Cost], bool] | None, progress: bool | None) -> bool:
        """Compute what is missing; return whether that was confirmed."""
        self.folder.remove_leftovers()
        index = self.folder.index()
        todo, known = self.plan(index)
        cells = len({request.cell.key for _, request in todo})
        if not todo:
            if confirm is not None:
                confirm(Cost(0, 0, known, 0.0, self.executor.workers))
            if not (self.folder.path / TABLE).exists():
                self._end()
            return True
        # a few runs on a GPU say little about many; their cost is needed for a question only
        probes = [] if self.experiment.device != "cpu" and confirm is None else self.measure(todo)
        tasks, seconds = self.tasks(todo, probes)
        members = sum(request.count for _, request in todo)
        if confirm is not None and not confirm(Cost(cells, members, known, seconds, self.executor.workers)):
            return False
        left: dict[str, int] = {}
        for task in tasks:
            for request in task.requests:
                left[request.cell.key] = left.get(request.cell.key, 0) + 1
        began, done = time.perf_counter(), 0
        with progress_bar("sweep", progress, total=cells) as update:
            update(0, note="" if seconds is None else f"about {format_seconds(seconds)}")
            finished = 0
            for task, rows in self.executor.run(self.experiment, tasks, self.folder):
                if isinstance(rows, list):
                    self.folder.write_part(rows, task.names)
                    self.failed += sum(bool(row.reason) for row in rows)
                elif rows is not None:
                    self.lost.append(rows)
                for request in task.requests:
                    done += request.count
                    left[request.cell.key] -= 1
                    finished += not left[request.cell.key]
                remaining = (time.perf_counter() - began) * (members - done) / max(1, done)
                failed = f", {self.failed} failed" if self.failed else ""
                update(finished, note=f"{cells - finished:,} left{failed}, {format_seconds(remaining)} to go")
        self._end()
        if self.lost:
            raise StoreError(
                f"{len(self.lost)} tasks were not computed ({self.lost[0]}): start the sweep again to compute them"
            )
        return True

    def _end(self) -> None:
        """Join small files and write the table."""
        if self.shard is None:
            self.folder.join_parts()
            Sweep(self.folder.path).write_table()


def _split(request: Request, seconds: float, target: float, *limits: float) -> Iterator[Request]:
    """Split the starts of a request that would take too long, at multiples of 64."""
    most = max(1, min(*limits, 1.5 * target / max(seconds, 1e-9)))
    if request.count <= most:
        yield request
        return
    step = max(64, int(most) // 64 * 64)
    first, last = request.first, request.first + request.count
    while first < last:
        end = min(last, (first // step + 1) * step)
        yield Request(request.cell, first, end - first)
        first = end


def _check_observables(experiment: Experiment, system: System) -> list[str]:
    """Raise if the observables do not belong to the kind of state; return the names of those that are True or False."""
    check_observables(system.state, experiment.observe)
    binary = []
    for name, function in experiment.observe.items():
        if isinstance(system.state, Tokens) and function is not None:
            with one_thread():
                found = function(system.state, law=system.law, space=system.space)
            binary += [name] if torch.as_tensor(found).dtype == torch.bool else []
    return binary


def _difference(theirs: Any, ours: Any, what: str) -> str:
    """Say in which of their settings two sweeps differ."""
    if not isinstance(theirs, Mapping) or not isinstance(ours, Mapping):
        return f"its {what} is {theirs}, not {ours}"
    names = [name for name in sorted({*theirs, *ours}) if theirs.get(name) != ours.get(name)]
    name = names[0] if names else what
    return f"its {name} is {theirs.get(name, 'not given')}, not {ours.get(name, 'left out')}"


def _versions() -> dict[str, str]:
    found = {"python": ".".join(map(str, sys.version_info[:3])), "attractor": __version__}
    for name in VERSIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
