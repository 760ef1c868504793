"""How runs end: each outcome on a case where it is known to happen, at the time it happens."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, pi

import numpy as np
import pytest
import torch
from torch import Tensor

import attractor as at
from attractor.errors import InputError
from attractor.solvers import Collapse, Consensus, Rule, Steady
from attractor.solvers.outcome import MEANINGS

SPHERE = at.Sphere()


def assert_says(run: at.Trajectory, name: str) -> None:
    """The outcome has the name, and a message that reads as a sentence."""
    assert run.outcome.name == name
    assert name in MEANINGS
    assert len(run.outcome.message.split()) > 3
    assert run.outcome.message[0].islower()
    assert not run.outcome.message.endswith(".")
    assert str(run.outcome).startswith(f"{name} at t = ")


def test_reached() -> None:
    run = at.flow(at.Attention.isotropic(3, 4.0), at.Tokens.uniform(6, 3), space=SPHERE, until=0.5)
    assert_says(run, "reached")
    assert run.outcome.time == 0.5


# ------------------------------------------------------------------ consensus


def spread(points: Tensor) -> float:
    """Twice the largest distance to the first token: what the rule compares with its tolerance."""
    return float(2 * (points - points[:1]).norm(dim=-1).max())


def test_consensus_is_located_inside_its_step() -> None:
    """The time is when the spread crosses the tolerance, as a run of tiny steps sees it."""
    law, tokens = at.Attention.isotropic(3, 1.0), at.Tokens.uniform(6, 3, seed=1)
    run = at.flow(law, tokens, space=SPHERE, until=100.0, stop=Consensus(1e-3), rtol=1e-10, atol=1e-12, merge=False)
    assert_says(run, "consensus")
    assert spread(run.final.points) == pytest.approx(1e-3, rel=1e-6)
    fine = at.flow(law, tokens, space=SPHERE, until=run.outcome.time, rtol=1e-12, atol=1e-14, stop=(), save=[])
    assert spread(fine.final.points) == pytest.approx(1e-3, rel=1e-6)


def test_consensus_by_default_is_above_what_the_tolerance_resolves() -> None:
    run = at.flow(at.Attention.isotropic(3, 1.0), at.Tokens.uniform(6, 3, seed=1), space=SPHERE, until=1e6)
    assert_says(run, "consensus")
    assert 1e-9 < spread(run.final.points) < 1e-6
    assert run.outcome.time < 40


def test_tokens_that_start_together_are_at_consensus_at_once() -> None:
    points = np.tile([0.6, 0.8, 0.0], (4, 1))
    run = at.flow(at.Attention.isotropic(3, 1.0), at.Tokens(points), space=SPHERE, until=10.0)
    assert_says(run, "consensus")
    assert run.outcome.time == 0.0


def test_consensus_is_noted_while_saved_times_are_owed() -> None:
    """Times that are named are always served; the outcome still says when consensus came."""
    law, tokens = at.Attention.isotropic(3, 1.0), at.Tokens.uniform(6, 3, seed=1)
    free = at.flow(law, tokens, space=SPHERE, until=200.0)
    run = at.flow(law, tokens, space=SPHERE, save=[0.0, 1.0, 50.0, 200.0])
    assert_says(run, "consensus")
    assert run.outcome.time == pytest.approx(free.outcome.time, rel=1e-6)
    assert run.times.tolist() == [0.0, 1.0, 50.0, 200.0]
    assert spread(run.points[-1]) < 1e-7


def test_consensus_may_happen_in_flat_space_when_asked_for() -> None:
    """x' = mean - x is_attracting tokens at their mean."""
    law = at.Attention(np.zeros((2, 2)), np.zeros((2, 2)), np.eye(2)) + at.Affine(-np.eye(2))
    tokens = at.Tokens.gaussian(5, 2, seed=3)
    run = at.flow(law, tokens, until=1e3, stop="consensus")
    assert_says(run, "consensus")
    torch.testing.assert_close(run.final.points[0], tokens.points.mean(0), rtol=0, atol=1e-6)


def test_consensus_need_not_be_rest() -> None:
    """T5: U = I + 0.7 J, causal: one point that turns with angular speed 0.7."""
    value = np.eye(3) + 0.7 * np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, -0.5]])
    law = at.Attention(np.eye(3), np.eye(3), value, mask="causal")
    tokens = at.Tokens.hemisphere(4, 3, seed=0)
    run = at.flow(law, tokens, space=SPHERE, until=200.0)
    assert_says(run, "consensus")
    on = at.flow(law, tokens, space=SPHERE, save=[100.0, 101.0], stop="steady")
    assert on.outcome.name == "reached"
    cosine = float(on.points[0, 0] @ on.points[1, 0])
    assert cosine == pytest.approx(np.cos(0.7), abs=1e-6)


def test_consensus_along_layers_comes_at_the_end_of_a_layer() -> None:
    """Between layers there is no state."""
    run = at.flow(at.Attention.isotropic(3, 1.0), at.Tokens.hemisphere(5, 3), space=SPHERE, until=100, method="layers")
    assert_says(run, "consensus")
    assert run.outcome.time == round(run.outcome.time)
    again = at.flow(run.law, at.Tokens.hemisphere(5, 3), space=SPHERE, until=run.outcome.time, method="layers", stop=())
    torch.testing.assert_close(run.final.points, again.final.points, rtol=0, atol=1e-15)


# ------------------------------------------------------------------ rest


def test_collapsed_at_the_time_of_the_formula() -> None:
    """x' = -x: norms fall to 1e-3 of the largest at the start at t = ln 1000."""
    run = at.flow(at.Affine(-np.eye(3)), at.Tokens.gaussian(4, 3, seed=1), until=100.0, stop=Collapse(1e-3), rtol=1e-11)
    assert_says(run, "collapsed")
    assert run.outcome.time == pytest.approx(log(1000), rel=1e-8)


def test_steady_at_an_equilibrium() -> None:
    """With V = -I tokens flee each other: two come to rest at opposite poles, four at a regular tetrahedron."""
    law = at.Attention(np.eye(3), np.eye(3), -np.eye(3))
    for count in (2, 4):
        run = at.flow(law, at.Tokens.uniform(count, 3, seed=2), space=SPHERE, until=1e4)
        assert_says(run, "steady")
        assert run.outcome.time < 6e3  # tokens must have rested for as long as there is time left
        cosines = (run.final.points @ run.final.points.T)[np.triu_indices(count, 1)]
        np.testing.assert_allclose(cosines.numpy(), -1 / (count - 1), atol=1e-7)  # ten times rtol


def test_steady_in_flat_space() -> None:
    """x' = c - x rests at c, away from zero."""
    law = at.Affine(-np.eye(2), np.array([1.0, 2.0]))
    run = at.flow(law, at.Tokens.gaussian(3, 2), until=1e4)
    assert_says(run, "steady")
    torch.testing.assert_close(run.final.points, torch.tensor([[1.0, 2.0]] * 3, dtype=torch.float64), rtol=0, atol=1e-7)


@pytest.mark.theorem
@pytest.mark.parametrize("push", [1e-4, 1e-8, 1e-11])
@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_a_saddle_is_left(push: float, beta: float) -> None:
    """An antipodal pair is an unstable equilibrium: pushed by any amount it ends at consensus, and is not called steady."""
    points = np.array([[1.0, 0.0, 0.0], [-np.cos(push), np.sin(push), 0.0]])
    run = at.flow(at.Attention.isotropic(3, beta), at.Tokens(points), space=SPHERE, until=2e3)
    assert_says(run, "consensus")
    rate = 2 / (1 + exp(2 * beta))  # of the angle that is missing to pi
    assert run.outcome.time > log(0.1 / push) / rate


@pytest.mark.theorem
def test_a_saddle_is_left_while_others_rest() -> None:
    """Causal: token 2 starts 1e-10 beside the antipode of token 1 and leaves it at rate 1/(1 + e^{2 beta}) = 0.0067.

    The others have long come to rest, and explicit steps are at the limit of their stability, when it does.
    """
    push, beta = 1e-10, 2.5
    points = np.array([[1.0, 0.0, 0.0], [-np.cos(push), np.sin(push), 0.0], [0.5, 0.5, 0.7], [0.3, -0.8, 0.1]])
    law = at.Attention.isotropic(3, beta, mask="causal")
    run = at.flow(law, at.Tokens(points), space=SPHERE, until=1e4)
    assert_says(run, "consensus")
    assert run.outcome.time > log(0.1 / push) * (1 + exp(2 * beta))


def test_tokens_that_have_no_time_to_move_are_not_steady() -> None:
    """Speeds of order one are no rest, however short the run is."""
    law, tokens = at.Attention.isotropic(3, 1.0), at.Tokens.uniform(6, 3, seed=0)
    for space in ("euclidean", "sphere"):
        for options in ({"method": "rk4", "step": 1e-14}, {"step": 1e-18}):
            assert at.flow(law, tokens, space=space, until=2e-13, **options).outcome.name == "reached"
    assert at.flow(law, at.Gaussian(np.zeros(3), np.eye(3)), until=1e-12).outcome.name == "reached"


def test_a_saddle_is_not_steady_at_the_end() -> None:
    """With no time left a rest is judged over the time that has passed: at rate 0.0067 deviations grow 55-fold in t = 600."""
    push = 1e-10
    points = np.array([[1.0, 0.0, 0.0], [-np.cos(push), np.sin(push), 0.0], [0.5, 0.5, 0.7], [0.3, -0.8, 0.1]])
    law = at.Attention.isotropic(3, 2.5, mask="causal")
    assert_says(at.flow(law, at.Tokens(points), space=SPHERE, until=600.0), "reached")


@pytest.mark.parametrize("rate", [1e-13, 1.0, 1e13])
def test_a_rest_does_not_depend_on_the_unit_of_time(rate: float) -> None:
    """Slow tokens near the end of a long run are not at rest, however small their speed is as a number."""
    law, tokens = at.Affine(-rate * np.eye(2), rate * np.array([1.0, 2.0])), at.Tokens.gaussian(3, 2)
    moving = at.flow(law, tokens, until=2.0 / rate, rtol=1e-4, atol=1e-10)
    assert_says(moving, "reached")
    assert_says(at.flow(law, tokens, until=1e4 / rate), "steady")


def test_an_exact_saddle_is_steady() -> None:
    points = np.array([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])
    assert_says(at.flow(at.Attention.isotropic(3, 1.0), at.Tokens(points), space=SPHERE, until=1e3), "steady")


def test_slow_clusters_are_not_steady() -> None:
    """Metastable: at beta = 9 two clusters drift at e^{-9}; a horizon beyond their meeting must see them meet."""
    tokens = at.Tokens(np.eye(3)[[0, 0, 1, 1]])
    run = at.flow(at.Attention.isotropic(3, 9.0), tokens, space=SPHERE, until=1e6)
    assert_says(run, "consensus")
    assert 100 < run.outcome.time < 1e4


def test_a_law_that_changes_with_time_is_never_steady() -> None:
    """It may rest now and move later."""
    late = at.Schedule(lambda t: at.Affine(np.eye(2) * (0.0 if t < 5 else -0.1)))
    assert at.flow(late, at.Tokens.gaussian(3, 2), until=10.0, method="rk4", step=0.5).outcome.name == "reached"


# ------------------------------------------------------------------ growth


def test_diverged() -> None:
    """x' = x grows without bound but never blows up: e^t passes 1e100 at 100 ln 10."""
    run = at.flow(at.Affine(np.eye(2)), at.Tokens(np.array([[1.0, 0.0]])), until=1e3)
    assert_says(run, "diverged")
    assert run.outcome.time == pytest.approx(100 * log(10), rel=0.05)


@pytest.mark.theorem
@pytest.mark.parametrize("start", [0.5, 1.0, 3.0])
def test_blow_up_of_the_linear_kernel(start: float) -> None:
    """One token on a line: x' = x^3, so x = x0 / sqrt(1 - 2 x0^2 t) and t* = 1 / (2 x0^2)."""
    law = at.Attention(np.eye(1), np.eye(1), np.eye(1), kernel="linear")
    run = at.flow(law, at.Tokens(np.array([[start]])), until=100.0, save=[0.4 / start**2])
    assert_says(run, "blow_up")
    assert run.outcome.time == pytest.approx(1 / (2 * start**2), rel=1e-8)
    assert float(run.points[0]) == pytest.approx(start / np.sqrt(0.2), rel=1e-7)


@pytest.mark.theorem
def test_blow_up_of_the_exponential_kernel() -> None:
    """One token on a line: x' = x e^{x^2}, so t* = E_1(x0^2) / 2."""
    law = at.Attention(np.eye(1), np.eye(1), np.eye(1), kernel="exponential")
    run = at.flow(law, at.Tokens(np.array([[1.0]])), until=10.0)
    assert_says(run, "blow_up")
    assert run.outcome.time == pytest.approx(0.21938393439552 / 2, rel=1e-8)  # E_1(1)


def test_blow_up_of_many_tokens_that_turn_as_they_grow() -> None:
    """Cubic growth along a spiral: what grows is the norm, even where one token shrinks for a moment."""
    turn = np.array([[0.3, -3.0], [3.0, 0.3]])
    law = at.Attention(np.eye(2), np.eye(2), turn, kernel="linear")
    assert_says(at.flow(law, at.Tokens.gaussian(4, 2, seed=2), until=100.0), "blow_up")


def test_softmax_does_not_blow_up() -> None:
    """Softmax velocities are averages of V x: growth is at most exponential."""
    run = at.flow(at.Attention.isotropic(2, 1.0), at.Tokens.gaussian(5, 2, seed=1), until=1e3)
    assert_says(run, "diverged")


# ------------------------------------------------------------------ trouble


@dataclass(frozen=True, eq=False)
class Singular(at.Law):
    """x' = -1 / (2 x): x^2 = x0^2 - t, infinitely fast as it comes to zero, and without a way past it."""

    def velocity(self, tokens: at.Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor:
        return -0.5 / tokens.points.clamp_min(0.0)


@dataclass(frozen=True, eq=False)
class Broken(at.Law):
    """Not a number from x = 1 on."""

    def velocity(self, tokens: at.Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor:
        return torch.where(tokens.points < 1.0, torch.ones_like(tokens.points), torch.nan)


def test_stalled_where_the_law_is_singular() -> None:
    run = at.flow(Singular(), at.Tokens(np.array([[1.2]])), until=5.0, stop=())
    assert_says(run, "stalled")
    assert run.outcome.time == pytest.approx(1.44, rel=1e-7)


def test_stalled_where_the_law_has_no_value() -> None:
    run = at.flow(Broken(), at.Tokens(np.array([[0.25]])), until=5.0)
    assert_says(run, "stalled")
    assert run.outcome.time == pytest.approx(0.75, abs=1e-9)


def test_a_fixed_step_that_leaves_the_finite_numbers_is_stalled() -> None:
    law = at.Attention(np.eye(1), np.eye(1), np.eye(1), kernel="exponential")
    run = at.flow(law, at.Tokens(np.array([[1.0]])), until=10.0, method="euler", step=0.5)
    assert run.outcome.name in ("stalled", "blow_up", "diverged")
    assert bool(torch.isfinite(run.final.points).all())


def test_a_jump_in_time_that_nobody_announced_is_passed() -> None:
    """A schedule given as a function may jump; steps shrink to pass it, and the solution is right."""
    jump = at.Schedule(lambda t: at.Affine(np.eye(1) * (1.0 if t < 1 / 3 else -1.0)))
    run = at.flow(jump, at.Tokens(np.array([[1.0]])), until=1.0, rtol=1e-6, atol=1e-8)
    assert float(run.final.points) == pytest.approx(exp(-1 / 3), rel=1e-4)


# ------------------------------------------------------------------ events and budgets


def test_an_event_ends_the_run_where_it_happens() -> None:
    """Rotation with speed one: the first coordinate falls to zero after a quarter turn."""
    law, tokens = at.Affine(np.array([[0.0, -1.0], [1.0, 0.0]])), at.Tokens(np.array([[1.0, 0.0]]))
    event = at.Event(lambda tokens, time: tokens.points[0, 0], "noon")
    run = at.flow(law, tokens, until=10.0, events=[event], rtol=1e-11, atol=1e-13)
    assert_says(run, "event")
    assert "noon" in run.outcome.message
    assert run.outcome.time == pytest.approx(pi / 2, abs=1e-9)
    torch.testing.assert_close(run.final.points, torch.tensor([[0.0, 1.0]], dtype=torch.float64), rtol=0, atol=1e-9)
    assert float(run.times[-1]) <= run.outcome.time


def test_events_are_logged_and_the_run_goes_on() -> None:
    """Every crossing from above, and none from below."""
    law, tokens = at.Affine(np.array([[0.0, -1.0], [1.0, 0.0]])), at.Tokens(np.array([[1.0, 0.0]]))
    event = at.Event(lambda tokens, time: tokens.points[0, 0], "noon", terminal=False)
    run = at.flow(law, tokens, until=14.0, events=[event], rtol=1e-11, atol=1e-13)
    assert run.outcome.name == "reached"
    assert [entry.kind for entry in run.events] == ["noon"] * 2
    np.testing.assert_allclose([entry.time for entry in run.events], [pi / 2, pi / 2 + 2 * pi], atol=1e-9)


def test_events_see_time_and_masses() -> None:
    masses = np.array([0.25, 0.75])
    tokens = at.Tokens(np.eye(2), masses)
    clock = at.Event(lambda tokens, time: 1.25 - time)
    seen: list[Tensor | None] = []
    look = at.Event(lambda tokens, time: (seen.append(tokens.masses), 1.0)[1], terminal=False)
    run = at.flow(at.Attention.isotropic(2, 1.0), tokens, space=SPHERE, until=10.0, events=[look, clock])
    assert run.outcome.time == pytest.approx(1.25, abs=1e-12)
    assert all(row is not None and row.tolist() == masses.tolist() for row in seen)


def test_an_event_is_not_a_stop() -> None:
    event = at.Event(lambda tokens, time: 2.0 - time)
    with pytest.raises(InputError, match="events="):
        at.flow(at.Affine(-np.eye(1)), at.Tokens(np.ones((1, 1))), until=9.0, stop=event)


def test_a_budget_of_evaluations() -> None:
    law, tokens = at.Attention.isotropic(3, 9.0), at.Tokens.uniform(16, 3)
    run = at.flow(law, tokens, space=SPHERE, until=1e6, max_evaluations=100)
    assert_says(run, "budget")
    assert "100 evaluations" in run.outcome.message
    assert 100 <= run.stats.evaluations < 120
    assert 0 < run.outcome.time < 1e6
    assert float(run.times[-1]) == run.outcome.time


def test_a_budget_of_seconds() -> None:
    law, tokens = at.Attention.isotropic(3, 9.0), at.Tokens.uniform(16, 3)
    run = at.flow(law, tokens, space=SPHERE, until=1e6, max_seconds=0.05, merge=False)
    assert_says(run, "budget")
    assert "0.05 seconds" in run.outcome.message
    assert run.stats.seconds < 5


@pytest.mark.parametrize("rule", [Consensus(1e-2), Steady(1e-3)], ids=["consensus", "steady"])
def test_rules_have_tolerances_of_the_user(rule: Rule) -> None:
    run = at.flow(
        at.Attention.isotropic(3, 1.0), at.Tokens.uniform(6, 3, seed=1), space=SPHERE, until=60.0, stop=[rule]
    )
    assert_says(run, rule.name)
    assert run.outcome.time < 30


def test_no_stops() -> None:
    run = at.flow(at.Attention.isotropic(3, 1.0), at.Tokens.uniform(6, 3, seed=1), space=SPHERE, until=100.0, stop=())
    assert_says(run, "reached")
    assert run.outcome.time == 100.0


def test_runs_cite_what_they_used() -> None:
    tokens = at.flow(at.Attention.isotropic(3, 1.0), at.Tokens.uniform(4, 3), space="sphere", until=0.1, rtol=1e-4)
    assert "abella2024asymptotic" in tokens.cite()
    assert "dormand1980family" in tokens.cite()
    gaussian = at.flow(at.Attention.isotropic(2, 1.0), at.Gaussian([0.0, 0.0], [[1.0, 0.0], [0.0, 1.0]]), until=0.1)
    assert "castin2025unified" in gaussian.cite()
    assert "hairer1993solving" in gaussian.cite()
