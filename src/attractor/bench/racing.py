"""Interleaved timing: in every round each contender has a turn, and ratios are formed within the round.

Other people's work on a shared machine slows all contenders of a round alike, so that the median over rounds of
(time of the peer) / (our time) holds where the times themselves do not.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from attractor.bench.contest import Call, Contender, Contest, Ready, Skip, Timer
from attractor.bench.settings import Settings

Tell = Callable[[str], None]
SLOW = 5.0  # seconds of a call above which a contender without a target is timed in one round only


def race(
    calls: Mapping[str, Call],
    rounds: int,
    timer: Timer,
    repeats: Mapping[str, int] | None = None,
    tell: Tell = lambda text: None,
    once: Collection[str] = (),
) -> dict[str, list[float]]:
    """Seconds of one call of each contender, round by round; another one starts each round. Some run in the first alone."""
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


def hold(contest: Contest, settings: Settings, limit: float | None = None, tell: Tell = lambda text: None) -> dict:
    """Prepare, check and time everyone who can take part; ``limit`` is the hardware's, in pairs a second."""
    tell("the truth")
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
        entry, ready, seconds = admit(contest, contender)
        entries.append(entry)
        if ready is not None:
            calls[contender.name] = ready.call
            repeats[contender.name] = max(1, math.ceil(settings.turn / max(seconds, 1e-6)))
            if contender.target is None and contender is not contest.ours and seconds > SLOW:
                once.add(contender.name)
                entry["reason"] = f"a call takes {seconds:.0f} s, and no target is set: timed in one round only"
    times = race(calls, settings.rounds, contest.timer, repeats, tell, once) if calls else {}
    for entry in entries:
        if entry["name"] in times:
            entry |= judged(contest, entry, times, limit)
            # the targets are set for the full sizes
            entry["met"] = None if settings.quick else entry["met"]
    return {**head, "limit": limit, "truth": truth, "contenders": entries}


def admit(contest: Contest, contender: Contender) -> tuple[dict[str, Any], Ready | None, float]:
    """Build a contender and check its result: its entry, the call to time (None if it is out), and seconds of a call."""
    try:
        built = contender.build()
        ready = built if isinstance(built, Ready) else Ready(built)
        seconds, result = contest.timer(ready.call)
        error = float(contest.error(result))
        if seconds < 60.0:  # the first call may have compiled or woken something
            seconds, _ = contest.timer(ready.call)
    except Skip as reason:
        return _entry(contest, contender, status="skipped", reason=str(reason)), None, 0.0
    except Exception as failure:  # a peer that breaks is a result, not the end of the benchmark
        reason = " ".join(f"{type(failure).__name__}: {failure}".split())[:300]
        return _entry(contest, contender, status="failed", reason=reason), None, 0.0
    tolerance = contest.tolerance if contender.tolerance is None else contender.tolerance
    known = {"error": error if math.isfinite(error) else None, "tolerance": tolerance, "note": dict(ready.note)}
    if not error <= tolerance:
        reason = f"its error is {error:.1e}, and {tolerance:.1e} is allowed"
        return _entry(contest, contender, status="wrong", reason=reason, **known), None, 0.0
    return _entry(contest, contender, status="timed", **known), ready, seconds


def judged(
    contest: Contest, entry: dict[str, Any], times: Mapping[str, Sequence[float]], limit: float | None
) -> dict[str, Any]:
    """What the times of a contender say."""
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
