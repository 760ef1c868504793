"""Times on a line: logarithmic when they span decades, with a place for zero."""

from __future__ import annotations

import numpy as np
import pytest

from attractor.plotting.time_axis import TimeAxis, format_quantity, log_ticks


@pytest.mark.parametrize(
    ("times", "logarithmic"),
    [
        (np.linspace(0, 100, 1001), False),
        (np.arange(13.0), False),
        (np.array([0.0]), False),
        (np.array([0.0, 1e-6]), False),
        (np.linspace(-1, 1e6, 50), False),
        (np.concatenate([[0.0], np.geomspace(1e-3, 1e6, 40)]), True),
        (np.geomspace(1e-3, 1e6, 40), True),
    ],
)
def test_the_scale_is_chosen_by_the_saved_times(times: np.ndarray, logarithmic: bool) -> None:
    assert TimeAxis.of(times).logarithmic is logarithmic


def test_places_increase_and_zero_has_one() -> None:
    times = np.concatenate([[0.0], np.geomspace(1e-3, 1e6, 40)])
    axis = TimeAxis.of(times)
    places = axis.place(times)
    assert np.isfinite(places).all()
    assert (np.diff(places) > 0).all()
    positions, labels = axis.ticks()
    assert labels[0] == "0"
    assert positions[0] == places[0]
    assert (np.diff(positions) > 0).all()
    assert "10⁶" in labels


def test_a_single_time_has_room_around_it() -> None:
    low, high = TimeAxis.of(np.array([2.0])).limits
    assert low < 2.0 < high


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.25, "0.25"), (3000.0, "3000"), (1e6, "10⁶"), (1.5e-7, "1.5×10⁻⁷"), (-2e5, "-2×10⁵")],
)
def test_numbers_read_well(value: float, text: str) -> None:
    assert format_quantity(value) == text


@pytest.mark.parametrize(("low", "high"), [(3, 128), (1, 5000), (1e-12, 1e12), (2.1, 2.9)])
def test_ticks_are_few_and_inside(low: float, high: float) -> None:
    ticks = log_ticks(low, high)
    assert len(ticks) <= 4
    assert all(low <= tick <= high for tick in ticks)
