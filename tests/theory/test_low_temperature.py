"""Waiting times, merge points and the critical scaling of the temperature, against quadrature and numbers computed elsewhere."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad

import attractor as at
from attractor.theory import find_theorem
from attractor.theory.theorems.consensus.critical_scaling import limit_cosine, map_cosine, self_weight
from attractor.theory.timescales import log_merging_time, merge_share

pytestmark = pytest.mark.theorem


@pytest.mark.parametrize(
    ("beta", "expected", "two_terms"),
    [
        (50, 18.7583368645, 3.3e-3),
        (100, 41.0325932385, 7.9e-4),
        (200, 86.3010751608, 1.9e-4),
        (500, 223.289377092, 3.0e-5),
    ],
)
def test_waiting_times_of_two_tokens(beta: float, expected: float, two_terms: float) -> None:
    # A20 and A21
    found = log_merging_time(beta, 1.0, 1e-3)
    assert abs(found - expected) < 1e-9
    part = beta * math.sin(1.0) ** 2
    formula = beta * (1 - math.cos(1.0)) - math.log(2 * part) + math.log1p(2 * math.cos(1.0) / part)
    assert abs(math.expm1(formula - found)) == pytest.approx(two_terms, rel=0.1)


def plain_time(beta: float, start: float, end: float, masses: tuple[float, float], kernel: str) -> float:
    """The time of two clusters, by quadrature of one over the rate."""
    first, second = masses

    def pace(theta: float) -> float:
        barrier = math.exp(-beta * (1 - math.cos(theta)))
        if kernel == "exponential":
            return 1 / (math.sin(theta) * (first + second) * math.exp(beta) * barrier)
        weights = second * barrier / (first + second * barrier) + first * barrier / (second + first * barrier)
        return 1 / (math.sin(theta) * weights)

    return quad(pace, end, start, epsabs=0, epsrel=1e-12, limit=500)[0]


@pytest.mark.parametrize("kernel", ["softmax", "exponential"])
@pytest.mark.parametrize("masses", [(0.5, 0.5), (0.75, 0.25), (0.2, 0.7), (1e-3, 0.9)])
@pytest.mark.parametrize(("beta", "start"), [(-2.0, 1.0), (1e-3, 2.5), (5.0, 1.0), (12.0, 3.0), (30.0, 0.4)])
def test_clusters_of_any_masses(kernel: str, masses: tuple[float, float], beta: float, start: float) -> None:
    normalised = kernel == "softmax"
    found = log_merging_time(beta, start, 1e-3, masses=masses, normalised=normalised)
    assert found == pytest.approx(math.log(plain_time(beta, start, 1e-3, masses, kernel)), abs=1e-9)


def test_a_waiting_time_of_different_masses() -> None:
    # A22
    assert math.exp(log_merging_time(5.0, 1.0, 1e-3, masses=(0.75, 0.25))) == pytest.approx(7.90507638420581, abs=1e-12)


@pytest.mark.parametrize(("beta", "expected"), [(10, 0.16862466), (100, 0.12148152), (1000, 0.10678402)])
def test_the_part_of_the_angle_that_a_cluster_travels(beta: float, expected: float) -> None:
    # A23, and the place where a run merges
    masses = (0.75, 0.25)
    assert merge_share(beta, 1.0, masses) == pytest.approx(expected, abs=1e-7)
    assert merge_share(beta, 1.0, masses[::-1]) == pytest.approx(1 - expected, abs=1e-7)
    start = at.Tokens([[1.0, 0.0], [math.cos(1.0), math.sin(1.0)]], masses=masses)
    run = at.flow(at.Attention.isotropic(2, beta), start, space="sphere", log_until=beta, method="clusters", merge=1e-5)
    x, y = run.final.points[0].tolist()
    assert math.atan2(y, x) == pytest.approx(expected, abs=1e-6)


def test_the_limits_of_the_merge_point() -> None:
    assert merge_share(1e6, 1.0, (0.75, 0.25)) == pytest.approx(0.1, abs=1e-3)
    assert merge_share(1e-9, 1.0, (0.75, 0.25)) == pytest.approx(0.25, abs=1e-9)
    assert merge_share(50.0, 1.0, (0.75, 0.25), normalised=False) == 0.25


def test_predict_says_when_and_where_clusters_merge() -> None:
    angles = np.array([0.0, 1.0, 2.3, 4.0])
    tokens = at.Tokens(np.stack([np.cos(angles), np.sin(angles)], axis=-1))
    found = at.predict(at.Attention.isotropic(2, 50.0), tokens, "sphere", until=at.exp(15.0))
    times = found.row()["times"]["consensus.waiting-time"]
    assert times["log_time"] == pytest.approx(18.75833713, abs=1e-5)
    assert times["kind"] == "exact"
    assert times["beyond"]
    assert "tokens 0 and 1" in times["text"]
    pair = at.Tokens(tokens.points[:2], masses=[0.75, 0.25])
    words = at.predict(at.Attention.isotropic(2, 100.0), pair, "sphere").row()["times"]["consensus.waiting-time"][
        "rate"
    ]
    assert "0.1215" in words
    assert "0.25" in words


def test_a_third_token_as_close_leaves_the_first_merge_open() -> None:
    theorem = find_theorem("consensus.waiting-time")
    law = at.Attention.isotropic(2, 50.0)
    angles = np.array([0.0, 1.0, 1.99])  # the third token is as close
    tokens = at.Tokens(np.stack([np.cos(angles), np.sin(angles)], axis=-1))
    applicable = {item.theorem.key for item in at.predict(law, tokens, "sphere").applicable}
    assert theorem.key not in applicable


def test_the_critical_scaling() -> None:
    # A30
    assert map_cosine(200, 2 * math.log(200), 0.5, math.inf) == pytest.approx(0.801399197593, abs=1e-11)
    for gamma, expected in ((1.0, 0.8), (2.0, 0.64), (3.0, 0.5)):
        assert limit_cosine(0.5, gamma, 1.0) == pytest.approx(expected, abs=1e-8)
        n = 10**15
        finite = map_cosine(n, gamma * math.log(n), 0.5, 1.0)
        assert finite == pytest.approx(expected, abs=1e-6)
    # at the threshold, without the residual: 4 rho / (1 + 3 rho)
    assert limit_cosine(0.5, 2.0, math.inf) == pytest.approx(4 * 0.5 / (1 + 3 * 0.5), abs=1e-12)
    # the window gamma = 1/(1 - rho) + g / log n
    n, rho, g = 10**12, 0.3, 1.7
    beta = (1 / (1 - rho) + g / math.log(n)) * math.log(n)
    assert self_weight(n, beta, rho) == pytest.approx(1 / (1 + math.exp(-g * (1 - rho))), rel=1e-9)


def test_the_critical_scaling_is_that_of_a_layer() -> None:
    n, rho, beta = 200, 0.5, 2 * math.log(200)
    law = at.Attention.isotropic(n, beta) + at.Affine(-torch.eye(n, dtype=torch.float64))
    state = at.Equiangular(rho, n)
    layer = {"space": at.Sphere(), "until": 1.0, "method": "layers", "step": 1.0}
    short = at.flow(law, state, **layer)
    assert float(short.final.rho) == pytest.approx(0.801399197593, abs=1e-11)
    tokens = at.flow(law, state.tokens(), **layer).final.points
    assert float(tokens[0] @ tokens[7]) == pytest.approx(0.801399197593, abs=1e-11)
    kept = at.flow(at.Attention.isotropic(n, beta), state, **layer)
    assert float(kept.final.rho) == pytest.approx(map_cosine(n, beta, rho, 1.0), abs=1e-12)
    found = at.predict(at.Attention.isotropic(5, 3.0), at.Equiangular(0.4, 5).tokens(), "sphere", step=1.0)
    assert "log n" in found.row()["times"]["consensus.critical-scaling"]["rate"]


@pytest.mark.parametrize("gamma", [0.3, 0.5, 0.7])
def test_orthogonal_tokens_have_their_own_threshold(gamma: float) -> None:
    """rho = 0: the cosine after a layer tends to 1, 1/2, 0 for gamma below, at and above 1/2."""
    n = 10.0**60
    found = map_cosine(n, gamma * math.log(n), 0.0, math.inf)  # type: ignore[arg-type]
    assert found == pytest.approx({0.3: 1.0, 0.5: 0.5, 0.7: 0.0}[gamma], abs=1e-6)


def test_two_tokens_under_hardmax_without_self() -> None:
    """tan(theta/2) = e^-2t tan(theta_0/2) (2.1)."""
    law = at.Attention.isotropic(2, 1.0, kernel=at.Hardmax(exclude_self=True))
    start = at.Tokens([[1.0, 0.0], [math.cos(2.0), math.sin(2.0)]])
    run = at.flow(law, start, space="sphere", until=1.5, save=[0.5, 1.5], rtol=1e-11, atol=1e-13, stop=())
    angles = torch.acos((run.points[:, 0] * run.points[:, 1]).sum(-1))
    expected = 2 * torch.atan(torch.exp(-2 * run.times) * math.tan(1.0))
    assert torch.allclose(angles, expected, atol=1e-9)
