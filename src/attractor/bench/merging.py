"""A long horizon with merging and without it: pair work falls, and with it the time."""

from __future__ import annotations

from functools import cache
from typing import Any

from attractor.bench.contest import Contender, Contest, Ready
from attractor.bench.settings import Settings
from attractor.bench.solvers import ours
from attractor.bench.sphere import array, uniform

BETA, RTOL = 25.0, 1e-6
TOLERANCE = 1e-3  # of a coordinate at the end: the two runs must tell the same story


def contests(settings: Settings) -> list[Contest]:
    n, until = settings.size(1024, 32), settings.size(1000.0, 20.0)
    points = cache(lambda: uniform(n, 3, settings.seed))
    truth = cache(lambda: ours(points(), BETA, until, merge=False)(1e-8))

    def contender(name: str, target: float | None = None, **options: Any) -> Contender:
        return Contender(name, lambda: _ready(points, until, **options), target)

    return [
        Contest(
            group="merging",
            name=f"long horizon, beta={BETA:g}, n={n}, T={until:g}, rtol={RTOL:g}",
            ours=contender("merged"),
            peers=(contender("unmerged", 8.0, merge=False),),
            error=lambda result: float((array(result) - truth()).abs().max()),
            tolerance=TOLERANCE,
        )
    ]


def _ready(points: Any, until: float, **options: Any) -> Ready:
    solve = ours(points(), BETA, until, **options)
    return Ready(lambda: solve(RTOL), {"rtol": RTOL, "merge": options.get("merge", "as flow chooses")})
