"""How the cost grows: time of an evaluation with n and d, evaluations of a solve with beta, as slopes on log-log axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.racing import Call, Settings, Skip, Tell, engine, time_interleaved, uniform, wall_time

TAIL = 3  # points of the slope at the end


@dataclass(frozen=True)
class Curve:
    """A cost at several sizes: ``build`` makes the call that is timed, ``count`` gives a cost that needs no clock."""

    name: str
    variable: str
    sizes: tuple[float, ...]
    build: Callable[[float], Call] | None = None
    count: Callable[[float], float] | None = None

    @property
    def cost(self) -> str:
        return "seconds" if self.count is None else "evaluations"


def slope(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The exponent p of cost = c size^p, by least squares on logarithms."""
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    middle, level = sum(x) / len(x), sum(y) / len(y)
    return sum((a - middle) * (b - level) for a, b in zip(x, y, strict=True)) / sum((a - middle) ** 2 for a in x)


def curves(settings: Settings) -> list[Curve]:
    seed = settings.seed
    few, many = settings.size((1024, 32768), (64, 256)), settings.size((4096, 262144), (1024, 4096))
    dims = settings.size((2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0), (2.0, 4.0, 8.0))
    tokens = settings.size(4096, 64)
    betas = settings.size((1.0, 3.0, 9.0, 27.0, 81.0), (1.0, 3.0, 9.0))
    solve = settings.size("n=256, T=1000, rtol=1e-6", "n=16, T=2, rtol=1e-6")
    return [
        Curve("fused, float64, d=3", "n", _doubling(*few), build=lambda n: _fused(int(n), 3, "float64", seed)),
        Curve("fused, float32, d=3", "n", _doubling(*few), build=lambda n: _fused(int(n), 3, "float32", seed)),
        Curve("spectral, float64, d=3, beta=9", "n", _doubling(*many), build=lambda n: _spectral(int(n), 3, seed)),
        Curve("spectral, float64, d=2, beta=9", "n", _doubling(*many), build=lambda n: _spectral(int(n), 2, seed)),
        Curve(f"fused, float64, n={tokens}", "d", dims, build=lambda d: _fused(tokens, int(d), "float64", seed)),
        Curve(f"fused, float32, n={tokens}", "d", dims, build=lambda d: _fused(tokens, int(d), "float32", seed)),
        Curve(f"unmerged solve, {solve}", "beta", betas, count=partial(evaluations, settings, False)),
        Curve(f"merged solve, {solve}", "beta", betas, count=partial(evaluations, settings, None)),
    ]


def measure(curve: Curve, settings: Settings, tell: Tell = lambda text: None) -> dict[str, Any]:
    """Costs at all sizes, interleaved over rounds, with the slope over all sizes and over the last ones."""
    head = {"name": curve.name, "variable": curve.variable, "cost": curve.cost, "sizes": list(curve.sizes)}
    try:
        costs = _counted(curve, tell) if curve.count is not None else _timed(curve, settings, tell)
    except Skip as reason:
        return {**head, "status": "skipped", "reason": str(reason), "costs": [], "slope": None, "tail": None}
    tail = slope(curve.sizes[-TAIL:], costs[-TAIL:])
    found = {"costs": costs, "slope": slope(curve.sizes, costs), "tail": tail}
    return {**head, "status": "timed", "reason": None, **found}


def _counted(curve: Curve, tell: Tell) -> list[float]:
    assert curve.count is not None
    costs = []
    for size in curve.sizes:
        tell(f"{curve.variable} = {size:g}")
        costs.append(float(curve.count(size)))
    return costs


def _timed(curve: Curve, settings: Settings, tell: Tell) -> list[float]:
    assert curve.build is not None
    calls: dict[str, Call] = {}
    repeats: Mapping[str, int] = {}
    for size in curve.sizes:
        tell(f"{curve.variable} = {size:g}")
        call = calls[f"{size:g}"] = curve.build(size)
        call()
        repeats = {**repeats, f"{size:g}": max(1, math.ceil(settings.turn / 4 / max(wall_time(call)[0], 1e-6)))}
    times = time_interleaved(calls, settings.rounds, wall_time, repeats, tell)
    # no ratio is taken here, so the fastest round is the one that was disturbed least
    return [min(seconds) for seconds in times.values()]


def _doubling(first: int, last: int) -> tuple[float, ...]:
    return tuple(float(first << power) for power in range(int(math.log2(last / first)) + 1))


def _fused(n: int, dim: int, dtype: str, seed: int) -> Call:
    from benchmarks.evaluations import fused

    return fused(uniform(n, dim, seed, dtype))


def _spectral(n: int, dim: int, seed: int) -> Call:
    from benchmarks.evaluations import velocity

    engine("spectral")
    return velocity(uniform(n, dim, seed), "spectral")


def evaluations(settings: Settings, merge: bool | None, beta: float) -> float:
    """Evaluations of the law that a solve takes."""
    from attractor.laws import Attention
    from attractor.solvers import flow
    from attractor.spaces import Sphere
    from attractor.states import Tokens

    tokens, until = Tokens.uniform(settings.size(256, 16), 3, settings.seed), settings.size(1000.0, 2.0)
    asked = {"until": until, "save": [until], "stop": (), "merge": merge, "rtol": 1e-6, "atol": 1e-6}
    return float(flow(Attention.isotropic(3, beta), tokens, space=Sphere(), **asked).stats.evaluations)
