"""Fair solves: everyone gets the loosest tolerance that meets the same error against a reference solution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from torch import Tensor

from attractor.bench.contest import Ready, Skip, wall
from attractor.bench.racing import race
from attractor.bench.solvers import Solve, ours, scipy_on_fused
from attractor.bench.sphere import array

GOAL = 1e-6  # the error of a coordinate at the end
NEAR = 0.25  # an error above this share of the goal is near enough
TRIES = 7
FINEST, COARSEST = 1e-13, 1e-2


@dataclass(frozen=True)
class Truth:
    """The reference solution of a problem, and how far an integrator that is not ours is from it."""

    x: Tensor
    beta: float
    until: float
    rtol: float = 1e-12

    @cached_property
    def points(self) -> Tensor:
        return ours(self.x, self.beta, self.until, method="dop853", merge=False)(self.rtol)

    def error(self, result: Any) -> float:
        """The largest error of a coordinate of any token of any member."""
        found = array(result)
        return float((found - self.points).abs().max()) if found.shape == self.points.shape else float("inf")

    def checked(self, members: int = 2) -> dict[str, Any]:
        """Scipy's DOP853 at the same tolerance must agree (on the first members of an ensemble)."""
        some = self.x[None] if self.x.ndim == 2 else self.x[:members]
        points = self.points[None] if self.x.ndim == 2 else self.points[:members]
        apart = max(
            float((array(scipy_on_fused(x, self.beta, self.until)(self.rtol)) - end).abs().max())
            for x, end in zip(some, points, strict=True)
        )
        if not apart <= 0.1 * GOAL:
            raise Skip(f"the reference solution is not sure: scipy differs from it by {apart:.1e}")
        return {"reference": f"attractor dop853, rtol {self.rtol:g}", "scipy_differs_by": apart}


def tuned(solve: Solve, error: Callable[[Any], float], start: float = GOAL, goal: float = GOAL) -> Ready:
    """The solve at the loosest tolerance found whose error is at most the goal and, where that can be had, near it.

    The error is about proportional to the tolerance, which gives the next one to try; where it is not (a step bound by
    stability does not grow with it), the search ends with the best that was seen.
    """
    rtol, best, loose = start, None, COARSEST * 30
    for _ in range(TRIES):
        seconds, result = wall(partial(solve, rtol))
        reached = error(result)
        if reached <= goal:
            best = max(best or (0.0, 0.0, 0.0), (rtol, reached, seconds))
        elif rtol < loose:
            loose = rtol
        if NEAR * goal <= reached <= goal or (best is not None and loose < 1.3 * best[0]):
            break
        aim = 0.6 * goal / reached if reached > 0 else 1e3
        following = rtol * (min(max(aim, 1e-3), 30.0) if reached == reached else 1e-2)
        if best is not None and not best[0] < following < loose:
            following = (best[0] * loose) ** 0.5
        if min(max(following, FINEST), COARSEST) == rtol:
            break
        rtol = min(max(following, FINEST), COARSEST)
    if best is None:
        raise Skip(f"no tolerance was found at which its error is {goal:g}; the last was {rtol:.1e}")
    rtol = best[0]
    return Ready(partial(solve, rtol), {"rtol": rtol, "tuned_error": best[1], "tuning_seconds": best[2]})


def best_of(solves: dict[str, Solve], error: Callable[[Any], float]) -> Ready:
    """The fastest of several ways to the same error: that with the fastest of a few calls, taken in turns."""
    ready = {name: tuned(solve, error) for name, solve in solves.items()}
    times = race({name: one.call for name, one in ready.items()}, 2, wall)
    name = min(ready, key=lambda name: min(ready[name].note["tuning_seconds"], *times[name]))
    return Ready(ready[name].call, {"method": name, **ready[name].note})
