"""Angles and consensus against the table of cosines."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attractor.observables import consensus_gap, consensus_metric, cosine, cosine_min
from attractor.spaces import Ellipsoid
from attractor.states import Tokens


def cosines(points: np.ndarray) -> np.ndarray:
    lengths = np.sqrt((points**2).sum(-1))
    safe = np.where(lengths > 0, lengths, 1.0)
    return (points / safe[:, None]) @ (points / safe[:, None]).T


@given(seed=st.integers(0, 10**6), n=st.integers(2, 9), dim=st.integers(1, 4), weighted=st.booleans())
def test_against_the_table(seed: int, n: int, dim: int, weighted: bool) -> None:
    generator = np.random.default_rng(seed)
    points, masses = generator.standard_normal((n, dim)), generator.random(n) + 0.05 if weighted else np.ones(n)
    tokens = Tokens(points, masses if weighted else None)
    table, other = cosines(points), ~np.eye(n, dtype=bool)
    pairs = np.outer(masses, masses)
    assert float(cosine(tokens)) == pytest.approx((pairs * table)[other].sum() / pairs[other].sum(), abs=1e-13)
    assert float(cosine_min(tokens)) == pytest.approx(table[other].min(), abs=1e-14)
    assert float(consensus_metric(tokens)) == pytest.approx(1 - masses @ abs(table[0]) / masses.sum(), abs=1e-14)
    centre = masses @ points / masses.sum()
    assert float(consensus_gap(tokens)) == pytest.approx(np.sqrt(((points - centre) ** 2).sum(-1)).max(), rel=1e-13)


def test_in_the_metric_of_an_ellipsoid(rng: np.random.Generator) -> None:
    points, W = rng.standard_normal((6, 3)), np.diag([1.0, 2.0, 5.0])
    table, space = cosines(points @ np.sqrt(W)), Ellipsoid(W)
    assert float(cosine_min(Tokens(points), space=space)) == pytest.approx(table.min(), abs=1e-14)
    assert float(consensus_metric(Tokens(points), space=space)) == pytest.approx(1 - abs(table[0]).mean(), abs=1e-14)


def test_two_antipodal_clusters_fool_the_official_metric() -> None:
    tokens = Tokens([[1.0, 0.0], [-3.0, 0.0], [2.0, 0.0], [-1.0, 0.0]])
    assert float(consensus_metric(tokens)) == 0.0
    assert float(cosine_min(tokens)) == -1.0
    assert float(cosine(tokens)) == pytest.approx(-1 / 3, rel=1e-15)


def test_the_self_term_is_included() -> None:
    """Pitfall (b) of the protocol: a factor (T-1)/T against the mean over the others."""
    orthonormal = Tokens.orthonormal(5, 5)
    assert float(consensus_metric(orthonormal)) == pytest.approx(4 / 5, rel=1e-15)


def test_the_metric_does_not_stop_at_the_rounding_of_one() -> None:
    angle = 1e-12
    tokens = Tokens([[1.0, 0.0], [1.0, angle]])
    assert float(consensus_metric(tokens)) == pytest.approx(angle**2 / 4, rel=1e-10)


def test_tokens_at_the_origin_count_as_orthogonal() -> None:
    tokens = Tokens([[1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    assert float(cosine(tokens)) == pytest.approx(1 / 3, rel=1e-15)
    assert float(cosine_min(tokens)) == 0.0
    assert float(consensus_metric(tokens)) == pytest.approx(1 / 3, rel=1e-15)
    at_rest = Tokens([[0.0, 0.0], [0.0, 0.0]])
    assert float(cosine(at_rest)) == 0.0
    assert float(cosine_min(at_rest)) == 0.0
    assert float(consensus_metric(at_rest)) == 1.0


def test_a_single_token_agrees_with_itself() -> None:
    alone = Tokens([[0.3, 0.4]])
    assert float(cosine(alone)) == 1.0
    assert float(cosine_min(alone)) == 1.0
    assert float(consensus_metric(alone)) == pytest.approx(0.0, abs=1e-16)
    assert float(consensus_gap(alone)) == 0.0


def test_the_first_token_of_positive_mass_is_the_reference() -> None:
    points = [[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]]
    assert float(consensus_metric(Tokens(points, [0.0, 1.0, 1.0]))) == 0.0


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_angles_do_not_depend_on_lengths(size: float) -> None:
    tokens = Tokens([[size, 0.0], [size / 2, size / 2]])
    assert float(cosine(tokens)) == pytest.approx(0.5**0.5, rel=1e-15)
    assert float(cosine_min(tokens)) == pytest.approx(0.5**0.5, rel=1e-15)


def test_gap_far_from_the_origin() -> None:
    cloud = np.random.default_rng(3).integers(-64, 64, (16, 3)) / 64.0
    wanted = np.sqrt(((cloud - cloud.mean(0)) ** 2).sum(-1)).max()
    assert float(consensus_gap(Tokens(cloud + 1e9))) == pytest.approx(wanted, rel=1e-13)


def test_gradients() -> None:
    points = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    for function in (cosine, cosine_min, consensus_metric, consensus_gap):
        assert torch.autograd.gradcheck(lambda x, f=function: f(Tokens.unchecked(x)), (points,))
