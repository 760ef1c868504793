"""Observable registry, and the law, state and kernel that an observable is evaluated with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from attractor.errors import InputError, UnsupportedError
from attractor.laws import Attention, Law, Pairing, Schedule, Stack
from attractor.registry import find
from attractor.states import Tokens

Observable = Callable[..., Tensor]
AnyObservable = TypeVar("AnyObservable", bound=Observable)

_registry: dict[str, Observable] = {}


def observable(function: AnyObservable) -> AnyObservable:
    """Register a function ``f(tokens, law=None, space=None, **options) -> Tensor`` under its name."""
    name = function.__name__
    if name in _registry and _registry[name].__module__ != function.__module__:
        raise InputError(f"there is already an observable called {name!r}; choose another name")
    _registry[name] = function
    return function


def list_observables() -> list[str]:
    """Return the names of all observables, in alphabetical order."""
    return sorted(_registry)


def find_observable(name: str) -> Observable:
    """The observable of that name."""
    return find(name, dict(sorted(_registry.items())), "observable")


Times = float | Sequence[float] | Tensor | None


def evaluate_at_times(
    name: str, function: Callable[[Tokens, Attention], Tensor], tokens: Tokens, law: Law | None, time: Times
) -> Tensor:
    """The function of the tokens and the attention that acts on them.

    A law that changes with time needs ``time``: one number, or one for every entry of the first axis of the tokens
    (the saved times of a trajectory).
    """
    if not isinstance(law, (Schedule, Stack)):
        return function(tokens, _attention(name, law, tokens))
    if time is None:
        raise InputError(
            f"the law changes with time: give {name} the option time, one number or one for each saved state"
        )
    times = torch.as_tensor(time, dtype=torch.float64)
    if times.ndim == 0:
        return evaluate_at_times(name, function, tokens, law.at(float(times)), time)
    if times.ndim != 1 or not tokens.batch_shape or len(times) != tokens.batch_shape[0]:
        raise InputError(
            f"time must be one number, or one for each entry of the first axis of tokens {tuple(tokens.points.shape)}; "
            f"got shape {tuple(times.shape)}"
        )
    moments = zip(times.tolist(), split_states(tokens), strict=True)
    return torch.stack([evaluate_at_times(name, function, state, law.at(moment), moment) for moment, state in moments])


def _attention(name: str, law: Law | None, tokens: Tokens) -> Attention:
    if law is None:
        raise InputError(f"{name} depends on the law: call {name}(tokens, law)")
    if not isinstance(law, Attention):
        raise UnsupportedError(
            f"{name} is defined for one attention, and a {type(law).__name__} has no weights of its own; "
            "give the attention inside it"
        )
    if law.dim != tokens.dim:
        raise InputError(f"the law moves tokens of dimension {law.dim}, the state has dimension {tokens.dim}")
    return law


def pairing_of(law: Attention, tokens: Tokens) -> Pairing:
    """Queries and keys (..., h, n, k) of the tokens, with positions and biases."""
    return law._pairing(tokens, False)[0]


def split_states(tokens: Tokens) -> Iterator[Tokens]:
    """The entries of the first ensemble axis."""
    for index, points in enumerate(tokens.points):
        rows = [row[index] if row is not None and row.ndim > 1 else row for row in (tokens.masses, tokens.positions)]
        yield Tokens.unchecked(points, *rows)
