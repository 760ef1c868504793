"""Running a study: every arm with every seed, a line of ``runs.jsonl`` for each finished run, and on after a kill.

Seeds of an arm are one fleet. Arms go to worker processes, so that one compiles or evaluates while another keeps the GPU busy.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attractor.errors import StoreError
from attractor.experiments.studies.arms import Study, changes_of
from attractor.experiments.studies.running import Way, train_fleet
from attractor.experiments.training.attention import attention_layer
from attractor.experiments.training.config import Config
from attractor.experiments.training.data import open_data
from attractor.experiments.training.folder import unmade

Row = dict[str, Any]
Job = tuple[str, Config, list[int], Way, Path]


@dataclass(frozen=True)
class Plan:
    """Which runs of a study: arms in order, seeds, changes of the base, a folder for what is made
    of data once, and how many processes share the work."""

    study: Study
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    changes: dict[str, Any]
    way: Way
    kept: Path
    workers: int = 1
    max_seconds: float | None = None


class Results:
    """The file of finished runs; a last line that a kill cut short is forgotten."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.file = self.folder / "runs.jsonl"

    def rows(self) -> list[Row]:
        """Finished runs."""
        found: list[Row] = []
        if not self.file.exists():
            return found
        for line in self.file.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                break
        return found

    def open(self, study: Study, changes: dict[str, Any]) -> set[tuple[str, int]]:
        """Arms and seeds that are there already; what is there must be of the same study."""
        self.folder.mkdir(parents=True, exist_ok=True)
        rows = self.rows()
        for row in rows:
            if row["study"] != study.name or row["changes"] != changes:
                raise StoreError(
                    f"{self.file} holds runs of the study {row['study']!r} with {row['changes']}, not of {study.name!r} with "
                    f"{changes}: give another folder"
                )
        if rows or self.file.exists():
            self.file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return {(row["arm"], row["seed"]) for row in rows}

    def add(self, rows: list[Row]) -> None:
        """Append finished runs."""
        with self.file.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(_finite(row), allow_nan=False) + "\n" for row in rows))


def _finite(value: Any) -> Any:
    """The same with None for numbers that are not finite, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def run_study(
    plan: Plan, out: str | Path, facts: Row, say: Callable[[str], None], complain: Callable[[str], None]
) -> tuple[int, list[str]]:
    """Run what is missing; how many runs there are now, and the arms that failed or were not begun in time, which are complained about."""
    results = Results(out)
    configs = {arm: Config(**{**changes_of(plan.study, arm), **plan.changes}) for arm in plan.arms}
    for config in configs.values():
        attention_layer(config, 0)  # options that a layer refuses are said before anything is made
    with unmade(plan.kept, results.folder):
        done = results.open(plan.study, plan.changes)
        jobs: list[Job] = []
        for arm, config in configs.items():
            seeds = [seed for seed in plan.seeds if (arm, seed) not in done]
            if seeds:
                jobs.append((arm, config, seeds, plan.way, plan.kept))
        if jobs:
            open_data(jobs[0][1], plan.kept)  # once for all: data that no arm could read, and tokens that workers share
    left, failed = {job[0] for job in jobs}, set[str]()
    started = time.perf_counter()
    for (arm, config, *_), rows, error in _carried_out(jobs, plan, started):
        if rows is None:
            complain(f"{arm}: failed, {error}")
            failed.add(arm)
            continue
        left.discard(arm)
        own = {"study": plan.study.name, "arm": arm, "changes": plan.changes, "config": config.row()}
        results.add([{**own, **row, **facts} for row in rows])
        ended = [row[plan.study.measure] for row in rows if math.isfinite(row[plan.study.measure])]
        mean = f"{sum(ended) / len(ended):.4f}" if ended else "no number"
        lost = f" ({len(rows) - len(ended)} ended in no number)" if len(ended) < len(rows) else ""
        first = rows[0]
        say(
            f"{arm}: {len(rows)} seeds{lost}, {plan.study.measure} {mean}, {first['parameters']} parameters, "
            f"{(first['tokens_per_second'] or 0) / 1e6:.2f} M tokens/s, {first['seconds']:.1f} s, at {time.perf_counter() - started:.0f} s"
        )
    for arm in plan.arms:
        if arm in left - failed:
            complain(f"{arm}: not begun in time")
    return len(results.rows()), [arm for arm in plan.arms if arm in left]


def _carried_out(jobs: list[Job], plan: Plan, started: float) -> Iterator[tuple[Job, list[Row] | None, str]]:
    def late() -> bool:
        return plan.max_seconds is not None and time.perf_counter() - started > plan.max_seconds

    if plan.workers == 1:
        for job in jobs:
            if late():
                return
            yield job, *_attempt(job)
        return
    context = multiprocessing.get_context("spawn")
    waiting = list(jobs)
    threads = max(1, (os.cpu_count() or 1) // plan.workers)
    with ProcessPoolExecutor(
        plan.workers, mp_context=context, initializer=torch.set_num_threads, initargs=(threads,)
    ) as pool:
        running: dict[Future[tuple[list[Row] | None, str]], Job] = {}
        while waiting or running:
            while waiting and len(running) < plan.workers and not late():
                job = waiting.pop(0)
                running[pool.submit(_attempt, job)] = job
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), *future.result()


def _attempt(job: Job) -> tuple[list[Row] | None, str]:
    """The rows of one arm, or why there are none: an arm that fails must not end the others."""
    _, config, seeds, way, kept = job
    try:
        return train_fleet(config, seeds, way, kept), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
