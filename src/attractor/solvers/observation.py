"""Observables that are evaluated during a run, which then keeps no points."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from attractor.errors import InputError, UnsupportedError
from attractor.observables import Observable, find_observable, list_observables
from attractor.solvers.merging import EventLog
from attractor.solvers.outcome import EventRecord, Statistics
from attractor.solvers.store import Definition
from attractor.solvers.trajectory import Trajectory
from attractor.states import Tokens

CHUNK = 1 << 26  # bytes of the saved states of the members that are integrated at once on the CPU,
GPU_CHUNK = 1 << 31  # and on a GPU


def named_observables(observe: Any) -> dict[str, Observable]:
    """Observables by name: of a name, a function, a list of them, or a mapping from names to them."""
    if isinstance(observe, (str, Callable)):
        observe = [observe]
    if isinstance(observe, Mapping):
        found = {str(name): _as_function(item) for name, item in observe.items()}
        known = list_observables()
        for name, function in found.items():
            if name in known and function is not find_observable(name):
                raise InputError(f"{name!r} is the name of another observable; choose a name that is free")
    elif isinstance(observe, Sequence):
        found = {}
        for item in observe:
            function = _as_function(item)
            name = _name(function)
            if name in found:
                raise InputError(
                    f"two observables are called {name!r}: give a mapping such as {{'close': ..., 'near': ...}}"
                )
            found[name] = function
    else:
        raise InputError(
            f"observe must be the name of an observable, a function, a list or a mapping of them, got {observe!r}"
        )
    if not found:
        raise InputError("observe is empty; give at least one observable, or leave it out to keep the points")
    return found


def _as_function(item: Any) -> Observable:
    if isinstance(item, str):
        return find_observable(item)
    if not callable(item):
        raise InputError(f"an observable is a name or a function, got {item!r}")
    return cast("Observable", item)


def _name(function: Any) -> str:
    return (
        _name(function.func)
        if isinstance(function, partial)
        else getattr(function, "__name__", type(function).__name__)
    )


def integrate_and_observe(
    definition: Definition,
    observables: Mapping[str, Observable],
    budget: tuple[float | None, float | None],
    differentiable: bool,
    integrate: Callable[[Definition, tuple[float | None, float | None]], Trajectory],
    update: Callable[[int], None],
) -> Trajectory:
    """Integrate an ensemble in chunks of members, and keep the observables of each instead of its points.

    Members are independent, so that nothing depends on the size of the chunks. ``integrate(definition, budget)`` runs one of them;
    ``update(members)`` is called with the number that is done.
    """
    state, save = definition.state, definition.options["save"]
    if not isinstance(state, Tokens):
        raise UnsupportedError(
            "observe=... needs tokens; runs of a Gaussian or a density keep their states, which are small"
        )
    if save is None or (isinstance(save, list) and not save):
        raise InputError(
            "observe=... needs the times at which observables are evaluated: give save=200 or a list of times"
        )
    count = state.batch_shape.numel()
    times = len(save) if isinstance(save, list) else save + 1 if isinstance(save, int) else 1
    member_bytes = times * state.n * state.dim * 8
    room = GPU_CHUNK if state.points.device.type == "cuda" else CHUNK
    size = count if differentiable else max(1, min(count, room // max(1, member_bytes)))
    began, evaluations, parts = time.perf_counter(), 0, []
    values: dict[str, list[Tensor]] = {name: [] for name in observables}
    for begin in range(0, count, size):
        seconds, most = budget
        left = (
            None if seconds is None else max(1e-9, seconds - (time.perf_counter() - began)),
            None if most is None else max(1, most - evaluations),
        )
        part = integrate(_select(definition, begin, min(begin + size, count)), left)
        for name, function in observables.items():
            values[name].append(_evaluate(name, function, part))
        evaluations += part.stats.evaluations
        parts.append(replace(part, points=part.points[:0], record=None, definition=None))
        update(begin + len(part.outcomes))
    times = max((part.times for part in parts), key=len)
    for name, function in observables.items():
        values[name] = [
            _extend(name, function, part, found, times) for part, found in zip(parts, values[name], strict=True)
        ]
    return _join(definition, parts, times, {name: torch.cat(found, 1) for name, found in values.items()})


def _select(definition: Definition, begin: int, end: int) -> Definition:
    """The definition of the run of some members."""
    state, law = definition.state, definition.law
    assert isinstance(state, Tokens)
    rows = [
        row if row is None or row.ndim == 1 else row.reshape(-1, state.n)[begin:end]
        for row in (state.masses, state.positions)
    ]
    if begin == 0 and end == state.batch_shape.numel():
        index = None
    else:
        index = torch.arange(begin, end)
    tokens = Tokens.unchecked(state.points.reshape(-1, state.n, state.dim)[begin:end], *rows)
    noise = definition.noise
    if noise is not None:  # its strengths may have the ensemble axes, which are flattened here
        noise = noise.restrict(torch.arange(begin, end) if index is None else index)
    if index is None:
        return replace(definition, state=tokens, noise=noise)
    return replace(definition, law=None if law is None else law.member(index), state=tokens, noise=noise)


def _evaluate(name: str, function: Observable, run: Trajectory) -> Tensor:
    """Values of an observable (times, members, ...)."""
    found = run.observe(function)
    expected = (len(run.times), len(run.outcomes))
    if tuple(found.shape[:2]) != expected:
        raise InputError(
            f"the observable {name!r} must give one value (or array) for each state of {expected}, got shape {tuple(found.shape)}"
        )
    return found


def _extend(name: str, function: Observable, part: Trajectory, values: Tensor, times: Tensor) -> Tensor:
    """Values at times that no member of this chunk reached: those of the last states."""
    missing = times[len(values) :]
    if len(missing) == 0:
        return values
    points = part.final.points.expand(len(missing), *part.final.points.shape)  # type: ignore[union-attr]
    return torch.cat([values, _evaluate(name, function, replace(part, times=missing, points=points))])


def _join(definition: Definition, parts: list[Trajectory], times: Tensor, values: dict[str, Tensor]) -> Trajectory:
    """One trajectory of all members, without points."""
    state, first = definition.state, parts[0]
    assert isinstance(state, Tokens)
    user: list[EventRecord] = []
    trees: list[Any] = []
    log_errors: list[Any] = []
    switches: list[tuple[int, float, str]] = []
    begin = 0
    for part in parts:
        log = EventLog.from_events(part.events)
        user += [replace(event, member=event.member + begin) for event in log.user]
        trees += log.trees
        log_errors += log.log_errors or []
        switches += [(member + begin, time, name) for member, time, name in part.stats.switches]
        begin += len(part.outcomes)

    def names(field: str) -> str:
        return "+".join(dict.fromkeys(name for part in parts for name in getattr(part.stats, field).split("+")))

    def total(field: str) -> Any:
        return sum(getattr(part.stats, field) for part in parts)

    stats = Statistics(
        **{field: total(field) for field in ("evaluations", "accepted", "rejected", "seconds", "merges")},
        method=names("method"),
        engine=names("engine"),
        processes=first.stats.processes,
        switches=tuple(switches),
        peak_memory=parts[-1].stats.peak_memory,
        reduced_dim=first.stats.reduced_dim,
        fallback=first.stats.fallback,
    )
    final = torch.cat([part.final.points for part in parts])  # type: ignore[union-attr]
    shape = state.batch_shape
    return Trajectory(
        times=times,
        points=first.points.new_zeros((0, *shape, state.n, state.dim)),
        final=state.with_points(final.reshape(*shape, state.n, state.dim)),
        outcomes=tuple(outcome for part in parts for outcome in part.outcomes),
        stats=stats,
        law=definition.law if first.law is not None else None,
        space=first.space,
        initial=state,
        events=EventLog(user, trees, log_errors=log_errors or None),
        observed={name: found.reshape(len(times), *shape, *found.shape[2:]) for name, found in values.items()},
        given_log_times=None if first.given_log_times is None else max((part.log_times for part in parts), key=len),
    )
