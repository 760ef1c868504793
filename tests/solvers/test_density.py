"""Densities on the circle: against characteristics, closed forms, particles, and the rules of every other run."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import attractor as at
from attractor.errors import InputError, UnsupportedError
from attractor.laws import CircleField, circle
from attractor.states import circle_points

TWO = at.Density.from_modes([0.15, 0.05], size=128)


def by_characteristics(law: at.Attention, start: at.Density, until: float, orders: int) -> np.ndarray:
    """Coefficients c_1, ... at a time: grid points move as tokens that carry their masses, and the sum over them is the
    trapezoidal rule in their labels."""
    tokens = start.tokens()
    run = at.flow(law, tokens, space=at.Sphere(), until=until, rtol=1e-12, atol=1e-13, merge=False, stop=(), save=1)
    angles = torch.atan2(run.final.points[:, 1], run.final.points[:, 0]).numpy()
    waves = np.exp(-1j * np.outer(np.arange(1, orders + 1), angles))
    return waves @ tokens.masses.numpy()


def random_law(seed: int, kernel: str) -> at.Attention:
    rng = np.random.default_rng(seed)
    query, key, value = rng.standard_normal((3, 2, 2, 2))
    return at.Attention(query, key, 0.5 * value, kernel=kernel, scale=0.4)


@pytest.mark.theorem
def test_softmax_follows_the_characteristics():
    """Acceptance number A34 of the specification."""
    law, start = at.Attention.isotropic(2, 4.0), at.Density.from_modes([0.15, 0.1 * np.exp(0.5j)], size=512)
    run = at.flow(law, start, until=1.0, save=1)
    assert run.final.modes[1] == pytest.approx(0.18442245 - 0.00064793j, abs=1e-8)
    assert run.final.modes[1:6] == pytest.approx(by_characteristics(law, start, 1.0, 5), abs=2e-10)


@pytest.mark.parametrize("kernel", ["softmax", "exponential", "l2", "sigmoid"])
def test_laws_without_symmetry_follow_the_characteristics(kernel):
    law, start = random_law(3, kernel), at.Density.from_modes([0.2, 0.1j, 0.05], size=384)
    until = 0.1 if kernel == "exponential" else 0.4
    run = at.flow(law, start, until=until, save=1)
    assert run.outcome.name == "reached"
    assert run.final.modes[1:5] == pytest.approx(by_characteristics(law, start, until, 4), abs=1e-9)


@pytest.mark.theorem
@pytest.mark.parametrize("kernel", ["softmax", "exponential"])
def test_small_deviations_grow_at_the_rate_of_their_mode(kernel):
    """A11, and the same for the exponential kernel: k^2 (r_k / beta - eps), r_k = I_k / I_0 (I_k for exponential)."""
    from scipy.special import iv

    beta, order, eps = (5.0, 3, 0.05) if kernel == "softmax" else (1.5, 2, 0.1)
    weight = iv(order, beta) / (iv(0, beta) if kernel == "softmax" else 1.0)
    expected = order**2 * (weight / beta - eps)
    if kernel == "softmax":
        assert expected == pytest.approx(0.2326783336, abs=1e-9)
    law = at.Attention.isotropic(2, beta, kernel=kernel)
    start = at.Density.from_modes([0.0] * (order - 1) + [3e-5], size=48)
    run = at.flow(law, start, until=2.0, noise=at.Noise(eps), save=1, rtol=1e-14)
    assert np.log(abs(run.final.modes[order]) / 3e-5) / 2.0 == pytest.approx(expected, abs=1e-8)


@pytest.mark.theorem
def test_noise_alone_is_the_heat_equation():
    law = at.Attention(np.eye(2), np.eye(2), np.zeros((2, 2)))
    start = at.Density.von_mises(2.0, 0.3, size=64)
    k = np.arange(start.order + 1)
    run = at.flow(law, start, until=1.5, noise=at.Noise(0.2), save=[0.5, 1.5])
    assert run.modes[0].numpy() == pytest.approx(start.modes * np.exp(-0.1 * k**2), abs=1e-14)
    assert run.final.modes == pytest.approx(start.modes * np.exp(-0.3 * k**2), abs=1e-14)
    ramp = at.Noise.interpolate([0.0, 1.0], [0.0, 0.4])
    assert at.flow(law, start, until=1.5, noise=ramp, save=1).final.modes == pytest.approx(
        start.modes * np.exp(-(0.2 + 0.2) * k**2), abs=1e-14
    )
    curve = at.Noise(lambda time: 0.1 * (1 + np.sin(time)))
    total = 0.15 + 0.1 * (1 - np.cos(1.5))
    assert at.flow(law, start, until=1.5, noise=curve, save=1).final.modes == pytest.approx(
        start.modes * np.exp(-total * k**2), abs=1e-10
    )


@pytest.mark.theorem
def test_a_rotation_turns_the_density():
    turning = at.Affine([[0.0, -0.7], [0.7, 0.0]])
    start = at.Density.von_mises(2.0, 0.3, size=96)
    run = at.flow(turning, start, until=2.0, save=1)
    assert run.final.modes == pytest.approx(start.modes * np.exp(-1.4j * np.arange(start.order + 1)), abs=1e-9)


def test_fokker_planck_against_its_number_and_particles():
    """A37; n = 20,000 particles leave an error of about 3 / sqrt(2 n) = 0.015 in each coefficient."""
    law, noise = at.Attention.isotropic(2, 4.0), at.Noise(0.1, seed=3)
    run = at.flow(law, TWO, until=2.0, noise=noise, save=1)
    assert abs(run.final.modes[1]) == pytest.approx(0.18745647, abs=1e-7)
    assert abs(run.final.modes[2]) == pytest.approx(0.07323714, abs=1e-7)
    tokens = at.flow(law, TWO.quantiles(20_000), space="sphere", until=2.0, step=0.2, noise=noise, save=1)
    for order in (1, 2):
        found = float(at.order_parameter(tokens.final, order=order))
        assert found == pytest.approx(abs(run.final.modes[order]), abs=0.015)


@pytest.mark.theorem
def test_both_routes_to_the_velocity_agree(monkeypatch):
    law = at.Attention.isotropic(2, 6.0)
    fast = CircleField(law, 96)
    assert all(convolved for *_, convolved in fast.parts)
    monkeypatch.setattr(circle, "SPREAD", 0.0)
    dense = CircleField(law, 96)
    assert not any(convolved for *_, convolved in dense.parts)
    values = np.stack((TWO.at(np.arange(96) * 2 * np.pi / 96), np.full(96, 0.5 / np.pi)))
    assert fast.velocity(values) == pytest.approx(dense.velocity(values), abs=1e-12)
    tokens = at.Tokens(circle_points(TWO.angles), masses=TWO.tokens().masses)
    tangent = torch.stack((-tokens.points[:, 1], tokens.points[:, 0]), -1)
    expected = (at.velocity(law, tokens, at.Sphere()) * tangent).sum(-1).numpy()
    assert CircleField(law, 128).velocity(TWO.values.numpy()) == pytest.approx(expected, abs=1e-12)


def test_the_error_follows_the_tolerance():
    law, start = at.Attention.isotropic(2, 4.0), at.Density.from_modes([0.3, 0.1], size=96)
    exact = at.flow(law, start, until=2.0, noise=at.Noise(0.1), save=1, rtol=1e-13).final.modes
    errors = [
        np.abs(at.flow(law, start, until=2.0, noise=at.Noise(0.1), save=1, rtol=rtol).final.modes - exact).max()
        for rtol in (1e-5, 1e-8, 1e-11)
    ]
    assert errors[0] < 1e-3
    assert errors[1] < 1e-6
    assert errors[2] < 1e-9


def test_the_mass_is_one_and_saved_states_do_not_change_the_path():
    law = at.Attention.isotropic(2, 4.0)
    few = at.flow(law, TWO, until=3.0, noise=at.Noise(0.05), save=1)
    many = at.flow(law, TWO, until=3.0, noise=at.Noise(0.05), save=30)
    assert (few.modes[:, 0] == 1).all()
    assert few.final.modes == pytest.approx(many.final.modes, abs=1e-9)
    assert float(few.densities[-1].mean()) * 2 * np.pi == pytest.approx(1.0, abs=1e-14)


def test_a_run_without_noise_ends_where_its_grid_no_longer_resolves_it():
    law = at.Attention.isotropic(2, 4.0)
    coarse, fine = (at.flow(law, at.Density.from_modes([0.15, 0.05], size=size), until=50.0) for size in (128, 512))
    assert coarse.outcome.name == fine.outcome.name == "unresolved"
    assert 0 < coarse.outcome.time < fine.outcome.time < 50
    assert "128 angles" in coarse.outcome.message
    assert fine.final.tail < 1e-6
    # until there it is right
    again = at.flow(law, at.Density.from_modes([0.15, 0.05], size=512), until=coarse.outcome.time, save=1)
    assert coarse.final.modes == pytest.approx(again.final.modes[: coarse.final.order + 1], abs=1e-6)


def test_a_symmetric_density_is_not_taken_for_resolved():
    """Only every fourth coefficient is not zero, and none of them is the highest one."""
    law = at.Attention.isotropic(2, 9.0)
    start = at.Density.from_modes([0, 0, 0, 0.2], size=128)
    assert start.order % 4
    assert at.flow(law, start, until=50.0).outcome.name == "unresolved"


def test_rests_are_judged_by_their_stability():
    law, noise = at.Attention.isotropic(2, 4.0), at.Noise(0.15)
    still = at.flow(law, at.Density.uniform(48), until=100.0, noise=noise)
    assert still.outcome.name == "reached"  # unstable, although it does not move
    above = at.flow(law, at.Density.uniform(48), until=40.0, noise=at.Noise(0.3))
    assert above.outcome.name == "steady"
    moved = at.flow(law, at.Density.from_modes([0.3], size=48), until=150.0, noise=noise)
    assert moved.outcome.name == "steady"
    assert moved.outcome.time < 150.0
    assert at.flow(law, at.Density.uniform(48), until=40.0, noise=at.Noise(0.3), stop=()).outcome.name == "reached"


@pytest.mark.theorem
def test_stability_of_densities():
    """Uniform densities have the rates of their modes; an ordered one is neutral, since it can turn."""
    from attractor.meanfield import mode_growth

    law = at.Attention.isotropic(2, 4.0)
    for strength, name, growing in ((0.1, "saddle", 4), (0.3, "stable", 0)):
        found = at.stability(law, at.Density.uniform(48), noise=at.Noise(strength))
        rates = np.sort(np.repeat(mode_growth(4.0, strength, count=16), 2))[::-1]
        assert found.eigenvalues == pytest.approx(rates, abs=1e-7)
        assert (found.name, found.unstable) == (name, growing)
    run = at.flow(law, at.Density.from_modes([0.3], size=48), until=150.0, noise=at.Noise(0.15))
    assert (at.stability(run).name, at.stability(run).neutral) == ("neutral", 1)
    with pytest.raises(UnsupportedError, match="positive strength"):
        at.stability(law, at.Density.uniform(48))
    with pytest.raises(InputError, match="the density moves"):
        at.stability(law, TWO, noise=at.Noise(0.1))
    with pytest.raises(UnsupportedError, match="tokens with noise"):
        at.stability(law, at.Tokens(np.eye(2)), "sphere", noise=at.Noise(0.1))
    with pytest.raises(InputError, match="own noise"):
        at.stability(run, noise=at.Noise(0.1))


def test_stores_hold_densities(tmp_path):
    law, noise = at.Attention.isotropic(2, 4.0), at.Noise(0.05)
    run = at.flow(law, at.Density.from_modes([[0.15], [0.3]], size=96), until=1.0, noise=noise, save=4)
    run.save(tmp_path / "run")
    read = at.load(tmp_path / "run")
    assert torch.equal(read.points, run.points)
    assert torch.equal(read.densities, run.densities)
    assert read.outcomes == run.outcomes
    assert read.noise.strength == 0.05


def test_interrupted_stores_continue_with_the_same_bits(tmp_path):
    law, noise = at.Attention.isotropic(2, 4.0), at.Noise(0.05)
    ensemble = at.Density.from_modes([[0.15], [0.3]], size=96)
    options = {"until": 2.0, "noise": noise, "save": 4}
    whole = at.flow(law, ensemble, **options)
    steps = 0

    def interrupt(run):
        nonlocal steps
        steps += 1
        if steps == 25:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        at.flow(law, ensemble, **options, store=tmp_path / "run", progress=interrupt)
    assert at.load(tmp_path / "run").outcome.name in ("unfinished", "mixed")
    resumed = at.resume(tmp_path / "run")
    assert torch.equal(resumed.points, whole.points)
    assert torch.equal(resumed.times, whole.times)


def test_members_of_an_ensemble_are_single_runs():
    law, noise = at.Attention.isotropic(2, 4.0), at.Noise(0.05)
    ensemble = at.Density.from_modes([[0.15, 0.0], [0.0, 0.1]], size=96)
    run = at.flow(law, ensemble, until=1.0, noise=noise, save=3)
    for member, modes in enumerate([[0.15], [0.0, 0.1]]):
        alone = at.flow(law, at.Density.from_modes(modes, size=96), until=1.0, noise=noise, save=3)
        assert torch.equal(run.member(member).points, alone.points)


def test_observables_of_densities():
    law, start = at.Attention.isotropic(2, 4.0), at.Density.von_mises(1.5, size=64)
    run = at.flow(law, start, until=1.0, noise=at.Noise(0.1), save=4)
    assert run.observe("order_parameter").numpy() == pytest.approx(run.modes[:, 1].abs().numpy(), abs=1e-13)
    many = at.flow(law, start.quantiles(400), space="sphere", until=1e-9, stop=(), save=1)
    assert float(run.observe("energy")[0]) == pytest.approx(float(many.observe("energy")[0]), rel=2e-3)
    with pytest.raises(UnsupportedError, match="peaks"):
        run.observe("clusters")
    assert run.summary()["sizes"]["angles"] == 64
    assert "spectral" in run._repr_html_()
    assert "orszag1971elimination" in run.cite()


def test_densities_know_themselves():
    from scipy.special import ive

    density = at.Density.von_mises(3.0, 1.0, size=96)
    ratios = ive(np.arange(33), 3.0) / ive(0, 3.0)
    assert density.modes == pytest.approx(ratios * np.exp(-1j * np.arange(33)), abs=1e-14)
    spread = density.entropy()
    assert spread == pytest.approx(np.log(2 * np.pi * ive(0, 3.0)) + 3.0 - 3.0 * ratios[1], abs=1e-12)
    assert at.Density.uniform(24).entropy() == pytest.approx(np.log(2 * np.pi))
    assert density.at([1.0]) == pytest.approx(np.exp(3.0) / (2 * np.pi * np.i0(3.0)), rel=1e-12)
    assert [int(at.Density.from_modes([0] * (k - 1) + [0.4], size=64).peaks()) for k in (1, 2, 5)] == [1, 2, 5]
    assert int(at.Density.uniform(64).peaks()) == 0
    angles = np.sort(np.mod(np.arctan2(*density.quantiles(1000).points.numpy().T[::-1]), 2 * np.pi))
    shares = np.array([density._integral(angles)]).reshape(-1)
    assert shares == pytest.approx((np.arange(1000) + 0.5) / 1000, abs=1e-12)
    drawn = density.sample(20_000, seed=1)
    assert float(at.order_parameter(drawn)) == pytest.approx(ratios[1], abs=0.02)


BAD_DENSITIES = {
    "negative": (lambda: at.Density([1.0] * 10 + [-0.01] * 10), "must not be negative"),
    "all negative": (lambda: at.Density([-1.0] * 20), "must not be negative"),
    "not a number": (lambda: at.Density([float("nan")] * 20), "NaN"),
    "zero": (lambda: at.Density([0.0] * 20), "zero everywhere"),
    "few angles": (lambda: at.Density([1.0] * 5), "12 to 8192"),
    "not resolved": (lambda: at.Density([1.0] * 10 + [0.5] * 10), "does not resolve"),
    "too many modes": (lambda: at.Density.from_modes([0.0] * 9, size=24), "c_1, ..., c_8"),
    "negative by its modes": (lambda: at.Density.from_modes([0.9], size=24), "must not be negative"),
    "infinite mode": (lambda: at.Density.from_modes([float("inf")]), "finite"),
    "modes as text": (lambda: at.Density.from_modes(["a"]), "numbers"),
    "size": (lambda: at.Density.uniform(10**6), "12 to 8192"),
    "quantiles": (lambda: TWO.quantiles(0), "at least 1"),
}


@pytest.mark.parametrize("case", list(BAD_DENSITIES))
def test_bad_densities_are_rejected(case):
    make, words = BAD_DENSITIES[case]
    with pytest.raises(InputError, match=words):
        make()


BAD_RUNS = {
    "dimension": ({"law": at.Attention.isotropic(3, 1.0)}, "dimension 3"),
    "space": ({"space": "euclidean"}, "unit circle"),
    "radius": ({"space": at.Sphere(2.0)}, "unit circle"),
    "method": ({"method": "rk4"}, "leave out method"),
    "step": ({"step": 0.1}, "leave out step"),
    "merge": ({"merge": 1e-3}, "leave out merge"),
    "events": ({"events": [at.Event(lambda tokens, time: 1.0)]}, "events"),
    "stop": ({"stop": "consensus"}, "'steady' only"),
    "rtol": ({"rtol": 1e-20}, "rtol"),
    "mask": ({"law": at.Attention.isotropic(2, 1.0, mask="causal")}, "mask"),
    "positions": ({"law": at.Attention.isotropic(2, 1.0, positions=at.Rotary())}, "positions"),
    "kernel": ({"law": at.Attention.isotropic(2, 1.0, kernel="hardmax")}, "hardmax"),
    "overflow": ({"law": at.Attention.isotropic(2, 900.0, kernel="exponential")}, "overflow"),
    "schedule": ({"law": at.Stack([at.Attention.isotropic(2, 1.0)] * 2)}, "depend on time"),
    "strengths": ({"noise": at.Noise([0.1, 0.2])}, "one strength"),
    "common noise": ({"noise": at.Noise(0.1, common=0.1)}, "common noise"),
    "observe": ({"observe": "mean", "save": 2}, "observe"),
}


@pytest.mark.parametrize("case", list(BAD_RUNS))
def test_bad_runs_are_rejected(case):
    options, words = BAD_RUNS[case]
    law = options.pop("law", at.Attention.isotropic(2, 1.0)) if "law" in options else at.Attention.isotropic(2, 1.0)
    with pytest.raises((InputError, UnsupportedError), match=words):
        at.flow(law, TWO, until=1.0, **options)
