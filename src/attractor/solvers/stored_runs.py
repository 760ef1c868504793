"""Load and resume stored runs."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.errors import StoreError
from attractor.laws import AbsentLaw, Law, is_external
from attractor.solvers.cluster_integration import load_log_run
from attractor.solvers.log_time import LogTime
from attractor.solvers.noise import AbsentNoise, Noise, Redrawn
from attractor.solvers.outcome import Outcome
from attractor.solvers.run import flow, make_trajectory, prepare
from attractor.solvers.saving import Recorder
from attractor.solvers.store import Definition, Store, read_definition, read_precision, read_snapshot, restore_snapshot
from attractor.solvers.trajectory import Trajectory
from attractor.spaces import Space
from attractor.states import Density, Equiangular, Gaussian, Tokens


def load(path: str | Path) -> Trajectory:
    """Read a stored run.

    Parameters
    ----------
    path : folder of the store.

    Returns
    -------
    Trajectory
        The run with its law, state and space. If it has not ended its outcome is "unfinished". ``law`` is None if it was a
        Python function, or if its class has not been imported; a warning then names the class.
    """
    store = Store(path)
    definition, absent = read_definition(store)
    if isinstance(definition.options["until"], LogTime):
        return load_log_run(path)
    times, arrays = store.read_times(), read_snapshot(store)
    precision = read_precision(store) or _dtype(definition.state)
    with torch.no_grad():
        run = prepare(_readable(definition, times, arrays), precision=precision)
        recorder = Recorder(times, definition.options["save"] is not None, len(run.members), run.y)
        run.recorder = recorder
        if arrays is not None:
            restore_snapshot(store, run, arrays)
        for row in range(len(run.members)):
            message = "the stored run has not ended: resume it to continue"
            run.finish(row, Outcome("unfinished", float(run.t[row]), message), run.y[row], float(run.t[row]))
        law = AbsentLaw() if definition.law is None else definition.law
        space = definition.space if isinstance(definition.state, Equiangular) else run.plan.space
        found = make_trajectory(run, replace(definition, law=law, space=space))
    if absent:
        warnings.warn(
            f"{store.path} is read without its {' and '.join(absent)}: import {'; '.join(absent.values())} before it is loaded "
            "to have the whole run",
            stacklevel=2,
        )
    method = found.stats.method if arrays is None else json.loads(str(arrays["json"])).get("method", found.stats.method)
    return replace(found, stats=replace(found.stats, method=method))


def _dtype(state: Tokens | Gaussian | Density | Equiangular) -> torch.dtype:
    return state.points.dtype if isinstance(state, Tokens) else state.rows().dtype


class AbsentSpace(Space):
    """Stands for the space of a stored run whose class is not there."""

    name = "a space that has not been imported"

    def stretch(self, y: Tensor) -> Tensor:
        return torch.ones_like(y[..., :1])


def _readable(definition: Definition, times: np.ndarray, arrays: dict[str, np.ndarray] | None) -> Definition:
    """Return a definition that a run can be prepared from in order to read it, whatever is not there of the stored one."""
    law, space, options = definition.law, definition.space, dict(definition.options)
    if law is None or is_external(law, float(options["start"])):  # a law of one's own is not evaluated to read a run
        law = AbsentLaw()
        merged = arrays is not None and ("tree0" in arrays or "row_of" in arrays)
        options["merge"] = 1e-12 if merged else False  # no step is taken: only whether there are merges matters
        last = float(times[-1]) if len(times) else options["start"] + 1.0
        options["until"] = last if options["until"] is None else options["until"]
        options["step"] = options["step"] or (1.0 if options["method"] == "layers" else None)
        options["save"] = None
    return replace(definition, law=law, options=options, space=AbsentSpace() if space is None else space)


def resume(
    path: str | Path,
    *,
    law: Law | None = None,
    events: Any = (),
    noise: Noise | Redrawn | None = None,
    max_seconds: float | None = None,
    max_evaluations: int | None = None,
    progress: Any = False,
    distributed: bool | None = None,
) -> Trajectory:
    """Continue a stored run from its last checkpoint; a run that has ended is returned unchanged.

    Parameters
    ----------
    path : folder of the store.
    law, events, noise : must be given again if they are Python functions, which a store cannot hold.
    max_seconds, max_evaluations, progress, distributed : see :func:`flow`.

    Returns
    -------
    Trajectory
    """
    store = Store(path)
    stored, absent = read_definition(store)
    given = {**({} if law is None else {"law": law}), **({"events": tuple(events)} if events else {})}
    given |= {} if noise is None else {"noise": noise}
    definition = replace(stored, **given)
    needed = {part: classes for part, classes in absent.items() if part not in given}
    if needed:
        again = ", or give law=... again" if "law" in needed else ""
        raise StoreError(
            f"the {' and '.join(needed)} of {store.path} need what this process has not imported: import "
            f"{'; '.join(needed.values())} before the run is resumed{again}"
        )
    if definition.law is None:
        raise StoreError(f"the law of {store.path} is a Python function, which a store cannot hold: give law=... again")
    if definition.events is None:
        raise StoreError(
            f"the events of {store.path} are Python functions, which a store cannot hold: give events=... again"
        )
    if isinstance(definition.noise, AbsentNoise):
        raise StoreError(
            f"the noise of {store.path} is a Python function, which a store cannot hold: give noise=... again"
        )
    return flow(
        definition.law,
        definition.state,
        space=definition.space,
        noise=definition.noise,
        events=definition.events,
        store=path,
        resume=True,
        max_seconds=max_seconds,
        max_evaluations=max_evaluations,
        progress=progress,
        distributed=distributed,
        **definition.options,
    )
