"""Outcome, statistics and events of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

MEANINGS = {
    "reached": "the requested time was reached",
    "consensus": "all tokens came together at one point",
    "collapsed": "all tokens went to zero",
    "steady": "no token moves any more",
    "diverged": "token norms passed the bound",
    "blow_up": "token norms go to infinity in finite time",
    "stalled": "the step size fell to rounding",
    "event": "a terminal event of the user happened",
    "budget": "the budget of time or evaluations was spent",
    "unfinished": "the stored run has not ended",
    "mixed": "the members of the ensemble ended in different ways",
}


@dataclass(frozen=True)
class Outcome:
    """Why a run ended: ``name`` (a key of MEANINGS), the ``time`` it ended, and a sentence; where a Gaussian blows up, also the
    unit ``direction`` in which it does."""

    name: str
    time: float
    message: str
    direction: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.direction is not None:  # a store gives it back as a list
            object.__setattr__(self, "direction", tuple(float(entry) for entry in self.direction))

    def __str__(self) -> str:
        return f"{self.name} at t = {self.time:.6g}: {self.message}"


@dataclass(frozen=True)
class Statistics:
    """Cost of a run, summed over ensemble members: evaluations of the law, accepted and rejected steps; ``processes`` shared it.

    ``peak_memory`` is the most bytes that this process had held by the end of the run, None where the system does not say.
    """

    evaluations: int = 0
    accepted: int = 0
    rejected: int = 0
    seconds: float = 0.0
    method: str = ""
    engine: str = ""
    merges: int = 0
    processes: int = 1
    peak_memory: int | None = None


@dataclass(frozen=True)
class EventRecord:
    """Something that happened on the way: a merge, or an event of the user.

    ``mass`` and ``size`` are the total mass and the number of the tokens that are one from then on; ``member`` is the index
    of the run in a flattened ensemble.
    """

    kind: str
    time: float
    mass: float = 0.0
    size: int = 0
    member: int = 0
    _members: Callable[[], tuple[int, ...]] | None = field(default=None, repr=False, compare=False)

    @property
    def members(self) -> tuple[int, ...]:
        """Original indices of the tokens that are one from then on."""
        return self._members() if self._members is not None else ()
