"""Load, resume and save runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from attractor.errors import StoreError, UnsupportedError
from attractor.laws import Law
from attractor.solvers.outcome import Outcome
from attractor.solvers.run import finished, flow, prepare
from attractor.solvers.store import Keeper, Store, make, read_definition
from attractor.solvers.trajectory import Trajectory


def load(path: str | Path) -> Trajectory:
    """A stored run: law, state, space, times, points, outcome. One that has not ended has the outcome "unfinished"."""
    store = Store(path)
    definition = _definition(store, None, ())
    if definition["law"] is None:
        definition["law"] = Law()
    with torch.no_grad():
        run = prepare(definition, (None, None))
        Keeper(store, run, lambda run: None).restore()
        for row in range(len(run.who)):
            message = "the stored run has not ended: resume it to go on"
            run.finish(row, Outcome("unfinished", float(run.t[row]), message), run.y[row], float(run.t[row]))
        return finished(run, definition)


def resume(
    path: str | Path,
    *,
    law: Law | None = None,
    events: Any = (),
    max_seconds: float | None = None,
    max_evaluations: int | None = None,
    progress: Any = False,
    spread: bool | None = None,
) -> Trajectory:
    """Go on with a stored run from its last checkpoint; one that has ended is returned as it is.

    A law or events that are Python functions are not in the store and must be given again.
    """
    store = Store(path)
    definition = _definition(store, law, events)
    if definition["law"] is None:
        raise StoreError(f"the law of {store.path} is a Python function, which a store cannot hold: give law=... again")
    if definition["events"] is None:
        raise StoreError(
            f"the events of {store.path} are Python functions, which a store cannot hold: give events=... again"
        )
    return flow(
        definition["law"],
        definition["state"],
        space=definition["space"],
        events=definition["events"],
        store=path,
        resume=True,
        max_seconds=max_seconds,
        max_evaluations=max_evaluations,
        progress=progress,
        spread=spread,
        **definition["options"],
    )


def write(run: Trajectory, path: str | Path) -> None:
    """Write a finished run to a store."""
    if run.integration is None:
        raise UnsupportedError("this trajectory did not come from a flow, so there is no run to store")
    store = Store(path)
    make(store, run.integration, run.definition)
    Keeper(store, run.integration, lambda run: None).checkpoint()


def _definition(store: Store, law: Law | None, events: Any) -> dict[str, Any]:
    group = store.open()
    try:
        definition = read_definition(group)
    except StoreError:
        raise
    except Exception as error:
        raise StoreError(f"{store.path} is damaged: {' '.join(str(error).split())}") from None
    if law is not None:
        definition["law"] = law
    if events:
        definition["events"] = tuple(events)
    save = definition["options"]["save"]
    definition["options"]["save"] = list(save) if isinstance(save, tuple) else save
    stop = definition["options"]["stop"]
    definition["options"]["stop"] = list(stop) if isinstance(stop, tuple) else stop
    return definition
