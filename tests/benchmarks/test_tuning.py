"""The search for the loosest tolerance, on solvers whose error is known."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from benchmarks.racing import uniform
from benchmarks.solves import FINEST, NEAR, Truth, choose_fastest, scipy_dop853, scipy_on_fused, tune

from benchmarks import Skip


@pytest.mark.parametrize(
    "error",
    [
        lambda rtol: rtol,
        lambda rtol: 300 * rtol,
        lambda rtol: 1e-3 * rtol**0.8,
        lambda rtol: 50 * rtol**1.2,
        lambda rtol: min(rtol**2, 1.0) * 1e7,
    ],
)
def test_the_error_comes_near_the_goal_and_not_above(error: Callable[[float], float]) -> None:
    ready = tune(lambda rtol: rtol, error, goal=1e-6)
    reached = error(ready.call())
    assert NEAR * 1e-6 <= reached <= 1e-6 or ready.note["rtol"] == 1e-2
    assert ready.note["tuned_error"] == reached


def test_a_step_bound_by_stability_ends_the_search() -> None:
    """The error jumps from far below the goal to far above it: the best below is taken."""
    ready = tune(lambda rtol: rtol, lambda rtol: 1e-9 if rtol <= 3e-5 else 1.0, goal=1e-6)
    assert 1e-6 < ready.note["rtol"] <= 3e-5


def test_no_tolerance_is_enough() -> None:
    with pytest.raises(Skip, match="no tolerance was found"):
        tune(lambda rtol: rtol, lambda rtol: 1.0)
    with pytest.raises(Skip, match="no tolerance was found"):
        tune(lambda rtol: rtol, lambda rtol: float("nan"))
    assert FINEST < 1e-12


def test_the_faster_of_two_methods_runs() -> None:
    calls: dict[str, list[float]] = {"slow": [], "fast": []}

    def solve(name: str) -> Callable[[float], float]:
        def call(rtol: float) -> float:
            calls[name].append(rtol)
            if name == "slow":
                torch.linalg.eigvals(torch.randn(120, 120))
            return rtol

        return call

    ready = choose_fastest({name: solve(name) for name in calls}, lambda rtol: rtol)
    assert ready.note["method"] == "fast"
    before = len(calls["fast"])
    ready.call()
    assert len(calls["fast"]) == before + 1


def test_the_reference_solution_is_checked_by_another_integrator() -> None:
    truth = Truth(uniform(8, 3, 0), 9.0, 2.0)
    assert truth.checked()["scipy_differs_by"] < 1e-9
    assert truth.error(truth.points + 1e-3) == pytest.approx(1e-3, rel=1e-6)
    assert truth.error(truth.points[:-1]) == float("inf")
    many = Truth(uniform(8, 3, 0, ensemble=3), 9.0, 2.0)
    assert many.checked()["scipy_differs_by"] < 1e-9


def test_a_reference_solution_that_is_not_sure_is_refused() -> None:
    loose = Truth(uniform(8, 3, 0), 9.0, 2.0, rtol=1e-2)
    with pytest.raises(Skip, match="the reference solution is not sure"):
        loose.checked()


def test_the_fields_of_scipy_are_the_same() -> None:
    x = uniform(8, 3, 0)
    one, two = (solver(x, 4.0, 1.0)(1e-10) for solver in (scipy_dop853, scipy_on_fused))
    assert abs(one - two).max() < 1e-9
