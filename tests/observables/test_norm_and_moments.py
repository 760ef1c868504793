"""Lengths, means and covariances against their sums."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attractor.errors import InputError
from attractor.observables import covariance, mean, token_norm
from attractor.spaces import Ellipsoid, Sphere
from attractor.states import Tokens


def test_token_norm(rng: np.random.Generator) -> None:
    points, masses = rng.standard_normal((5, 3)), rng.random(5)
    lengths = np.sqrt((points**2).sum(-1))
    assert float(token_norm(Tokens(points))) == pytest.approx(lengths.mean(), rel=1e-15)
    assert float(token_norm(Tokens(points, masses))) == pytest.approx(masses @ lengths / masses.sum(), rel=1e-15)
    assert float(token_norm(Tokens(points), reduce="max")) == pytest.approx(lengths.max(), rel=1e-15)
    assert float(token_norm(Tokens(points), reduce="min")) == pytest.approx(lengths.min(), rel=1e-15)


def test_token_norm_is_that_of_the_space(rng: np.random.Generator) -> None:
    points, W = rng.standard_normal((5, 3)), np.diag([1.0, 4.0, 9.0])
    lengths = np.sqrt(np.einsum("ia,ab,ib->i", points, W, points))
    assert float(token_norm(Tokens(points), space=Ellipsoid(W))) == pytest.approx(lengths.mean(), rel=1e-14)
    on_sphere = Tokens(Sphere(3.0).random(5, 3))
    assert float(token_norm(on_sphere, space=Sphere(3.0))) == pytest.approx(3.0, rel=1e-15)
    with pytest.raises(InputError, match="dimension"):
        token_norm(Tokens(points[:, :2]), space=Ellipsoid(W))
    with pytest.raises(InputError, match="'median'"):
        token_norm(Tokens(points), reduce="median")  # type: ignore[arg-type]


@pytest.mark.parametrize("offset", [0.0, 1e8])
def test_moments(rng: np.random.Generator, offset: float) -> None:
    # a multiple of 2^-20, so that adding the offset is exact and the oracle sees the same cloud
    points, masses = np.round(rng.standard_normal((6, 3)) * 2**20) / 2**20, rng.random(6)
    tokens = Tokens(points + offset, masses)
    share = masses / masses.sum()
    centre = share @ points
    np.testing.assert_allclose(mean(tokens).numpy(), centre + offset, rtol=1e-15)
    wanted = sum(p * np.outer(x - centre, x - centre) for p, x in zip(share, points, strict=True))
    np.testing.assert_allclose(covariance(tokens).numpy(), wanted, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(
        covariance(Tokens(points + offset)).numpy(), np.cov(points.T, bias=True), rtol=1e-13, atol=1e-14
    )


def test_gradient_of_the_mean_norm(rng: np.random.Generator) -> None:
    points = torch.tensor(rng.standard_normal((4, 3)), requires_grad=True)
    token_norm(Tokens(points)).backward()
    assert points.grad is not None
    torch.testing.assert_close(points.grad, points.detach() / points.detach().norm(dim=-1, keepdim=True) / 4)
