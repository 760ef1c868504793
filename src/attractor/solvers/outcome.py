"""Outcome, statistics and events of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from attractor.solvers.log_time import format_log_time

MEANINGS = {
    "reached": "the requested time was reached",
    "consensus": "all tokens came together at one point",
    "collapsed": "all tokens went to zero",
    "steady": "no token moves any more",
    "diverged": "token norms passed the bound",
    "blow_up": "token norms go to infinity in finite time",
    "unresolved": "the density became narrower than its grid resolves",
    "stalled": "the step size fell to rounding",
    "event": "a terminal event of the user happened",
    "budget": "the budget of time or evaluations was spent",
    "unfinished": "the stored run has not ended",
    "mixed": "the members of the ensemble ended in different ways",
}


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes
    ----------
    name : a key of MEANINGS.
    time : when it ended.
    message : one sentence.
    direction : unit vector (d,) along which a Gaussian blows up, otherwise None.
    log_time : logarithm of the time, of runs in logarithmic time; their ``time`` is infinite beyond floating point.
    """

    name: str
    time: float
    message: str
    direction: tuple[float, ...] | None = None
    log_time: float | None = None

    def __post_init__(self) -> None:
        if self.direction is not None:  # a store returns a list
            object.__setattr__(self, "direction", tuple(float(entry) for entry in self.direction))

    @property
    def sentence(self) -> str:
        """The outcome as a sentence, for titles and captions."""
        return f"{self.name.replace('_', ' ').capitalize()} at t = {self.when}: {self.message}."

    @property
    def when(self) -> str:
        """The time in words, a power of e beyond floating point."""
        return f"{self.time:.6g}" if self.log_time is None else format_log_time(self.log_time)

    def __str__(self) -> str:
        return f"{self.name} at t = {self.when}: {self.message}"


@dataclass(frozen=True)
class Statistics:
    """Costs of a run, summed over the ensemble.

    Attributes
    ----------
    evaluations : evaluations of the law, one for each member.
    accepted, rejected : steps.
    seconds : wall-clock time.
    method, engine : names of the methods and of the engines that were used.
    merges : number of merges.
    processes : number of processes.
    switches : changes of the method where a member is stiff: member, time, and the method from then on.
    reduced_dim : dimension of the subspace in which tokens were integrated; None if that was their own space.
    fallback : why a run of tokens on a GPU was not integrated there by one kernel; empty if it was, and on a CPU.
    peak_memory : largest number of bytes that this process has held so far; None if the system does not report it.
    """

    evaluations: int = 0
    accepted: int = 0
    rejected: int = 0
    seconds: float = 0.0
    method: str = ""
    engine: str = ""
    merges: int = 0
    processes: int = 1
    switches: tuple[tuple[int, float, str], ...] = ()
    peak_memory: int | None = None
    reduced_dim: int | None = None
    fallback: str = ""


@dataclass(frozen=True)
class EventRecord:
    """A merge, or an event of the user.

    ``mass`` and ``size`` are the total mass and the number of the merged tokens; ``member`` is the index of the run in the
    flattened ensemble. In logarithmic time ``log_time`` is the logarithm of ``time``, which is infinite beyond floating point, and
    ``log_error`` its error: a bound where ``certified``, which only the first merge of a member can be, and otherwise an estimate. The
    time is that at which the chord of the two clusters passes the merging distance; what follows until they coincide is not part of the
    error.
    """

    kind: str
    time: float
    mass: float = 0.0
    size: int = 0
    member: int = 0
    log_time: float | None = None
    log_error: float | None = None
    certified: bool | None = None
    _members: Callable[[], tuple[int, ...]] | None = field(default=None, repr=False, compare=False)

    @property
    def members(self) -> tuple[int, ...]:
        """Indices of the merged tokens."""
        return self._members() if self._members is not None else ()
