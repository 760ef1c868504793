"""Exactly solvable cases and terminal rates: shared/theory/consensus.md, T2, T3, T4, T6 and section 5."""

from __future__ import annotations

from math import cos, exp, pi, sin

import numpy as np
import pytest
import torch
from scipy.integrate import quad, solve_ivp

import attractor as at

TIGHT = {"rtol": 1e-12, "atol": 1e-14, "stop": (), "merge": False}


def angle(tokens: at.Tokens) -> float:
    """The angle between the first two tokens, accurate however small."""
    x, y = tokens.points[0], tokens.points[1]
    return float(2 * torch.atan2((x - y).norm(), (x + y).norm()))


def slope(times: np.ndarray, values: np.ndarray) -> float:
    """The exponent of an exponential law, by least squares."""
    return float(np.polyfit(times, np.log(values), 1)[0])


def gaps(run: at.Trajectory) -> np.ndarray:
    """|x_i - x_1| of every token but the first, (saved times, n - 1)."""
    return (run.points[:, 1:] - run.points[:, :1]).norm(dim=-1).numpy()


@pytest.mark.theorem
@pytest.mark.parametrize(("beta", "quoted"), [(1.0, 3.464763), (4.0, 10.021878), (8.0, 195.902787)])
@pytest.mark.parametrize("copies", [1, 3])
def test_two_clusters_meet_when_the_quadrature_says(beta: float, quoted: float, copies: int) -> None:
    """theta' = -2 sin(theta) / (1 + e^{beta (1 - cos theta)}), from a right angle to 0.1."""
    expected, _ = quad(lambda a: (1 + exp(beta * (1 - cos(a)))) / (2 * sin(a)), 0.1, pi / 2, epsabs=0, epsrel=1e-13)
    assert expected == pytest.approx(quoted, abs=1e-6)
    tokens = at.Tokens(np.eye(3)[[0, 1] * copies])
    near = at.Event(lambda tokens, time: angle(tokens) - 0.1, "near")
    run = at.flow(
        at.Attention.isotropic(3, beta), tokens, space="sphere", until=1e4, rtol=1e-12, atol=1e-14, events=[near]
    )
    assert run.outcome.name == "event"
    assert run.outcome.time == pytest.approx(expected, rel=1e-8)
    assert angle(run.final) == pytest.approx(0.1, abs=1e-9)


@pytest.mark.theorem
@pytest.mark.parametrize(("count", "beta"), [(3, 1.0), (5, 4.0), (8, 0.5), (2, -1.0)])
def test_equiangular_tokens_stay_equiangular(count: int, beta: float) -> None:
    """g' = 2 e^{bg} (1 - g) ((T-1) g + 1) / (e^b + (T-1) e^{bg}) for the common cosine g of an orthonormal start."""

    def common_cosine(t: float, g: np.ndarray) -> np.ndarray:
        e = np.exp(beta * g)
        return 2 * e * (1 - g) * ((count - 1) * g + 1) / (exp(beta) + (count - 1) * e)

    times = np.linspace(0.0, 6.0, 13)
    truth = solve_ivp(common_cosine, (0, 6), [0.0], method="DOP853", rtol=1e-13, atol=1e-15, t_eval=times[1:])
    run = at.flow(at.Attention.isotropic(8, beta), at.Tokens.orthonormal(count, 8), space="sphere", save=times, **TIGHT)
    cosines = run.points @ run.points.mT
    upper = torch.triu_indices(count, count, 1)
    pairs = cosines[:, upper[0], upper[1]].numpy()
    np.testing.assert_allclose(pairs[1:], np.repeat(truth.y.T, pairs.shape[1], axis=1), atol=1e-8, rtol=0)


def test_equiangular_cosine_of_the_theory_note() -> None:
    run = at.flow(at.Attention.isotropic(3, 1.0), at.Tokens.orthonormal(3, 3), space="sphere", save=[6.0], **TIGHT)
    assert float(run.points[0, 0] @ run.points[0, 1]) == pytest.approx(0.999961, abs=5e-7)


def two_heads(seed: int, mask: str | None = None) -> at.Attention:
    """Random non-symmetric interactions, values I/2 each: total weight one."""
    query, key = np.random.default_rng(seed).standard_normal((2, 2, 3, 3))
    return at.Attention(query, key, np.broadcast_to(np.eye(3) / 2, (2, 3, 3)).copy(), mask=mask, scale=0.7)


@pytest.mark.theorem
@pytest.mark.parametrize("space", [at.Sphere(), at.Ellipsoid(np.diag([0.5, 1.0, 3.0]))], ids=["sphere", "ellipsoid"])
@pytest.mark.parametrize("seed", [0, 1])
def test_in_a_hemisphere_tokens_meet_at_rate_one(seed: int, space: at.Space) -> None:
    """T2 (d): angles decay like e^{-t} for every interaction."""
    run = at.flow(
        two_heads(seed), at.Tokens.hemisphere(6, 3, seed=seed), space=space, save=np.linspace(12, 22, 11), **TIGHT
    )
    assert slope(run.times.numpy(), gaps(run).max(axis=1)) == pytest.approx(-1.0, abs=0.002)


@pytest.mark.theorem
@pytest.mark.parametrize("mask", [None, "causal"])
def test_heights_over_a_hemisphere_never_fall(mask: str | None) -> None:
    """T2 (a): min_i <e, x_i> does not decrease where it is positive, for interactions that turn with time."""
    base, swing = two_heads(3, mask), two_heads(4)

    def at_time(t: float) -> at.Attention:
        return at.Attention(base.query + sin(2 * t) * swing.query, base.key, base.value, mask=mask)

    tokens = at.Tokens.hemisphere(7, 3, seed=5)
    run = at.flow(
        at.Schedule(at_time), tokens, space="sphere", save=np.linspace(0, 8, 41), rtol=1e-10, atol=1e-12, stop=()
    )
    pole = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    heights = (run.points @ pole).amin(dim=-1)
    assert bool((heights[0] > 0).all())
    assert float((heights[:-1] - heights[1:]).max()) < 1e-9


@pytest.mark.theorem
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_under_a_causal_mask_all_tokens_come_to_the_first(seed: int) -> None:
    """T3: x_1 does not move at all, and the angle to it decays like e^{-t/2}, without any hemisphere."""
    tokens = at.Tokens.uniform(6, 3, seed=seed)
    run = at.flow(two_heads(seed, "causal"), tokens, space="sphere", save=np.linspace(0, 40, 81), **TIGHT)
    start = run.points[0, 0]
    assert bool((run.points[:, 0] == start).all())
    assert bool((run.final.points[0] == start).all())
    late = run.times.numpy() >= 28
    assert slope(run.times.numpy()[late], gaps(run)[late][:, 0]) == pytest.approx(-0.5, abs=0.005)
    assert gaps(run)[-1].max() < 1e-6


@pytest.mark.theorem
@pytest.mark.parametrize(("spectrum", "rate"), [((2, 1, 0.5, -1), -1.0), ((2, -1, -1.5, 0.3), -1.7)])
def test_a_dominant_value_direction_attracts(spectrum: tuple[float, ...], rate: float) -> None:
    """T4: causal, symmetric value: the deviation from v_1 has exponent -(lambda_1 - max_{k>=2, i} lambda_k / i)."""
    rng = np.random.default_rng(0)
    law = at.Attention(*0.5 * rng.standard_normal((2, 4, 4)), np.diag(spectrum).astype(float), mask="causal")
    points = rng.standard_normal((4, 4))
    points[:, 0] = np.abs(points[:, 0]) + 0.2
    times = np.linspace(13, 20, 8) / -rate
    run = at.flow(law, at.Tokens(points), space="sphere", save=times, **TIGHT)
    deviation = run.points[..., 1:].norm(dim=-1).amax(dim=-1).numpy()
    assert slope(times, deviation) == pytest.approx(rate, rel=0.02)


@pytest.mark.theorem
@pytest.mark.parametrize("step", [0.1, 0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("mask", [None, "causal"])
def test_layers_contract_by_their_own_factor(step: float, mask: str | None) -> None:
    """Section 5: a layer multiplies the distance by 1/(1+h), or (1 + h/2)/(1+h) under a causal mask."""
    factor = 1 / (1 + step) if mask is None else (1 + step / 2) / (1 + step)
    first, last = (int(np.log(size) / np.log(factor)) for size in (1e-5, 1e-9))
    law, tokens = two_heads(0, mask), at.Tokens.hemisphere(5, 3, seed=2)
    layers = np.arange(first, last + 1)
    run = at.flow(
        law, tokens, space="sphere", method="layers", step=step, until=step * last, save=step * layers, stop=()
    )
    assert exp(slope(layers, gaps(run)[:, 0])) == pytest.approx(factor, rel=2e-4)
