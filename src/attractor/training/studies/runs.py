"""Runs of a study: what is to be trained, the stored results, and the choice of the learning rate."""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from attractor.errors import InputError, StoreError
from attractor.files import dump_json, read_json_lines, write_json_lines, write_text
from attractor.serialization import to_frame
from attractor.training.config import Config
from attractor.training.data import open_data
from attractor.training.dynamics import Dynamics
from attractor.training.models import attention_layer
from attractor.training.run_folder import remove_on_error
from attractor.training.studies.stacked_training import Execution, SeedRun, alike, train_models
from attractor.training.studies.study import Study, arm_entries, find_study, read_study

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Provenance:
    """Where runs come from: command, hardware, commit of the sources, time (UTC) and version of PyTorch."""

    command: str | None = None
    hardware: str | None = None
    commit: str | None = None
    time: str | None = None
    torch: str | None = None


RunKey = tuple[str, str, bool, float, int]  # data set, arm, tuning, rate, seed


@dataclass(frozen=True)
class StudyRun:
    """One finished run of a study, one line of ``runs.jsonl``.

    Attributes
    ----------
    study, arm, data_set : names; the data set is empty where a study has one.
    result : scores, curve and dynamics of the seed.
    tuning : whether the run serves to choose the rate.
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
    data_set: str = ""
    tuning: bool = False

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.result.seed

    @property
    def rate(self) -> float:
        """Learning rate of the run; runs of attractor 0.2 have it in their configuration only."""
        own = self.result.rate
        return float(self.config.get("rate", Config.rate) if own is None else own)

    @property
    def key(self) -> RunKey:
        """What tells the runs of a study apart."""
        return self.data_set, self.arm, self.tuning, self.rate, self.seed

    def is_lost(self, measure: str) -> bool:
        """Whether the measure or the loss is not finite; the accuracy of a model without finite loss is a guess."""
        scores = self.result.scores
        ends = scores.get(measure), scores.get("loss", 0.0)
        return any(end is None or not math.isfinite(end) for end in ends)

    def row(self) -> dict[str, Any]:
        """Return the line of the file, for JSON."""
        own = {"study": self.study, "arm": self.arm, "changes": self.changes, "config": self.config}
        own |= {"data_set": self.data_set, "tuning": self.tuning}
        result = dict(vars(self.result))
        scores, dynamics = result.pop("scores"), result.pop("dynamics")
        result["dynamics"] = None if dynamics is None else dynamics.row()
        return {**own, **result, **scores, **vars(self.provenance)}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> StudyRun:
        """Read a line of the file."""
        scores = {name: row[name] for name in SCORE_NAMES if name in row}
        names = {each.name for each in fields(SeedRun)} - {"scores", "dynamics", "curve", "scores_curve"}
        known = {name: value for name, value in row.items() if name in names}
        dynamics = None if row["dynamics"] is None else Dynamics.from_row(row["dynamics"])
        curves = {name: tuple((step, value) for step, value in row.get(name, ())) for name in ("curve", "scores_curve")}
        result = SeedRun(scores=scores, dynamics=dynamics, **curves, **known)
        provenance = Provenance(**{each.name: row.get(each.name) for each in fields(Provenance)})
        where: dict[str, Any] = {"data_set": row.get("data_set", ""), "tuning": row.get("tuning", False)}
        return cls(row["study"], row["arm"], result, row.get("changes", {}), row.get("config", {}), provenance, **where)


SCORE_NAMES = ("loss", "perplexity", "word_perplexity", "bits_per_byte", "accuracy")
REQUIRED = ("study", "arm", "seed", "parameters", "dynamics")


@dataclass(frozen=True)
class ArmRates:
    """The learning rates of an arm on a data set.

    Attributes
    ----------
    means : mean measure at each rate, None where a run ended without a number.
    best : rate with the best mean, None if every rate lost a run.
    tuned : whether the rate was chosen by runs of its own, with seeds that are not compared; otherwise the compared runs chose it,
        which favours arms whose results scatter.
    at_edge : whether the best rate is the smallest or largest of several, so that the best one may lie outside the grid.
    """

    arm: str
    data_set: str
    means: dict[float, float | None]
    best: float | None
    tuned: bool
    at_edge: bool

    def row(self) -> dict[str, Any]:
        """Return the fields, for JSON."""
        return {**vars(self), "means": [list(pair) for pair in self.means.items()]}


@dataclass(frozen=True)
class StudyResults:
    """The finished runs of a study."""

    study: Study
    runs: list[StudyRun]

    @property
    def data_sets(self) -> list[str]:
        """Names of the data sets that have runs, in the order of the study."""
        there = dict.fromkeys(run.data_set for run in self.runs)
        return [*(name for name in self.study.data_sets if name in there), *there.keys() - self.study.data_sets.keys()]

    @property
    def arms(self) -> list[str]:
        """Names of the arms that have runs: those of the study in its order, then others."""
        there = dict.fromkeys(run.arm for run in self.runs)
        return [
            *(arm for arm in self.study.arms if arm in there),
            *(arm for arm in there if arm not in self.study.arms),
        ]

    def rates(self, data_set: str = "") -> dict[str, ArmRates]:
        """Return the rates of every arm on a data set."""
        return {arm: choose_rate(self.study, self.runs, arm, data_set) for arm in self.arms}

    def at(self, rate: str = "best", data_set: str = "") -> list[StudyRun]:
        """Return the runs that are compared: with the best rate of each arm, or all with the "common" one."""
        chosen = self.rates(data_set)
        runs = [run for run in self.runs if run.data_set == data_set and not run.tuning]
        if rate == "best":
            return [run for run in runs if run.rate == chosen[run.arm].best or len(chosen[run.arm].means) == 1]
        common = self.study.common_rate
        if common is None:
            rates = {run.rate for run in runs}
            if len(rates) > 1:
                raise InputError(f"the study {self.study.name} has several rates and no common_rate")
            return runs
        return [run for run in runs if run.rate == common]

    def frame(self) -> pandas.DataFrame:
        """Return a pandas DataFrame with one line per run: arm, rate, seed, scores, sizes and times."""
        names = ("parameters", "steps", "tokens", "train_loss", "tokens_per_second", "seconds")
        return to_frame(
            {
                "data_set": run.data_set,
                "arm": run.arm,
                "tuning": run.tuning,
                "rate": run.rate,
                "seed": run.seed,
                **run.result.scores,
                **{name: vars(run.result)[name] for name in names},
            }
            for run in self.runs
        )


def choose_rate(study: Study, runs: Sequence[StudyRun], arm: str, data_set: str) -> ArmRates:
    """Return the means of an arm at every rate and the best rate: of the tuning runs if there are any."""
    own = [run for run in runs if (run.arm, run.data_set) == (arm, data_set)]
    tuned = any(run.tuning for run in own)
    found: dict[float, list[StudyRun]] = {}
    for run in own:
        if run.tuning == tuned:
            found.setdefault(run.rate, []).append(run)
    means: dict[float, float | None] = {}
    for rate, group in sorted(found.items()):
        values = [run.result.scores[study.measure] for run in group if not run.is_lost(study.measure)]
        means[rate] = sum(map(float, values)) / len(values) if len(values) == len(group) else None  # type: ignore[arg-type]
    finite = {rate: mean for rate, mean in means.items() if mean is not None}
    best = min(finite, key=lambda rate: finite[rate] if study.lower else -finite[rate]) if finite else None
    at_edge = best is not None and len(means) > 1 and best in (min(means), max(means))
    return ArmRates(arm, data_set, means, best, tuned, at_edge)


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
    study = _check_rows(place, rows)
    runs = [StudyRun.from_row(row) for row in rows]
    if len({run.key for run in runs}) < len(runs):
        raise StoreError(f"{place} has a run twice; one line for each data set, arm, rate and seed is expected")
    return StudyResults(study, runs)


def _check_rows(place: Path, rows: list[Any]) -> Study:
    if not rows:
        raise StoreError(f"{place} has no finished run in it")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or any(name not in row for name in REQUIRED):
            raise StoreError(f"line {number} of {place} is no run of a study: it must have {', '.join(REQUIRED)}")
    names = sorted({row["study"] for row in rows})
    if len(names) > 1:
        raise StoreError(f"{place} has runs of several studies, {', '.join(names)}; give one file for each")
    own = place.parent / DEFINITION
    study = read_study(own) if own.is_file() else find_study(names[0])
    if any(study.measure not in row for row in rows):
        raise StoreError(f"{place} has runs without {study.measure}, by which the study {study.name} is judged")
    return study


DEFINITION = "study.toml"  # the study of a folder, if it was read from a file


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
    together : largest number of models that are trained at once.
    """

    study: Study
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    changes: dict[str, Any]
    execution: Execution
    cache: Path
    workers: int = 1
    max_seconds: float | None = None
    together: int = 64

    def config(self, arm: str, data_set: str) -> Config:
        """Return the configuration of an arm; raise if it does not say what to read."""
        entries = {**arm_entries(self.study, arm, data_set), **self.changes}
        if "data" not in entries:
            raise InputError(f"the study {self.study.name} does not say what to read: give --data")
        return Config(**entries)

    def jobs(self, runs: Sequence[StudyRun]) -> tuple[list[Job], list[str]]:
        """Return what can be trained now, given the runs that are done, and the arms that have no rate.

        The best rate of an arm is known when its tuning runs are done. Runs at the common rate come last. Arms that are ``alike``
        are trained together.
        """
        done, without = {run.key for run in runs}, []
        found: tuple[list[list[ModelRun]], list[list[ModelRun]]] = [], []
        for data_set in self.study.data_sets or ("",):
            for arm in self.arms:
                wanted = self._missing(arm, data_set, runs, done)
                if wanted is None:
                    without.append(_label(arm, data_set))
                    continue
                for groups, models in zip(found, wanted, strict=True):
                    self._group(groups, models)
        every = [Job(tuple(models), self.execution, self.cache) for groups in found for models in groups]
        return every, without

    def _group(self, groups: list[list[ModelRun]], models: list[ModelRun]) -> None:
        """Add models to the groups of those that match."""
        for model in models:
            for group in groups:
                if group[0].matches(model) and len(group) < self.together:
                    group.append(model)
                    break
            else:
                groups.append([model])

    def _missing(
        self, arm: str, data_set: str, runs: Sequence[StudyRun], done: set[RunKey]
    ) -> tuple[list[ModelRun], list[ModelRun]] | None:
        """Return the next runs of an arm, and those at the common rate only; None if every rate diverged."""
        study, tuning, config = self.study, self.study.tuning, self.config(arm, data_set)
        rates = study.rates or (config.rate,)

        def left(tuned: bool, config: Config, rates: Sequence[float], seeds: Sequence[int]) -> list[ModelRun]:
            every = [replace(config, rate=rate, seed=seed) for rate in rates for seed in seeds]
            made = [ModelRun(arm, data_set, tuned, one) for one in every]
            return [model for model in made if model.key not in done]

        if tuning is None:
            return left(False, config, rates, self.seeds), []
        short = config if tuning.steps is None else _shorten(config, tuning.steps)
        first = left(True, short, rates, tuning.seeds)
        if first:
            return first, []
        best = choose_rate(study, runs, arm, data_set).best
        if best is None:
            return None
        common = [] if study.common_rate in (None, best) else [study.common_rate]
        return left(False, config, [best], self.seeds), left(False, config, common, self.seeds)


def _shorten(config: Config, steps: int) -> Config:
    return replace(config, steps=steps, evaluate=min(config.evaluate, steps), warmup=min(config.warmup, steps // 4))


def _label(arm: str, data_set: str) -> str:
    return f"{arm} on {data_set}" if data_set else arm


@dataclass(frozen=True)
class ModelRun:
    """One model to train."""

    arm: str
    data_set: str
    tuning: bool
    config: Config

    @property
    def key(self) -> RunKey:
        """Key of the run that it becomes."""
        return self.data_set, self.arm, self.tuning, self.config.rate, self.config.seed

    def matches(self, other: ModelRun) -> bool:
        """Whether both can be trained at once."""
        same = (self.data_set, self.tuning) == (other.data_set, other.tuning)
        return same and alike(self.config, other.config)


@dataclass(frozen=True)
class Job:
    """Models that are trained at once."""

    models: tuple[ModelRun, ...]
    execution: Execution
    cache: Path

    @property
    def arms(self) -> list[str]:
        """Labels of the arms."""
        return list(dict.fromkeys(_label(model.arm, model.data_set) for model in self.models))

    @property
    def label(self) -> str:
        """Name for messages."""
        return ", ".join(self.arms) + (" (choice of the rate)" if self.models[0].tuning else "")


def run_study(
    plan: Plan,
    out: str | Path,
    provenance: Provenance,
    progress: Callable[[str], None],
    warn: Callable[[str], None],
) -> tuple[int, list[str]]:
    """Run what is missing from ``out/runs.jsonl``.

    Returns the number of finished runs and the arms that failed, diverged at every rate or were not finished in time. ``progress``
    receives a line for each finished arm, ``warn`` one for each missing arm.
    """
    folder = Path(out)
    file = folder / "runs.jsonl"
    pairs = [(arm, data_set) for arm in plan.arms for data_set in plan.study.data_sets or ("",)]
    configs = {pair: plan.config(*pair) for pair in pairs}
    for config in configs.values():
        attention_layer(config, 0)  # raises for bad options before a folder is created
    with remove_on_error(plan.cache, folder):
        runs = _finished(folder, plan)
        if plan.jobs(runs)[0]:
            # raises for unreadable data, and writes the tokens that workers share
            shared = {(config.data, config.tokens, config.task): config for config in configs.values()}
            for config in shared.values():
                open_data(config, plan.cache)
    failed: dict[str, str] = {}
    started = time.perf_counter()
    for job, results, error in _run_jobs(plan, runs, started):
        if results is None:
            for label in job.arms:
                failed.setdefault(label, error)
                warn(f"{label}: failed, {error}")
            continue
        made = [
            StudyRun(
                plan.study.name,
                model.arm,
                one,
                plan.changes,
                model.config.row(),
                provenance,
                model.data_set,
                model.tuning,
            )
            for one, model in zip(results, job.models, strict=True)
        ]
        runs += made
        with file.open("a", encoding="utf-8") as target:
            target.write("".join(dump_json(run.row()) + "\n" for run in made))
        progress(_line(job, made, plan.study.measure, time.perf_counter() - started))
    left, without = plan.jobs(runs)
    missing = {label for job in left for label in job.arms} | {*without}
    labels = [label for label in (_label(*pair) for pair in pairs) if label in missing]
    for label in labels:
        if label in failed:
            continue
        warn(
            f"{label}: every rate of the grid diverged, so no rate can be chosen"
            if label in without
            else f"{label}: not started in time"
        )
    return len(runs), labels


def _line(job: Job, runs: list[StudyRun], measure: str, seconds: float) -> str:
    """Return the line of progress for a finished job."""
    kept = [float(run.result.scores[measure] or 0.0) for run in runs if not run.is_lost(measure)]
    mean = f"{sum(kept) / len(kept):.4f}" if kept else "no number"
    lost = f" ({len(runs) - len(kept)} ended in no number)" if len(kept) < len(runs) else ""
    first, rates = runs[0].result, len({run.rate for run in runs})
    models = f"{len(runs)} runs" + (f" at {rates} rates" if rates > 1 else "")
    return (
        f"{job.label}: {models}{lost}, {measure} {mean}, {first.parameters} parameters, "
        f"{(first.tokens_per_second or 0) / 1e6:.2f} M tokens/s, {first.seconds or 0.0:.1f} s, at {seconds:.0f} s"
    )


def _finished(folder: Path, plan: Plan) -> list[StudyRun]:
    """Return the runs that are done, and remove a last line that was cut short; raise if they are of another study."""
    folder.mkdir(parents=True, exist_ok=True)
    file, own = folder / "runs.jsonl", folder / DEFINITION
    rows = read_json_lines(file)
    for row in rows:
        if row["study"] != plan.study.name or row["changes"] != plan.changes:
            raise StoreError(
                f"{file} holds runs of the study {row['study']!r} with {row['changes']}, not of {plan.study.name!r} with "
                f"{plan.changes}: give another folder"
            )
    if rows and own.exists() and own.read_text(encoding="utf-8") != plan.study.text:
        raise StoreError(f"{file} holds runs of another version of the study, which is in {own}: give another folder")
    if plan.study.text is not None:
        write_text(own, plan.study.text)
    if file.exists():
        write_json_lines(file, rows)
    return [StudyRun.from_row(row) for row in rows]


def _run_jobs(plan: Plan, runs: list[StudyRun], started: float) -> Iterator[tuple[Job, list[SeedRun] | None, str]]:
    """Yield what every job gives; ``runs`` grows between, and may make further jobs possible."""
    begun: set[RunKey] = set()

    def waiting() -> list[Job]:
        if plan.max_seconds is not None and time.perf_counter() - started > plan.max_seconds:
            return []
        return [job for job in plan.jobs(runs)[0] if not begun.intersection(model.key for model in job.models)]

    if plan.workers == 1:
        while jobs := waiting():
            begun.update(model.key for model in jobs[0].models)
            yield jobs[0], *_run_job(jobs[0])
        return
    context = multiprocessing.get_context("spawn")
    threads = max(1, (os.cpu_count() or 1) // plan.workers)
    with ProcessPoolExecutor(
        plan.workers, mp_context=context, initializer=torch.set_num_threads, initargs=(threads,)
    ) as pool:
        running: dict[Future[tuple[list[SeedRun] | None, str]], Job] = {}
        while True:
            for job in waiting()[: plan.workers - len(running)]:
                begun.update(model.key for model in job.models)
                running[pool.submit(_run_job, job)] = job
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), *future.result()


def _run_job(job: Job) -> tuple[list[SeedRun] | None, str]:
    """Return the runs of one arm, or None and the reason: an arm that fails must not stop the others."""
    try:
        configs = [model.config for model in job.models]
        return train_models(configs, job.execution, job.cache, traced=not job.models[0].tuning), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    finally:
        if job.execution.device == "cuda":  # other processes share its memory
            gc.collect()
            torch.cuda.empty_cache()
