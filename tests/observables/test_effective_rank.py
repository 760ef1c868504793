"""Effective rank against the entropy of numpy's singular values, and where it is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attractor.observables import effective_rank
from attractor.spaces import Ellipsoid
from attractor.states import Tokens


def from_singular_values(matrix: np.ndarray) -> float:
    values = np.linalg.svd(matrix, compute_uv=False)
    shares = values / values.sum()
    shares = shares[shares > 0]
    return float(np.exp(-(shares * np.log(shares)).sum()))


def test_against_numpy(rng: np.random.Generator) -> None:
    points, masses = rng.standard_normal((9, 4)) + 1.0, rng.random(9)
    assert float(effective_rank(Tokens(points))) == pytest.approx(from_singular_values(points), rel=1e-13)
    rows = np.sqrt(masses)[:, None] * points
    assert float(effective_rank(Tokens(points, masses))) == pytest.approx(from_singular_values(rows), rel=1e-13)
    centred = np.sqrt(masses)[:, None] * (points - masses @ points / masses.sum())
    value = effective_rank(Tokens(points, masses), centred=True)
    assert float(value) == pytest.approx(from_singular_values(centred), rel=1e-13)
    W = np.diag([1.0, 2.0, 3.0, 4.0])
    value = effective_rank(Tokens(points), space=Ellipsoid(W))
    assert float(value) == pytest.approx(from_singular_values(points @ np.sqrt(W)), rel=1e-13)


def test_known_ranks() -> None:
    assert float(effective_rank(Tokens.orthonormal(4, 6))) == pytest.approx(4.0, rel=1e-14)
    assert float(effective_rank(Tokens([[1.0, 2.0, 3.0]] * 5))) == pytest.approx(1.0, rel=1e-13)
    assert float(effective_rank(Tokens([[1.0, 2.0, 3.0]] * 5), centred=True)) == 0.0
    assert float(effective_rank(Tokens([[0.0, 0.0]] * 3))) == 0.0
    assert float(effective_rank(Tokens([[1.0, 1.0], [-1.0, -1.0]]), centred=True)) == pytest.approx(1.0, rel=1e-13)


def test_gradient() -> None:
    points = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: effective_rank(Tokens.unchecked(x)), (points,))
