"""The search for tokens that become one: complete, and not quadratic where many coincide."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist

from attractor.engines import native
from attractor.errors import InputError
from attractor.solvers.merging import (
    FEW,
    Merger,
    _cell_pairs,
    _mutual_pairs,
    cell_pairs,
    close_pairs,
    mutual_pairs,
    nearest_pairs,
)

TOLERANCE = 1e-3


def cloud(kind: str, n: int, dim: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if kind == "sparse":
        return rng.uniform(-1.0, 1.0, (n, dim))
    if kind == "chain":
        return np.linspace(0.0, 0.4 * TOLERANCE * n, n)[:, None] * np.eye(dim)[0]
    centres = rng.uniform(-1.0, 1.0, (5, dim))
    return centres[rng.integers(0, 5, n)] + rng.normal(0.0, TOLERANCE if kind == "dense" else 0.0, (n, dim))


@pytest.mark.parametrize("search", [close_pairs, mutual_pairs, cell_pairs, nearest_pairs, _mutual_pairs, _cell_pairs])
@pytest.mark.parametrize("kind", ["sparse", "chain", "dense", "coinciding"])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_pairs_are_close_and_disjoint(search, kind: str, dim: int) -> None:
    points = cloud(kind, 400, dim)
    found = search(points, TOLERANCE)
    pairs = found[0] if isinstance(found, tuple) else found
    assert (np.linalg.norm(points[pairs[:, 0]] - points[pairs[:, 1]], axis=1) < TOLERANCE).all()
    assert len(np.unique(pairs)) == pairs.size
    if kind in ("dense", "coinciding"):
        assert len(pairs) > 0


@pytest.mark.parametrize("search", [mutual_pairs, nearest_pairs, _mutual_pairs])
@pytest.mark.parametrize("kind", ["sparse", "chain", "dense"])
def test_rounds_leave_no_two_tokens_closer_than_the_tolerance(search, kind: str) -> None:
    points = cloud(kind, 300, 2)
    for _ in range(100):
        found = search(points, TOLERANCE)
        pairs = found[0] if isinstance(found, tuple) else found
        if not len(pairs):
            break
        points[pairs[:, 0]] = 0.5 * (points[pairs[:, 0]] + points[pairs[:, 1]])
        points = np.delete(points, pairs[:, 1], axis=0)
    assert pdist(points).min() >= TOLERANCE


def test_many_tokens_at_few_points_pair_up_at_once() -> None:
    """A tree would compare all of them with each other: half of them go in one round."""
    points = cloud("coinciding", 50 * FEW, 3)
    pairs, gap = close_pairs(points, 1e-9)
    assert len(points) // 2 - 5 <= len(pairs) <= len(points) // 2
    assert gap <= 1e-9


@pytest.mark.parametrize("n", [300, 4000])
def test_coinciding_tokens_need_few_rounds(n: int) -> None:
    points, rounds = cloud("coinciding", n, 3), 0
    while len(pairs := close_pairs(points, TOLERANCE)[0]):
        points, rounds = np.delete(points, pairs[:, 1], axis=0), rounds + 1
    assert len(points) == 5
    assert rounds < 40


def test_corners_of_a_lattice_all_as_far_as_their_neighbours() -> None:
    """Ties do not stop a round."""
    points = 0.5 * TOLERANCE * np.stack(np.meshgrid(*[np.arange(8.0)] * 3), -1).reshape(-1, 3)
    assert len(mutual_pairs(points, TOLERANCE)) > 0


def test_distances_beyond_whole_numbers_are_left_to_the_tree() -> None:
    points = np.array([[1e300, 0.0], [1e300, 0.0], [0.0, 1.0]])
    assert len(cell_pairs(points, 1e-9)) == 0
    assert native.cell_mates(points, 1e-9) is None


compiled = pytest.mark.skipif(bool(native.reason), reason=native.reason or "")


@compiled
@pytest.mark.parametrize("kind", ["sparse", "dense"])
@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("n", [2, 3, 700, 9001])
def test_cells_find_what_the_tree_finds(kind: str, dim: int, n: int) -> None:
    points = cloud(kind, n, dim, seed=n)
    if kind == "sparse":  # so that some are close
        points *= TOLERANCE * n ** (1 / dim)
    found, wanted = native.mutual_pairs(points, TOLERANCE), np.sort(_mutual_pairs(points, TOLERANCE), axis=1)
    assert found is not None
    assert len(wanted) > 0 or n < 10
    assert np.array_equal(found, wanted[np.argsort(wanted[:, 0])])


@compiled
@pytest.mark.parametrize("search", [native.cell_mates, native.mutual_pairs])
def test_cells_and_threads(search) -> None:
    points, before, found = cloud("dense", 60000, 3), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(search(points, TOLERANCE))
    finally:
        torch.set_num_threads(before)
    assert len(found[0]) > 1000
    assert (found[0][:, 0] < found[0][:, 1]).all()
    assert all(np.array_equal(found[0], other) for other in found[1:])


@compiled
@pytest.mark.parametrize("search", [native.cell_mates, native.mutual_pairs])
def test_where_cells_do_not_serve(search) -> None:
    assert search(np.zeros((4, 4)), TOLERANCE) is None
    assert search(np.zeros((0, 3)), TOLERANCE) is None
    assert search(np.array([[0.0, 1.0], [np.nan, 1.0], [0.0, 0.0]]), TOLERANCE) is None
    assert search(np.array([[0.0, 1.0], [-np.inf, 1.0], [0.0, 0.0]]), TOLERANCE) is None
    assert len(search(np.array([[0.5, 1.0, 2.0]]), TOLERANCE)) == 0


@pytest.mark.parametrize("n", [6, 5000])
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_points_that_are_not_finite_are_one_clear_error(n: int, number: float) -> None:
    points = np.random.default_rng(0).standard_normal((n, 3))
    points[2, 1] = number
    with pytest.raises(InputError, match="points must be finite"):
        close_pairs(points, 1e-3)


def test_a_member_that_is_not_finite_is_not_searched() -> None:
    points = torch.zeros(2, 4, 3, dtype=torch.float64)
    points[0, 1] = torch.nan
    found = Merger(1e-3, torch.full((2, 4), 0.25, dtype=torch.float64)).find(points, np.arange(2))
    assert list(found) == [1]
