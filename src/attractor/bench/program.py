"""The whole benchmark: which rows there are, one after the other, and the report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
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
Keep = Callable[[dict[str, Any]], None]  # takes the report as far as it goes

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
    groups: Iterable[str],
    settings: Settings,
    watch: Watch = lambda share, text: None,
    keep: Keep = lambda report: None,
    command: str = "",
) -> dict[str, Any]:
    """Run the groups and report, in what JSON can hold; ``keep`` is given what there is after every contest."""
    groups = chosen(groups)
    contests = [contest for name in groups if name in CONTESTS for contest in CONTESTS[name](settings)]
    curves = growth.curves(settings) if "growth" in groups else []
    head = {
        "schema": SCHEMA,
        "command": command,
        "began": facts.now(),
        "settings": {"rows": list(groups), **asdict(settings)},
        "machine": facts.machine(),
        "versions": facts.versions(),
        "commit": facts.commit(),
    }
    results: list[dict[str, Any]] = []
    grown: list[dict[str, Any]] = []

    def report() -> dict[str, Any]:
        done = len(results) + len(grown) == len(contests) + len(curves)
        body = {"ceilings": limits, "contests": results, "growth": grown, "summary": summary(results)}
        return {**head, "ended": facts.now(), "finished": done, **body}

    with confined(settings.threads):
        watch(0.0, "ceilings of the machine")
        limits = ceilings.both(groups, settings, GPU)
        for number, item in enumerate([*contests, *curves]):
            tell = _teller(watch, number / (len(contests) + len(curves)), item.name)
            if isinstance(item, Contest):
                limit = ceilings.limit(limits[item.device], item.dtype, item.dim)
                results.append(hold(item, settings, limit, tell))
            else:
                grown.append(growth.measure(item, settings, tell))
            keep(report())
    return report()


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
