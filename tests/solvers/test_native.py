"""The native loop takes the steps of the loop in Python: same times, points, events, outcomes and counts."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch

import attractor as at
from attractor.engines import native
from attractor.engines.fused import instruction_sets

pytestmark = pytest.mark.skipif(bool(native.reason), reason=native.reason or "")

MATRIX = np.array([[2.0, 0.3, 0.0], [0.3, 1.0, -0.2], [0.0, -0.2, 0.6]])
SPACES: dict[str, at.Space] = {"euclidean": at.Euclidean(), "sphere": at.Sphere(), "ellipsoid": at.Ellipsoid(MATRIX)}
KERNELS = ("softmax", "l2", "exponential", at.Sigmoid(bias=-1.0), "linear")
MASKS = (None, "causal", "window:3", "boolean")
SAVES = (None, 7, [0.3, 0.31, 2.0], [])


def both(law: at.Law, tokens: at.Tokens, **options: Any) -> tuple[at.Trajectory, at.Trajectory]:
    """The same run natively and by the loop in Python."""
    here, there = at.flow(law, tokens, **options), at.flow(law, tokens, engine="fused", **options)
    assert "native" in here.stats.engine
    assert "native" not in there.stats.engine
    return here, there


CLOCK = 1e-6  # an error estimate of 1e-9 is a difference of slopes, known to 1e-7 of itself, and steps follow it


def agree(here: at.Trajectory, there: at.Trajectory, tolerance: float = 1e-9, counts: bool = True) -> None:
    size = float(there.points.abs().max()) if there.points.numel() else 1.0
    torch.testing.assert_close(here.times, there.times, rtol=CLOCK, atol=0.0)
    torch.testing.assert_close(here.points, there.points, rtol=tolerance, atol=tolerance * size)
    torch.testing.assert_close(here.final.points, there.final.points, rtol=tolerance, atol=tolerance)
    agree_on_the_way(here, there, counts)


def agree_on_the_way(here: at.Trajectory, there: at.Trajectory, counts: bool = True) -> None:
    assert [outcome.name for outcome in here.outcomes] == [outcome.name for outcome in there.outcomes]
    ends = ([outcome.time for outcome in run.outcomes] for run in (here, there))
    np.testing.assert_allclose(*ends, rtol=CLOCK)
    assert [(e.kind, e.member, e.members) for e in here.events] == [(e.kind, e.member, e.members) for e in there.events]
    np.testing.assert_allclose([e.time for e in here.events], [e.time for e in there.events], rtol=CLOCK)
    np.testing.assert_allclose([e.mass for e in here.events], [e.mass for e in there.events], rtol=1e-12)
    assert (here.stats.accepted, here.stats.rejected) == (there.stats.accepted, there.stats.rejected)
    assert here.stats.evaluations == there.stats.evaluations or not counts


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: getattr(kernel, "name", kernel))
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("method", ["dopri5", "dop853"])
def test_every_kernel_on_every_space(kernel: Any, space: str, method: str) -> None:
    generator = np.random.default_rng([KERNELS.index(kernel), list(SPACES).index(space), len(method)])
    for mask, save in zip(MASKS, SAVES, strict=True):
        n, heads, k = int(generator.integers(2, 13)), int(generator.integers(1, 4)), int(generator.integers(1, 5))
        query, key = generator.standard_normal((2, heads, k, 3))
        value = generator.standard_normal((heads, 3, 3)) / heads
        value = 0.5 * (value - value.swapaxes(1, 2)) - 0.3 * np.eye(3)
        hide = generator.random((n, n)) < 0.5
        law = at.Attention(
            query,
            key,
            value,
            kernel=kernel,
            scale=0.3,
            mask=hide | np.eye(n, dtype=bool) if mask == "boolean" else mask,
        )
        masses = None if generator.random() < 0.5 else generator.random(n) + 0.1
        points = SPACES[space].random(n, 3, seed=int(generator.integers(1000)))
        # near a blow-up rounding grows without bound, so flat tokens start small
        tokens = at.Tokens(points if SPACES[space].is_curved else 0.4 * points, masses=masses)
        options: dict[str, Any] = {"until": 2.0, "save": save, "method": method, "space": SPACES[space]}
        merge = 0.05 if mask is None else None
        agree(*both(law, tokens, rtol=1e-7, merge=merge, max_evaluations=1500, **options))


@pytest.mark.parametrize(
    ("kernel", "beta", "until"),
    [
        ("softmax", 1.0, 50.0),
        ("softmax", 30.0, 100.0),
        ("exponential", 2.0, 20.0),
        ("l2", 9.0, 100.0),
        (at.Sigmoid(), 4.0, 50.0),
    ],
)
@pytest.mark.parametrize("dim", [2, 3, 5])
def test_tokens_that_gather_and_merge(kernel: Any, beta: float, until: float, dim: int) -> None:
    law = at.Attention.isotropic(dim, beta, kernel=kernel)
    for seed, space in enumerate((at.Sphere(radius=1.2), at.Ellipsoid(np.diag(np.linspace(1.0, 2.0, dim))))):
        tokens = at.Tokens.uniform(14, dim, seed=seed)
        agree(*both(law, tokens, space=space, until=until, rtol=1e-6), tolerance=1e-7)


def test_merging_happens() -> None:
    here, there = both(at.Attention.isotropic(3, 9.0), at.Tokens.uniform(20, 3), space="sphere", until=1e4)
    assert here.stats.merges == there.stats.merges > 10
    agree(here, there)


ENDS: dict[str, tuple[at.Law, at.Tokens, dict[str, Any]]] = {
    "consensus": (at.Attention.isotropic(3, 1.0), at.Tokens.hemisphere(9, 3), {"space": "sphere", "until": 1e3}),
    "consensus unmerged": (
        at.Attention.isotropic(3, 1.0),
        at.Tokens.hemisphere(9, 3),
        {"space": "sphere", "until": 1e3, "merge": False},
    ),
    "consensus, owing saved states": (
        at.Attention.isotropic(3, 1.0, mask="causal"),
        at.Tokens.hemisphere(9, 3),
        {"space": "sphere", "save": [1.0, 30.0, 60.0]},
    ),
    "consensus that travels": (
        at.Attention(np.eye(3), np.eye(3), np.diag([1.0, 1.1, 1.3])),
        at.Tokens.hemisphere(6, 3),
        {"space": "sphere", "until": 40.0},
    ),
    "collapsed": (at.Attention(np.eye(2), np.eye(2), -np.eye(2)), at.Tokens.gaussian(7, 2), {"until": 100.0}),
    "collapsed, dopri5": (
        at.Attention(np.eye(2), np.eye(2), -np.eye(2)),
        at.Tokens.gaussian(7, 2),
        {"until": 100.0, "method": "dopri5"},
    ),
    "steady": (
        at.Attention.isotropic(2, -4.0),
        at.Tokens.uniform(5, 2, seed=3),
        {"space": "sphere", "until": 300.0, "rtol": 1e-6},
    ),
    "one token": (at.Attention.isotropic(3, 1.0), at.Tokens.uniform(1, 3), {"space": "sphere", "until": 10.0}),
    "blow-up": (
        at.Attention(np.eye(2), np.eye(2), np.eye(2), kernel="exponential"),
        at.Tokens.gaussian(5, 2),
        {"until": 50.0},
    ),
    "diverged": (at.Attention(np.eye(2), np.eye(2), np.eye(2)), at.Tokens.gaussian(5, 2), {"until": 400.0}),
    "at rest from the start": (
        at.Attention.isotropic(3, 1.0),
        at.Tokens(np.tile([[0.0, 0.0, 1.0]], (4, 1))),
        {"space": "sphere", "until": 10.0},
    ),
    "no rules": (
        at.Attention.isotropic(3, 1.0),
        at.Tokens.hemisphere(9, 3),
        {"space": "sphere", "until": 30.0, "stop": ()},
    ),
    "a first step": (
        at.Attention.isotropic(3, 4.0),
        at.Tokens.uniform(9, 3),
        {"space": "sphere", "until": 3.0, "step": 0.01},
    ),
    "a later start": (
        at.Attention.isotropic(3, 4.0),
        at.Tokens.uniform(9, 3),
        {"space": "sphere", "start": 5.0, "until": 9.0},
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_runs_end_alike(name: str) -> None:
    law, tokens, options = ENDS[name]
    here, there = both(law, tokens, **options)
    agree(here, there, tolerance=1e-7)
    assert here.outcome.message == there.outcome.message or name in ("steady", "blow-up")


def test_members_are_integrated_independently() -> None:
    law, tokens = at.Attention.isotropic(3, 1.0), at.Tokens.uniform(7, 3, seed=5, ensemble=(3, 4))
    options: dict[str, Any] = {"space": "sphere", "until": 60.0, "save": 9}
    together = at.flow(law, tokens, **options)
    assert len({outcome.time for outcome in together.outcomes}) > 1
    alone = [at.flow(law, at.Tokens(points), **options) for points in tokens.points.reshape(12, 7, 3)]
    for index, run in enumerate(alone):
        member = together.member(index)
        assert torch.equal(member.points, run.points)
        assert member.outcome == run.outcome
        assert [(e.time, e.members) for e in member.events] == [(e.time, e.members) for e in run.events]
    for name in ("evaluations", "accepted", "rejected", "merges"):
        assert getattr(together.stats, name) == sum(getattr(run.stats, name) for run in alone)
    agree(together, at.flow(law, tokens, engine="fused", **options), counts=False)


def test_members_with_parameters_masses_and_positions_of_their_own() -> None:
    generator = np.random.default_rng(0)
    query, key, value = generator.standard_normal((3, 4, 2, 3, 3))
    law = at.Attention(query, key, value - 2 * np.eye(3), scale=0.3, mask="causal")
    tokens = at.Tokens(
        generator.standard_normal((4, 6, 3)),
        masses=generator.random((4, 6)) + 0.1,
        positions=generator.permuted(np.tile(np.arange(6.0), (4, 1)), axis=1),
    )
    for space in SPACES.values():
        agree(*both(law, tokens, space=space, until=np.pi, save=5), counts=False)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: getattr(kernel, "name", kernel))
@pytest.mark.parametrize("own", [False, True])
def test_rotary_positions_and_biases(kernel: Any, own: bool) -> None:
    generator = np.random.default_rng([KERNELS.index(kernel), int(own)])
    for space, mask in zip(SPACES, (None, "causal", "window:3"), strict=True):
        members, n, heads, k = 3, int(generator.integers(2, 13)), int(generator.integers(1, 3)), 4
        batch = (members,) if own else ()
        query, key = generator.standard_normal((2, *batch, heads, k, 3))
        value, output = (generator.standard_normal((*batch, heads, *shape)) for shape in ((2, 3), (3, 2)))
        biases = {
            name: 0.3 * generator.standard_normal((*batch, heads, size))
            for name, size in (("query_bias", k), ("key_bias", k), ("value_bias", 2))
            if generator.random() < 0.8
        }
        law = at.Attention(
            query,
            key,
            0.3 * value,
            output=output,
            output_bias=0.1 * generator.standard_normal(3),
            kernel=kernel,
            scale=0.3,
            mask=mask,
            positions=[at.Rotary(), at.Rotary(dim=2), None][int(generator.integers(3))],
            **biases,
        )
        points = SPACES[space].random(n, 3, seed=int(generator.integers(1000)), ensemble=members)
        places = generator.permuted(np.tile(np.arange(float(n)), (members, 1)), axis=1)
        tokens = at.Tokens(
            points if SPACES[space].is_curved else 0.3 * points,
            masses=None if generator.random() < 0.5 else generator.random(n) + 0.1,
            positions=places if generator.random() < 0.5 else None,
        )
        agree(*both(law, tokens, space=SPACES[space], until=1.0, save=5, rtol=1e-7), counts=False)


def test_threads_change_nothing() -> None:
    law, tokens = at.Attention.isotropic(3, 9.0), at.Tokens.uniform(8, 3, ensemble=(40,))
    runs, threads = [], torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            runs.append(at.flow(law, tokens, space="sphere", until=20.0))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(runs[0].points, runs[1].points)
    assert runs[0].outcomes == runs[1].outcomes


@pytest.mark.parametrize("name", instruction_sets())
def test_every_instruction_set(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    law, tokens = at.Attention.isotropic(3, 9.0), at.Tokens.uniform(13, 3)
    monkeypatch.setenv("ATTRACTOR_ISA", name)
    agree(*both(law, tokens, space="sphere", until=100.0))


@pytest.mark.parametrize("most", [1, 100, 777])
def test_a_budget_of_evaluations_ends_after_the_same_step(most: int) -> None:
    law, tokens = at.Attention.isotropic(3, 9.0), at.Tokens.uniform(12, 3)
    here, there = both(law, tokens, space="sphere", until=1e6, max_evaluations=most)
    assert here.outcome.name == "budget"
    # the last step is as long as its error estimate says, so points are compared where they are at one and the same time
    torch.testing.assert_close(here.times, there.times, rtol=CLOCK, atol=0.0)
    late = (there.times - here.times)[:, None, None]
    moved = here.points + late * at.velocity(law, at.Tokens(here.points), space="sphere")
    torch.testing.assert_close(moved, there.points, rtol=0.0, atol=1e-9)
    agree_on_the_way(here, there)


def test_a_budget_of_time_is_kept() -> None:
    run = at.flow(
        at.Attention.isotropic(3, 1.0, mask="causal"),
        at.Tokens.uniform(64, 3, ensemble=(200,)),
        space="sphere",
        until=1e9,
        max_seconds=0.05,
    )
    assert run.outcome.name == "budget"
    assert 0.05 <= run.stats.seconds < 5.0


def test_a_function_is_called_after_every_step() -> None:
    seen: list[float] = []
    run = at.flow(
        at.Attention.isotropic(3, 9.0),
        at.Tokens.uniform(6, 3),
        space="sphere",
        until=5.0,
        progress=lambda run: seen.append(float(run.t[0]) if len(run.t) else 5.0),
    )
    assert run.stats.engine == "native"
    assert len(seen) == run.stats.accepted + run.stats.rejected


ELSEWHERE: dict[str, tuple[at.Law, at.Tokens, dict[str, Any]]] = {
    "an engine that is named": (at.Attention.isotropic(3, 1.0), at.Tokens.uniform(4, 3), {"engine": "reference"}),
    "sinkhorn": (at.Attention.isotropic(3, 1.0, kernel="sinkhorn"), at.Tokens.uniform(4, 3), {}),
    "float32 of an engine": (
        at.Attention.isotropic(3, 1.0),
        at.Tokens.uniform(4, 3, dtype=torch.float32),
        {"engine": "fused"},
    ),
    "a fixed step": (at.Attention.isotropic(3, 1.0), at.Tokens.uniform(4, 3), {"method": "rk4", "step": 0.1}),
    "an event": (
        at.Attention.isotropic(3, 1.0),
        at.Tokens.uniform(4, 3),
        {"events": [at.Event(lambda tokens, time: 1.0)]},
    ),
    "other positions": (at.Attention.isotropic(2, 1.0, positions=at.Alibi([1.0])), at.Tokens.uniform(4, 2), {}),
    "a schedule": (at.Schedule(lambda t: at.Attention.isotropic(3, 1.0 + t)), at.Tokens.uniform(4, 3), {}),
    "a sum": (
        at.Attention.isotropic(3, 1.0) + at.Attention.isotropic(3, 2.0),
        at.Tokens.uniform(4, 3),
        {},
    ),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_the_loop_does_not_know_goes_the_other_way(name: str) -> None:
    law, tokens, options = ELSEWHERE[name]
    assert "native" not in at.flow(law, tokens, space="sphere", until=0.5, **options).stats.engine


@pytest.mark.parametrize("save", [None, 5, [1.0, 3.0]])
@pytest.mark.parametrize("merge", [None, False])
def test_float32_is_integrated_in_float64(save: Any, merge: Any) -> None:
    law, double = at.Attention.isotropic(3, 4.0), at.Tokens.uniform(20, 3, ensemble=(3,))
    single = at.Tokens(double.points, masses=np.linspace(1.0, 2.0, 20), dtype=torch.float32)
    options = {"space": "sphere", "until": 3.0, "save": save, "merge": merge, "rtol": 1e-5, "atol": 1e-7}
    run = at.flow(law, single, **options)
    other = at.flow(law, single, engine="fused", **options)
    exact = at.flow(law, at.Tokens(single.points.double(), masses=single.masses), **options)
    assert run.stats.engine == "native"
    assert run.points.dtype == run.final.points.dtype == run.initial.points.dtype == torch.float32
    assert run.times.dtype == torch.float64
    assert torch.equal(run.points, exact.points.float())
    assert run.outcomes == exact.outcomes
    torch.testing.assert_close(run.final.points, other.final.points, rtol=0.0, atol=1e-4)


def test_velocities_that_are_not_finite_end_a_run() -> None:
    law, tokens = at.Attention.isotropic(3, 1000.0, kernel="exponential"), at.Tokens.uniform(50, 3)
    for space in SPACES.values():
        for run in both(law, tokens, space=space, until=1.0, max_seconds=20.0):
            assert run.outcome.name == "stalled"
            assert run.stats.evaluations < 5000
            assert "not finite" in run.outcome.message or not space.is_curved


def test_velocities_whose_squares_overflow_are_followed() -> None:
    generator = np.random.default_rng(0)
    points = torch.from_numpy(np.array([1.0, 0.0, 0.0]) + 0.2 * generator.standard_normal((8, 3)))
    law = at.Attention.isotropic(3, 400.0, kernel="exponential")
    tokens = at.Tokens(at.Sphere().retract(points))
    for run in both(law, tokens, space="sphere", until=100.0 * np.exp(-400.0), merge=False):
        assert run.outcome.name in ("reached", "consensus")
        assert run.stats.accepted > 5


@pytest.mark.parametrize("mask", ["causal", "window:9"])
def test_a_member_that_ends_takes_its_positions_along(mask: str) -> None:
    draw = np.random.default_rng(3)
    points = at.Tokens.uniform(24, 3, seed=0, ensemble=(4,)).points
    points[0] = points[0, :1] + 1e-9 * points[0]  # ends at once
    positions = np.stack([draw.permutation(24) for _ in range(4)]).astype(float)
    tokens = at.Tokens(points, positions=positions)
    law = at.Attention.random(3, seed=2, mask=mask)
    law = at.Attention(law.query, law.key, torch.eye(3, dtype=torch.float64)[None], mask=mask)
    here, there = both(law, tokens, space=at.Sphere(), until=6.0, merge=False, progress=lambda run: None)
    assert there.outcomes[0].time < there.outcomes[1].time
    agree(here, there)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_parameters_changed_in_place_are_seen(name: str, inference: bool) -> None:
    with torch.inference_mode(inference):
        law, tokens = at.Attention.isotropic(3, 4.0), at.Tokens.uniform(8, 3, seed=0)
        before = at.flow(law, tokens, space="sphere", until=1.0).final.points
        getattr(law, name)[0, 1] = 0.5  # no longer a multiple of the identity
        copied = copy.deepcopy(law)
        same = at.Attention(law.query.clone(), law.key.clone(), law.value.clone())
        after = at.flow(law, tokens, space="sphere", until=1.0).final.points
        assert torch.equal(after, at.flow(same, tokens, space="sphere", until=1.0).final.points)
        assert torch.equal(at.velocity(copied, tokens), at.velocity(same, tokens))
        assert torch.equal(at.velocity(law, tokens), at.velocity(same, tokens))
    assert not torch.allclose(before, after, atol=1e-3)


def test_a_finished_run_needs_no_search_for_cycles() -> None:
    seen: list[weakref.ref] = []
    gc.disable()
    try:
        options: Any = {"space": "sphere", "until": 1.0, "progress": lambda run: seen.append(weakref.ref(run))}
        at.flow(at.Attention.isotropic(3, 4.0), at.Tokens.uniform(8, 3, seed=0), **options)
        assert seen
        assert seen[0]() is None
    finally:
        gc.enable()
