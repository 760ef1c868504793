"""Runs in logarithmic time: clusters at low temperature on the sphere."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad, solve_ivp

import attractor as at
from attractor.errors import InputError, StoreError, UnsupportedError
from attractor.solvers.cluster_integration import ClusterLaw, certify_first_merge, nearest_angle

ANGLES = (0.0, 1.0, 2.3, 4.0)
CHORD = 1e-3


def circle(angles: tuple[float, ...] | list[float], masses: list[float] | None = None) -> at.Tokens:
    places = np.asarray(angles)
    return at.Tokens(np.stack([np.cos(places), np.sin(places)], axis=-1), masses=masses)


def merge_times(beta: float, tokens: at.Tokens, log_until: float, **options: object) -> list[float]:
    kernel = options.pop("kernel", "softmax")
    law = at.Attention.isotropic(tokens.dim, beta, kernel=kernel)
    options = {"space": at.Sphere(), "method": "clusters", "merge": CHORD, **options}
    return [event.log_time for event in at.flow(law, tokens, log_until=log_until, **options).events]


@pytest.mark.theorem
def test_merge_times_of_four_tokens_on_the_circle() -> None:
    # A24 and A25 of the specification
    found = merge_times(50.0, circle(ANGLES), 95.0)
    assert np.abs(np.array(found) - [18.75833713, 51.85229023, 90.84395521]).max() < 1e-7
    found = merge_times(1000.0, circle(ANGLES), 1900.0)
    assert np.abs(np.array(found) - [452.443532, 1121.260072, 1875.474904]).max() < 1e-6


@pytest.mark.parametrize(("beta", "expected"), [(10.0, 2.74208601), (20.0, 5.96893273)])
def test_the_first_merge_is_that_of_the_equation(beta: float, expected: float) -> None:
    """The angles of all tokens, integrated by SciPy in plain time (A26)."""

    def field(_: float, angles: np.ndarray) -> np.ndarray:
        apart = angles[:, None] - angles[None]
        weights = np.exp(beta * np.cos(apart))
        return -(weights * np.sin(apart)).sum(1) / weights.sum(1)

    def touch(_: float, angles: np.ndarray) -> float:
        return 2 * math.sin((angles[1] - angles[0]) / 2) - CHORD

    touch.terminal = True  # type: ignore[attr-defined]
    plain = solve_ivp(field, (0, 1e5), ANGLES, method="DOP853", rtol=1e-12, atol=1e-13, events=touch)
    found = merge_times(beta, circle(ANGLES), 40.0)[0]
    assert abs(found - math.log(plain.t_events[0][0])) < 1e-7
    assert abs(found - expected) < 1e-7


def test_the_plain_flow_agrees_where_floating_point_reaches() -> None:
    law = at.Attention.isotropic(3, 8.0, kernel="exponential")
    tokens = at.Tokens.uniform(6, 3, seed=3)
    slow = at.flow(law, tokens, space="sphere", until=at.exp(30), method="clusters", rtol=1e-11, save=[0.5e-3, 2e-3])
    fast = at.flow(law, tokens, space="sphere", until=2e-3, save=[0.5e-3, 2e-3], rtol=1e-11, merge=False, stop=())
    assert float((slow.points - fast.points).abs().max()) < 1e-7


@pytest.mark.parametrize("kernel", ["softmax", "exponential"])
def test_two_clusters_of_different_mass(kernel: str) -> None:
    masses, beta = (0.75, 0.25), 5.0

    def time(theta: float) -> float:
        barrier = math.exp(-beta * (1 - math.cos(theta)))
        if kernel == "exponential":
            return math.exp(-beta) / (sum(masses) * barrier * math.sin(theta))
        weights = masses[1] * barrier / (masses[0] + masses[1] * barrier)
        weights += masses[0] * barrier / (masses[1] + masses[0] * barrier)
        return 1 / (math.sin(theta) * weights)

    end = 2 * math.asin(CHORD / 2)
    exact = quad(time, end, 1.0, epsabs=0, epsrel=1e-12, limit=400)[0]
    found = merge_times(beta, circle([0.0, 1.0], list(masses)), 20.0, kernel=kernel)[0]
    assert abs(found - math.log(exact)) < 1e-9


def test_the_value_and_the_radius_change_the_unit_of_time() -> None:
    eye = np.eye(2)
    law = at.Attention(2.0 * eye, 5.0 * eye, 3.0 * eye, scale=0.5)  # beta = 5, c = 3
    tokens = at.Tokens(2.0 * circle(ANGLES).points)
    options = {"log_until": 100.0, "method": "clusters", "merge": 2e-3}
    events = at.flow(law, tokens, space=at.Sphere(2.0), **options).events
    expected = np.array(merge_times(20.0, circle(ANGLES), 100.0)) - math.log(3.0)
    assert np.abs(np.array([event.log_time for event in events]) - expected).max() < 1e-8


def test_errors_cover_what_a_finer_run_finds() -> None:
    rng = np.random.default_rng(5)
    tokens = at.Tokens(at.Tokens.uniform(9, 3, seed=5).points, masses=rng.uniform(0.2, 1.0, 9))
    law = at.Attention.isotropic(3, 60.0)
    options = {"space": "sphere", "log_until": 300.0, "method": "clusters"}
    coarse = at.flow(law, tokens, merge=3e-3, **options).events
    fine = at.flow(law, tokens, merge=1e-4, **options).events
    assert [event.members for event in coarse] == [event.members for event in fine]
    late = [(one, abs(one.log_time - two.log_time)) for one, two in zip(coarse, fine, strict=True) if one.log_time > 25]
    assert len(late) == 3
    assert all(error < 1.2 * event.log_error + 1e-9 for event, error in late)
    assert max(error for _, error in late) > 1e-6


def test_the_first_merge_has_a_certificate() -> None:
    """The bounds of the specification (A24) are 5.7e-6 apart, and hold the time with and without the other clusters."""
    law, options = at.Attention.isotropic(2, 50.0), {"space": "sphere", "log_until": 95.0, "method": "clusters"}
    first, *later = at.flow(law, circle(ANGLES), merge=CHORD, **options).events
    alone = at.flow(law, circle(ANGLES[:2]), merge=CHORD, **options).events[0]
    points = circle(ANGLES).points.numpy()
    motion = ClusterLaw(50.0, 1.0, normalised=True)
    low, high = certify_first_merge(points, np.full(4, 0.25), (0, 1), motion, CHORD)
    assert high - low == pytest.approx(5.7e-6, rel=0.1)
    assert low < min(first.log_time, alone.log_time) < max(first.log_time, alone.log_time) < high
    assert first.certified
    assert 0.5 * (high - low) <= first.log_error <= high - low
    assert 1e-8 < abs(first.log_time - alone.log_time) < first.log_error
    assert not any(event.certified for event in later)
    assert alone.certified
    assert alone.log_error < 1e-9


@pytest.mark.theorem
@pytest.mark.parametrize("kernel", ["softmax", "exponential"])
def test_certificates_hold_on_fresh_configurations(kernel: str) -> None:
    """The time of a run lies in the bounds, which follow from the start alone; crowds have none."""
    certified = 0
    for seed in range(12):
        rng = np.random.default_rng([seed, 77])
        n, d, beta = int(rng.integers(2, 7)), int(rng.integers(2, 4)), float(rng.uniform(8.0, 40.0))
        tokens = at.Tokens(at.Tokens.uniform(n, d, seed=seed).points, masses=rng.uniform(0.3, 1.0, n))
        law = at.Attention.isotropic(d, beta, kernel=kernel)
        event = at.flow(law, tokens, space="sphere", log_until=200.0, method="clusters", merge=1e-3).events[0]
        masses = tokens.weights.numpy()
        masses = masses / masses.sum() if kernel == "softmax" else masses
        motion, pair = ClusterLaw(beta, 1.0, kernel == "softmax"), tuple(sorted(event.members))
        low, high = certify_first_merge(tokens.points.numpy(), masses, pair, motion, 1e-3)  # type: ignore[arg-type]
        assert event.certified == np.isfinite(high)
        if np.isfinite(high):
            certified += 1
            assert low - 1e-8 < event.log_time < high + 1e-8
    assert 4 <= certified < 12


def test_the_angle_between_points_and_an_arc() -> None:
    rng = np.random.default_rng(3)
    x, y, *others = at.Tokens.uniform(22, 3, seed=4).points.numpy()
    whole = np.arccos(x @ y)
    shares = np.linspace(0.0, 1.0, 20_001)[:, None]
    arc = (np.sin((1 - shares) * whole) * x + np.sin(shares * whole) * y) / np.sin(whole)
    for point in others:
        assert nearest_angle(x, y, point[None]) == pytest.approx(float(np.arccos(arc @ point).min()), abs=1e-6)
    assert nearest_angle(x, y, rng.normal(size=(0, 3))) == math.pi


def test_states_are_saved_at_times_beyond_floating_point() -> None:
    law = at.Attention.isotropic(2, 1000.0)
    times = [0.0, at.exp(400), at.exp(460), at.exp(1200), at.exp(1900)]
    run = at.flow(law, circle(ANGLES), space="sphere", until=at.exp(1900), save=times)
    assert run.stats.method == "clusters"
    assert run.outcome.name == "consensus"
    assert math.isinf(run.outcome.time)
    assert run.log_times.tolist() == [-math.inf, 400.0, 460.0, 1200.0, 1900.0]
    assert run.times[1] == math.exp(400)
    counts = [len(np.unique(np.round(state.numpy(), 3), axis=0)) for state in run.points]
    assert counts == [4, 4, 3, 2, 1]
    angles = torch.atan2(run.points[2, :, 1], run.points[2, :, 0])
    assert angles[:2].tolist() == pytest.approx([0.5, 0.5], abs=1e-6)
    assert float(run.points.norm(dim=-1).sub(1).abs().max()) < 1e-14
    scene = run.scene()
    assert np.isfinite(scene.times).all()
    assert [time for time, _ in scene.events] == pytest.approx([452.443532, 1121.260072, 1875.474904], abs=1e-5)


def test_members_of_an_ensemble_are_independent() -> None:
    law, tokens = at.Attention.isotropic(3, 200.0), at.Tokens.uniform(5, 3, seed=1, ensemble=3)
    options = {"space": "sphere", "log_until": 800.0}
    together = at.flow(law, tokens, **options)
    alone = at.flow(law, at.Tokens(tokens.points[1]), **options)
    assert [event.log_time for event in together.member(1).events] == [event.log_time for event in alone.events]
    assert torch.equal(together.final.points[1], alone.final.points)
    assert together.points.shape == (len(together.times), 3, 5, 3)


def test_the_energy_climbs_a_staircase() -> None:
    """e^-beta sum m_j m_k e^(beta c_jk) tends to the sum of squared masses of the clusters (2.3)."""
    law = at.Attention.isotropic(2, 1000.0)
    times = [at.exp(time) for time in (400.0, 460.0, 1130.0, 1890.0)]
    run = at.flow(law, circle(ANGLES), space="sphere", until=at.exp(1890), save=times)
    cosines = run.points @ run.points.mT
    energy = torch.exp(1000.0 * (cosines - 1.0)).mean((-2, -1))
    assert energy.tolist() == pytest.approx([1 / 4, 3 / 8, 1 / 2, 1.0], abs=1e-3)


def test_clocks() -> None:
    law = at.Attention.isotropic(2, 1000.0)
    run = at.flow(law, circle(ANGLES), space="sphere", until=at.exp(1900), save=[at.exp(t) for t in (100.0, 500.0)])
    assert run.clock("exponent").tolist() == pytest.approx([0.1, 0.5])
    assert run.clock("arc_length").tolist() == pytest.approx([0.0, 0.5 * math.sqrt(0.5)], abs=1e-5)
    assert bool((run.clock("sigma")[1:] > run.clock("sigma")[:-1]).all())
    pair = at.flow(law, circle(ANGLES[:2]), space="sphere", until=at.exp(900), merge=1e-3)
    # alone, the sum of both weights is e^g and theta falls like -sin(theta): sigma = log tan(theta/2), from 1 to the chord
    expected = math.log(math.tan(0.5) / math.tan(math.asin(0.5e-3)))
    assert float(pair.clock("sigma")[-1]) == pytest.approx(expected, abs=1e-6)
    plain = at.flow(law, circle(ANGLES), space="sphere", until=1.0, save=[0.5, 1.0])
    with pytest.raises(UnsupportedError, match="clock sigma"):
        plain.clock("sigma")
    assert torch.equal(plain.clock("log_time"), torch.tensor([0.5, 1.0], dtype=torch.float64).log())
    with pytest.raises(InputError, match="did you mean 'arc_length'"):
        run.clock("arclength")


def test_a_start_in_equilibrium_stays() -> None:
    run = at.flow(
        at.Attention.isotropic(2, 500.0),
        circle([0.0, math.pi / 2, math.pi, -math.pi / 2]),
        space="sphere",
        log_until=1e4,
    )
    assert run.outcome.name == "steady"
    assert not run.events


def test_observables_during_the_run() -> None:
    law, tokens = at.Attention.isotropic(3, 200.0), at.Tokens.uniform(5, 3, seed=1, ensemble=2)
    run = at.flow(law, tokens, space="sphere", log_until=800.0, save=[at.exp(10.0), at.exp(700.0)], observe="clusters")
    assert run.log_times.tolist() == [10.0, 700.0]
    assert run.observed["clusters"].shape == (2, 2)
    assert all(event.log_error is not None for event in run.events)


def test_the_budget_ends_a_run() -> None:
    law = at.Attention.isotropic(2, 1000.0)
    run = at.flow(law, circle(ANGLES), space="sphere", log_until=1900, max_evaluations=300)
    assert run.outcome.name == "budget"


def test_until_within_floating_point_is_a_number_like_another() -> None:
    law, tokens = at.Attention.isotropic(3, 2.0), at.Tokens.uniform(6, 3)
    one = at.flow(law, tokens, space="sphere", until=at.exp(1.0))
    other = at.flow(law, tokens, space="sphere", until=math.e)
    assert torch.equal(one.points, other.points)
    assert one.stats.method == "dop853"


EYE = np.eye(2)
LAWS = {
    "an ellipsoid": (at.Attention.isotropic(2, 9.0), at.Ellipsoid(np.diag([1.0, 2.0])), "sphere"),
    "flat space": (at.Attention.isotropic(2, 9.0), at.Euclidean(), "order one"),
    "a mask": (at.Attention.isotropic(2, 9.0, mask="causal"), at.Sphere(), "mask"),
    "hardmax": (at.Attention.isotropic(2, 9.0, kernel="hardmax"), at.Sphere(), "hardmax"),
    "repulsion": (at.Attention.isotropic(2, -9.0), at.Sphere(), "beta > 0"),
    "another P": (at.Attention(np.diag([1.0, 2.0]), EYE, EYE), at.Sphere(), "P = beta I"),
    "another V": (at.Attention(EYE, EYE, np.diag([1.0, 2.0])), at.Sphere(), "V = c I"),
    "repulsive values": (at.Attention(EYE, EYE, -EYE), at.Sphere(), "c > 0"),
    "rotary": (at.Attention(EYE, EYE, EYE, positions=at.Rotary()), at.Sphere(), "rotary"),
    "two heads": (at.Attention(np.stack([EYE, EYE]), np.stack([EYE, EYE]), np.stack([EYE, EYE])), at.Sphere(), "head"),
}


@pytest.mark.parametrize("name", LAWS)
def test_laws_without_low_temperature_are_rejected(name: str) -> None:
    law, space, why = LAWS[name]
    with pytest.raises(UnsupportedError, match=why):
        at.flow(law, circle(ANGLES), space=space, until=at.exp(1000))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"method": "dop853"}, "clusters"),
        ({"noise": at.Noise(0.1)}, "noise"),
        ({"events": [at.Event(lambda tokens, time: 1.0)]}, "events"),
        ({"step": 0.1}, "step"),
        ({"merge": False}, "merge=False"),
        ({"merge": 2.0}, "radius"),
        ({"stop": "steady"}, "stop"),
        ({"rtol": 1e-20}, "rtol"),
        ({"save": [at.exp(2000)]}, "not after the end"),
        ({"until": 5.0}, "leave out"),
    ],
)
def test_options_without_meaning_are_rejected(options: dict[str, object], why: str) -> None:
    with pytest.raises((InputError, UnsupportedError), match=why):
        at.flow(at.Attention.isotropic(2, 900.0), circle(ANGLES), space="sphere", log_until=1000, **options)


def test_bad_times() -> None:
    with pytest.raises(InputError, match="finite"):
        at.exp(math.inf)
    with pytest.raises(InputError, match="number"):
        at.exp("long")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="exp"):
        at.flow(at.Attention.isotropic(2, 9.0), circle(ANGLES), space="sphere", until=1e305)
    assert not Path("never").exists()


@pytest.mark.parametrize(
    "options",
    [{"reduce": True}, {"resume": True}, {"engine": "reference"}, {"save": [-5.0, 1.0]}, {"save": [float("nan")]}],
    ids=str,
)
def test_options_without_meaning_in_logarithmic_time(options: dict[str, Any]) -> None:
    tokens = at.Tokens.uniform(3, 3, seed=0)
    with pytest.raises(at.AttractorError):
        at.flow(at.Attention.isotropic(3, 50.0), tokens, space="sphere", until=at.exp(1000), **options)


def test_a_run_in_logarithmic_time_is_stored(tmp_path: Path) -> None:
    """Everything but the seconds of other runs is read back; the folder is not used twice, and damage is found."""
    pytest.importorskip("zarr")
    law, tokens = at.Attention.isotropic(3, 200.0), at.Tokens.uniform(5, 3, seed=1, ensemble=2)
    options = {"space": "sphere", "log_until": 800.0, "save": 12}
    run = at.flow(law, tokens, store=tmp_path / "run", **options)
    for found in (at.load(tmp_path / "run"), at.resume(tmp_path / "run")):
        assert found.log_times.tolist() == run.log_times.tolist()
        assert torch.equal(found.points, run.points)
        assert torch.equal(found.final.points, run.final.points)  # type: ignore[union-attr]
        assert found.outcomes == run.outcomes
        assert list(found.events) == list(run.events)
        assert [event.members for event in found.events] == [event.members for event in run.events]
        assert found.summary() == run.summary()
        assert torch.equal(found.clock("sigma"), run.clock("sigma"))
    run.save(tmp_path / "again")
    assert at.load(tmp_path / "again").outcomes == run.outcomes
    with pytest.raises(StoreError, match="holds a run already"):
        at.flow(law, tokens, store=tmp_path / "run", **options)
    with pytest.raises(StoreError, match="another run"):
        at.flow(law, tokens, store=tmp_path / "run", resume=True, **{**options, "log_until": 900.0})
    for name in ("checkpoint.npz", "definition.npz", "zarr.json"):
        whole = (tmp_path / "run" / name).read_bytes()
        damaged = bytearray(whole)
        damaged[len(whole) // 2] ^= 1
        (tmp_path / "run" / name).write_bytes(damaged)
        with pytest.raises(StoreError, match=r"damaged|cannot be read as a Zarr store"):
            at.load(tmp_path / "run")
        (tmp_path / "run" / name).write_bytes(whole)
    short = at.flow(law, tokens, store=tmp_path / "short", max_evaluations=50, **options)
    assert "budget" in {outcome.name for outcome in short.outcomes}
    with pytest.raises(UnsupportedError, match="not continued"):
        at.resume(tmp_path / "short")
