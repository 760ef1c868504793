"""Tokens with noise: their random numbers, paths that do not depend on how they are computed, and laws that are known.

Expectations are means over independent members with a fixed seed; they must lie within four standard errors of the exact value, which
is stated with the number of members.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate
from torch import Tensor

import attractor as at
from attractor.engines import native
from attractor.errors import InputError, UnsupportedError
from attractor.random_numbers import COMMON, WEIGHTS, normals, philox

MATRIX = torch.tensor([[2.0, 0.3, 0.0], [0.3, 1.0, -0.2], [0.0, -0.2, 0.6]], dtype=torch.float64)
SPACES = {
    "euclidean": at.Euclidean(),
    "sphere": at.Sphere(),
    "large sphere": at.Sphere(2.5),
    "ellipsoid": at.Ellipsoid(MATRIX),
}
NOISES: dict[str, tuple[dict[str, Any], str]] = {
    "strang2": (dict(strength=0.1), "strang2"),
    "euler": (dict(strength=0.1), "euler"),
    "layer": (dict(strength=0.1, kind="layer"), "euler"),
    "common": (dict(common=0.2), "euler"),
    "both": (dict(strength=0.1, common=0.2), "euler"),
    "per token": (dict(strength=torch.linspace(0.0, 0.3, 7)), "strang2"),
    "per member": (dict(strength=torch.linspace(0.0, 0.3, 42).view(2, 3, 7)), "strang2"),
    "function": (dict(strength=lambda t: 0.1 + 0.1 * math.sin(t), common=lambda t: 0.1 * t), "euler"),
}
needs_compiled = pytest.mark.skipif(bool(native.reason), reason=native.reason or "")


def free(dim: int) -> at.Attention:
    """No drift."""
    zero = torch.zeros(dim, dim, dtype=torch.float64)
    return at.Attention(zero, zero, zero)


def generic(dim: int = 3) -> at.Attention:
    query, key, value = np.random.default_rng(1).standard_normal((3, 2, dim, dim))
    return at.Attention(query, key, 0.5 * (value - value.swapaxes(1, 2)) - 0.3 * np.eye(dim), scale=0.5)


def agrees(samples: Tensor, expected: float) -> bool:
    """Whether a mean over independent samples is within four standard errors."""
    return abs(float(samples.mean()) - expected) < 4 * float(samples.std()) / len(samples) ** 0.5


# ---------------------------------------------------------------------------------------- random numbers


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]) -> None:
    # the known answers that come with Random123 for philox4x32-10
    words = philox(tuple(torch.tensor(word) for word in counter), key)  # type: ignore[arg-type]
    assert tuple(int(word) for word in words) == expected


def test_normals_are_standard_and_independent() -> None:
    z = normals(5, 11, torch.arange(2000), 8, 6)
    flat = z.reshape(2000, -1)
    correlations = torch.corrcoef(flat.T) - torch.eye(48)
    assert abs(float(z.mean())) < 4 / z.numel() ** 0.5
    assert abs(float((z**2).mean()) - 1) < 4 * (2 / z.numel()) ** 0.5
    assert abs(float((z**4).mean()) - 3) < 4 * (96 / z.numel()) ** 0.5
    assert float(correlations.abs().max()) < 5 / 2000**0.5
    for other in (normals(6, 11, torch.arange(2000), 8, 6), normals(5, 12, torch.arange(2000), 8, 6)):
        assert abs(float((z * other).mean())) < 4 / z.numel() ** 0.5
    assert torch.equal(normals(5, 11, torch.tensor([77]), 8, 6)[0], z[77])
    assert torch.equal(normals(5, 11, torch.arange(2000), 3, 2), z[:, :3, :2])
    assert not torch.equal(normals(5, 11, torch.arange(2), 8, 6, COMMON), z[:2])
    assert not torch.equal(normals(5, 11, torch.arange(2), 8, 6, WEIGHTS), z[:2])
    assert not torch.equal(normals(5 + 2**32, 11, torch.arange(2), 8, 6), z[:2])


# ---------------------------------------------------------------------------------------- one path, however it is computed


@needs_compiled
@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize("space", SPACES)
def test_the_compiled_loop_has_the_path_of_the_loop_in_python(name: str, space: str) -> None:
    options, method = NOISES[name]
    tokens = at.Tokens.uniform(7, 3, seed=1, ensemble=(2, 3))
    ends = [
        at.flow(generic(), tokens, space=SPACES[space], noise=at.Noise(seed=2**40 + 5, **options), method=method,
                step=0.03, until=1.0, save=[0.0, 0.3, 0.6, 1.0], engine=engine)
        for engine in (None, "reference")
    ]  # fmt: skip
    assert "native" in ends[0].stats.engine
    assert ends[1].stats.engine == "reference"
    assert float((ends[0].points - ends[1].points).abs().max()) < 1e-13
    assert ends[0].stats.accepted == ends[1].stats.accepted


@needs_compiled
@pytest.mark.parametrize("kernel", ["softmax", "exponential"])
@pytest.mark.parametrize("dim", [2, 3, 4, 5])
@pytest.mark.parametrize("n", [1, 2, 8, 17, 35])
def test_the_loop_over_lanes_has_the_path_of_the_loop_in_python(kernel: str, dim: int, n: int) -> None:
    identity = torch.eye(dim, dtype=torch.float64)
    law = at.Attention(identity, 2.0 * identity, -0.7 * identity, kernel=kernel)
    masses = None if n % 2 else torch.linspace(1.0, 2.0, n, dtype=torch.float64)
    tokens = at.Tokens(at.Tokens.uniform(n, dim, seed=1, ensemble=3).points, masses=masses)
    for options, method in (
        (dict(strength=torch.linspace(0.0, 0.2, n), common=0.1), "euler"),
        (dict(strength=0.1), "strang2"),
    ):
        fast, slow = (
            at.flow(law, tokens, space=at.Sphere(1.1), noise=at.Noise(seed=3, **options), method=method, step=0.03,
                    until=0.5, save=[0.3, 0.5], engine=engine)
            for engine in (None, "reference")
        )  # fmt: skip
        assert "native" in fast.stats.engine
        assert float((fast.points - slow.points).abs().max()) < 1e-13


@pytest.mark.parametrize("noise", [at.Noise(0.1, seed=4), at.Noise(common=0.2, seed=4), at.Redrawn(0.5, seed=4)])
def test_members_have_the_same_path_in_batches_of_any_size(noise: Any) -> None:
    law, tokens = at.Attention.isotropic(3, 2.0), at.Tokens.uniform(5, 3, seed=1, ensemble=6)
    options: dict[str, Any] = dict(space=at.Sphere(), step=0.05, until=1.0, save=[0.5, 1.0])
    whole = at.flow(law, tokens, noise=noise, **options)
    for first, last in ((0, 2), (2, 6)):
        part = at.Tokens(tokens.points[first:last])
        own = at.flow(law, part, noise=type(noise)(**{**vars(noise), "members": range(first, last)}), **options)
        assert float((own.points - whole.points[:, first:last]).abs().max()) < 1e-14
    watched = at.flow(law, tokens, noise=noise, observe={"x": lambda tokens, **_: tokens.points}, **options)
    assert float((watched.observed["x"] - whole.points).abs().max()) < 1e-14
    saved = at.flow(law, tokens, noise=noise, **{**options, "save": 10})
    assert torch.equal(saved.final.points, whole.final.points)


def test_observing_in_chunks_of_members_does_not_change_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    from attractor.solvers import observation

    law, tokens = at.Attention.isotropic(3, 2.0), at.Tokens.uniform(5, 3, seed=1, ensemble=6)
    strengths = torch.linspace(0.0, 0.2, 30).view(6, 5)
    noise, found = at.Noise(lambda t: strengths * (1 + t), seed=9), []
    for chunk in (1 << 26, 1):
        monkeypatch.setattr(observation, "CHUNK", chunk)
        run = at.flow(law, tokens, space=at.Sphere(), noise=noise, step=0.05, until=1.0, save=4, observe=["diameter"])  # fmt: skip
        found.append(run.observed["diameter"])
    assert float((found[0] - found[1]).abs().max()) < 1e-13
    pairs = at.Tokens(tokens.points.view(2, 3, 5, 3))
    steady = at.flow(
        law, pairs, space=at.Sphere(), noise=at.Noise(strengths.view(2, 3, 5), seed=9), step=0.05, until=1.0
    )
    seen = at.flow(law, pairs, space=at.Sphere(), noise=at.Noise(strengths.view(2, 3, 5), seed=9), step=0.05, until=1.0,
                   save=4, observe="diameter")  # fmt: skip
    assert torch.allclose(seen.observed["diameter"][-1], steady.observe("diameter")[-1], atol=1e-13)


def test_bands_of_an_ensemble(tmp_path: Any) -> None:
    tokens = at.Tokens(torch.zeros(400, 1, 2, dtype=torch.float64))
    run = at.flow(free(2), tokens, noise=at.Noise(0.5, seed=1), step=0.1, until=1.0, save=5)
    band = run.band(lambda tokens, **_: tokens.points[..., 0, 0], level=0.9)
    assert (band.mean.abs() <= 4 * band.error).all()
    assert band.error.tolist() == pytest.approx([(t / 400) ** 0.5 for t in run.times.tolist()], rel=0.15)
    normal = 1.6449  # quantile of 0.95
    assert band.high.tolist() == pytest.approx([normal * t**0.5 for t in run.times.tolist()], rel=0.2)
    assert band.low.tolist() == pytest.approx([-normal * t**0.5 for t in run.times.tolist()], rel=0.2)
    assert band.plot(tmp_path / "band.png", name="x").stat().st_size > 1000
    with pytest.raises(InputError, match="a band is over an ensemble"):
        run.member(0).band("token_norm")
    with pytest.raises(InputError, match="between 0 and 1"):
        run.band("token_norm", level=1.0)


def test_seeds_give_different_paths_and_the_same_seed_the_same() -> None:
    law, tokens = at.Attention.isotropic(3, 2.0), at.Tokens.uniform(4, 3, seed=1)
    runs = [
        at.flow(law, tokens, space=at.Sphere(), noise=at.Noise(0.1, seed=s), step=0.1, until=1.0) for s in (0, 0, 1)
    ]
    assert torch.equal(runs[0].points, runs[1].points)
    assert not torch.allclose(runs[0].final.points, runs[2].final.points)


def test_tokens_in_float32_keep_their_type() -> None:
    law, tokens = at.Attention.isotropic(3, 2.0), at.Tokens.uniform(4, 3, seed=1)
    single = at.Tokens(tokens.points, dtype=torch.float32)
    runs = [at.flow(law, x, space=at.Sphere(), noise=at.Noise(0.1), step=0.05, until=1.0) for x in (tokens, single)]
    assert runs[1].points.dtype == torch.float32
    assert torch.allclose(runs[0].points.float(), runs[1].points, atol=1e-5)


def test_without_strength_tokens_follow_the_flow() -> None:
    law, tokens = at.Attention.isotropic(3, 2.0), at.Tokens.uniform(6, 3, seed=1)
    quiet = at.flow(law, tokens, space=at.Sphere(), until=2.0, merge=False, stop=())
    errors = []
    for step in (0.1, 0.05):
        run = at.flow(law, tokens, space=at.Sphere(), noise=at.Noise(0.0), step=step, until=2.0)
        errors.append(float((run.final.points - quiet.final.points).abs().max()))
    assert math.log2(errors[0] / errors[1]) == pytest.approx(2, abs=0.3)


def test_schedules_interpolate_and_end_steps_at_their_times() -> None:
    noise = at.Noise.interpolate([0.0, 0.35, 1.0], [0.2, 0.0, 0.1], seed=2)
    assert float(noise.at(0.175)[0]) == pytest.approx(0.1)
    assert float(noise.at(2.0)[0]) == pytest.approx(0.1)
    tokens = at.Tokens(torch.zeros(500, 1, 2, dtype=torch.float64))
    run = at.flow(free(2), tokens, noise=noise, step=0.1, until=1.0, save=[0.35, 1.0])
    assert run.stats.accepted == 500 * (4 + 7)  # the steps before 0.35 and 1 are shorter
    variance = 2 * (0.5 * 0.35 * 0.2)  # the middle of a step gives the integral of a linear strength
    assert agrees(run.points[0, :, 0, 0] ** 2, variance)
    assert agrees(run.points[1, :, 0, 0] ** 2, variance + 2 * 0.5 * 0.65 * 0.1)


def test_a_last_step_that_is_shorter_is_reported() -> None:
    law, tokens = at.Attention.isotropic(3, 2.0), at.Tokens.uniform(4, 3, seed=1)
    run = at.flow(law, tokens, space=at.Sphere(), noise=at.Noise(0.1), step=0.3, until=1.0)
    assert run.outcome.time == 1.0
    assert run.stats.accepted == 4
    assert "the last step was 0.1 long" in run.outcome.message
    even = at.flow(law, tokens, space=at.Sphere(), noise=at.Noise(0.1), step=0.1, until=1.0)
    assert even.stats.accepted == 10
    assert "last step" not in even.outcome.message


def test_members_that_leave_the_bound_end_and_the_others_go_on() -> None:
    law = at.Attention(torch.zeros(1, 1), torch.zeros(1, 1), 40.0 * torch.eye(1))
    tokens = at.Tokens(torch.tensor([[[1.0]], [[0.0]], [[1e60]]], dtype=torch.float64))
    for engine in (None, "reference"):
        run = at.flow(law, tokens, noise=at.Noise(torch.tensor([[0.0], [0.0], [0.0]])), step=0.1, until=10.0, engine=engine)  # fmt: skip
        names = [outcome.name for outcome in run.outcomes]
        assert names == ["reached", "reached", "diverged"] or names == ["diverged", "reached", "diverged"]
        assert run.outcomes[2].time < 10.0


def test_gradients_flow_through_paths() -> None:
    beta = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    tokens = at.Tokens.uniform(4, 3, seed=1)

    def end(beta: Tensor) -> Tensor:
        identity = torch.eye(3, dtype=torch.float64)
        law = at.Attention(beta * identity, identity, identity)
        run = at.flow(law, tokens, space=at.Sphere(), noise=at.Noise(0.1, seed=3), step=0.1, until=1.0, save=[1.0])
        return run.final.points[0, 0]

    (slope,) = torch.autograd.grad(end(beta), beta)
    with torch.no_grad():
        difference = (end(beta + 1e-6) - end(beta - 1e-6)) / 2e-6
    assert float(slope) == pytest.approx(float(difference), rel=1e-6)


def test_events_end_members_with_noise() -> None:
    tokens = at.Tokens(torch.zeros(50, 1, 2, dtype=torch.float64))
    far = at.Event(lambda tokens, time: 1.0 - tokens.points.norm(), "far")
    run = at.flow(free(2), tokens, noise=at.Noise(0.5, seed=1), step=0.05, until=2.0, events=[far])
    ended = [outcome.name == "event" for outcome in run.outcomes]
    assert 5 < sum(ended) < 50
    sizes = run.final.points.norm(dim=-1)[:, 0]
    assert bool((sizes[torch.tensor(ended)] >= 1.0).all())
    assert bool((sizes[~torch.tensor(ended)] < 1.0).all())


# ---------------------------------------------------------------------------------------- known laws


@pytest.mark.theorem
def test_brownian_motion_by_euler_has_its_exact_factor() -> None:
    # acceptance number A1: E<x_k, x_0> = m^k, strength 0.5, step 1/16, 16 steps, 96,000 tokens
    factor = integrate.quad(lambda s: math.exp(-s) / math.sqrt(1 + 4 * 0.5 / 16 * s), 0, math.inf)[0]
    assert factor**16 == pytest.approx(0.4156559205, abs=1e-9)
    start = torch.zeros(3000, 32, 3, dtype=torch.float64)
    start[..., 0] = 1.0
    for method, expected in (("euler", factor**16), ("strang2", math.exp(-1.0))):
        run = at.flow(free(3), at.Tokens(start), space=at.Sphere(), noise=at.Noise(0.5, seed=1), method=method,
                      step=1 / 16, until=1.0, save=[1.0])  # fmt: skip
        assert agrees(run.final.points[..., 0].flatten(), expected)


@pytest.mark.theorem
def test_the_metric_of_an_ellipsoid_decides_what_is_uniform() -> None:
    # A3: the noise of the space is uniform in y = W^{1/2} x = (cos u, sin u); Brownian motion of the induced metric is uniform in arc
    # length, and the oblique projection of isotropic noise has the density |W^{1/2} y'(u)|^{-1} in u
    u = 2 * np.pi * np.arange(4096) / 4096
    slant = np.sqrt(np.sin(u) ** 2 + 4 * np.cos(u) ** 2)
    lengths = np.sqrt(np.sin(u) ** 2 + np.cos(u) ** 2 / 4)
    induced, oblique = (float((np.cos(u) ** 2 * weight).sum() / weight.sum()) for weight in (lengths, 1 / slant))
    assert [induced, oblique] == pytest.approx([0.420077, 0.415440], abs=5e-7)
    start = at.Tokens.uniform(32, 2, seed=0, ensemble=500)
    space = at.Ellipsoid(torch.diag(torch.tensor([1.0, 4.0], dtype=torch.float64)))
    run = at.flow(free(2), start, space=space, noise=at.Noise(0.5, seed=1), step=0.05, until=8.0, save=[8.0])
    squares = run.final.points[..., 0].flatten() ** 2
    assert agrees(squares, 0.5)
    assert not agrees(squares, induced)
    assert not agrees(squares, oblique)


@pytest.mark.theorem
def test_layer_noise_on_an_ellipsoid_is_another_process() -> None:
    # A4: E y_3^2 = .420 within .01, and 1/3 for the noise of the space; 32,000 tokens
    matrix = torch.diag(torch.tensor([1.0, 1.0, 9.0], dtype=torch.float64))
    space, start = at.Ellipsoid(matrix), at.Tokens.uniform(32, 3, seed=0, ensemble=1000)
    found = {}
    for kind in ("layer", "space"):
        noise = at.Noise(0.1, kind=kind, seed=1)
        run = at.flow(free(3), start, space=space, noise=noise, method="euler", step=0.01, until=6.0, save=[6.0])
        found[kind] = float((9.0 * run.final.points[..., 2] ** 2).mean())
    assert found["layer"] == pytest.approx(0.420, abs=0.01)
    assert found["space"] == pytest.approx(1 / 3, abs=0.01)


@pytest.mark.theorem
def test_common_noise_synchronizes_at_its_exponent() -> None:
    # A5: distances of close tokens shrink at rate (d - 1) strength = 1, within .03; 4000 members
    first = at.Tokens.uniform(1, 3, seed=0, ensemble=4000).points
    close = torch.cat((first, first + 1e-4 * at.Tokens.uniform(1, 3, seed=5, ensemble=4000).points), 1)
    run = at.flow(free(3), at.Tokens(close), space=at.Sphere(), noise=at.Noise(common=0.5, seed=1), step=0.01,
                  until=6.0, save=[1.0, 6.0])  # fmt: skip
    logs = (run.points[:, :, 0] - run.points[:, :, 1]).norm(dim=-1).log()
    assert float((logs[1] - logs[0]).mean() / 5.0) == pytest.approx(-1.0, abs=0.03)


STATIONARY = [
    ("exponential", 2, 2, 1.0, 0.5, 0.54533578),  # A6
    ("softmax", 2, 2, 1.0, 0.5, 0.28173320),
    ("softmax", 2, 3, 2.0, 0.2, 0.28073825),  # A7
    ("exponential", 3, 2, 1.0, 0.5, 0.5031849489),  # A8
    ("softmax", 3, 2, 1.0, 0.5, 0.2573638916),
]


@pytest.mark.theorem
@pytest.mark.parametrize(("kernel", "n", "dim", "beta", "strength", "expected"), STATIONARY)
def test_stationary_cosine_of_two_tokens(
    kernel: str, n: int, dim: int, beta: float, strength: float, expected: float
) -> None:
    law = at.Attention.isotropic(dim, beta, kernel=kernel)
    start = at.Tokens.uniform(n, dim, seed=0, ensemble=12000)
    until = (5.0 if kernel == "exponential" else 2.0) / strength  # slower near the critical strength
    run = at.flow(law, start, space=at.Sphere(), noise=at.Noise(strength, seed=2), step=0.05, until=until, save=[until])
    x, y = run.final.points[:, 0], run.final.points[:, 1]
    assert agrees((x * y).sum(-1), expected)


@pytest.mark.theorem
def test_weak_order_of_paths() -> None:
    # the mean of 192,000 free tokens falls at rate (d - 1) strength by strang2, and at that rate times 1 - (d + 2) strength h + O(h^2)
    # by euler
    start = torch.zeros(6000, 32, 3, dtype=torch.float64)
    start[..., 0] = 1.0
    errors = {}
    for method in ("euler", "strang2"):
        for step in (0.1, 0.05):
            run = at.flow(free(3), at.Tokens(start), space=at.Sphere(), noise=at.Noise(0.5, seed=7), method=method,
                          step=step, until=1.0, save=[1.0])  # fmt: skip
            errors[method, step] = 1.0 + math.log(float(run.final.points[..., 0].mean()))
    standard_error = 0.5 / (192000**0.5 * math.exp(-1.0))
    assert max(abs(errors["strang2", step]) for step in (0.1, 0.05)) < 4 * standard_error
    assert math.log2(errors["euler", 0.1] / errors["euler", 0.05]) == pytest.approx(1, abs=0.25)


@pytest.mark.theorem
@pytest.mark.parametrize(
    ("dim", "beta", "expected"), [(3, 1.0, 0.22242258), (3, 3.0, 0.38331688), (4, 2.0, 0.24744327)]
)
def test_redrawn_values_bring_orthogonal_tokens_to_antipodes(dim: int, beta: float, expected: float) -> None:
    # A17: the probability is harmonic, so that its mean over 4000 members at any time is that at the start
    nodes = np.linspace(-18.0, 18.0, 40001)  # t = tanh(nodes)
    t = np.tanh(nodes)
    p = 1 / (1 + np.exp(-beta * (1 - t)))
    a = p**2 + (1 - p) ** 2
    exponent = integrate.cumulative_simpson(((dim - 2) * (1 - a) - a * t) / a, x=nodes, initial=0.0)
    density = np.exp(exponent[20000] - exponent) * (1 - t**2)
    scale = integrate.cumulative_simpson(density, x=nodes, initial=0.0)
    chance = 1 - scale / scale[-1]
    assert chance[20000] == pytest.approx(expected, abs=1e-6)
    law = at.Attention.isotropic(dim, beta)
    law = at.Attention(law.query, law.key, torch.zeros(dim, dim, dtype=torch.float64))
    start = torch.eye(dim, dtype=torch.float64)[:2].expand(4000, 2, dim)
    run = at.flow(law, at.Tokens(start), space=at.Sphere(), noise=at.Redrawn(1.0, seed=1), step=0.02, until=1.5, save=[1.5])  # fmt: skip
    cosines = (run.final.points[:, 0] * run.final.points[:, 1]).sum(-1)
    assert float((cosines.abs() > 0.8).double().mean()) > 0.3  # many have decided
    found = torch.from_numpy(np.interp(np.arctanh(cosines.numpy().clip(-1 + 1e-15, 1 - 1e-15)), nodes, chance))
    assert agrees(found, expected)


# ---------------------------------------------------------------------------------------- Gaussians


@pytest.mark.theorem
@pytest.mark.parametrize(("strength", "expected"), [(0.0, 0.5), (0.1, 0.48426704), (1.0, math.pi / 8)])
def test_noise_brings_the_blow_up_of_a_gaussian_forward(strength: float, expected: float) -> None:
    # A15, d = 1, a = sigma_0 = 1
    law = at.Attention(torch.eye(1), torch.eye(1), torch.eye(1))
    run = at.flow(law, at.Gaussian([0.0], [[1.0]]), noise=at.Noise(strength), until=1.0)
    assert run.outcome.name == "blow_up"
    assert run.outcome.time == pytest.approx(expected, abs=1e-8)


@pytest.mark.theorem
def test_a_gaussian_with_noise_follows_the_closed_form() -> None:
    # A15: sigma(.45) with strength .1, and sqrt(eps/a) tan(2 sqrt(a eps) t + atan(sigma_0 sqrt(a/eps)))
    law = at.Attention(torch.eye(1), torch.eye(1), torch.eye(1))
    run = at.flow(law, at.Gaussian([0.0], [[1.0]]), noise=at.Noise(0.1), until=0.45, save=[0.1, 0.45])
    root = math.sqrt(0.1)
    for time, covariance in zip(run.times.tolist(), run.covariances[:, 0, 0].tolist(), strict=True):
        assert covariance == pytest.approx(root * math.tan(2 * root * time + math.atan(1 / root)), rel=1e-9)
    assert float(run.covariances[-1, 0, 0]) == pytest.approx(14.5889956783, abs=1e-8)


@pytest.mark.theorem
def test_noise_keeps_a_gaussian_from_collapse() -> None:
    # S < 0: Sigma -> sqrt(eps) (-S)^{-1/2}; in the kernel of S it grows by 2 eps t; the start is singular
    scores = torch.diag(torch.tensor([-2.0, -0.5, 0.0], dtype=torch.float64))
    law = at.Attention(scores, torch.eye(3), torch.eye(3))
    start = at.Gaussian([0.0] * 3, torch.diag(torch.tensor([1.0, 0.0, 0.0])))
    run = at.flow(law, start, noise=at.Noise(0.1), until=40.0)
    diagonal = run.covariances[-1].diagonal()
    assert diagonal[:2].tolist() == pytest.approx([math.sqrt(0.1 / 2.0), math.sqrt(0.1 / 0.5)], rel=1e-6)
    assert float(diagonal[2]) == pytest.approx(2 * 0.1 * 40.0, rel=1e-6)


# ---------------------------------------------------------------------------------------- what does not fit


def flow_with(noise: Any = None, law: at.Law | None = None, tokens: at.Tokens | None = None, **options: Any) -> Any:
    options = {"step": 0.1, "until": 1.0, "space": at.Sphere(), **options}
    tokens = at.Tokens.uniform(4, 3, seed=1) if tokens is None else tokens
    return at.flow(
        at.Attention.isotropic(3, 2.0) if law is None else law, tokens, noise=noise or at.Noise(0.1), **options
    )


def move_gaussian(noise: Any) -> Any:
    return at.flow(at.Attention.isotropic(2, 1.0), at.Gaussian([0.0, 0.0], torch.eye(2)), noise=noise, until=0.1)


SCHEDULE = at.Schedule(lambda t: at.Attention.isotropic(3, 1.0 + t))
REJECTED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: at.Noise(-0.1), InputError, "the strength of noise must not be negative, got -0.1"),
    (lambda: at.Noise(float("nan")), InputError, "the strength of noise"),
    (lambda: at.Noise(0.1, common=-1.0), InputError, "the common of noise must not be negative"),
    (lambda: at.Noise(0.1, common=[0.1, 0.2]), InputError, "one strength for all tokens"),
    (lambda: at.Noise(0.1, kind="pink"), InputError, "'space' or 'layer', got 'pink'"),
    (lambda: at.Noise(0.1, seed=-1), InputError, "from 0 to 2\\^63"),
    (lambda: at.Noise.interpolate([0.0, 0.0], [0.1, 0.2]), InputError, "must increase"),
    (lambda: flow_with(at.Noise([0.1, 0.2])), InputError, r"must be a number or have shape \(4,\), got \(2,\)"),
    (lambda: flow_with(at.Noise(lambda t: 0.05 - t)), InputError, "the strength of noise at t = 0.15 must not be"),
    (lambda: flow_with(at.Noise(0.1, members=[1, 2])), InputError, "one index for each of 1 members, got 2"),
    (lambda: flow_with(0.1), InputError, "noise must be Noise"),
    (lambda: flow_with(method="dop853"), UnsupportedError, "'dop853', which adapts its steps"),
    (lambda: flow_with(method="rk4"), UnsupportedError, "'strang2' or 'euler', got 'rk4'"),
    (lambda: flow_with(at.Noise(0.1, common=0.1), method="strang2"), UnsupportedError, "common noise has weak order 1"),
    (lambda: flow_with(at.Noise(0.1, kind="layer"), method="strang2"), UnsupportedError, "defined by its step"),
    (lambda: flow_with(step=None), InputError, "give step="),
    (lambda: flow_with(step=0.0), InputError, "step must be positive"),
    (lambda: flow_with(rtol=1e-6), InputError, "rtol limits the error of adaptive steps"),
    (lambda: flow_with(merge=1e-3), UnsupportedError, "independent noise moves them apart again"),
    (lambda: flow_with(merge=True), UnsupportedError, "independent noise moves them apart again"),
    (lambda: flow_with(stop="consensus"), UnsupportedError, "do not come to rest"),
    (lambda: flow_with(save=[0.0, 0.25, 1.0]), InputError, "0.25 is not one of them"),
    (lambda: flow_with(at.Noise(40.0)), InputError, "too long for noise of strength 40"),
    (lambda: at.Redrawn(-1.0), InputError, "must not be negative"),
    (lambda: flow_with(at.Redrawn(1.0), method="strang2"), UnsupportedError, "redrawn values are defined by layers"),
    (lambda: flow_with(at.Redrawn(1.0), law=SCHEDULE), UnsupportedError, "one Attention"),
    (lambda: at.stability(flow_with()), UnsupportedError, "do not rest"),
    (lambda: move_gaussian(at.Noise(common=0.1)), UnsupportedError, "sample tokens"),
    (lambda: move_gaussian(at.Redrawn()), UnsupportedError, "sample tokens"),
    (lambda: at.flow(SCHEDULE, at.Tokens.uniform(3, 3), method="strang2", step=0.1, until=1.0), InputError, "give noise="),
]  # fmt: skip


@pytest.mark.parametrize(("make", "kind", "words"), REJECTED)
def test_what_does_not_fit_is_rejected_with_the_reason(
    make: Callable[[], Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        make()
