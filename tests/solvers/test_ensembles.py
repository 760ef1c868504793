"""An ensemble is its members: each takes its own steps and ends in its own way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import attractor as at


def alone(tokens: at.Tokens, index: tuple[int, ...]) -> at.Tokens:
    """One member as a state of its own."""
    rows = {
        name: None if row is None else row[index] if row.ndim > 1 else row
        for name, row in (("masses", tokens.masses), ("positions", tokens.positions))
    }
    return at.Tokens(tokens.points[index], **rows)


def assert_members_are_single_runs(law_of, tokens: at.Tokens, run: at.Trajectory, tolerance: float, **options) -> None:
    """Every member of a run against a run of its own: states, outcome, and the sum of costs."""
    accepted = rejected = evaluations = 0
    for number, index in enumerate(np.ndindex(*tokens.batch_shape)):
        single = at.flow(law_of(number), alone(tokens, index), **options)
        rows = len(single.times) if options.get("save") is not None else 0
        member = run.points[(slice(None), *index)]
        torch.testing.assert_close(member[:rows], single.points[:rows], rtol=0, atol=tolerance)
        torch.testing.assert_close(run.final.points[index], single.final.points, rtol=0, atol=tolerance)
        assert run.outcomes[number].name == single.outcome.name
        assert run.outcomes[number].time == pytest.approx(single.outcome.time, rel=1e-6)
        accepted, rejected = accepted + single.stats.accepted, rejected + single.stats.rejected
        evaluations += single.stats.evaluations
    assert (run.stats.accepted, run.stats.rejected) == (accepted, rejected)
    assert run.stats.evaluations >= evaluations


@pytest.mark.parametrize("method", ["dopri5", "dop853"])
def test_every_member_is_a_run_of_its_own(law: at.Attention, space: at.Space, method: str) -> None:
    tokens = at.Tokens(space.random(5, 3, seed=1, ensemble=4))
    options = {"space": space, "save": [0.0, 0.7, 3.0], "method": method, "stop": ()}
    run = at.flow(law, tokens, **options)
    assert run.points.shape == (3, 4, 5, 3)
    assert_members_are_single_runs(lambda number: law, tokens, run, 1e-9, **options)


def test_two_ensemble_axes() -> None:
    law = at.Attention.isotropic(3, 4.0)
    tokens = at.Tokens.uniform(6, 3, seed=2, ensemble=(2, 3))
    options = {"space": "sphere", "save": [0.0, 1.0, 5.0]}
    run = at.flow(law, tokens, **options)
    assert run.points.shape == (3, 2, 3, 6, 3)
    assert run.final.points.shape == (2, 3, 6, 3)
    assert len(run.outcomes) == 6
    assert_members_are_single_runs(lambda number: law, tokens, run, 1e-9, **options)


def test_members_end_at_their_own_times() -> None:
    """Each reaches consensus when it would alone, and is held at its last state in later rows."""
    law = at.Attention.isotropic(3, 1.0)
    tokens = at.Tokens.uniform(5, 3, seed=4, ensemble=3)
    run = at.flow(law, tokens, space="sphere", until=1e3)
    assert run.outcome.name == "consensus"
    times = [outcome.time for outcome in run.outcomes]
    assert len(set(times)) == 3
    assert run.outcome.time == max(times)
    assert_members_are_single_runs(lambda number: law, tokens, run, 1e-8, space="sphere", until=1e3)
    for number, time in enumerate(times):
        held = run.points[run.times > time, number]
        torch.testing.assert_close(held, run.final.points[number].expand_as(held), rtol=0, atol=1e-6)


def test_members_may_end_in_different_ways() -> None:
    """x' = x |x|^2 / 2 and its reflection: one start blows up, the other rests at zero."""
    law = at.Attention(np.eye(1), np.eye(1), np.eye(1), kernel="linear")
    tokens = at.Tokens(np.array([[[1.0], [0.5]], [[0.0], [0.0]]]))
    run = at.flow(law, tokens, until=50.0)
    assert [outcome.name for outcome in run.outcomes] == ["blow_up", "steady"]
    assert run.outcome.name == "mixed"
    assert "2 members" in run.outcome.message


def test_every_member_has_parameters_of_its_own() -> None:
    """A leading axis of the law: (members, heads, k, d)."""
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((2, 4, 2, 2, 3))
    value = 0.5 * rng.standard_normal((4, 2, 3, 3))
    tokens = at.Tokens.uniform(5, 3, seed=3, ensemble=4)
    options = {"space": "sphere", "save": [0.5, 2.0]}
    run = at.flow(at.Attention(query, key, value, mask="causal"), tokens, **options)

    def member(number: int) -> at.Attention:
        return at.Attention(query[number], key[number], value[number], mask="causal")

    assert_members_are_single_runs(member, tokens, run, 1e-9, **options)


def test_members_with_parameters_of_their_own_may_end_early() -> None:
    """Temperatures from slow to fast; the law follows the members that go on."""
    betas = np.array([1.0, 4.0, 0.5])
    root = np.sqrt(betas)[:, None, None, None] * np.eye(3)
    law = at.Attention(root, root, np.broadcast_to(np.eye(3), (3, 1, 3, 3)).copy())
    tokens = at.Tokens.hemisphere(4, 3, seed=3, ensemble=3)
    run = at.flow(law, tokens, space="sphere", until=1e3)
    assert {outcome.name for outcome in run.outcomes} == {"consensus"}
    options = {"space": "sphere", "until": 1e3}
    assert_members_are_single_runs(lambda k: at.Attention.isotropic(3, betas[k]), tokens, run, 1e-8, **options)


@pytest.mark.parametrize("kind", ["schedule", "stack", "block", "sum"])
def test_laws_made_of_laws_give_every_member_its_own(kind: str) -> None:
    """A batched law inside a schedule, a stack, a block or a sum, with members that end at different times."""
    betas = np.array([0.5, 2.0])
    root = np.sqrt(betas)[:, None, None, None] * np.eye(3)

    def wrap(law: at.Law) -> at.Law:
        turn = at.Affine(0.1 * np.array([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]))
        laws = {
            "schedule": at.Schedule(lambda t: law),
            "stack": at.Stack((law, law), duration=2.0),
            "block": at.Block(law, turn),
            "sum": law + turn,
        }
        return laws[kind]

    batched = at.Attention(root, root, np.broadcast_to(np.eye(3), (2, 1, 3, 3)).copy())
    tokens = at.Tokens.hemisphere(4, 3, seed=3, ensemble=2)
    options = {"space": "sphere", "until": 100.0, "rtol": 1e-6}
    run = at.flow(wrap(batched), tokens, **options)
    for number, beta in enumerate(betas):
        single = at.flow(wrap(at.Attention.isotropic(3, beta)), alone(tokens, (number,)), **options)
        assert run.outcomes[number].name == single.outcome.name == "consensus"
        assert run.outcomes[number].time == pytest.approx(single.outcome.time, rel=1e-4)
        torch.testing.assert_close(run.final.points[number], single.final.points, rtol=0, atol=1e-5)


def test_masses_and_places_of_every_member() -> None:
    rng = np.random.default_rng(5)
    masses, positions = rng.uniform(0.1, 1.0, (3, 5)), rng.permuted(np.tile(np.arange(5.0), (3, 1)), axis=1)
    law = at.Attention.isotropic(3, 2.0, mask="causal")
    tokens = at.Tokens(at.Sphere().random(5, 3, seed=6, ensemble=3), masses, positions)
    options = {"space": "sphere", "save": [1.0, 4.0]}
    assert_members_are_single_runs(lambda number: law, tokens, at.flow(law, tokens, **options), 1e-9, **options)


@pytest.mark.parametrize(
    "kernel", [at.Softmax(), at.Sinkhorn(eps=8.0), at.Exponential()], ids=lambda kernel: kernel.name
)
def test_members_merge_by_themselves(kernel: at.Kernel) -> None:
    """Rows left over by a member with fewer tokens carry no mass and change nothing."""
    law = at.Attention.isotropic(2, 6.0 if kernel.normalised else 1.0, kernel=kernel)
    tokens = at.Tokens.uniform(6, 2, seed=8, ensemble=3)
    options = {"space": "sphere", "save": [1.0, 4.0, 8.0], "rtol": 1e-4, "atol": 1e-6, "merge": 1e-2}
    run = at.flow(law, tokens, **options)
    assert run.stats.merges > 0
    assert_members_are_single_runs(lambda number: law, tokens, run, 1e-2, **options)
    sizes = [sum(event.kind == "merge" and event.member == number for event in run.events) for number in range(3)]
    assert sum(sizes) == run.stats.merges


@pytest.mark.parametrize("law", ["schedule", "autonomous"])
def test_time_varying_laws_move_members_at_their_own_times(law: str) -> None:
    base = at.Attention.isotropic(3, 2.0)
    moving = at.Schedule(lambda t: at.Attention.isotropic(3, 2.0 + np.sin(3 * t))) if law == "schedule" else base
    tokens = at.Tokens.uniform(4, 3, seed=9, ensemble=3)
    options = {"space": "sphere", "save": [0.4, 2.0], "stop": ()}
    assert_members_are_single_runs(lambda number: moving, tokens, at.flow(moving, tokens, **options), 1e-9, **options)


def test_a_law_with_members_of_its_own_is_asked_for_those_that_go_on() -> None:
    @dataclass(frozen=True, eq=False)
    class Shrinking(at.Law):
        rates: torch.Tensor

        def velocity(self, tokens, time=0.0, *, skip_self=False):
            return -self.rates[:, None, None] * tokens.points

        def member(self, index: torch.Tensor) -> Shrinking:
            return Shrinking(self.rates.index_select(0, index))

    rates = torch.tensor([1.0, 2.0, 30.0], dtype=torch.float64)
    tokens = at.Tokens.gaussian(5, 3, seed=0, ensemble=3)
    run = at.flow(Shrinking(rates), tokens, until=1.0)
    torch.testing.assert_close(
        run.final.points[:2], torch.exp(-rates[:2, None, None]) * tokens.points[:2], rtol=1e-6, atol=0
    )
    assert [outcome.name for outcome in run.outcomes] == ["reached", "reached", "collapsed"]
