"""Tokens are measures: finite points, non-negative masses, places; and their constructors draw what they promise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attractor.errors import InputError
from attractor.states import Tokens

POINTS = np.arange(6.0).reshape(3, 2)

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"points": [[1.0, float("nan")]]}, r"tokens holds NaN at index \(0, 1\); every entry must be finite"),
    ({"points": [[1.0, 2.0], [float("-inf"), 0.0]]}, r"tokens holds an infinite value at index \(1, 0\)"),
    ({"points": [1.0, 2.0]}, r"tokens must have shape \(..., n, d\), got \(2,\)"),
    ({"points": np.ones((0, 3))}, r"at least one token of at least one dimension, got shape \(0, 3\)"),
    ({"points": np.ones((3, 0))}, r"at least one token of at least one dimension, got shape \(3, 0\)"),
    ({"points": np.ones((0, 3, 2))}, r"an ensemble axis is empty: tokens have shape \(0, 3, 2\)"),
    ({"points": "tokens"}, r"tokens must be numbers in a rectangular array, got str"),
    ({"points": [[1.0], [1.0, 2.0]]}, r"tokens must be numbers in a rectangular array, got list"),
    ({"points": None}, r"tokens must have shape \(..., n, d\), got \(\)"),
    ({"points": torch.ones(2, 2, dtype=torch.complex128)}, r"tokens must be real, got dtype torch.complex128"),
    ({"points": np.ones((2, 2)) * 1j}, r"tokens must be real, got dtype complex128"),
    ({"points": POINTS, "dtype": torch.float16}, r"tokens are kept in float64 or float32, not torch.float16"),
    ({"points": POINTS, "masses": [1.0, -0.5, 1.0]}, r"masses must not be negative, the smallest is -0.5"),
    ({"points": POINTS, "masses": np.zeros(3)}, r"masses must not all be zero"),
    ({"points": POINTS, "masses": [1.0, float("nan"), 1.0]}, r"masses holds NaN at index \(1,\)"),
    ({"points": POINTS, "masses": [1.0, 1.0]}, r"masses must have one entry a token, shape \(3,\).*got \(2,\)"),
    ({"points": POINTS, "masses": 1.0}, r"masses must have one entry a token.*got \(\)"),
    ({"points": POINTS, "masses": np.ones((2, 3))}, r"masses must have one entry a token.*got \(2, 3\)"),
    (
        {"points": np.ones((2, 3, 2)), "masses": np.ones((4, 3))},
        r"masses must have one entry a token, shape \(3,\) or \(2, 3\), got \(4, 3\)",
    ),
    ({"points": np.ones((2, 3, 2)), "masses": [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]}, r"masses must not all be zero"),
    ({"points": POINTS, "positions": [0.0, 1.0]}, r"positions must have one entry a token, shape \(3,\).*got \(2,\)"),
    ({"points": POINTS, "positions": [0.0, 1.0, float("inf")]}, r"positions holds an infinite value at index \(2,\)"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_tokens_refuse(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        Tokens(**options)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("given", [POINTS, POINTS.tolist(), POINTS.astype(int), torch.from_numpy(POINTS).float()])
def test_points_become_float64(given: Any) -> None:
    tokens = Tokens(given)
    assert tokens.points.dtype == torch.float64
    assert tokens.points.tolist() == POINTS.tolist()
    assert (tokens.n, tokens.dim, tokens.batch_shape) == (3, 2, ())
    assert tokens.masses is None
    torch.testing.assert_close(tokens.weights, torch.full((3,), 1 / 3, dtype=torch.float64))


def test_numpy_input_is_copied() -> None:
    points = POINTS.copy()
    tokens = Tokens(points, masses=(masses := np.ones(3)))
    points[0, 0], masses[0] = 99.0, 99.0
    assert tokens.points[0, 0] == 0
    assert tokens.weights[0] == 1


def test_precision_stays_through_moves_and_replacements() -> None:
    tokens = Tokens(POINTS, masses=[1.0, 2.0, 3.0], positions=[0, 1, 2], dtype=torch.float32)
    moved = tokens.with_points(2 * tokens.points)
    for one in (tokens, moved, replace(tokens, masses=None), replace(moved, positions=None)):
        assert one.points.dtype == one.weights.dtype == torch.float32
    assert moved.masses is tokens.masses
    assert moved.positions is tokens.positions


def test_ensembles_may_share_masses_and_positions() -> None:
    points = np.random.default_rng(0).standard_normal((4, 5, 3, 2))
    shared = Tokens(points, masses=[1.0, 2.0, 0.0], positions=[3.0, 1.0, 1.0])
    own = Tokens(points, masses=np.ones((4, 5, 3)), positions=np.zeros((4, 5, 3)))
    assert shared.batch_shape == own.batch_shape == (4, 5)
    assert shared.weights.shape == (3,)
    assert own.weights.shape == (4, 5, 3)


@given(n=st.integers(1, 8), dim=st.integers(1, 6), seed=st.integers(0, 99))
def test_uniform_tokens_are_unit_vectors(n: int, dim: int, seed: int) -> None:
    one = Tokens.uniform(n, dim, seed)
    assert one.points.shape == (n, dim)
    torch.testing.assert_close(one.points.norm(dim=-1), torch.ones(n, dtype=torch.float64), rtol=0, atol=1e-15)
    assert torch.equal(one.points, Tokens.uniform(n, dim, seed).points)
    hemisphere = Tokens.hemisphere(n, dim, seed)
    assert bool((hemisphere.points[:, -1] > 0).all())
    torch.testing.assert_close(hemisphere.points.norm(dim=-1), torch.ones(n, dtype=torch.float64), rtol=0, atol=1e-15)


def test_seeds_and_ensembles_differ() -> None:
    assert not torch.equal(Tokens.uniform(4, 3, seed=0).points, Tokens.uniform(4, 3, seed=1).points)
    ensemble = Tokens.gaussian(4, 3, seed=0, ensemble=(2, 5), scale=3.0)
    assert ensemble.batch_shape == (2, 5)
    assert not torch.equal(ensemble.points[0, 0], ensemble.points[1, 4])
    assert Tokens.uniform(4, 3, ensemble=2).batch_shape == (2,)
    assert Tokens.hemisphere(4, 3, ensemble=2).batch_shape == (2,)
    assert Tokens.uniform(4, 3, masses=[1, 2, 3, 4]).masses is not None


@pytest.mark.theorem
def test_the_laws_of_the_constructors() -> None:
    """Uniform: mean 0, covariance I/d. Normal: scale^2 I. Errors of 50,000 draws are below five standard errors."""
    uniform, normal = Tokens.uniform(50_000, 3, seed=1).points, Tokens.gaussian(50_000, 3, seed=1, scale=2.0).points
    for points, variance in ((uniform, 1 / 3), (normal, 4.0)):
        assert points.mean(0).abs().max() < 5 * (variance / 50_000) ** 0.5
        covariance = points.mT @ points / 50_000
        assert (covariance - variance * torch.eye(3, dtype=torch.float64)).abs().max() < 0.03 * variance


def test_orthonormal_tokens() -> None:
    points = Tokens.orthonormal(3, 5).points
    assert torch.equal(points @ points.mT, torch.eye(3, dtype=torch.float64))
    with pytest.raises(InputError, match="at most dim orthonormal tokens exist: got 6 in dimension 5"):
        Tokens.orthonormal(6, 5)
    for n, dim in ((0, 3), (3, 0)):
        with pytest.raises(InputError, match=f"got n={n}, dim={dim}"):
            Tokens.uniform(n, dim)


def test_repr_says_shape_precision_and_masses() -> None:
    assert repr(Tokens(POINTS)) == "Tokens(3x2 float64)"
    assert repr(Tokens(POINTS, masses=[1, 1, 1], dtype=torch.float32)) == "Tokens(3x2 float32, weighted)"


def test_tokens_on_another_device() -> None:
    tokens = Tokens(np.eye(3), masses=[1.0, 2.0, 3.0], positions=[3, 1, 2], dtype=torch.float32)
    there = tokens.to("meta")
    assert there.points.device.type == there.masses.device.type == there.positions.device.type == "meta"
    assert torch.equal(tokens.to("cpu").points, tokens.points)
    assert tokens.to("cpu").points.dtype == torch.float32
    with pytest.raises(InputError, match="tokens cannot be put on nowhere"):
        tokens.to("nowhere")
