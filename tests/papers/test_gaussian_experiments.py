"""Published experiments on Gaussians: the draws, what the published procedure gets wrong, and a limit of rank above half the dimension."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import attractor as at
from attractor.errors import InputError
from attractor.laws import closure_field
from attractor.papers import find_figure
from attractor.papers.gaussian_cases import CASES, CODE, build_law, draw_starts, published_procedure, slope_of
from attractor.papers.gaussian_ranks import (
    BLOCKS,
    SEEDS,
    candidate,
    count_ranks,
    counterexample,
    draw_published,
    draw_systems,
    growth_rates,
    run_published,
)


def test_the_draws_are_the_published_ones() -> None:
    """V of collapse, q of line and its direction are printed in the paper."""
    _, _, value = CASES["collapse"].matrices
    np.testing.assert_allclose(value, [[2.67, -0.69], [-0.69, 2.69]], atol=5e-3)
    query, key, _ = CASES["line"].matrices
    np.testing.assert_allclose(np.abs(query[0]), [0.41, 0.91], atol=5e-3)
    assert np.array_equal(key, -query)
    assert np.degrees(np.arctan2(query[0, 0], -query[0, 1])) % 180 == pytest.approx(156.03, abs=5e-3)
    assert {case.name: len(draw_starts(case.grid, case.reach)) for case in CASES.values()} == {
        "collapse": 100,
        "line": 100,
        "plane": 100,
        "two-lines": 276,
        "divergence": 1184,
        "both": 648,
    }


@pytest.mark.parametrize("kernel", ["softmax", "l2", "multi-head", "sinkhorn"])
def test_slopes_are_those_of_the_closure(kernel: str) -> None:
    """B of the published formulas is that of the package's own Gaussian closure."""
    draw = np.random.default_rng(3)
    matrices = draw.standard_normal((3, 2, 2))
    chosen = matrices[0], matrices[1], matrices[2]
    root = draw.standard_normal((2, 2))
    ours, _ = closure_field(build_law(kernel, chosen, True).member(torch.tensor([0])))(np.zeros(2), root)
    scale = 1.0 if kernel == "sinkhorn" else 2**-0.5
    theirs = slope_of(kernel, chosen, scale)((root @ root.T)[None], np.zeros(1, dtype=int))[0]
    np.testing.assert_allclose(theirs, ours, atol=1e-12)


def test_an_absolute_cut_misjudges_the_rank() -> None:
    """The limit is diag(0, 0.05): of rank one, and below 0.1."""
    row = np.array([[1.0, 0.0]])
    slope = slope_of("softmax", (row, -row, np.eye(2)), 1.0)
    found = published_procedure(slope, np.diag([1.0, 0.05])[None], 0.01, 1e-12, steps=2000)
    assert found.ends == ("spent",)
    assert (np.linalg.eigvalsh(found.final[0]) > 0.1).sum() == 0
    assert at.meanfield.find_limit(at.Attention(row, -row, np.eye(2)), np.diag([1.0, 0.05])).rank == 1
    slow = slope_of("softmax", (0.1 * row, -0.1 * row, np.eye(2)), 1.0)
    found = published_procedure(slow, np.eye(2)[None], 0.01, 1e-12, steps=2000)
    assert (np.linalg.eigvalsh(found.final[0]) > 0.1).sum() == 2  # falls like 1/t and is still above the cut
    eye = np.eye(2)
    assert published_procedure(slope_of("softmax", (eye, eye, eye), 1.0), eye[None], 0.01, 1e-4).ends == ("cap",)


@pytest.mark.parametrize("steps", [1000, 1001])
def test_a_cycle_spends_all_steps_and_has_the_phase_of_the_last(steps: int) -> None:
    """The step takes 1 to 2 and 2 to 1; the procedure need not run it to the end."""
    calls = []

    def slope(S: np.ndarray, which: np.ndarray) -> np.ndarray:
        calls.append(len(which))
        return np.where(S == 1.0, 0.5, -0.25) * np.eye(1)

    found = published_procedure(slope, np.ones((1, 1, 1)), 1.0, 0.0, steps=steps)
    assert found.ends == ("spent",)
    assert found.final[0, 0, 0] == (2.0 if steps % 2 == 0 else 1.0)  # before the last step
    assert found.iterations[0] == steps - 1
    assert len(calls) < 50


def test_the_first_published_ranks() -> None:
    """The first twenty draws of d = 3, V = I, as the authors' own run counts them."""
    block = BLOCKS["softmax"][0]
    query, value = (part[:20] for part in draw_published("softmax", "identity", (3, 4, 5), 100, SEEDS["softmax"])[3])
    row = run_published("softmax", query, value, block.steps[0], block.low, block.iterations, SEEDS["softmax"][2])
    assert row.repeated == 0
    assert block.authors is not None
    assert sum(block.authors[0].values()) == 100
    ranks = [(np.linalg.eigvalsh(last) > 0.1).sum() for last in row.final]
    assert set(ranks) <= {0, 1, 2}
    assert 0 < ranks.count(2) < 20  # every limit has rank 2


def test_the_overwritten_result_is_named() -> None:
    entry = find_figure("gaussian-two-lines")
    data = entry.reproduce(entry.small)
    verdict = entry.verdict(data)
    assert verdict.outcome == "reproduced with a correction"
    assert "trad_mixed_3d.pdf shows L2" in verdict.reason
    assert CODE in entry.reference
    wrong = {**data, "panels": [{**row, "accurate": {**row["accurate"], "lines": []}} for row in data["panels"]]}
    assert entry.verdict(wrong).outcome == "differs"


def test_ranks_are_those_of_the_kernel_of_S() -> None:
    found = count_ranks("softmax", "identity", [3], 2, 0, False)
    assert found["accurate"] == {"3": {"2": 2}}
    assert found["dim_ker_S"] == {"3": 2}
    assert np.array_equal(draw_systems(4, 2, "definite", 5)[1][0], draw_systems(4, 2, "definite", 5)[1][0])
    with pytest.raises(InputError, match="not known"):
        draw_systems(3, 1, "diagonal", 0)


@pytest.mark.theorem
def test_l2_has_a_limit_of_rank_three_in_dimension_four() -> None:
    found = counterexample(first=1145, seeds=1)
    assert found.limit.rank == 3
    assert np.linalg.matrix_rank(found.start) == 4
    query, key, value, stationary = candidate(np.random.RandomState(1145))
    assert np.array_equal(found.stationary, stationary)
    assert growth_rates(query, key, value, stationary)[0] < 1e-6
