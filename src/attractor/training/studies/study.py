"""Studies: arms, plan, execution and stored results."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attractor.errors import InputError, StoreError
from attractor.files import dump_json, read_json_lines, write_json_lines
from attractor.registry import find, unknown
from attractor.training.config import Config
from attractor.training.data import open_data
from attractor.training.models import attention_layer
from attractor.training.run_folder import summary, unmade
from attractor.training.studies.fleet_training import Way, train_fleet

Changes = dict[str, Any]
Pair = tuple[str, str]

KINDS: dict[str, Changes] = {
    "plain": {},
    "convergent": {"attention": "convergent", "equal": True},
    "intermediate": {"attention": "intermediate", "equal": True},
    "divergent": {"attention": "divergent", "equal": True},
    "relaxed": {"attention": "convergent", "relaxed": True, "equal": True},
    "slice+": {"refinement": "slice", "sign": "+"},
    "slice-": {"refinement": "slice", "sign": "-"},
    "slice-free": {"refinement": "slice", "sign": "free"},
    "shift": {"refinement": "shift", "sign": "free"},
    "shift+": {"refinement": "shift", "sign": "+"},
    "shift-": {"refinement": "shift", "sign": "-"},
    "diagonal": {"attention": "intermediate", "metric": "diagonal", "equal": True},
    "lambda-A": {"attention": "intermediate", "metric": "diagonal", "equal": True, "refinement": "metric"},
    "spectral": {"spectral": True},
    "temperature": {"temperature": "learned"},
    "cold": {"temperature": 0.5},
    "gain": {"gain": "learned"},
    "gain-half": {"gain": 0.5},
    "post": {"placement": "post"},
    "peri": {"placement": "peri"},
    "channels": {"attention": "intermediate", "signs": "channels", "equal": True},
    "scattered-convergent": {"attention": "convergent", "signs": "scattered", "equal": True},
    "scattered-intermediate": {"attention": "intermediate", "signs": "scattered", "equal": True},
    "bare-plain": {"placement": "none"},
    "bare-convergent": {"attention": "convergent", "placement": "none", "equal": True},
    "bare-intermediate": {"attention": "intermediate", "placement": "none", "equal": True},
    "bare-divergent": {"attention": "divergent", "placement": "none", "equal": True},
}
REGIMES = ("convergent", "intermediate", "divergent")
SLICES = ("slice+", "slice-", "slice-free", "shift")
ALTERNATIVES = ("spectral", "temperature", "gain", "post", "peri")


@dataclass(frozen=True)
class Study:
    """A base, arms in the order in which they are run, and by question the pairs (arm, reference) that are tested together."""

    name: str
    base: Changes
    arms: tuple[str, ...]
    questions: dict[str, tuple[Pair, ...]] = field(default_factory=dict)
    measure: str = "bits_per_byte"
    lower: bool = True


TEXT: Changes = {"layers": 4, "dim": 256, "heads": 4, "context": 256, "batch": 64, "rate": 2e-3, "warmup": 100}
IMAGES: Changes = {
    "task": "images",
    "layers": 6,
    "dim": 192,
    "heads": 3,
    "patch": 4,
    "batch": 256,
    "rate": 1e-3,
    "warmup": 100,
}


def _at(positions: str, *kinds: str) -> tuple[str, ...]:
    return tuple(f"{kind}/{positions}" for kind in kinds)


def _against(reference: str, *arms: str) -> tuple[Pair, ...]:
    return tuple((arm, reference) for arm in arms)


def _questions(main: str, other: str) -> dict[str, tuple[Pair, ...]]:
    """The questions of a study whose arms stand at ``main`` and, for some, at ``other`` positions."""
    return {
        "regimes": (
            *_against(f"plain/{main}", *_at(main, *REGIMES)),
            (f"convergent/{main}", f"divergent/{main}"),
            (f"intermediate/{main}", f"divergent/{main}"),
        ),
        "positions": (
            ("plain/rotary", "plain/absolute"),
            ("plain/none", "plain/absolute"),
            ("plain/none", "plain/rotary"),
        ),
        "refinements": (
            *_against(f"plain/{main}", *_at(main, *SLICES)),
            *_against(f"plain/{other}", *_at(other, *SLICES)),
            (f"lambda-A/{main}", f"diagonal/{main}"),
            (f"lambda-A/{other}", f"diagonal/{other}"),
        ),
        "alternatives": _against(f"plain/{main}", *_at(main, *ALTERNATIVES)),
        "control": (
            (f"channels/{main}", f"intermediate/{main}"),
            (f"scattered-intermediate/{main}", f"intermediate/{main}"),
            (f"scattered-convergent/{main}", f"convergent/{main}"),
        ),
    }


CONTROLS = ("channels", "scattered-intermediate", "scattered-convergent")
EVERY = (
    *_at("rotary", "plain", *REGIMES),
    *_at("absolute", "plain"),
    *_at("none", "plain"),
    *_at("rotary", *SLICES),
    *_at("rotary", *CONTROLS),
    *_at("rotary", *ALTERNATIVES),
    *_at("absolute", *SLICES),
    *_at("rotary", "diagonal", "lambda-A"),
    *_at("absolute", "diagonal", "lambda-A"),
)
BARE = _at("rotary", "bare-plain", *(f"bare-{regime}" for regime in REGIMES))
STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        Study(
            "bytes",
            {**TEXT, "steps": 1000, "evaluate": 125},
            (*EVERY, *_at("absolute", *REGIMES), *_at("none", *REGIMES), *BARE),
            {
                **_questions("rotary", "absolute"),
                "regimes with other positions": (
                    *_against("plain/absolute", *_at("absolute", *REGIMES)),
                    *_against("plain/none", *_at("none", *REGIMES)),
                ),
                "regimes without norms": _against("bare-plain/rotary", *BARE[1:]),
            },
        ),
        Study(
            "bpe",
            {**TEXT, "tokens": "bpe", "vocabulary": 4096, "steps": 600, "evaluate": 100},
            EVERY,
            _questions("rotary", "absolute"),
        ),
        Study(
            "vision",
            {**IMAGES, "steps": 1500, "evaluate": 250},
            tuple(name.replace("rotary", "?").replace("absolute", "rotary").replace("?", "absolute") for name in EVERY),
            _questions("absolute", "rotary"),
            measure="accuracy",
            lower=False,
        ),
    )
}


def study_named(name: str) -> Study:
    """A study by its name."""
    return find(name, STUDIES, "study", "studies")


def changes_of(study: Study, arm: str) -> Changes:
    """The entries of the configuration of an arm."""
    kind, _, positions = arm.partition("/")
    if kind not in KINDS or positions not in ("none", "absolute", "rotary"):
        raise unknown(arm, study.arms, "arm", f"arms of {study.name}")
    return {**study.base, **KINDS[kind], "positions": positions}


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
        return read_json_lines(self.file)

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
            write_json_lines(self.file, rows)
        return {(row["arm"], row["seed"]) for row in rows}

    def add(self, rows: list[Row]) -> None:
        """Append finished runs."""
        with self.file.open("a", encoding="utf-8") as file:
            file.write("".join(dump_json(row) + "\n" for row in rows))


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


ResultRow = dict[str, Any]
NEEDED = ("study", "arm", "seed", "parameters", "dynamics")


def read_results(path: str | Path) -> tuple[Study, list[ResultRow]]:
    """The study and the runs of a file ``runs.jsonl`` or of the folder that has one; a line that was cut short at the end is left out."""
    place = Path(path)
    place = place / "runs.jsonl" if place.is_dir() else place
    if not place.is_file():
        raise InputError(f"{place} does not exist; give a file or a folder that attractor study has written")
    try:
        lines = place.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{place} cannot be read as text: {error}") from None
    rows: list[ResultRow] = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except ValueError:
            if number == len(lines):
                break
            raise StoreError(f"line {number} of {place} is no JSON object; attractor study writes one a line") from None
    return _checked(place, rows), rows


def _checked(place: Path, rows: list[ResultRow]) -> Study:
    if not rows:
        raise StoreError(f"{place} has no finished run in it")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or any(name not in row for name in NEEDED):
            raise StoreError(f"line {number} of {place} is no run of a study: it must have {', '.join(NEEDED)}")
    names = sorted({row["study"] for row in rows})
    if len(names) > 1:
        raise StoreError(f"{place} has runs of several studies, {', '.join(names)}; give one file for each")
    study = study_named(names[0])
    if any(study.measure not in row for row in rows):
        raise StoreError(f"{place} has runs without {study.measure}, by which the study {study.name} is judged")
    seen = [(row["arm"], row["seed"]) for row in rows]
    if len(set(seen)) < len(seen):
        raise StoreError(f"{place} has a run twice; one line for each arm and seed is expected")
    return study


def dynamics_table(study: Study, rows: Sequence[ResultRow]) -> list[ResultRow]:
    """For every arm: log growth of norms from the embedding and from the first block to the end, cosine at the end, each with its interval
    over seeds; the range of growth over layers and seeds, and in how many layers it is negative."""
    found = []
    for arm in study.arms:
        traces = [row["dynamics"] for row in rows if row["arm"] == arm and row["dynamics"] is not None]
        if not traces:
            continue
        growth = [value for trace in traces for value in trace["growth"] if value is not None]
        measures = {
            "norm": summary([math.log(trace["norm"][-1] / trace["norm"][0]) for trace in traces]),
            "later_norm": summary([math.log(trace["norm"][-1] / trace["norm"][1]) for trace in traces]),
            "cosine": summary([trace["cosine"][-1] for trace in traces]),
        }
        counted = {
            "layers": len(growth),
            "negative": sum(math.copysign(1.0, value) < 0 for value in growth),
        }  # also -0.0, rounded
        ends = {"growth_low": min(growth, default=None), "growth_high": max(growth, default=None)}
        found.append({"arm": arm, **measures, **counted, **ends})
    return found


def depth_curves(rows: Sequence[ResultRow], arm: str) -> dict[str, list[float]]:
    """Means over seeds of what was traced along depth."""
    traces = [row["dynamics"] for row in rows if row["arm"] == arm and row["dynamics"] is not None]
    names = ("norm", "distance", "cosine", "growth")
    return {
        name: [float(value) for value in np.mean([trace[name] for trace in traces], axis=0, dtype=float)]
        for name in names
    }
