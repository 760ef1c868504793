"""Published experiments on Gaussians: what the emulated procedure gets wrong, and a limit of rank above half the dimension."""

from __future__ import annotations

import numpy as np
import pytest

import attractor as at
from attractor.errors import InputError
from attractor.papers.gaussian_cases import candidate, counterexample, growth_rates, published_procedure
from attractor.papers.gaussian_ranks import FIGURE, draw_systems


def test_an_absolute_cut_misjudges_the_rank() -> None:
    """The limit is diag(0, 0.05): of rank one, and below 0.1."""
    law = at.Attention([[1.0, 0.0]], [[-1.0, 0.0]], np.eye(2))
    found = published_procedure(law, np.diag([1.0, 0.05]), steps=2000)
    assert (found.rank, found.diverged) == (0, False)
    slow = published_procedure(at.Attention([[0.1, 0.0]], [[-0.1, 0.0]], np.eye(2)), np.eye(2), steps=2000)
    assert slow.rank == 2  # falls like 1/t and is still above the cut
    assert published_procedure(at.Attention(np.eye(2), np.eye(2), np.eye(2)), np.eye(2)).diverged


def test_ranks_are_those_of_the_kernel_of_S() -> None:
    found = FIGURE.reproduce({"dims": (3,), "draws": 2, "emulate": False})
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
