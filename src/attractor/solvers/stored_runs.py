"""Load and resume stored runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from attractor.errors import StoreError
from attractor.laws import Law
from attractor.solvers.outcome import Outcome
from attractor.solvers.run import flow, make_trajectory, prepare
from attractor.solvers.store import Definition, Store, read_definition, read_snapshot, restore_snapshot
from attractor.solvers.trajectory import Trajectory


def load(path: str | Path) -> Trajectory:
    """Read a stored run.

    Parameters
    ----------
    path : folder of the store.

    Returns
    -------
    Trajectory
        The run with its law, state and space. If it has not ended its outcome is "unfinished".
    """
    store = Store(path)
    definition = _definition(store, None, ())
    if definition.law is None:
        definition = replace(definition, law=Law())
    with torch.no_grad():
        run = prepare(definition, (None, None))
        arrays = read_snapshot(store)
        if arrays is not None:
            restore_snapshot(store, run, arrays)
        for row in range(len(run.members)):
            message = "the stored run has not ended: resume it to continue"
            run.finish(row, Outcome("unfinished", float(run.t[row]), message), run.y[row], float(run.t[row]))
        return make_trajectory(run, definition)


def resume(
    path: str | Path,
    *,
    law: Law | None = None,
    events: Any = (),
    max_seconds: float | None = None,
    max_evaluations: int | None = None,
    progress: Any = False,
    distributed: bool | None = None,
) -> Trajectory:
    """Continue a stored run from its last checkpoint; a run that has ended is returned unchanged.

    Parameters
    ----------
    path : folder of the store.
    law, events : must be given again if they are Python functions, which a store cannot hold.
    max_seconds, max_evaluations, progress, distributed : see :func:`flow`.

    Returns
    -------
    Trajectory
    """
    store = Store(path)
    definition = _definition(store, law, events)
    if definition.law is None:
        raise StoreError(f"the law of {store.path} is a Python function, which a store cannot hold: give law=... again")
    if definition.events is None:
        raise StoreError(
            f"the events of {store.path} are Python functions, which a store cannot hold: give events=... again"
        )
    return flow(
        definition.law,
        definition.state,
        space=definition.space,
        events=definition.events,
        store=path,
        resume=True,
        max_seconds=max_seconds,
        max_evaluations=max_evaluations,
        progress=progress,
        distributed=distributed,
        **definition.options,
    )


def _definition(store: Store, law: Law | None, events: Any) -> Definition:
    definition = read_definition(store)
    given = {**({} if law is None else {"law": law}), **({"events": tuple(events)} if events else {})}
    return replace(definition, **given)
