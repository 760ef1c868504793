"""``check``: measure the conclusions of theorems on random instances, with and without each hypothesis."""

from __future__ import annotations

import math
import time as clock
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.serialization import to_frame
from attractor.solvers import Event, Trajectory
from attractor.states import Tokens
from attractor.theory.conditions import Verdict
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Measurement, Sampler, Theorem, find_theorem, integrate, list_theorems

if TYPE_CHECKING:
    import pandas

FAR = 300.0
EXTENSIONS = (10.0, 100.0)  # of the horizon, for asymptotic conclusions that fail


def _distance_to_limit(tokens: Tokens, time: float) -> float:
    return FAR - float(tokens.points.norm(dim=-1).max())


# Far out every softmax is nearly one-hot and an accurate step is tiny: runs whose tokens diverge end here.
STOP_FAR_AWAY = {"events": (Event(_distance_to_limit, "far away"),)}


def select_valid_rows(run: Trajectory) -> slice:
    """Return the slice of saved times before the run ended; later rows repeat its last state."""
    return slice(0, int((run.times <= run.outcome.time * (1 + 1e-12)).sum()))


def smallest_increase(values: Tensor, scale: Tensor | float = 1.0) -> float:
    """Return the smallest increment along the first axis (time), relative to the scale at the later time; 0 for one row."""
    steps = values[1:] - values[:-1]
    if steps.numel() == 0:
        return 0.0
    sizes = torch.as_tensor(scale, dtype=values.dtype)
    return float((steps / (sizes[1:] if sizes.ndim else sizes).clamp_min(1e-300)).min())


def largest_norms(run: Trajectory) -> Tensor:
    """Return the largest token norm at each saved time before the end, (S,)."""
    return run.points[select_valid_rows(run)].norm(dim=-1).amax(-1)


def fit_power(times: Tensor, values: Tensor, share: float = 0.1) -> float:
    """Fit the exponent p of values ~ t^p where t is above ``share`` of the last time."""
    late = times >= share * times[-1]
    return float(np.polyfit(times[late].log().numpy(), values[late].clamp_min(1e-300).log().numpy(), 1)[0])


def fit_exponential(times: Tensor, values: Tensor, share: float = 0.5) -> float:
    """Fit the rate r of values ~ e^{rt} where t is above ``share`` of the last time."""
    late = times >= share * times[-1]
    return float(np.polyfit(times[late].numpy(), values[late].clamp_min(1e-300).log().numpy(), 1)[0])


def geometric_times(horizon: float, count: int = 60, first: float = 1e-3) -> list[float]:
    """Return 0 and a geometric grid of save times up to the horizon."""
    return [0.0, *np.geomspace(first * horizon, horizon, count).tolist()]


def draw_negative(rng: Rng, d: int) -> Tensor:
    """Draw a negative definite symmetric matrix."""
    return rng.definite(d, -1.0)


def metric_sampler(
    metric: Callable[[Rng, int], Tensor],
    interaction: Callable[[Rng, int], Tensor],
    horizon: float,
    options: Mapping[str, Any] = STOP_FAR_AWAY,
    **parts: Any,
) -> Sampler:
    """Return a sampler of normal tokens under a law whose metric and interaction are drawn by functions of (rng, d)."""

    def sample(rng: Rng) -> Case:
        n, d = rng.sizes()
        law = rng.metric_law(metric(rng, d), interaction(rng, d), **parts)
        return Case(law, rng.tokens(n, d), horizon=horizon, options=options)

    return sample


DRAWS = 200  # draws after which a sampler that misses the hypotheses is an error
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Sharpness:
    """Instances that violate one hypothesis: in how many all conclusions held, and how often each."""

    hypothesis: str
    instances: int
    held: int
    conclusions: dict[str, int]


@dataclass(frozen=True)
class CheckResult:
    """One theorem on random instances; ``worst`` is the smallest margin, of ``conclusion`` in ``instance``."""

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
        """Return the result as a JSON object."""
        return {**asdict(self), "worst": self.worst if math.isfinite(self.worst) else None}


@dataclass(frozen=True, repr=False)
class CheckReport:
    """The results of ``check``, one for each theorem."""

    theorems: tuple[CheckResult, ...]
    seed: int
    seconds: float

    @property
    def violations(self) -> int:
        """Number of instances that violate a proved statement; it must be zero."""
        return sum(entry.violations for entry in self.theorems if entry.status.startswith("proved"))

    def frame(self) -> pandas.DataFrame:
        """Return a pandas table with one line per theorem; ``sharpness`` is left to :meth:`row`."""
        return to_frame({**entry.row(), "sharpness": len(entry.sharpness)} for entry in self.theorems)

    def __repr__(self) -> str:
        lines = [
            f"  {entry.key}: {entry.instances} instances, {entry.violations} violations, worst margin {entry.worst:.3g}"
            for entry in self.theorems
        ]
        return "\n".join([f"CheckReport of {len(lines)} theorems, {self.violations} violations of proved ones", *lines])

    def row(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
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
) -> CheckReport:
    """Sample instances that satisfy each theorem's hypotheses, integrate them, and measure the conclusion.

    Parameters
    ----------
    keys : one key such as "regimes.T1", a paper such as "regimes", several of these, or None for all.
    instances : number of random instances of each theorem.
    violated : number of instances for each hypothesis that has a violating sampler.
    seed : of all draws; instance i of a theorem does not depend on the number of instances.
    processes : worker processes that share the theorems.
    progress : called as progress(key, done, total) when a theorem is done.
    """
    for name, amount, least in (("instances", instances, 1), ("violated", violated, 0), ("processes", processes, 1)):
        if int(amount) != amount or amount < least:
            raise InputError(f"{name} must be a whole number of at least {least}, got {amount}")
    chosen, begin = select_theorems(keys), clock.perf_counter()
    found: dict[str, CheckResult] = {}
    jobs = [(theorem.key, instances, violated, seed) for theorem in chosen]
    for entry in map(_check, jobs) if processes == 1 or len(jobs) == 1 else _check_in_processes(jobs, processes):
        found[entry.key] = entry
        if progress is not None:
            progress(entry.key, len(found), len(jobs))
    return CheckReport(tuple(found[theorem.key] for theorem in chosen), seed, clock.perf_counter() - begin)


def select_theorems(keys: str | Sequence[str] | None) -> tuple[Theorem, ...]:
    """Return theorems by key or by paper; all for None."""
    if keys is None:
        return list_theorems()
    found: dict[str, Theorem] = {}
    for key in [keys] if isinstance(keys, str) else keys:
        found |= {entry.key: entry for entry in list_theorems(key) or (find_theorem(key),)}
    return tuple(found.values())


def _check_in_processes(jobs: list[tuple[str, int, int, int]], processes: int) -> Any:
    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=_use_one_thread) as pool:
        yield from (future.result() for future in as_completed([pool.submit(_check, job) for job in jobs]))


def _use_one_thread() -> None:
    """Use one thread in each worker, since the workers share the cores."""
    torch.set_num_threads(1)


def _check(job: tuple[str, int, int, int]) -> CheckResult:
    key, instances, violated, seed = job
    return check_theorem(find_theorem(key), instances, violated, seed)


def check_theorem(theorem: Theorem, instances: int = 50, violated: int = 10, seed: int = 0) -> CheckResult:
    """Check one theorem on random instances."""
    begin = clock.perf_counter()
    cases = draw_cases(theorem, instances, seed)
    results = [
        _measure_longer(theorem, case, result) for case, result in zip(cases, measure(theorem, cases), strict=True)
    ]
    worst = [min(result, key=_margin) for result in results]
    index = min(range(len(worst)), key=lambda place: _margin(worst[place]))
    return CheckResult(
        theorem.key,
        theorem.title,
        theorem.status.value,
        len(results),
        sum(not all(item.holds for item in result) for result in results),
        worst[index].margin,
        worst[index].name,
        index,
        tuple(measure_sharpness(theorem, name, violated, seed) for name in theorem.violate if violated),
        clock.perf_counter() - begin,
    )


def measure(
    theorem: Theorem, cases: Sequence[Case], gathered: Sequence[Case] | None = None
) -> list[tuple[Measurement, ...]]:
    """Measure the conclusions for cases; evidence may be gathered from other cases (tests break them on purpose).

    A case in which a conclusion finds nothing to measure counts as one that violates it.
    """
    evidence = theorem.gather(cases if gathered is None else gathered)
    nothing = (Measurement("something was measured", -math.inf),)
    return [theorem.conclude(case, item) or nothing for case, item in zip(cases, evidence, strict=True)]


def _measure_longer(theorem: Theorem, case: Case, result: tuple[Measurement, ...]) -> tuple[Measurement, ...]:
    """Measure a case again at 10 and 100 times its horizon while it is an asymptotic conclusion alone that fails.

    Such a conclusion is about the limit, and a transient can be longer than the horizon chosen for most cases.
    """
    for factor in EXTENSIONS if theorem.gather is integrate else ():
        failed = [item for item in result if not item.holds]
        if not failed or not all(item.asymptotic for item in failed):
            break
        options = dict(case.options)
        if isinstance(options.get("save"), list):
            options["save"] = [factor * time for time in options["save"]]
        result = measure(theorem, [replace(case, horizon=factor * case.horizon, options=options)])[0]
    return result


def measure_sharpness(theorem: Theorem, name: str, instances: int, seed: int) -> Sharpness:
    """Count how often the conclusions hold at the horizon of each case, for cases that violate one hypothesis."""
    cases = [draw_violating(theorem, name, _make_rng(theorem, seed, name, index)) for index in range(instances)]
    results = measure(theorem, cases)
    conclusions: dict[str, int] = {}
    for item in (item for result in results for item in result):
        conclusions[item.name] = conclusions.get(item.name, 0) + item.holds
    return Sharpness(name, instances, sum(all(item.holds for item in result) for result in results), conclusions)


def draw_cases(theorem: Theorem, instances: int, seed: int) -> list[Case]:
    """Draw random cases that satisfy the hypotheses."""
    return [_satisfying(theorem, theorem.sample, _make_rng(theorem, seed, "", index)) for index in range(instances)]


def _satisfying(theorem: Theorem, sample: Sampler, rng: Rng) -> Case:
    for _ in range(DRAWS):
        case = sample(rng)
        if theorem.decide(theorem.examine(case)) is Verdict.HOLDS:
            return case
    raise InputError(f"the sampler of {theorem.key} missed the hypotheses {DRAWS} times")


def draw_violating(theorem: Theorem, name: str, rng: Rng) -> Case:
    for _ in range(DRAWS):
        case = theorem.violate[name](rng)
        missing = [condition for condition in theorem.examine(case) if condition.verdict is not Verdict.HOLDS]
        if [condition.name for condition in missing] == [name] and missing[0].verdict is Verdict.FAILS:
            return case
    raise InputError(f"the sampler of {theorem.key} does not violate {name!r} alone")


def _make_rng(theorem: Theorem, seed: int, name: str, index: int) -> Rng:
    return Rng.from_seed([seed, zlib.crc32(f"{theorem.key}/{name}".encode()), index])


def _margin(measurement: Measurement) -> float:
    return measurement.margin if measurement.margin == measurement.margin else -math.inf
