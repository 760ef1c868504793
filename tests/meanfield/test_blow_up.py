"""Blow-up and its bounds: T3, T4, T8, T9, T10 of the mean-field specification."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import attractor as at
from attractor import meanfield as mf
from attractor.errors import UnsupportedError


def definite(rng: np.random.Generator, d: int) -> np.ndarray:
    root = rng.standard_normal((d, d))
    return root @ root.T / d + 0.2 * np.eye(d)


@pytest.mark.theorem
@pytest.mark.parametrize("seed", range(6))
def test_the_blow_up_time_lies_between_its_bounds(seed: int) -> None:
    """T4, with a K'Q that is not symmetric."""
    rng = np.random.default_rng(seed)
    d = 2 + seed % 3
    skew = rng.standard_normal((d, d))
    law = at.Attention(definite(rng, d) + 0.5 * (skew - skew.T), np.eye(d), definite(rng, d))
    start = at.Gaussian(np.zeros(d), definite(rng, d))
    bounds, found = mf.blow_up_bounds(law, start), mf.find_blow_up(law, start)
    assert found.outcome == "blow_up"
    assert bounds.lower <= found.time <= bounds.upper < np.inf
    run = at.flow(law, start, until=10.0 * bounds.upper)
    assert run.outcome.name == "blow_up"
    assert run.outcome.time == pytest.approx(found.time, rel=1e-9)
    assert float(run.times[-1]) == run.outcome.time
    assert "before the requested" in run.outcome.message
    values = torch.linalg.svdvals(run.final.factor) ** 2
    assert float(values[0] / values.sum()) > 1 - 1e-6


def test_bounds_say_what_they_need() -> None:
    eye = np.eye(2)
    start = at.Gaussian(np.zeros(2), eye)
    assert "positive definite V" in mf.blow_up_bounds(at.Attention(eye, eye, -eye), start).reason
    assert "symmetric part" in mf.blow_up_bounds(at.Attention(eye, -eye, eye), start).reason
    with pytest.raises(UnsupportedError, match="softmax"):
        mf.blow_up_bounds(at.Attention(eye, eye, eye, kernel="l2"), start)
    with pytest.raises(UnsupportedError, match="square and invertible"):
        mf.growth_rate(at.Attention([[1.0, 0.0]], [[1.0, 0.0]], eye, kernel="l2"))
    with pytest.raises(UnsupportedError, match="no exponential bound"):
        mf.growth_rate(at.Attention(eye, eye, eye))


@pytest.mark.theorem
@pytest.mark.parametrize(("s", "w"), [(1.0, 0.3), (0.4, -0.1)])
def test_l2_with_singular_keys_blows_up(s: float, w: float) -> None:
    """T9: w' = c (s + w)^2 with s constant."""
    law = at.Attention([[1.0, 1.0]], [[1.0, 0.0]], [[0.0, 0.0], [1.0, 1.0]], kernel="l2")
    found = mf.find_blow_up(law, at.Gaussian([0.0, 0.0], [[s, w], [w, 2.0]]))
    c = 2 / (1 + 2 * s)
    assert found.time == pytest.approx(1 / (c * (s + w)), rel=1e-8)
    assert found.direction is not None
    assert abs(found.direction[1]) > 1 - 1e-8


@pytest.mark.theorem
@pytest.mark.parametrize("kernel", ["l2", "sinkhorn"])
@pytest.mark.parametrize("seed", [0, 1])
def test_covariances_stay_below_their_exponential_bound(kernel: str, seed: int) -> None:
    """T8 for l2 with invertible K, T10 for sinkhorn; also from a singular covariance."""
    rng = np.random.default_rng(seed)
    law = at.Attention(*rng.standard_normal((3, 3, 3)), kernel=kernel)
    root = rng.standard_normal((3, 3 - seed))
    run = at.flow(law, at.Gaussian(np.zeros(3), root @ root.T), save=list(np.linspace(0.0, 3.0, 13)))
    assert run.outcome.name == "reached"
    norms = torch.linalg.matrix_norm(run.covariances, 2).numpy()
    assert (norms <= norms[0] * np.exp(mf.growth_rate(law) * run.times.numpy()) * (1 + 1e-12)).all()
    assert (torch.linalg.eigvalsh(run.covariances)[:, :seed].abs().numpy() < 1e-12 * norms[:, None]).all()


@pytest.mark.theorem
def test_sinkhorn_keeps_the_mean_of_the_field() -> None:
    """T10: weights are doubly stochastic, so the mean of the field is V times the mean, for any tokens."""
    law = at.Attention(*np.random.default_rng(2).standard_normal((3, 2, 2)), kernel="sinkhorn")
    tokens = at.Tokens.gaussian(40, 2, seed=3)
    mean = at.velocity(law, tokens).mean(0)
    torch.testing.assert_close(mean, law.value @ tokens.points.mean(0), rtol=0, atol=1e-12)


@pytest.mark.theorem
def test_linear_attention_blows_up_with_its_second_moment() -> None:
    """R = Sigma + alpha alpha' obeys the centred softmax equation, so with V = I its blow-up time is known."""
    rng = np.random.default_rng(4)
    query, key, root = rng.standard_normal((3, 3, 3))
    mean, covariance = rng.standard_normal(3), root @ root.T
    time, _ = mf.identity_value_blow_up(key.T @ query, covariance + np.outer(mean, mean))
    law = at.Attention(query, key, np.eye(3), kernel="linear")
    assert mf.find_blow_up(law, at.Gaussian(mean, covariance)).time == pytest.approx(time, rel=1e-9)
    point, _ = mf.identity_value_blow_up(key.T @ query, np.outer(mean, mean))
    dirac = mf.find_blow_up(law, at.Gaussian(mean, np.zeros((3, 3))), until=10 * min(point, 10.0))
    assert dirac.time == pytest.approx(point, rel=1e-9)


@pytest.mark.theorem
def test_multi_head_and_feed_forward_blow_up_too() -> None:
    """Two equal heads of half the value are one head; W = w I and V = I have the blow-up time of a Bernoulli equation."""
    rng = np.random.default_rng(5)
    query, root = rng.standard_normal((2, 2, 2))
    covariance = root @ root.T
    one = mf.find_blow_up(at.Attention(query, query, np.eye(2)), at.Gaussian(np.zeros(2), covariance))
    twice = at.Attention(np.stack([query] * 2), np.stack([query] * 2), np.stack([0.5 * np.eye(2)] * 2))
    assert mf.find_blow_up(twice, at.Gaussian(np.zeros(2), covariance)).time == pytest.approx(one.time, rel=1e-9)
    fed = at.Block(at.Attention(query, query, np.eye(2)), at.Affine(0.3 * np.eye(2), [1.0, 2.0]))
    expected = np.log1p(0.6 * one.time) / 0.6  # exp(2 w t) - 1 over 2 w is the time of the flow without W
    assert mf.find_blow_up(fed, at.Gaussian([0.1, 0.2], covariance)).time == pytest.approx(expected, rel=1e-9)


def test_a_mean_that_grows_is_told_apart_from_its_covariance() -> None:
    law = at.Attention([[1.0, 0.0]], [[-1.0, 0.0]], np.eye(2))
    run = at.flow(law, at.Gaussian([1.0, 1.0], np.eye(2)), until=1e4)
    assert run.outcome.name == "diverged"
    assert "the mean grew past" in run.outcome.message
    alone = at.flow(law, at.Gaussian([0.0, 0.0], np.eye(2)), until=1e4, save=[1e4])
    assert float(alone.covariances[-1][1, 1]) == pytest.approx(1.0, rel=1e-8)
    assert alone.stats.evaluations < 5000
