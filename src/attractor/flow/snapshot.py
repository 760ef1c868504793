"""A run in progress as arrays and JSON, and back: all that decides what the next steps do."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from attractor.flow.forest import Forest
from attractor.flow.integration import Integration
from attractor.flow.outcome import Event, Outcome

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
    watch.log = [Event(kind, time, member=member) for kind, time, member in words["log"]]
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
    merger.forest = [Forest(merger.n, arrays[f"forest{k}"]) for k in range(len(merger.forest))]
    run.field.masses = merger.masses


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy().copy()


def _tensor(array: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.array(array)).to(device)
