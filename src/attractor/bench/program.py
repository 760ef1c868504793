"""The whole benchmark: which rows there are, one after the other, and the report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from attractor.bench import (
    ceilings,
    ensembles,
    evaluation,
    facts,
    gpu,
    growth,
    merging,
    processes,
    small,
    solves,
    spectral,
)
from attractor.bench.contest import Contest
from attractor.bench.racing import hold
from attractor.bench.settings import Settings, confined
from attractor.errors import InputError

SCHEMA = "attractor.bench/1"
Watch = Callable[[float, str], None]  # share that is done, and what is being done

CONTESTS: dict[str, Callable[[Settings], list[Contest]]] = {
    "evaluation": evaluation.contests,
    "solves": solves.contests,
    "small": small.contests,
    "merging": merging.contests,
    "spectral": spectral.contests,
    "ensembles": ensembles.contests,
    "processes": processes.contests,
    "gpu": gpu.contests,
}
GROUPS = (*CONTESTS, "growth")
GPU = ("gpu",)
CPU = tuple(name for name in GROUPS if name not in GPU)


def chosen(names: Iterable[str]) -> tuple[str, ...]:
    """Groups by name, in the order of the table."""
    names = list(names)
    for name in names:
        if name not in GROUPS:
            raise InputError(f"row {name!r} is not known; the rows are {', '.join(GROUPS)}")
    if not names:
        raise InputError(f"no rows are named; the rows are {', '.join(GROUPS)}")
    return tuple(name for name in GROUPS if name in names)


def benchmark(
    groups: Iterable[str], settings: Settings, watch: Watch = lambda share, text: None, command: str = ""
) -> dict[str, Any]:
    """Run the groups and report: everything that is JSON can hold, nothing that was planned left out."""
    groups = chosen(groups)
    contests = [contest for name in groups if name in CONTESTS for contest in CONTESTS[name](settings)]
    curves = growth.curves(settings) if "growth" in groups else []
    began, before, steps, done = facts.now(), facts.machine(), len(contests) + len(curves) + 1, 0
    with confined(settings.threads):
        watch(0.0, "ceilings of the machine")
        limits = {
            "cpu": ceilings.processor(settings.threads, settings.quick) if set(groups) - set(GPU) else None,
            "cuda": ceilings.graphics() if set(groups) & set(GPU) else None,
        }
        results, grown = [], []
        for contest in contests:
            done += 1
            limit = ceilings.limit(limits[contest.device], contest.dtype, contest.dim)
            results.append(hold(contest, settings, limit, _teller(watch, done / steps, contest.name)))
        for curve in curves:
            done += 1
            tell = _teller(watch, done / steps, f"growth with {curve.variable}: {curve.name}")
            grown.append(growth.measure(curve, settings, tell))
    return {
        "schema": SCHEMA,
        "command": command,
        "began": began,
        "ended": facts.now(),
        "settings": {"rows": list(groups), **settings.__dict__},
        "machine": before,
        "versions": facts.versions(),
        "commit": facts.commit(),
        "ceilings": limits,
        "contests": results,
        "growth": grown,
        "summary": summary(results),
    }


def _teller(watch: Watch, share: float, name: str) -> Callable[[str], None]:
    return lambda text: watch(share, f"{name}: {text}")


def summary(results: list[dict[str, Any]]) -> dict[str, int]:
    """How many targets were met and missed, and how many contenders are out."""
    entries = [entry for result in results for entry in result["contenders"]]
    counted = {"met": sum(entry["met"] is True for entry in entries), "missed": sum(map(missed, entries))}
    return counted | {
        status: sum(entry["status"] == status for entry in entries) for status in ("skipped", "wrong", "failed")
    }


def missed(entry: dict[str, Any]) -> bool:
    """A target that was measured and not met; an answer of ours that is wrong, or did not come, is one too."""
    return entry["met"] is False or (entry["ours"] and entry["status"] in ("wrong", "failed"))
