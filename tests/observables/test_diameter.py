"""The largest distance against all pairs, and the pruned search against the plain one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import pdist

from attractor.observables import diameter
from attractor.observables import geometry as farthest
from attractor.spaces import Ellipsoid, Sphere
from attractor.states import Tokens


@given(seed=st.integers(0, 10**6), n=st.integers(2, 12), dim=st.integers(1, 5))
def test_against_all_pairs(seed: int, n: int, dim: int) -> None:
    points = np.random.default_rng(seed).standard_normal((n, dim))
    assert float(diameter(Tokens(points))) == pytest.approx(pdist(points).max(), rel=1e-15)


@pytest.mark.parametrize("shape", ["sphere", "ball", "line", "equal", "clusters"])
def test_many_tokens_are_pruned_to_the_same_answer(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(1)
    points = generator.standard_normal((1500, 3))
    if shape == "sphere":
        points /= np.linalg.norm(points, axis=-1, keepdims=True)
    elif shape == "line":
        points[:, 1:] = 0.0
    elif shape == "equal":
        points[:] = points[0]
    elif shape == "clusters":
        points = np.eye(3)[generator.integers(0, 3, 1500)] + 1e-9 * points
    wanted = pdist(points).max()
    assert float(diameter(Tokens(points))) == pytest.approx(wanted, rel=1e-15, abs=0.0)
    monkeypatch.setattr(farthest, "PAIRS", 1 << 10)  # many small blocks
    assert float(diameter(Tokens(points))) == pytest.approx(wanted, rel=1e-15, abs=0.0)


def test_an_ensemble_of_small_states_is_cut_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = Tokens.gaussian(6, 3, ensemble=(5, 2))
    whole = diameter(tokens)
    monkeypatch.setattr(farthest, "PAIRS", 72)
    assert torch.equal(diameter(tokens), whole)
    monkeypatch.setattr(farthest, "SMALL", 1)
    torch.testing.assert_close(diameter(tokens), whole, rtol=1e-15, atol=0.0)


def test_far_from_the_origin() -> None:
    cloud = np.random.default_rng(0).integers(-64, 64, (20, 3)) / 64.0
    assert float(diameter(Tokens(cloud + 1e9))) == pytest.approx(pdist(cloud).max(), rel=1e-15)


def test_tiny_distances_keep_their_digits() -> None:
    points = np.array([[1.0, 0.0], [1.0, 2.0**-40], [1.0, -(2.0**-41)]])
    assert float(diameter(Tokens(points))) == 1.5 * 2.0**-40


def test_spaces() -> None:
    antipodal = Tokens([[2.0, 0.0], [-2.0, 0.0], [0.0, 2.0]])
    assert float(diameter(antipodal, space=Sphere(2.0))) == 4.0
    assert float(diameter(antipodal, space=Sphere(2.0), geodesic=True)) == pytest.approx(2 * math.pi, rel=1e-15)
    W = np.diag([1.0, 9.0])
    points = Ellipsoid(W).random(10, 2)
    wanted = pdist(points.numpy() @ np.sqrt(W)).max()
    assert float(diameter(Tokens(points), space=Ellipsoid(W))) == pytest.approx(wanted, rel=1e-14)
    angle = diameter(Tokens(points), space=Ellipsoid(W), geodesic=True)
    assert float(angle) == pytest.approx(2 * math.asin(wanted / 2), rel=1e-7)


def test_one_token_and_equal_tokens() -> None:
    assert float(diameter(Tokens([[1.0, 2.0]]))) == 0.0
    assert float(diameter(Tokens([[0.1, 0.7]] * 6))) == 0.0
    assert float(diameter(Tokens([[0.0], [5.0], [1.0]], [1.0, 0.0, 1.0]))) == 1.0


def test_gradient_moves_the_two_ends() -> None:
    points = torch.tensor([[0.0, 0.0], [3.0, 4.0], [1.0, 1.0]], dtype=torch.float64, requires_grad=True)
    diameter(Tokens.unchecked(points)).backward()
    torch.testing.assert_close(points.grad, torch.tensor([[-0.6, -0.8], [0.6, 0.8], [0.0, 0.0]], dtype=torch.float64))
