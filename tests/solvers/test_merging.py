"""Merging: coinciding tokens are one weighted token, and nothing else changes."""

from __future__ import annotations

import itertools
from math import cos, exp, pi, sin

import mpmath
import numpy as np
import pytest
import torch
from scipy.integrate import quad

import attractor as at
from attractor.errors import InputError, UnsupportedError
from attractor.solvers.steppers.stepper import Field

SPHERE = at.Sphere()


def merges(run: at.Trajectory, member: int = 0) -> list:
    return [event for event in run.events if event.kind == "merge" and event.member == member]


@pytest.mark.parametrize(
    "kernel",
    ["softmax", "l2", "sigmoid", "exponential", "linear", at.Sinkhorn(eps=30.0)],
    ids=lambda kernel: getattr(kernel, "name", kernel),
)
def test_a_merged_run_is_the_run(kernel: str | at.Kernel) -> None:
    """Against the same run unmerged: within a small multiple of the tolerance, for masses that differ."""
    law = at.Attention.isotropic(3, 3.0 if kernel != "exponential" else 1.0, kernel=kernel)
    tokens = at.Tokens(SPHERE.random(10, 3, seed=4), masses=np.linspace(0.05, 0.2, 10))
    options = {"space": SPHERE, "save": [1.0, 5.0, 10.0], "rtol": 1e-4, "atol": 1e-6, "stop": ()}
    merged, plain = (at.flow(law, tokens, merge=merge, **options) for merge in (1e-3, False))
    if kernel == "softmax":
        assert merged.stats.merges > 0
    assert plain.stats.merges == 0
    torch.testing.assert_close(merged.points, plain.points, rtol=0, atol=1e-3)


def test_merging_adds_an_error_of_second_order() -> None:
    """Replacing a pair at distance e by its mean moves the other tokens by O(e^2)."""
    others = SPHERE.random(4, 3, seed=1)
    errors = []
    for gap in (4e-2, 2e-2, 1e-2):
        pair = torch.tensor([[1.0, 0.0, 0.0], [cos(gap), sin(gap), 0.0]], dtype=torch.float64)
        tokens = at.Tokens(torch.cat([others, pair]))
        options = {"space": SPHERE, "until": 1.0, "rtol": 1e-11, "atol": 1e-13, "stop": (), "save": []}
        merged, plain = (at.flow(at.Attention.isotropic(3, 4.0), tokens, merge=m, **options) for m in (2 * gap, False))
        assert merged.stats.merges == 1
        errors.append(float((merged.final.points - plain.final.points)[:4].norm(dim=-1).max()))
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.1)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.1)


def test_the_log_tells_who_became_one() -> None:
    """Times do not decrease, masses and sizes add up, members are disjoint before and together after."""
    rng = np.random.default_rng(0)
    masses = rng.uniform(0.5, 1.5, 32)
    run = at.flow(
        at.Attention.isotropic(2, 9.0), at.Tokens(SPHERE.random(32, 2, seed=3), masses), space=SPHERE, until=1e4
    )
    log = merges(run)
    assert len(log) == run.stats.merges > 20
    assert all(later.time >= earlier.time for earlier, later in itertools.pairwise(log))
    groups: dict[int, frozenset[int]] = {i: frozenset([i]) for i in range(32)}
    for event in log:
        whole = frozenset(event.members)
        parts = {groups[i] for i in whole}
        assert len(parts) == 2
        assert frozenset().union(*parts) == whole
        assert event.size == len(whole)
        assert event.mass == pytest.approx(masses[list(whole)].sum(), rel=1e-12)
        groups |= dict.fromkeys(whole, whole)
    final = run.final.points
    for i in range(32):
        for j in range(32):
            assert (groups[i] == groups[j]) == bool((final[i] == final[j]).all())
    assert len(set(groups.values())) == int(at.observables.clusters(run.final, law=run.law, space=SPHERE, radius=1e-6))


def test_masses_are_the_users() -> None:
    """A trajectory speaks of the original tokens, merged or not."""
    masses = np.array([0.1, 0.2, 0.3, 0.4])
    run = at.flow(at.Attention.isotropic(2, 1.0), at.Tokens(np.eye(2)[[0, 0, 1, 1]], masses), space=SPHERE, until=2.0)
    assert run.points.shape[1:] == (4, 2)
    assert run.final.masses is not None
    assert run.final.masses.tolist() == masses.tolist()
    assert merges(run)[-1].mass <= 1.0


@pytest.mark.parametrize(
    "kernel", ["softmax", "l2", "exponential", at.Sinkhorn(eps=8.0)], ids=lambda kernel: getattr(kernel, "name", kernel)
)
@pytest.mark.parametrize("space", [SPHERE, at.Ellipsoid(np.diag([0.5, 1.0, 2.0]))], ids=["sphere", "ellipsoid"])
def test_tokens_given_twice_are_tokens_of_double_mass(kernel: str | at.Kernel, space: at.Space) -> None:
    """Duplicates of the start merge at once, and the run is that of weighted tokens."""
    points = space.random(5, 3, seed=6)
    counts = np.array([1, 3, 2, 1, 4])
    law = at.Attention.isotropic(3, 1.5, kernel=kernel)
    options = {"space": space, "save": [0.5, 1.5], "rtol": 1e-8, "atol": 1e-10, "stop": ()}
    many = at.flow(law, at.Tokens(points.repeat_interleave(torch.from_numpy(counts), dim=0)), **options)
    few = at.flow(law, at.Tokens(points, masses=counts / counts.sum()), **options)
    assert [event.time for event in merges(many)] == [0.0] * 6
    first = np.cumsum(counts) - 1
    torch.testing.assert_close(many.points[:, first], few.points, rtol=0, atol=1e-7)
    for i, count in enumerate(counts):
        for copy in range(count):
            assert torch.equal(many.points[:, first[i] - copy], many.points[:, first[i]])


def test_many_tokens_at_one_point_merge_at_once() -> None:
    points = np.repeat(np.eye(3)[:2], 50, axis=0)
    run = at.flow(at.Attention.isotropic(3, 2.0), at.Tokens(points), space=SPHERE, until=0.5)
    assert run.stats.merges == 98


def test_tokens_at_equal_distances_merge() -> None:
    """A simplex stays a simplex while it shrinks: no pair is nearer than another, and all still become one."""
    for count in (3, 4, 6):
        run = at.flow(
            at.Attention.isotropic(count, 1.0), at.Tokens.orthonormal(count, count), space=SPHERE, until=60.0, stop=()
        )
        assert run.stats.merges == count - 1
        assert len(merges(run)[-1].members) == count


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mask": "causal"}, "causal"),
        ({"mask": "window:2"}, "window"),
        ({"positions": at.Rotary(10.0)}, "rotary"),
        ({"positions": at.Absolute(np.eye(4))}, "absolute"),
    ],
)
def test_merging_is_refused_where_tokens_at_one_point_differ(options: dict, words: str) -> None:
    law, tokens = at.Attention.isotropic(4, 1.0, **options), at.Tokens(np.eye(4)[[0, 0, 1, 1]])
    with pytest.raises(UnsupportedError, match=words):
        at.flow(law, tokens, space=SPHERE, until=1.0, merge=1e-6)
    assert at.flow(law, tokens, space=SPHERE, until=1.0).stats.merges == 0


def test_merging_is_refused_along_layers_and_under_gradients() -> None:
    law, tokens = at.Attention.isotropic(3, 1.0), at.Tokens(np.eye(3)[[0, 0, 1, 1]])
    with pytest.raises(UnsupportedError, match="layers"):
        at.flow(law, tokens, space=SPHERE, until=1.0, merge=1e-6, method="layers")
    watched = at.Tokens(tokens.points.clone().requires_grad_())
    with pytest.raises(UnsupportedError, match="gradients"):
        at.flow(law, watched, space=SPHERE, until=1.0, merge=1e-6)
    assert at.flow(law, watched, space=SPHERE, until=1.0).stats.merges == 0


@pytest.mark.parametrize("merge", [0.0, -1e-6, float("nan"), float("inf"), True])
def test_distances_that_make_no_sense_are_refused(merge: float) -> None:
    with pytest.raises(InputError, match="merge must be a positive distance"):
        at.flow(at.Attention.isotropic(3, 1.0), at.Tokens.uniform(4, 3), space=SPHERE, until=1.0, merge=merge)


def test_by_default_tokens_merge_on_curved_spaces_at_a_tenth_of_the_tolerance() -> None:
    """Just inside and just outside of 0.1 rtol."""
    law, rtol = at.Attention.isotropic(3, 1.0), 1e-4
    for gap, count in ((0.09 * rtol, 1), (0.11 * rtol, 0)):
        tokens = at.Tokens(np.array([[1.0, 0.0, 0.0], [cos(gap), sin(gap), 0.0], [0.0, 0.0, 1.0]]))
        options = {"until": 1e-3, "rtol": rtol, "stop": ()}
        assert at.flow(law, tokens, space=SPHERE, **options).stats.merges == count
        assert at.flow(law, tokens, space=SPHERE, merge=False, **options).stats.merges == 0
        assert at.flow(law, tokens, **options).stats.merges == 0
        assert at.flow(law, tokens, space=SPHERE, method="rk4", step=1e-3, until=1e-3, stop=()).stats.merges == 0


def test_tokens_merge_in_flat_space_when_asked_for() -> None:
    law = at.Attention(np.zeros((2, 2)), np.zeros((2, 2)), np.eye(2)) + at.Affine(-np.eye(2))
    run = at.flow(law, at.Tokens.gaussian(6, 2, seed=1), until=20.0, merge=1e-4, stop=())
    assert run.stats.merges == 5
    torch.testing.assert_close(run.final.points[0], run.initial.points.mean(0), rtol=0, atol=1e-3)


@pytest.mark.theorem
def test_metastability_to_very_late_times() -> None:
    """beta = 25 to t = 1e12 in some thousand evaluations; explicit steps unmerged would take 1e11."""
    run = at.flow(at.Attention.isotropic(2, 25.0), at.Tokens.uniform(64, 2, seed=0), space=SPHERE, until=1e12)
    assert run.outcome.name in ("reached", "steady", "consensus")
    assert run.stats.evaluations < 15_000
    times = [event.time for event in merges(run)]
    assert max(times) > 1e6 * min(times)


@pytest.mark.theorem
@pytest.mark.parametrize("beta", [25.0, 81.0])
def test_far_clusters_move_at_their_own_tiny_rate(beta: float) -> None:
    """Two clusters at 60 degrees: the velocity e^{-beta/2} is right to rounding, although self terms are 1e17 larger.

    w_12 = m_2 e^{beta c} / (m_1 e^{beta} + m_2 e^{beta c}) with c = cos 60 degrees, speed w_12 sin 60 degrees.
    """
    masses = torch.tensor([[0.25, 0.75]], dtype=torch.float64)
    points = torch.tensor([[[1.0, 0.0, 0.0], [cos(pi / 3), sin(pi / 3), 0.0]]], dtype=torch.float64)
    law = at.Attention.isotropic(3, beta)
    with mpmath.workdps(60):
        x = [mpmath.mpf(float(v)) for v in points[0, 1]]
        w = mpmath.mpf(0.75) / (mpmath.mpf(0.25) * mpmath.exp(beta - beta * x[0]) + mpmath.mpf(0.75))
        expected = float(w * x[1])
    kept = Field(law, SPHERE, at.Tokens(points, masses), skip_self=True).velocity(np.zeros(1), points)[0, 0]
    assert abs(float(kept[1]) / expected - 1) < 1e-12 * beta
    assert abs(float(kept[0])) < 1e-15 * expected


@pytest.mark.theorem
@pytest.mark.parametrize("beta", [25.0, 81.0])
def test_far_clusters_meet_when_the_quadrature_says(beta: float) -> None:
    """From 60 degrees to 0.5: a time near e^{beta/2}, 1e19 for beta = 81, that self terms left in would drown in rounding."""
    expected, _ = quad(
        lambda a: (1 + exp(beta * (1 - cos(a)))) / (2 * sin(a)), 0.5, pi / 3, epsabs=0, epsrel=1e-12, limit=500
    )
    points = np.array([[1.0, 0.0, 0.0], [cos(pi / 3), sin(pi / 3), 0.0]])[[0, 1] * 3]
    near = at.Event(lambda tokens, time: float((tokens.points[0] - tokens.points[1]).norm()) - 2 * sin(0.25))
    law = at.Attention.isotropic(3, beta)
    run = at.flow(law, at.Tokens(points), space=SPHERE, until=10 * expected, events=[near])
    assert run.outcome.name == "event"
    assert run.outcome.time == pytest.approx(expected, rel=1e-6)
    assert run.stats.evaluations < 5000
