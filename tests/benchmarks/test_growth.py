"""Slopes on log-log axes, on costs that are known, and the limit of the machine."""

from __future__ import annotations

import math

import pytest
from benchmarks.growth import Curve, curves, measure, slope
from benchmarks.machine import cpu_rates, limit

from benchmarks import Settings, Skip

SETTINGS = Settings(rounds=1, quick=True, turn=0.0)


@pytest.mark.parametrize("power", [-1.0, 0.0, 1.0, 2.0, 2.5])
def test_the_slope_is_the_exponent(power: float) -> None:
    sizes = [64.0, 128.0, 256.0, 1000.0]
    assert slope(sizes, [3.0 * size**power for size in sizes]) == pytest.approx(power, abs=1e-12)


def test_the_slope_at_the_end_leaves_the_constant_cost_behind() -> None:
    curve = Curve("made up", "n", tuple(10.0**power for power in range(6)), count=lambda n: 1e3 + n**2)
    found = measure(curve, SETTINGS)
    assert found["cost"] == "evaluations"
    assert found["costs"][0] == 1001.0
    assert found["slope"] < found["tail"]
    assert found["tail"] == pytest.approx(2.0, abs=0.01)


def test_timed_costs_come_one_for_each_size() -> None:
    found = measure(Curve("made up", "n", (1.0, 2.0, 4.0), build=lambda n: lambda: None), SETTINGS)
    assert found["cost"] == "seconds"
    assert len(found["costs"]) == 3
    assert all(cost > 0 for cost in found["costs"])
    assert math.isfinite(found["slope"])


def test_a_missing_engine_is_reported() -> None:
    def build(n: float) -> None:
        raise Skip("there is no such engine")

    found = measure(Curve("made up", "n", (1.0, 2.0), build=build), SETTINGS)  # type: ignore[arg-type]
    assert (found["status"], found["reason"], found["slope"]) == ("skipped", "there is no such engine", None)


def test_growth_is_measured_with_n_d_and_beta() -> None:
    planned = curves(Settings())
    assert {curve.variable for curve in planned} == {"n", "d", "beta"}
    assert all(len(curve.sizes) >= 5 for curve in planned)


def test_the_limit_of_a_pair() -> None:
    """One exponential and 2d multiply-adds."""
    ceilings = {"rates": {"float32": {"exponentials": 9.7e9, "multiply_adds": 58e9}}}
    assert limit(ceilings, "float32", 3) == pytest.approx(4.8e9, rel=0.01)
    assert limit(ceilings, "float32", 64) == pytest.approx(0.43e9, rel=0.01)
    assert limit(ceilings, "float64", 3) is None
    assert limit(ceilings, None, None) is None
    assert limit(None, "float32", 3) is None


def test_the_ceilings_of_this_machine() -> None:
    found = cpu_rates(1, quick=True)
    for rates in found["rates"].values():
        assert set(rates) == {"exponentials", "multiply_adds"}
        assert all(0 < rate < math.inf for rate in rates.values())
    assert found["rates"] == found["one_thread"]
