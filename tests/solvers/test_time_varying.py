"""Laws that change with time have the solutions of the formula; runs are reproducible, in both precisions."""

from __future__ import annotations

from math import cos, exp, sin

import numpy as np
import pytest
import torch
from scipy.linalg import expm

import attractor as at

TURN = np.array([[0.0, -1.0], [1.0, 0.0]])


@pytest.mark.theorem
@pytest.mark.parametrize("method", ["dopri5", "dop853"])
def test_a_linear_law_with_time_in_its_matrix(method: str) -> None:
    """x' = (cos t I + 2t J) x: both parts commute, so x = e^{sin t} R(t^2) x0."""
    law = at.Schedule(lambda t: at.Affine(cos(t) * np.eye(2) + 2 * t * TURN))
    start, times = np.array([[1.0, 0.5], [-0.3, 2.0]]), [0.4, 1.3, 2.0]
    run = at.flow(law, at.Tokens(start), save=times, method=method, rtol=1e-9, atol=1e-11)
    for row, t in zip(run.points.numpy(), times, strict=True):
        np.testing.assert_allclose(row, exp(sin(t)) * start @ expm(t * t * TURN).T, rtol=0, atol=5e-8)


@pytest.mark.theorem
def test_a_force_that_depends_on_time_alone() -> None:
    """x' = c(t): the end is the integral, whatever the tokens do; a start other than zero counts."""
    law = at.Schedule(lambda t: at.Affine(np.zeros((1, 1)), np.array([3 * t * t])))
    run = at.flow(law, at.Tokens(np.zeros((1, 1))), start=1.0, until=2.0)
    assert float(run.final.points) == pytest.approx(7.0, rel=1e-12)


@pytest.mark.theorem
def test_interpolated_matrices() -> None:
    """Scalars a(t) linear between nodes: x = x0 exp(integral of a); steps end on the nodes."""
    rates, nodes = [1.0, -2.0, 0.5], [0.0, 1.0, 3.0]
    law = at.Schedule.interpolate(nodes, [at.Affine(rate * np.eye(1)) for rate in rates])
    run = at.flow(law, at.Tokens(np.ones((1, 1))), save=[0.0, 1.0, 3.0, 4.0])
    integrals = np.cumsum([0.0, -0.5, -1.5, 0.5])  # constant after the last node
    np.testing.assert_allclose(run.points.flatten().numpy(), np.exp(integrals), rtol=1e-8)


@pytest.mark.parametrize("method", ["dopri5", "dop853"])
@pytest.mark.parametrize("duration", [1.0, 0.3])
def test_a_stack_is_one_law_after_the_other(method: str, duration: float) -> None:
    laws = [at.Attention.isotropic(3, beta) for beta in (5.0, -3.0, 1.0)]
    tokens = at.Tokens.uniform(6, 3, seed=4)
    options = {"space": "sphere", "method": method, "stop": (), "merge": False, "rtol": 1e-9, "atol": 1e-11}
    times = duration * np.array([0.5, 1.0, 2.2, 3.0])
    run = at.flow(at.Stack(laws, duration), tokens, save=times, **options)
    state, pieces = tokens, []
    for law, inner in zip(laws, ([0.5, 1.0], [1.0], [0.2, 1.0]), strict=True):
        piece = at.flow(law, state, save=duration * np.array(inner), **options)
        state = piece.final
        pieces += [*piece.points] if len(inner) > 1 else []
    torch.testing.assert_close(run.points, torch.stack(pieces), rtol=0, atol=1e-8)
    torch.testing.assert_close(run.final.points, state.points, rtol=0, atol=1e-8)
    assert run.outcome.time == pytest.approx(3 * duration)


def test_a_stack_knows_its_depth() -> None:
    stack = at.Stack([at.Attention.isotropic(3, 1.0)] * 5, duration=0.5)
    assert at.flow(stack, at.Tokens.uniform(4, 3), space="sphere").outcome.time == 2.5


def test_a_stack_along_layers_is_a_transformer() -> None:
    """One law a layer, N(x + h b(x))."""
    laws = [at.Attention.isotropic(3, beta) for beta in (5.0, -3.0, 1.0, 2.0)]
    tokens = at.Tokens.uniform(6, 3, seed=4)
    run = at.flow(at.Stack(laws), tokens, space="sphere", method="layers", save=[1.0, 2.0, 3.0, 4.0], stop=())
    points = tokens.points
    for law, row in zip(laws, run.points, strict=True):
        points = points + law.velocity(at.Tokens(points))
        points = points / points.norm(dim=-1, keepdim=True)
        torch.testing.assert_close(row, points, rtol=0, atol=1e-14)


def test_a_run_continues_another() -> None:
    """From s to t and from t to u is from s to u."""
    law = at.Schedule(lambda t: at.Attention.isotropic(3, 2.0 + sin(3 * t)))
    tokens = at.Tokens.uniform(5, 3, seed=2)
    options = {"space": "sphere", "rtol": 1e-11, "atol": 1e-13, "stop": (), "save": []}
    half = at.flow(law, tokens, start=0.5, until=1.2, **options)
    whole = at.flow(law, tokens, start=0.5, until=2.0, **options)
    rest = at.flow(law, half.final, start=1.2, until=2.0, **options)
    torch.testing.assert_close(rest.final.points, whole.final.points, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "options",
    [{}, {"method": "dopri5"}, {"merge": False}, {"method": "rk4", "step": 0.1}, {"method": "layers"}],
    ids=["default", "dopri5", "unmerged", "rk4", "layers"],
)
def test_the_same_call_gives_the_same_bits(options: dict) -> None:
    law, tokens = at.Attention.isotropic(3, 9.0), at.Tokens.uniform(24, 3, seed=5, ensemble=2)
    first, second = (at.flow(law, tokens, space="sphere", until=20.0, **options) for _ in range(2))
    assert torch.equal(first.points, second.points)
    assert torch.equal(first.times, second.times)
    assert first.outcomes == second.outcomes
    assert first.stats.evaluations == second.stats.evaluations
    assert [(event.time, event.members) for event in first.events] == [(e.time, e.members) for e in second.events]


@pytest.mark.parametrize("method", ["dopri5", "dop853"])
def test_single_precision(space: at.Space, method: str, law: at.Attention) -> None:
    """float32 in, float32 out, and close to the run in float64."""
    double = at.Tokens(space.random(6, 3, seed=3))
    single = at.Tokens(double.points, dtype=torch.float32)
    options = {"space": space, "save": [0.0, 1.0, 3.0], "method": method, "stop": ()}
    run, truth = at.flow(law, single, **options), at.flow(law, double, **options)
    assert run.points.dtype == torch.float32
    assert run.times.dtype == torch.float64
    scale = float(truth.points.norm(dim=-1).max())
    torch.testing.assert_close(run.points.double(), truth.points, rtol=0, atol=1e-4 * scale)


def test_single_precision_reaches_consensus() -> None:
    tokens = at.Tokens(at.Tokens.hemisphere(8, 3).points, dtype=torch.float32)
    run = at.flow(at.Attention.isotropic(3, 1.0), tokens, space="sphere", until=1e3)
    assert run.outcome.name == "consensus"
