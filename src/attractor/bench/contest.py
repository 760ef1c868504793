"""A contest: one question, our answer to it and those of the peers, and what counts as right."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

Call = Callable[[], Any]


class Skip(Exception):
    """A contender cannot take part here; the message says why."""


@dataclass(frozen=True)
class Ready:
    """A contender that is compiled, tuned and waiting: what is timed, and a note for the report."""

    call: Call
    note: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Contender:
    """``target`` is the least ratio of its time to ours that we set out to reach; ``tolerance`` replaces the contest's."""

    name: str
    build: Callable[[], Ready | Call]
    target: float | None = None
    tolerance: float | None = None


Timer = Callable[[Call], tuple[float, Any]]


def wall(call: Call) -> tuple[float, Any]:
    """Seconds of one call by the clock on the wall, and its result."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


@dataclass(frozen=True)
class Contest:
    """``pairs`` (query, key) are evaluated by a call, of ``dim`` coordinates in ``dtype``: that gives rates and the limit.

    ``error`` measures a result against the truth; above ``tolerance`` it is wrong and is not timed. ``rate`` is a target for
    ours alone, in pairs a second. ``check`` looks at the truth itself before anyone runs.
    """

    group: str
    name: str
    ours: Contender
    peers: tuple[Contender, ...]
    error: Callable[[Any], float]
    tolerance: float
    pairs: float | None = None
    dim: int | None = None
    dtype: str | None = None
    rate: float | None = None
    device: str = "cpu"
    timer: Timer = wall
    check: Callable[[], Mapping[str, Any]] = dict

    @property
    def contenders(self) -> tuple[Contender, ...]:
        return (self.ours, *self.peers)


def peer(name: str) -> ModuleType:
    """A package of the extra ``peers``, imported only where its row is run."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == name
        why = "is not installed: pip install 'attractor[peers]'" if absent else f"cannot be imported: {error}"
        raise Skip(f"{name} {why}") from None


def engine(name: str) -> str:
    """The name of one of our engines, if it is here and works."""
    from attractor import engines

    for found in engines.available():
        if found.name == name:
            if not found.works:
                raise Skip(f"the engine {name} does not work here: {found.reason}")
            return name
    raise Skip(f"this version of attractor has no engine {name}")
