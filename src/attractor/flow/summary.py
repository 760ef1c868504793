"""A run in numbers, ready for JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor import observables
from attractor.attention import Law
from attractor.flow.forest import Log
from attractor.flow.outcome import Event
from attractor.flow.trajectory import Trajectory, law_at
from attractor.states import Gaussian, Tokens

LOOKED_AT = ("clusters", "token_norm", "pairwise_distance", "cosine", "effective_rank")  # none of them costs n^2
LISTED = 64  # original tokens of a merge that are listed one by one
MERGES = 2000  # merges that are listed one by one; of more, the first and the last are
ENDS = 100  # of either


def summary(run: Trajectory, observe: Sequence[str] = ()) -> dict[str, Any]:
    """How a run ended, what it cost, what happened on the way, and observables at its start and end.

    ``observe`` names further observables; those are given at every saved time too, under ``values``. Of very many merges
    only the first and the last are listed, and ``events_left_out`` says how many are not. Ensemble axes become nested
    lists. A number that JSON cannot hold (an infinite norm) is None.
    """
    events = listed(run.events)
    ensemble, gaussian = list(run.initial.batch_shape), isinstance(run.initial, Gaussian)
    report: dict[str, Any] = {
        "outcome": asdict(run.outcome),
        "sizes": {"tokens": None if gaussian else run.n, "dim": run.dim, "ensemble": ensemble, "saved": len(run.times)},
        "law": None if run.law is None else repr(run.law),
        "space": run.space.name,
        "stats": asdict(run.stats),
        "events": [described(event) for event in events],
        "events_left_out": len(run.events) - len(events),
        "times": plain(run.times),
        "observables": measured(run, observe),
    }
    if ensemble:
        report["outcomes"] = dict(Counter(outcome.name for outcome in run.outcomes).most_common())
        report["members"] = [asdict(outcome) for outcome in run.outcomes]
    return strict(report)


def measured(run: Trajectory, observe: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Observables of tokens at the start and the end, and those of ``observe`` at every saved time."""
    if not isinstance(run.initial, Tokens) or not isinstance(run.final, Tokens):
        return {}
    first = float(run.times[0]) if len(run.times) else 0.0
    moments = {"start": (entered(run, run.initial), first), "end": (run.final, run.outcome.time)}
    report: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys((*LOOKED_AT, *observe)):
        function = observables.named(name)
        report[name] = {
            when: plain(function(tokens, law=_law(run, time), space=run.space)) if finite(tokens) else None
            for when, (tokens, time) in moments.items()
        }
        if name in observe and len(run.times):
            report[name]["values"] = plain(run.observe(function))
    return report


def entered(run: Trajectory, tokens: Tokens) -> Tokens:
    """The tokens as the flow began with them: positions of the input added, put on the space."""
    tokens = tokens if run.law is None else run.law.enter(tokens)
    return tokens.moved(run.space.enter(tokens.points))


def _law(run: Trajectory, time: float) -> Law | None:
    return None if run.law is None else law_at(run.law, time)


def finite(tokens: Tokens) -> bool:
    return bool(torch.isfinite(tokens.points).all())


def listed(events: Sequence[Event]) -> Sequence[Event]:
    """All events, but of very many merges the first and the last; ``stats.merges`` counts all."""
    log = Log.from_events(events)
    if log.merges <= MERGES:
        return log
    return log.some(lambda merges: np.concatenate([merges[:ENDS], merges[-ENDS:]]))


def described(event: Event) -> dict[str, Any]:
    """An event; the members of a large merge are not listed, ``size`` says how many they are."""
    words: dict[str, Any] = {"kind": event.kind, "time": event.time, "member": event.member}
    if event.kind == "merge":
        members = list(event.members) if event.size <= LISTED else None
        words |= {"size": event.size, "mass": event.mass, "members": members}
    return words


def plain(value: Tensor | None) -> Any:
    """A tensor as numbers and nested lists."""
    return None if value is None else torch.as_tensor(value).detach().cpu().tolist()


def strict(value: Any) -> Any:
    """The same with None for what JSON has no number for."""
    if isinstance(value, dict):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
