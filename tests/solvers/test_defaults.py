"""What flow does unasked must not change where tokens are: early ends, merging, interpolation after merges."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

import attractor as at
from attractor.errors import UnsupportedError

I2, I3 = np.eye(2), np.eye(3)


def scipy_final(value: np.ndarray, points: np.ndarray, until: float, causal: bool) -> np.ndarray:
    """Softmax attention on the sphere with Q = K = I, by scipy in ambient coordinates."""

    def field(_: float, flat: np.ndarray) -> np.ndarray:
        x = flat.reshape(points.shape)
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
        scores = x @ x.T
        if causal:
            scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        drive = weights / weights.sum(1, keepdims=True) @ x @ value.T
        return (drive - x * (x * drive).sum(1, keepdims=True)).ravel()

    end = solve_ivp(field, (0.0, until), points.ravel(), method="DOP853", rtol=1e-11, atol=1e-13).y[:, -1]
    end = end.reshape(points.shape)
    return end / np.linalg.norm(end, axis=1, keepdims=True)


TURNING = I3 + 0.7 * np.array([[0, -1, 0], [1, 0, 0], [0, 0, -0.2 / 0.7]])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("value", "until"), [(TURNING, 60.0), (np.diag([1.2, 1.0, 1.0]), 80.0), (I3, 60.0)])
def test_the_last_state_is_the_one_at_until_even_where_tokens_that_agree_travel_on(value, until, causal):
    start = at.Tokens.hemisphere(4, 3, seed=5).points.numpy()
    law = at.Attention(I3, I3, value, mask="causal" if causal else None)
    run = at.flow(law, at.Tokens(start), space=at.Sphere(), until=until)
    assert run.outcome.name == "consensus"
    assert run.outcome.time < until
    error = np.abs(np.asarray(run.final) - scipy_final(value, start, until, causal)).max()
    assert error < 5e-7  # consensus counts as reached at 20 rtol = 2e-7


def test_a_law_that_changes_later_is_followed_past_a_collapse():
    stack = at.Stack((at.Affine(-I2), at.Affine(I2)), duration=17.0)
    run = at.flow(stack, at.Tokens([[1.0, 2.0]]), until=34.0, atol=1e-20)
    np.testing.assert_allclose(np.asarray(run.final), [[1.0, 2.0]], rtol=1e-6)


def test_tokens_that_part_are_not_merged_unasked():
    points = [[1.0, 0.0], [1.0, 5e-10], [-1.0, 0.3]]
    law = at.Attention(I2, I2, -I2)
    unasked = at.flow(law, at.Tokens(points), space=at.Sphere(), until=60.0)
    never = at.flow(law, at.Tokens(points), space=at.Sphere(), until=60.0, merge=False)
    assert unasked.stats.merges == 0
    torch.testing.assert_close(unasked.final.points, never.final.points, rtol=0, atol=1e-12)
    assert float((unasked.final.points[0] - unasked.final.points[1]).norm()) > 1.0


def test_a_schedule_that_is_a_function_is_not_merged():
    law = at.Schedule(lambda t: at.Attention.isotropic(3, 2.0, mask=None if t < 1 else "causal"))
    tokens = at.Tokens(torch.cat([at.Tokens.uniform(4, 3).points, at.Tokens.uniform(4, 3).points[:1]]))
    assert at.flow(law, tokens, space=at.Sphere(), until=2.0).stats.merges == 0
    with pytest.raises(UnsupportedError, match="may become masked"):
        at.flow(law, tokens, space=at.Sphere(), until=2.0, merge=1e-3)


@pytest.mark.parametrize("seed", range(6))
def test_merging_and_named_times_go_together(seed):
    tokens = at.Tokens.uniform(8, 3, seed=seed)
    times = np.linspace(0.0, 60.0, 13)
    law = at.Attention.isotropic(3, 1.0)
    merged = at.flow(law, tokens, space=at.Sphere(), save=times)
    plain = at.flow(law, tokens, space=at.Sphere(), save=times, merge=False)
    torch.testing.assert_close(merged.points, plain.points, rtol=0, atol=2e-7)


def test_an_event_along_layers_happens_at_the_end_of_a_layer():
    law = at.Attention.isotropic(3, 1.0)
    tokens = at.Tokens.hemisphere(5, 3)
    near = at.Event(lambda tokens, time: float(at.consensus_gap(tokens)) - 0.05)
    run = at.flow(law, tokens, space=at.Sphere(), until=30.0, method="layers", events=[near])
    assert run.outcome.time == round(run.outcome.time)
    whole = at.flow(law, tokens, space=at.Sphere(), until=run.outcome.time, method="layers", stop=())
    assert torch.equal(run.final.points, whole.final.points)


def test_an_ensemble_of_gaussians_may_have_a_law_for_each():
    rng = np.random.default_rng(0)
    query, key = 0.3 * rng.standard_normal((2, 2, 1, 3, 3))
    value = -np.tile(np.eye(3), (2, 1, 1, 1))
    starts = at.Gaussian(np.zeros((2, 3)), np.stack([np.eye(3), 2 * np.eye(3)]))
    together = at.flow(at.Attention(query, key, value), starts, until=0.5)
    for index in range(2):
        law = at.Attention(query[index], key[index], value[index])
        alone = at.flow(law, at.Gaussian(np.zeros(3), (1.0 + index) * np.eye(3)), until=0.5)
        torch.testing.assert_close(together.covariances[-1][index], alone.covariances[-1], rtol=1e-6, atol=1e-8)


def test_scale_may_be_any_number_and_carries_its_gradient():
    tokens = at.Tokens.uniform(4, 3)
    assert at.Attention(I3, I3, I3, scale=np.float32(0.5)).scale == 0.5
    scale = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    at.velocity(at.Attention(I3, I3, I3, scale=scale), tokens).square().sum().backward()
    assert scale.grad is not None
    assert float(scale.grad) != 0.0
