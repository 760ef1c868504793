"""Studies: arms, questions, execution and stored runs."""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from attractor.errors import InputError, StoreError
from attractor.files import dump_json, read_json_lines, write_json_lines
from attractor.registry import find, unknown
from attractor.serialization import to_frame
from attractor.training.config import Config
from attractor.training.data import open_data
from attractor.training.dynamics import Dynamics
from attractor.training.models import attention_layer
from attractor.training.run_folder import remove_on_error
from attractor.training.studies.stacked_training import Execution, SeedRun, train_seeds

if TYPE_CHECKING:
    import pandas

Changes = dict[str, Any]
Pair = tuple[str, str]

ARM_KINDS: dict[str, Changes] = {
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
    """A comparison of arms.

    Attributes
    ----------
    base : entries of the configuration that all arms share.
    arms : names "kind/positions", in the order in which they are run.
    questions : by question the pairs (arm, reference) that are tested together.
    measure, lower : score by which runs are judged, and whether lower is better.
    """

    name: str
    base: Changes
    arms: tuple[str, ...]
    questions: dict[str, tuple[Pair, ...]] = field(default_factory=dict)
    measure: str = "bits_per_byte"
    lower: bool = True


TEXT: Changes = {
    "layers": 4,
    "dim": 256,
    "heads": 4,
    "context": 256,
    "batch": 64,
    "rate": 2e-3,
    "warmup": 100,
    "evaluations": 512,
}
IMAGES: Changes = {
    "task": "images",
    "layers": 6,
    "dim": 192,
    "heads": 3,
    "patch": 4,
    "batch": 256,
    "rate": 1e-3,
    "warmup": 100,
    "evaluations": 2048,
}


def _at(positions: str, *kinds: str) -> tuple[str, ...]:
    return tuple(f"{kind}/{positions}" for kind in kinds)


def _against(reference: str, *arms: str) -> tuple[Pair, ...]:
    return tuple((arm, reference) for arm in arms)


def _questions(main: str, other: str) -> dict[str, tuple[Pair, ...]]:
    """Return the questions of a study whose arms have ``main`` positions and, for some, ``other`` positions."""
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


def find_study(name: str) -> Study:
    """Return a study by its name."""
    return find(name, STUDIES, "study", "studies")


def arm_entries(study: Study, arm: str) -> Changes:
    """Return the entries of the configuration of an arm."""
    kind, _, positions = arm.partition("/")
    if kind not in ARM_KINDS or positions not in ("none", "absolute", "rotary"):
        raise unknown(arm, study.arms, "arm", f"arms of {study.name}")
    return {**study.base, **ARM_KINDS[kind], "positions": positions}


@dataclass(frozen=True)
class Provenance:
    """Where runs come from: command, hardware, commit of the sources, time (UTC) and version of PyTorch."""

    command: str | None = None
    hardware: str | None = None
    commit: str | None = None
    time: str | None = None
    torch: str | None = None


@dataclass(frozen=True)
class StudyRun:
    """One finished run of a study, one line of ``runs.jsonl``.

    Attributes
    ----------
    study, arm : names.
    result : scores, curve and dynamics of the seed.
    changes : entries changed for the whole study.
    config : all entries of the configuration.
    provenance : command, hardware and versions.
    """

    study: str
    arm: str
    result: SeedRun
    changes: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    provenance: Provenance = Provenance()

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.result.seed

    def is_lost(self, measure: str) -> bool:
        """Whether the measure or the loss is not finite; the accuracy of a model without finite loss is a guess."""
        scores = self.result.scores
        ends = scores.get(measure), scores.get("loss", 0.0)
        return any(end is None or not math.isfinite(end) for end in ends)

    def row(self) -> dict[str, Any]:
        """Return the line of the file, for JSON."""
        own = {"study": self.study, "arm": self.arm, "changes": self.changes, "config": self.config}
        result = dict(vars(self.result))
        scores, dynamics = result.pop("scores"), result.pop("dynamics")
        result["dynamics"] = None if dynamics is None else dynamics.row()
        return {**own, **result, **scores, **vars(self.provenance)}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> StudyRun:
        """Read a line of the file."""
        scores = {name: row[name] for name in SCORE_NAMES if name in row}
        names = {each.name for each in fields(SeedRun)} - {"scores", "dynamics", "curve"}
        known = {name: value for name, value in row.items() if name in names}
        dynamics = None if row["dynamics"] is None else Dynamics.from_row(row["dynamics"])
        curve = tuple((step, loss) for step, loss in row.get("curve", ()))
        result = SeedRun(scores=scores, dynamics=dynamics, curve=curve, **known)
        provenance = Provenance(**{each.name: row.get(each.name) for each in fields(Provenance)})
        return cls(row["study"], row["arm"], result, row.get("changes", {}), row.get("config", {}), provenance)


SCORE_NAMES = ("loss", "perplexity", "word_perplexity", "bits_per_byte", "accuracy")
REQUIRED = ("study", "arm", "seed", "parameters", "dynamics")


@dataclass(frozen=True)
class StudyResults:
    """The finished runs of a study."""

    study: Study
    runs: list[StudyRun]

    def frame(self) -> pandas.DataFrame:
        """Return a pandas DataFrame with one line per run: arm, seed, scores, sizes and times."""
        names = ("parameters", "steps", "tokens", "train_loss", "tokens_per_second", "seconds")
        return to_frame(
            {"arm": run.arm, "seed": run.seed, **run.result.scores, **{name: vars(run.result)[name] for name in names}}
            for run in self.runs
        )


def read_results(path: str | Path) -> StudyResults:
    """Read a file ``runs.jsonl`` or the folder that holds one, without a last line that was cut short."""
    place = Path(path)
    place = place / "runs.jsonl" if place.is_dir() else place
    if not place.is_file():
        raise InputError(f"{place} does not exist; give a file or a folder that attractor study has written")
    try:
        lines = place.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{place} cannot be read as text: {error}") from None
    rows = read_json_lines(place)
    if len(rows) < len(lines) - 1:
        raise StoreError(f"line {len(rows) + 1} of {place} is no JSON object; attractor study writes one a line")
    return StudyResults(_check_rows(place, rows), [StudyRun.from_row(row) for row in rows])


def _check_rows(place: Path, rows: list[Any]) -> Study:
    if not rows:
        raise StoreError(f"{place} has no finished run in it")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or any(name not in row for name in REQUIRED):
            raise StoreError(f"line {number} of {place} is no run of a study: it must have {', '.join(REQUIRED)}")
    names = sorted({row["study"] for row in rows})
    if len(names) > 1:
        raise StoreError(f"{place} has runs of several studies, {', '.join(names)}; give one file for each")
    study = find_study(names[0])
    if any(study.measure not in row for row in rows):
        raise StoreError(f"{place} has runs without {study.measure}, by which the study {study.name} is judged")
    seen = [(row["arm"], row["seed"]) for row in rows]
    if len(set(seen)) < len(seen):
        raise StoreError(f"{place} has a run twice; one line for each arm and seed is expected")
    return study


@dataclass(frozen=True)
class Plan:
    """The runs of a study to do.

    Attributes
    ----------
    study, arms, seeds : what is run, arms in order.
    changes : entries of the configuration that differ from the study's.
    execution : device, precision and compilation.
    cache : folder for tokens of text.
    workers : number of processes.
    max_seconds : no arm is started later.
    """

    study: Study
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    changes: dict[str, Any]
    execution: Execution
    cache: Path
    workers: int = 1
    max_seconds: float | None = None


@dataclass(frozen=True)
class Job:
    """The seeds of one arm that are not done yet."""

    arm: str
    config: Config
    seeds: list[int]
    execution: Execution
    cache: Path


def run_study(
    plan: Plan,
    out: str | Path,
    provenance: Provenance,
    progress: Callable[[str], None],
    warn: Callable[[str], None],
) -> tuple[int, list[str]]:
    """Run what is missing from ``out/runs.jsonl``.

    Returns the number of finished runs and the arms that failed or were not started in time. ``progress`` receives a line for
    each finished arm, ``warn`` one for each missing arm.
    """
    folder = Path(out)
    file, measure = folder / "runs.jsonl", plan.study.measure
    configs = {arm: Config(**{**arm_entries(plan.study, arm), **plan.changes}) for arm in plan.arms}
    for config in configs.values():
        attention_layer(config, 0)  # raises for bad options before a folder is created
    with remove_on_error(plan.cache, folder):
        done = _finished(folder, plan)
        jobs: list[Job] = []
        for arm, config in configs.items():
            seeds = [seed for seed in plan.seeds if (arm, seed) not in done]
            if seeds:
                jobs.append(Job(arm, config, seeds, plan.execution, plan.cache))
        if jobs:
            open_data(
                jobs[0].config, plan.cache
            )  # raises for unreadable data, and writes the tokens that workers share
    left, failed = {job.arm for job in jobs}, set[str]()
    started = time.perf_counter()
    for job, results, error in _run_jobs(jobs, plan, started):
        if results is None:
            warn(f"{job.arm}: failed, {error}")
            failed.add(job.arm)
            continue
        left.discard(job.arm)
        runs = [StudyRun(plan.study.name, job.arm, one, plan.changes, job.config.row(), provenance) for one in results]
        with file.open("a", encoding="utf-8") as target:
            target.write("".join(dump_json(run.row()) + "\n" for run in runs))
        ends = [one.scores[measure] for one in results]
        finite = [end for end in ends if end is not None and math.isfinite(end)]
        mean = f"{sum(finite) / len(finite):.4f}" if finite else "no number"
        lost = f" ({len(ends) - len(finite)} ended in no number)" if len(finite) < len(ends) else ""
        first = results[0]
        progress(
            f"{job.arm}: {len(results)} seeds{lost}, {measure} {mean}, {first.parameters} parameters, "
            f"{(first.tokens_per_second or 0) / 1e6:.2f} M tokens/s, {first.seconds:.1f} s, "
            f"at {time.perf_counter() - started:.0f} s"
        )
    for arm in plan.arms:
        if arm in left - failed:
            warn(f"{arm}: not started in time")
    return len(read_json_lines(file)), [arm for arm in plan.arms if arm in left]


def _finished(folder: Path, plan: Plan) -> set[tuple[str, int]]:
    """Return arms and seeds that are done, and remove a last line that was cut short; raise if they are of another study."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "runs.jsonl"
    rows = read_json_lines(file)
    for row in rows:
        if row["study"] != plan.study.name or row["changes"] != plan.changes:
            raise StoreError(
                f"{file} holds runs of the study {row['study']!r} with {row['changes']}, not of {plan.study.name!r} with "
                f"{plan.changes}: give another folder"
            )
    if file.exists():
        write_json_lines(file, rows)
    return {(row["arm"], row["seed"]) for row in rows}


def _run_jobs(jobs: list[Job], plan: Plan, started: float) -> Iterator[tuple[Job, list[SeedRun] | None, str]]:
    def is_late() -> bool:
        return plan.max_seconds is not None and time.perf_counter() - started > plan.max_seconds

    if plan.workers == 1:
        for job in jobs:
            if is_late():
                return
            yield job, *_run_job(job)
        return
    context = multiprocessing.get_context("spawn")
    waiting = list(jobs)
    threads = max(1, (os.cpu_count() or 1) // plan.workers)
    with ProcessPoolExecutor(
        plan.workers, mp_context=context, initializer=torch.set_num_threads, initargs=(threads,)
    ) as pool:
        running: dict[Future[tuple[list[SeedRun] | None, str]], Job] = {}
        while waiting or running:
            while waiting and len(running) < plan.workers and not is_late():
                job = waiting.pop(0)
                running[pool.submit(_run_job, job)] = job
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), *future.result()


def _run_job(job: Job) -> tuple[list[SeedRun] | None, str]:
    """Return the runs of one arm, or None and the reason: an arm that fails must not stop the others."""
    try:
        return train_seeds(job.config, job.seeds, job.execution, job.cache), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
