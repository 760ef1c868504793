"""Observables by name, for the command line."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

from attractor.errors import InputError

Observable = Callable[..., Tensor]
AnyObservable = TypeVar("AnyObservable", bound=Observable)

_registry: dict[str, Observable] = {}


def observable(function: AnyObservable) -> AnyObservable:
    """Make a function ``f(tokens, law=None, space=None, **options) -> Tensor`` known under its own name."""
    name = function.__name__
    if name in _registry and _registry[name].__module__ != function.__module__:
        raise InputError(f"there is already an observable called {name!r}; choose another name")
    _registry[name] = function
    return function


def names() -> list[str]:
    """Names of all observables, in alphabetical order."""
    return sorted(_registry)


def named(name: str) -> Observable:
    """The observable of that name."""
    if name not in _registry:
        close = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the observables are {', '.join(names())}"
        raise InputError(f"observable {name!r} is not known; {hint}")
    return _registry[name]
