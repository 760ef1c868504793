"""Entries of neighbouring papers: they agree with independent code, and published procedures have the defects that verdicts name."""

from __future__ import annotations

import numpy as np
import pytest

from attractor.papers import find_figure
from attractor.papers.dynamic_metastability import published_staircase
from attractor.papers.emergence import frozen_rk4, solve_with_scipy
from attractor.papers.norm_schemes import publish_step
from attractor.papers.renyi_centres import find_centres
from attractor.papers.signal_propagation import predict_block

QUICK = (
    *(
        "sphere-runs",
        "kinetic",
        "renyi-centres",
        "cluster-counts",
        "noise-thresholds",
        "hardmax-leaders",
        "hardmax-cells",
    ),
    *("rank-collapse", "sphere-energies", "cosine-depth", "norm-schemes"),
)


@pytest.mark.parametrize("key", QUICK)
def test_entries_agree_with_independent_code(key: str) -> None:
    entry = find_figure(key)
    data = entry.reproduce(entry.small)
    compared = entry.compare(data)
    assert compared
    assert [row.quantity for row in compared if not row.agrees] == []
    assert entry.verdict(data).outcome in ("reproduced", "reproduced with a correction")


@pytest.mark.theorem
def test_rk4_with_frozen_attention_is_of_first_order() -> None:
    value = np.array([[0.6, 0.8], [0.6, 0.7]])
    start = np.random.default_rng(0).uniform(-2, 2, (5, 2))
    exact = solve_with_scipy(value, start, 1.0)
    errors = [np.abs(frozen_rk4(value, start, 1.0, step) - exact).max() for step in (0.02, 0.01)]
    assert errors[0] / errors[1] == pytest.approx(2.0, rel=0.1)


def test_published_radii_follow_the_sum_of_the_entries() -> None:
    """All tokens at one point: the radius should grow at rate one, and follows r' = r sum(x) instead."""
    point = np.array([0.6, -0.8])
    units, radii = np.tile(point, (3, 1)), np.ones(3)
    _, right = publish_step(units, radii, 1.0, 0.1, "preln", True)
    _, wrong = publish_step(units, radii, 1.0, 0.1, "preln", False)
    np.testing.assert_allclose(right, 1.1)
    np.testing.assert_allclose(wrong, 1.0 + 0.1 * point.sum())


def test_the_published_staircase_starts_at_the_energy_of_its_angles() -> None:
    start = np.array([0.0, 0.05, 0.3])
    found = published_staircase(start, [1000.0], 1e-5, 2000, kept=10)
    assert found[0, 0] == pytest.approx(1 / 3 + 2 / 9 * np.exp(1000 * (np.cos(0.05) - 1)), abs=1e-3)
    assert found[-1, 0] == pytest.approx(5 / 9, abs=1e-3)  # the first two have merged


def test_centres_by_hand() -> None:
    # 0.3 is near 0 but no centre: 0.55 is a centre, and not a strong one
    assert find_centres(np.array([0.0, 0.3, 0.55, 2.0]), 0.4) == ([0, 2, 3], [0, 3])


def test_the_theory_of_long_sequences_has_fixed_points() -> None:
    assert predict_block(1.0 - 1e-9, 0.5, 0.2, 4e-4) == pytest.approx(1.0, abs=1e-6)
    assert predict_block(0.2, 0.5, 0.2, 4e-4) > predict_block(
        0.2, 3.0, 0.2, 4e-4
    )  # below the transition cosines grow faster
