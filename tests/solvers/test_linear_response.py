"""Early ends hold until the end of the run: states that repel are never called ends."""

from __future__ import annotations

from math import cos, exp, sin

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.linalg import expm

import attractor as at
from attractor.solvers import Collapse, Consensus
from attractor.solvers.linear_response import LinearResponse, propagate
from attractor.solvers.steppers.stepper import Field

SPHERE = at.Sphere()
REPELLING = at.Attention(np.eye(3), np.eye(3), -np.eye(3))


def beside(gap: float) -> at.Tokens:
    return at.Tokens(np.array([[1.0, 0.0, 0.0], [cos(gap), sin(gap), 0.0]]))


def ahead(n: int) -> at.Tokens:
    """Tokens whose first coordinate is positive."""
    points = at.Tokens.uniform(n, 3, seed=1).points
    points[:, 0] = points[:, 0].abs() + 0.2
    return at.Tokens(points)


# ------------------------------------------------------------------ consensus


@pytest.mark.parametrize("native", [True, False])
def test_repelling_tokens_that_start_close_reach_opposite_poles(native: bool) -> None:
    run = at.flow(REPELLING, beside(1e-8), space=SPHERE, until=100.0, engine=None if native else "reference")
    assert run.outcome.name == "reached"
    assert float(run.final.points[0] @ run.final.points[1]) == pytest.approx(-1.0, abs=1e-12)


@pytest.mark.parametrize("until", [1e-3, 0.1, 3.0])
@pytest.mark.parametrize("gap", [0.0, 1e-15, 1e-12, 1e-8])
def test_tokens_that_move_apart_are_not_at_consensus_in_short_runs(gap: float, until: float) -> None:
    assert at.flow(REPELLING, beside(gap), space=SPHERE, until=until, stop="consensus").outcome.name == "reached"


def test_a_saddle_of_clusters_is_left() -> None:
    """V = diag(1, -2): tokens beside e_2 move apart at rate 1 + 2, although they are within the tolerance."""
    law = at.Attention(np.eye(2), np.eye(2), np.diag([1.0, -2.0]))
    points = np.array([[sin(a), cos(a)] for a in (1e-9, -1e-9)])
    run = at.flow(law, at.Tokens(points), space=SPHERE, until=60.0)
    assert run.outcome.name != "consensus"
    assert float(run.final.points[0] @ run.final.points[1]) < 0.99


@pytest.mark.parametrize("mask", [None, "causal"])
def test_close_tokens_that_move_away_together_are_followed(mask: str | None) -> None:
    """V = diag(1, 2, 3): the first token rests at e_1, but the mean is 5e-9 beside it and leaves it at rate 1."""
    law = at.Attention(np.eye(3), np.eye(3), np.diag([1.0, 2.0, 3.0]), mask=mask)
    tokens = beside(1e-8)
    run, whole = (at.flow(law, tokens, space=SPHERE, until=60.0, stop=stop) for stop in (None, ()))
    torch.testing.assert_close(run.final.points, whole.final.points, rtol=0, atol=1e-6)


def test_consensus_is_not_found_where_velocities_are_not_finite() -> None:
    law = at.Attention(np.eye(3), np.eye(3), np.full((3, 3), 1.7e308))
    points = np.array([[0.6, 0.8, 0.0], [0.6, 0.8, 0.0]])
    run = at.flow(law, at.Tokens(points), space=SPHERE, until=1.0)
    assert run.outcome.name == "stalled"


@pytest.mark.parametrize("mask", [None, "causal"])
def test_consensus_of_stable_systems_is_found_early(mask: str | None) -> None:
    law = at.Attention(np.eye(3), np.eye(3), np.diag([3.0, 1.0, 0.5]), mask=mask)
    run = at.flow(law, ahead(12), space=SPHERE, until=1e6)
    assert run.outcome.name == "consensus"
    assert run.outcome.time < 100
    assert run.stats.accepted < 1000


def test_consensus_of_many_tokens_is_found_early_from_a_krylov_space() -> None:
    law = at.Attention(np.eye(3), np.eye(3), np.diag([3.0, 1.0, 0.5]), mask="causal")
    run = at.flow(law, ahead(100), space=SPHERE, until=1e6)
    assert run.outcome.name == "consensus"
    assert run.stats.accepted < 1000


def test_a_message_says_at_which_distance_tokens_were_merged() -> None:
    law, tokens = at.Attention.isotropic(3, 1.0), at.Tokens.uniform(6, 3, seed=1)
    merged = at.flow(law, tokens, space=SPHERE, until=100.0, merge=1e-3)
    assert merged.outcome.name == "consensus"
    assert "0.001" in merged.outcome.message
    plain = at.flow(law, tokens, space=SPHERE, until=100.0, merge=False)
    distance = float(torch.cdist(plain.final.points, plain.final.points).max())
    assert float(plain.outcome.message.split("most ")[1].split()[0]) == pytest.approx(distance, rel=0.01)


# ------------------------------------------------------------------ collapse


@pytest.mark.parametrize("turn", [0.0, 0.3])
def test_a_saddle_in_flat_space_is_not_collapse(turn: float) -> None:
    """V = diag(-10, 1) from (1, 1e-9): zero is passed at 1e-7 and left, to 1e-9 e^100."""
    rotation = np.array([[cos(turn), -sin(turn)], [sin(turn), cos(turn)]])
    law = at.Attention(np.eye(2), np.eye(2), rotation @ np.diag([-10.0, 1.0]) @ rotation.T)
    run = at.flow(law, at.Tokens((rotation @ np.array([1.0, 1e-9]))[None]), until=100.0, rtol=1e-10, atol=1e-14)
    assert run.outcome.name == "reached"
    assert float(run.final.points.norm()) == pytest.approx(1e-9 * np.exp(100.0), rel=1e-4 if turn else 1e-6)


@pytest.mark.parametrize("atol", [1e-10, 1e-2, 10.0])
def test_atol_has_no_part_in_collapse(atol: float) -> None:
    run = at.flow(at.Affine(np.eye(1)), at.Tokens(np.ones((1, 1))), until=5.0, atol=atol)
    assert run.outcome.name == "reached"
    assert float(run.final.points) == pytest.approx(np.exp(5.0), rel=1e-2)


def test_a_start_at_zero_is_steady() -> None:
    for sign in (1.0, -1.0):
        run = at.flow(at.Affine(sign * np.eye(2)), at.Tokens(np.zeros((3, 2))), until=100.0)
        assert run.outcome.name == "steady"


@pytest.mark.parametrize("rate", [1e-13, 1e-6, 1.0, 1e6, 1e13])
def test_outcomes_do_not_depend_on_the_unit_of_time(rate: float) -> None:
    tokens = at.Tokens(np.array([[1.0, 0.5]]))
    falling = at.flow(at.Affine(-rate * np.eye(2)), tokens, until=1e3 / rate)
    assert falling.outcome.name == "collapsed"
    assert falling.outcome.time * rate == pytest.approx(np.log(1e7), rel=1e-3)
    assert at.flow(at.Affine(rate * np.eye(2)), tokens, until=1e3 / rate).outcome.name == "diverged"


# ------------------------------------------------------------------ rest


def test_a_slow_unstable_direction_beside_a_resting_token_is_followed() -> None:
    """The second coordinate grows like e^t from 1e-15, at first below the rounding of the other."""
    run = at.flow(at.Affine(np.diag([0.0, 1.0])), at.Tokens(np.array([[1.0, 1e-15]])), until=60.0, atol=1e-20)
    assert run.outcome.name == "reached"
    assert float(run.final.points[0, 1]) == pytest.approx(1e-15 * np.exp(60.0), rel=0.5)  # errors of rtol grow too


# ------------------------------------------------------------------ blow-up


@pytest.mark.theorem
@pytest.mark.parametrize("start", [0.0, 1e5, 1e9])
def test_the_time_of_a_blow_up_does_not_depend_on_the_start(start: float) -> None:
    law = at.Attention(np.eye(1), np.eye(1), np.eye(1), kernel="exponential")
    run = at.flow(law, at.Tokens(np.array([[1.0]])), start=start, until=start + 10.0)
    assert run.outcome.name == "blow_up"
    text = run.outcome.message
    elapsed = text.split("at t = ")[1].split(":")[0] if start == 0 else text.split(", ")[2].split(" after")[0]
    assert float(elapsed) == pytest.approx(0.21938393439552 / 2, rel=1e-8)  # E_1(1) / 2


@pytest.mark.parametrize("rate", [20.0, 1e13])
def test_exponential_growth_late_or_fast_is_not_blow_up(rate: float) -> None:
    run = at.flow(at.Affine(rate * np.eye(1)), at.Tokens(np.ones((1, 1))), start=999900.0, until=1e6)
    assert run.outcome.name == "diverged"


def test_growth_whose_rate_oscillates_is_not_blow_up() -> None:
    law = at.Affine(np.array([[2.0, 40.0], [-10.0, 2.0]]))
    assert at.flow(law, at.Tokens(np.array([[1.0, 0.0]]), dtype=torch.float32), until=1e3).outcome.name == "diverged"


# ------------------------------------------------------------------ the response


def test_propagation_agrees_with_the_exponential(rng: np.random.Generator) -> None:
    matrix, forcing, deviation = rng.normal(size=(5, 5)), rng.normal(size=(5, 1)), rng.normal(size=(5, 2))
    matrix -= 2.0 * np.eye(5)
    growth = propagate(
        *(torch.from_numpy(part)[None] for part in (matrix, forcing, deviation)),
        torch.tensor([1.7], dtype=torch.float64),
    )
    exact = expm(1.7 * matrix)
    moved = np.linalg.solve(matrix, (exact - np.eye(5)) @ forcing)
    assert float(growth.last) == pytest.approx(np.linalg.norm(exact @ deviation + moved), rel=1e-10)
    assert float(growth.factor) >= np.linalg.norm(exact, 2)


@pytest.mark.theorem
@pytest.mark.parametrize("kernel", ["softmax", "l2", "sigmoid", "exponential", "sinkhorn"])
@pytest.mark.parametrize("n", [2, 7])
def test_the_response_of_exchangeable_tokens_is_that_of_all(kernel: str, n: int, rng: np.random.Generator) -> None:
    """Two tokens give the eigenvalues of n: those of the mean once, those of differences n - 1 times."""
    law = at.Attention(*rng.normal(size=(3, 3, 3)), kernel=kernel)
    points = at.Tokens.uniform(1, 3, seed=4).points.expand(1, n, 3).clone()
    masses = torch.from_numpy(rng.uniform(0.5, 1.0, size=(1, n)))
    field = Field(law, SPHERE, at.Tokens(points, masses))
    response = LinearResponse(field, np.zeros(1), np.ones(1), points, torch.zeros_like(points), np.zeros(1))
    differences, mean, _ = response._exchangeable_response(points[:, :1], torch.tensor([1e-4], dtype=torch.float64))
    eye = torch.eye(3 * n, dtype=torch.float64)
    apply = response._apply_in(points, None, n, torch.tensor([1e-4], dtype=torch.float64))
    found = np.sort_complex(np.linalg.eigvals(apply(eye[None])[0].numpy()))
    parts = [np.linalg.eigvals(differences[0].numpy())] * (n - 1) + [np.linalg.eigvals(mean[0].numpy())]
    wanted = np.concatenate(parts)
    for value in wanted:
        assert np.abs(found - value).min() < 1e-4  # of a defective eigenvalue
    assert found.sum().real == pytest.approx(wanted.sum().real, abs=1e-8)


def test_rules_with_other_tolerances_hold_until_the_end() -> None:
    law = at.Attention(np.eye(2), np.eye(2), np.diag([1.0, -2.0]))
    points = np.array([[sin(a), cos(a)] for a in (1e-3, -1e-3)])
    run = at.flow(law, at.Tokens(points), space=SPHERE, until=60.0, stop=[Consensus(0.1)])
    assert run.outcome.name == "reached"
    flat = at.flow(
        at.Affine(np.diag([-1.0, 0.1])), at.Tokens(np.array([[1.0, 1e-4]])), until=100.0, stop=[Collapse(0.1)]
    )
    assert flat.outcome.name == "reached"


def test_a_norm_that_overflows_gives_infinite_growth() -> None:
    """No time is left, and the norm of the matrix is infinite: their product is no number."""
    matrix = torch.full((1, 2, 2), 1e300, dtype=torch.float64)
    zero = torch.zeros(1, 2, 1, dtype=torch.float64)
    for time in (0.0, 1.0):
        growth = propagate(matrix, zero, zero + 1.0, torch.tensor([time], dtype=torch.float64))
        assert not bool(growth.peak.isnan().any())
    assert float(growth.peak) == np.inf


def test_tokens_that_are_slower_than_rounding_are_followed_without_merging() -> None:
    """The second token of a causal pair starts with speed 5e-20, far below the rounding of its self-weight; time by quadrature."""
    beta, angle = 500.0, 0.42
    law = at.Attention.isotropic(3, beta, mask="causal")
    run = at.flow(law, beside(angle), space=SPHERE, until=1e25)
    expected, _ = quad(lambda u: (1 + exp(beta * (1 - cos(u)))) / sin(u), 1e-7, angle, epsrel=1e-11, limit=500)
    assert run.outcome.name == "consensus"
    assert run.outcome.time == pytest.approx(expected, rel=1e-5)
