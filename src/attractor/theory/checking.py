"""``check``: theorems on random instances, with and without each hypothesis."""

from __future__ import annotations

import math
import time as clock
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.solvers import Event, Trajectory
from attractor.states import Tokens
from attractor.theory.conditions import Verdict
from attractor.theory.theorem import Case, Measurement, Sampler, Theorem, list_theorems
from attractor.theory.theorem import find_theorem as theorem_named

FAR = 300.0


def _room(tokens: Tokens, time: float) -> float:
    return FAR - float(tokens.points.norm(dim=-1).max())


# Far out every softmax is a switch and an accurate step is tiny: for tokens that run away, this is far enough.
RUNAWAY = {"events": (Event(_room, "far away"),)}


def alive(run: Trajectory) -> slice:
    """The saved times before the run ended; later rows repeat its last state."""
    return slice(0, int((run.times <= run.outcome.time * (1 + 1e-12)).sum()))


def smallest_increase(values: Tensor, scale: Tensor | float = 1.0) -> float:
    """Smallest increment along the first axis (time), relative to the scale at the later time; 0 where there is none."""
    steps = values[1:] - values[:-1]
    if steps.numel() == 0:
        return 0.0
    sizes = torch.as_tensor(scale, dtype=values.dtype)
    return float((steps / (sizes[1:] if sizes.ndim else sizes).clamp_min(1e-300)).min())


def largest_norms(run: Trajectory) -> Tensor:
    """Norm of the longest token at each saved time before the end, (S,)."""
    return run.points[alive(run)].norm(dim=-1).amax(-1)


def power(times: Tensor, values: Tensor, share: float = 0.1) -> float:
    """Exponent p of values ~ t^p, fitted where t is above ``share`` of the last time."""
    late = times >= share * times[-1]
    return float(np.polyfit(times[late].log().numpy(), values[late].clamp_min(1e-300).log().numpy(), 1)[0])


def exponential(times: Tensor, values: Tensor, share: float = 0.5) -> float:
    """Rate r of values ~ e^{rt}, fitted where t is above ``share`` of the last time."""
    late = times >= share * times[-1]
    return float(np.polyfit(times[late].numpy(), values[late].clamp_min(1e-300).log().numpy(), 1)[0])


def decades(horizon: float, count: int = 60, first: float = 1e-3) -> list[float]:
    """Save times that resolve every decade: 0 and a geometric grid."""
    return [0.0, *np.geomspace(first * horizon, horizon, count).tolist()]


DRAWS = 200  # how often a sampler may miss before it counts as wrong
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Sharpness:
    """What became of the conclusions where one hypothesis was violated: in how many instances all held, and each."""

    hypothesis: str
    instances: int
    held: int
    conclusions: dict[str, int]


@dataclass(frozen=True)
class Checked:
    """One theorem on random instances; ``worst`` is the smallest margin of any conclusion, ``instance`` where it was."""

    key: str
    title: str
    status: str
    instances: int
    violations: int
    worst: float
    conclusion: str
    instance: int
    sharpness: tuple[Sharpness, ...]
    seconds: float

    def row(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**asdict(self), "worst": self.worst if math.isfinite(self.worst) else None}


@dataclass(frozen=True, repr=False)
class Report:
    """All theorems that were checked."""

    theorems: tuple[Checked, ...]
    seed: int
    seconds: float

    @property
    def violations(self) -> int:
        """Violations of proved statements: there must be none."""
        return sum(entry.violations for entry in self.theorems if entry.status.startswith("proved"))

    def __repr__(self) -> str:
        lines = [
            f"  {entry.key}: {entry.instances} instances, {entry.violations} violations, worst margin {entry.worst:.3g}"
            for entry in self.theorems
        ]
        return "\n".join([f"Report of {len(lines)} theorems, {self.violations} violations of proved ones", *lines])

    def row(self) -> dict[str, Any]:
        """Ready for JSON."""
        rows = [entry.row() for entry in self.theorems]
        return {"seed": self.seed, "seconds": self.seconds, "violations": self.violations, "theorems": rows}


def check(
    keys: str | Sequence[str] | None = None,
    *,
    instances: int = 50,
    violated: int = 10,
    seed: int = 0,
    processes: int = 1,
    progress: Progress | None = None,
) -> Report:
    """Sample instances that satisfy each theorem's hypotheses, integrate them, and measure the conclusion.

    Parameters
    ----------
    keys : one key such as "regimes.T1", a paper such as "regimes", several of these, or None for all.
    instances : how many random instances of each theorem.
    violated : how many instances violate each hypothesis for which there is a sampler.
    seed : of everything; instance i of a theorem is the same whatever the number of instances.
    processes : worker processes that share the theorems.
    progress : called as progress(key, done, total) when a theorem is done.
    """
    for name, amount, least in (("instances", instances, 1), ("violated", violated, 0), ("processes", processes, 1)):
        if int(amount) != amount or amount < least:
            raise InputError(f"{name} must be a whole number of at least {least}, got {amount}")
    chosen, begin = selected(keys), clock.perf_counter()
    found: dict[str, Checked] = {}
    jobs = [(theorem.key, instances, violated, seed) for theorem in chosen]
    for entry in map(_check, jobs) if processes == 1 or len(jobs) == 1 else _spread(jobs, processes):
        found[entry.key] = entry
        if progress is not None:
            progress(entry.key, len(found), len(jobs))
    return Report(tuple(found[theorem.key] for theorem in chosen), seed, clock.perf_counter() - begin)


def selected(keys: str | Sequence[str] | None) -> tuple[Theorem, ...]:
    """Theorems by key or by paper."""
    if keys is None:
        return list_theorems()
    found: dict[str, Theorem] = {}
    for key in [keys] if isinstance(keys, str) else keys:
        found |= {entry.key: entry for entry in list_theorems(key) or (theorem_named(key),)}
    return tuple(found.values())


def _spread(jobs: list[tuple[str, int, int, int]], processes: int) -> Any:
    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=_alone) as pool:
        yield from (future.result() for future in as_completed([pool.submit(_check, job) for job in jobs]))


def _alone() -> None:
    """One thread for each worker, since the workers share the cores."""
    import torch

    torch.set_num_threads(1)


def _check(job: tuple[str, int, int, int]) -> Checked:
    key, instances, violated, seed = job
    return examine(theorem_named(key), instances, violated, seed)


def examine(theorem: Theorem, instances: int = 50, violated: int = 10, seed: int = 0) -> Checked:
    """One theorem on random instances."""
    begin = clock.perf_counter()
    results = measure(theorem, draw(theorem, instances, seed))
    worst = [min(result, key=_margin) for result in results]
    index = min(range(len(worst)), key=lambda place: _margin(worst[place]))
    return Checked(
        theorem.key,
        theorem.title,
        theorem.status.value,
        len(results),
        sum(not all(item.holds for item in result) for result in results),
        worst[index].margin,
        worst[index].name,
        index,
        tuple(sharpness(theorem, name, violated, seed) for name in theorem.violate if violated),
        clock.perf_counter() - begin,
    )


def measure(
    theorem: Theorem, cases: Sequence[Case], gathered: Sequence[Case] | None = None
) -> list[tuple[Measurement, ...]]:
    """The conclusions about cases; evidence may be gathered from others (tests break them on purpose)."""
    evidence = theorem.gather(cases if gathered is None else gathered)
    return [theorem.conclude(case, item) for case, item in zip(cases, evidence, strict=True)]


def sharpness(theorem: Theorem, name: str, instances: int, seed: int) -> Sharpness:
    """How often the conclusion holds where one hypothesis does not."""
    cases = [violating(theorem, name, _dice(theorem, seed, name, index)) for index in range(instances)]
    results = measure(theorem, cases)
    conclusions: dict[str, int] = {}
    for item in (item for result in results for item in result):
        conclusions[item.name] = conclusions.get(item.name, 0) + item.holds
    return Sharpness(name, instances, sum(all(item.holds for item in result) for result in results), conclusions)


def draw(theorem: Theorem, instances: int, seed: int) -> list[Case]:
    """Random cases that satisfy the hypotheses."""
    return [_satisfying(theorem, theorem.sample, _dice(theorem, seed, "", index)) for index in range(instances)]


def _satisfying(theorem: Theorem, sample: Sampler, dice: np.random.Generator) -> Case:
    for _ in range(DRAWS):
        case = sample(dice)
        if theorem.verdict(theorem.examine(case)) is Verdict.HOLDS:
            return case
    raise InputError(f"the sampler of {theorem.key} missed the hypotheses {DRAWS} times")


def violating(theorem: Theorem, name: str, dice: np.random.Generator) -> Case:
    for _ in range(DRAWS):
        case = theorem.violate[name](dice)
        missing = [condition for condition in theorem.examine(case) if condition.verdict is not Verdict.HOLDS]
        if [condition.name for condition in missing] == [name] and missing[0].verdict is Verdict.FAILS:
            return case
    raise InputError(f"the sampler of {theorem.key} does not violate {name!r} alone")


def _dice(theorem: Theorem, seed: int, name: str, index: int) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(f"{theorem.key}/{name}".encode()), index])


def _margin(measurement: Measurement) -> float:
    return measurement.margin if measurement.margin == measurement.margin else -math.inf
