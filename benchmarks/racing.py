"""Contests: systems, contenders and interleaved timing."""

from __future__ import annotations

import importlib
import math
import os
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor

Value = TypeVar("Value")


@dataclass(frozen=True)
class Settings:
    """Options of a benchmark; ``turn`` is the least time of a contender's turn, in which short calls are repeated."""

    rounds: int = 5
    quick: bool = False
    seed: int = 0
    threads: int = 1
    turn: float = 0.1

    def size(self, full: Value, quick: Value) -> Value:
        """The size of a problem, smaller for a smoke run."""
        return quick if self.quick else full


@contextmanager
def limit_threads(threads: int) -> Iterator[None]:
    """Restrict all contenders to the same cores: JAX and numpy follow the affinity, torch has its own setting."""
    before = torch.get_num_threads()
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    torch.set_num_threads(threads)
    if len(allowed) > threads:
        os.sched_setaffinity(0, sorted(allowed)[:threads])
    try:
        yield
    finally:
        torch.set_num_threads(before)
        if len(allowed) > threads:
            os.sched_setaffinity(0, allowed)


Call = Callable[[], Any]


class Skip(Exception):
    """A contender cannot take part here; the message says why."""


@dataclass(frozen=True)
class Ready:
    """A compiled and tuned contender: the call to time, and a note for the report."""

    call: Call
    note: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Contender:
    """A way to compute a result; ``target`` is the least ratio of its time to ours, ``tolerance`` replaces the contest's."""

    name: str
    build: Callable[[], Ready | Call]
    target: float | None = None
    tolerance: float | None = None


Timer = Callable[[Call], tuple[float, Any]]


def wall_time(call: Call) -> tuple[float, Any]:
    """Wall-clock seconds of one call, and its result."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


@dataclass(frozen=True)
class Contest:
    """``pairs`` (query, key) are evaluated by a call, of ``dim`` coordinates in ``dtype``: that gives rates and the limit.

    ``error`` measures a result against the truth; above ``tolerance`` it is wrong and is not timed. ``rate`` is a target for
    our contender, in pairs a second. ``check`` verifies the truth before the contest.
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
    timer: Timer = wall_time
    check: Callable[[], Mapping[str, Any]] = dict

    @property
    def contenders(self) -> tuple[Contender, ...]:
        return (self.ours, *self.peers)


def import_peer(name: str) -> ModuleType:
    """A package of the extra ``peers``, imported only where its row is run."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == name
        why = "is not installed: pip install 'attractor[peers]'" if absent else f"cannot be imported: {error}"
        raise Skip(f"{name} {why}") from None


def engine(name: str) -> str:
    """The name of one of our engines; raises Skip if it does not work here."""
    from attractor import engines

    for found in engines.available():
        if found.name == name:
            if not found.works:
                raise Skip(f"the engine {name} does not work here: {found.reason}")
            return name
    raise Skip(f"this version of attractor has no engine {name}")


ROWS = 256  # of an evaluation, checked against the reference in float64


def uniform(n: int, dim: int, seed: int, dtype: str = "float64", ensemble: int | tuple[int, ...] = ()) -> Tensor:
    """Points (..., n, d), uniform on the unit sphere."""
    from attractor.states import Tokens

    return Tokens.uniform(n, dim, seed, ensemble).points.to(getattr(torch, dtype))


def as_tensor(result: Any) -> Tensor:
    """The result of any library as a tensor."""
    if isinstance(result, Tensor):
        return result
    import numpy as np

    return torch.from_numpy(np.array(result))


def evaluate_rows(x: Tensor, rows: Tensor, beta: float = 1.0) -> Tensor:
    """Rows of softmax(beta x x') x in float64, by the reference engine."""
    from attractor.engines import attend

    points = x.double()
    output, _ = attend(beta * points[rows], points, points, engine="reference")
    assert output is not None
    return output


def sample_rows(n: int, seed: int) -> Tensor:
    """Indices of tokens that are checked, the same for every contender."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:ROWS]


def sampled_error(result: Tensor, x: Tensor, seed: int, beta: float = 1.0) -> float:
    """The largest error of a coordinate over some rows."""
    if tuple(result.shape) != tuple(x.shape):
        return float("inf")
    rows = sample_rows(len(x), seed).to(x.device)
    return float((result.to(x.device)[rows].double() - evaluate_rows(x, rows, beta)).abs().max())


Tell = Callable[[str], None]
SLOW = 5.0  # seconds of a call above which a contender without a target is timed in one round only


def time_interleaved(
    calls: Mapping[str, Call],
    rounds: int,
    timer: Timer,
    repeats: Mapping[str, int] | None = None,
    tell: Tell = lambda text: None,
    once: Collection[str] = (),
) -> dict[str, list[float]]:
    """Seconds per call of each contender in each round, with rotating order; those in ``once`` run in the first round only."""
    names = list(calls)
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        tell(f"round {number + 1} of {rounds}")
        start = number % len(names)
        for name in (*names[start:], *names[:start]):
            if number and name in once:
                continue
            often = 1 if repeats is None else repeats[name]
            times[name].append(sum(timer(calls[name])[0] for _ in range(often)) / often)
    return times


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> dict[str, float]:
    """Median over the rounds of the peer of the ratio within a round, with quartiles and extremes."""
    ratios = sorted(one / two for one, two in zip(theirs, ours, strict=False))
    low, middle, high = (ratios[0],) * 3 if len(ratios) == 1 else statistics.quantiles(ratios, n=4, method="inclusive")
    return {"median": middle, "low": low, "high": high, "least": ratios[0], "most": ratios[-1]}


def run_contest(
    contest: Contest, settings: Settings, limit: float | None = None, tell: Tell = lambda text: None
) -> dict:
    """Prepare, check and time all contenders; ``limit`` is that of the hardware, in pairs a second."""
    tell("reference result")
    head = {"group": contest.group, "name": contest.name, "device": contest.device, "pairs": contest.pairs}
    try:
        truth = dict(contest.check())
    except Skip as reason:
        entries = [_entry(contest, one, status="skipped", reason=str(reason)) for one in contest.contenders]
        return {**head, "limit": limit, "truth": {}, "contenders": entries}
    entries, calls, repeats, once = [], {}, {}, set()
    for contender in contest.contenders:
        if entries and contest.ours.name not in calls:
            reason = f"{contest.ours.name} is not there to compare with"
            entries.append(_entry(contest, contender, status="skipped", reason=reason))
            continue
        tell(f"preparing {contender.name}")
        entry, ready, seconds = prepare(contest, contender)
        entries.append(entry)
        if ready is not None:
            calls[contender.name] = ready.call
            repeats[contender.name] = max(1, math.ceil(settings.turn / max(seconds, 1e-6)))
            if contender.target is None and contender is not contest.ours and seconds > SLOW:
                once.add(contender.name)
                entry["reason"] = f"a call takes {seconds:.0f} s, and no target is set: timed in one round only"
    times = time_interleaved(calls, settings.rounds, contest.timer, repeats, tell, once) if calls else {}
    for entry in entries:
        if entry["name"] in times:
            entry |= judge(contest, entry, times, limit)
            # the targets are set for the full sizes
            entry["met"] = None if settings.quick else entry["met"]
    return {**head, "limit": limit, "truth": truth, "contenders": entries}


def prepare(contest: Contest, contender: Contender) -> tuple[dict[str, Any], Ready | None, float]:
    """Build a contender and check its result: its entry, the call to time (None if it is out), and seconds of a call."""
    try:
        built = contender.build()
        ready = built if isinstance(built, Ready) else Ready(built)
        seconds, result = contest.timer(ready.call)
        error = float(contest.error(result))
        if seconds < 60.0:  # the first call may have compiled something
            seconds, _ = contest.timer(ready.call)
    except Skip as reason:
        return _entry(contest, contender, status="skipped", reason=str(reason)), None, 0.0
    except Exception as failure:  # a failing peer is a result, not the end of the benchmark
        reason = " ".join(f"{type(failure).__name__}: {failure}".split())[:300]
        return _entry(contest, contender, status="failed", reason=reason), None, 0.0
    tolerance = contest.tolerance if contender.tolerance is None else contender.tolerance
    known = {"error": error if math.isfinite(error) else None, "tolerance": tolerance, "note": dict(ready.note)}
    if not error <= tolerance:
        reason = f"its error is {error:.1e}, and {tolerance:.1e} is allowed"
        return _entry(contest, contender, status="wrong", reason=reason, **known), None, 0.0
    return _entry(contest, contender, status="timed", **known), ready, seconds


def judge(
    contest: Contest, entry: dict[str, Any], times: Mapping[str, Sequence[float]], limit: float | None
) -> dict[str, Any]:
    """Median, rate, ratio and target of a contender from its times."""
    seconds, ours = times[entry["name"]], times[contest.ours.name]
    median = statistics.median(seconds)
    rate = None if contest.pairs is None else contest.pairs / median
    found = {
        "seconds": list(seconds),
        "median": median,
        "rate": rate,
        "percent_of_limit": None if rate is None or not limit else 100 * rate / limit,
        "ratio": None if entry["ours"] else ratio(seconds, ours),
    }
    if entry["target"] is not None:
        reached = rate if entry["target"]["what"] == "rate" else found["ratio"]["median"]
        found["met"] = reached >= entry["target"]["least"]
    return found


def _entry(contest: Contest, contender: Contender, **known: Any) -> dict[str, Any]:
    ours = contender is contest.ours
    target: dict[str, Any] | None = None
    if ours and contest.rate is not None:
        target = {"what": "rate", "least": contest.rate}
    elif contender.target is not None:
        target = {"what": "ratio", "least": contender.target}
    empty = {"reason": None, "error": None, "tolerance": None, "note": {}, "seconds": [], "median": None}
    rest = {"rate": None, "percent_of_limit": None, "ratio": None, "target": target, "met": None}
    return {"name": contender.name, "ours": ours, **empty, **rest, **known}
