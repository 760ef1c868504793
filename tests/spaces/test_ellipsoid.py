"""The ellipsoid is the sphere in other coordinates: y = W^(1/2) x carries laws, velocities and layers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attractor.errors import InputError
from attractor.laws import Attention
from attractor.spaces import Ellipsoid, Sphere
from attractor.states import Tokens


def matrix(seed: int, dim: int) -> np.ndarray:
    factor = np.random.default_rng(seed).standard_normal((dim, dim))
    return factor @ factor.T / dim + 0.5 * np.eye(dim)


def power(W: np.ndarray, exponent: float) -> np.ndarray:
    values, vectors = np.linalg.eigh(W)
    return (vectors * values**exponent) @ vectors.T


@given(seed=st.integers(0, 500), dim=st.integers(1, 6))
def test_roots(seed: int, dim: int) -> None:
    W = matrix(seed, dim)
    space = Ellipsoid(W)
    for exponent in (0.5, -0.5, 1.0, -1.0):
        np.testing.assert_allclose(space.root(exponent).numpy(), power(W, exponent), rtol=0, atol=1e-13)
    x = torch.from_numpy(np.random.default_rng(seed).standard_normal((5, dim)))
    torch.testing.assert_close(space.from_sphere(space.to_sphere(x)), x, rtol=0, atol=1e-13)
    np.testing.assert_allclose(space.to_sphere(x).numpy(), x.numpy() @ power(W, 0.5), rtol=0, atol=1e-13)


@pytest.mark.theorem
@pytest.mark.parametrize("mask", [None, "causal"])
@pytest.mark.parametrize("seed", range(5))
def test_laws_on_the_ellipsoid_are_laws_on_the_sphere(seed: int, mask: str | None) -> None:
    """P' = W^-1/2 P W^-1/2 and U' = W^1/2 U W^-1/2: velocities and layers correspond to rounding (consensus 2)."""
    dim, n = 3, 7
    rng = np.random.default_rng(seed)
    W = matrix(seed, dim)
    root, inverse = power(W, 0.5), power(W, -0.5)
    P, U = rng.standard_normal((2, dim, dim)), rng.standard_normal((2, dim, dim))
    here = Attention(np.stack([np.eye(dim)] * 2), P, U, mask=mask)
    there = Attention(np.stack([np.eye(dim)] * 2), inverse @ P @ inverse, root @ U @ inverse, mask=mask)
    ellipsoid, sphere = Ellipsoid(W), Sphere()
    x = ellipsoid.random(n, dim, seed)
    y = ellipsoid.to_sphere(x)
    velocity = ellipsoid.tangent(x, here.velocity(Tokens(x)))
    mirrored = sphere.tangent(y, there.velocity(Tokens(y)))
    size = max(1.0, float(mirrored.abs().max()))
    torch.testing.assert_close(ellipsoid.to_sphere(velocity), mirrored, rtol=0, atol=1e-14 * size)
    for step in (0.1, 1.0):
        one, other = here.layer(Tokens(x), step, ellipsoid), there.layer(Tokens(y), step, sphere)
        torch.testing.assert_close(ellipsoid.to_sphere(one), other, rtol=0, atol=2e-14 * size)
    torch.testing.assert_close(ellipsoid.distance(x[1:], x[:-1]), sphere.distance(y[1:], y[:-1]), rtol=0, atol=1e-14)


@pytest.mark.theorem
def test_the_unit_ellipsoid_is_the_sphere() -> None:
    x, v = Sphere().random(6, 3, seed=1), torch.from_numpy(np.random.default_rng(2).standard_normal((6, 3)))
    space = Ellipsoid(np.eye(3))
    torch.testing.assert_close(space.tangent(x, v), Sphere().tangent(x, v), rtol=0, atol=1e-15)
    torch.testing.assert_close(space.retract(2 * x), x, rtol=0, atol=1e-15)
    torch.testing.assert_close(space.distance(x[:3], x[3:]), Sphere().distance(x[:3], x[3:]), rtol=0, atol=1e-15)


@pytest.mark.theorem
def test_the_projection_is_orthogonal_in_the_metric_of_the_ellipsoid() -> None:
    """Pi_x is W-self-adjoint; the Euclidean projector would move consensus states."""
    W = torch.from_numpy(matrix(3, 4))
    space = Ellipsoid(W)
    x = space.random(6, 4, seed=1)
    u, v = (torch.from_numpy(np.random.default_rng(seed).standard_normal((6, 4))) for seed in (4, 5))
    left = ((space.tangent(x, u) @ W) * v).sum(-1)
    right = ((u @ W) * space.tangent(x, v)).sum(-1)
    torch.testing.assert_close(left, right, rtol=0, atol=1e-13)
    assert ((space.tangent(x, u) @ W) * x).sum(-1).abs().max() < 1e-13


@pytest.mark.parametrize(
    ("W", "message"),
    [
        (np.ones((2, 3)), r"an ellipsoid needs a square matrix, got shape \(2, 3\)"),
        (np.ones(3), r"an ellipsoid needs a square matrix, got shape \(3,\)"),
        (np.ones((0, 0)), r"an ellipsoid needs a square matrix, got shape \(0, 0\)"),
        (np.ones((2, 3, 3)), r"an ellipsoid needs a square matrix, got shape \(2, 3, 3\)"),
        ([[1.0, 0.5], [0.0, 1.0]], r"needs a symmetric matrix; this one is asymmetric by 0.5 of its size"),
        (np.diag([1.0, -2.0]), r"needs a positive definite matrix; the smallest eigenvalue is -2"),
        (np.diag([1.0, 0.0]), r"needs a positive definite matrix; the smallest eigenvalue is 0"),
        (np.zeros((2, 2)), r"needs a positive definite matrix"),
        ([[1.0, np.nan], [np.nan, 1.0]], r"the ellipsoid's matrix holds NaN at index \(0, 1\)"),
        ("W", r"the ellipsoid's matrix must be numbers"),
    ],
)
def test_a_bad_matrix_is_refused(W: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Ellipsoid(W)  # type: ignore[arg-type]


def test_a_nearly_singular_matrix_is_not_positive_definite() -> None:
    """Rounding may leave a smallest eigenvalue of +1e-17: such an ellipsoid has no end, and its roots no digits."""
    direction = np.array([1.0, 2.0, 3.0])
    for seed in range(20):
        rotation = np.linalg.qr(np.random.default_rng(seed).standard_normal((3, 3)))[0]
        with pytest.raises(InputError, match="needs a positive definite matrix"):
            Ellipsoid(rotation @ np.outer(direction, direction) @ rotation.T)


def test_dimensions_must_agree() -> None:
    space = Ellipsoid(np.eye(3))
    with pytest.raises(InputError, match="the ellipsoid lives in dimension 3, the tokens in dimension 2"):
        space.check_dimension(2)
    with pytest.raises(InputError, match="the ellipsoid lives in dimension 3, the tokens in dimension 4"):
        space.random(5, 4)
    space.check_dimension(3)
    Sphere().check_dimension(17)
