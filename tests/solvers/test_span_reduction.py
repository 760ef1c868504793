"""Exact reduction of dimension: tokens stay in the span of their start."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

import attractor as at
from attractor.errors import InputError, UnsupportedError

D, N = 40, 6
EYE = torch.eye(D, dtype=torch.float64)
FIXED = {"until": 1.0, "method": "rk4", "step": 0.05, "save": [0.5, 1.0], "merge": False, "stop": ()}


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def tokens(*ensemble: int) -> at.Tokens:
    return at.Tokens(random(*ensemble, N, D, seed=7) / D**0.5)


def attention(**options: object) -> at.Attention:
    query, key = random(2, D, D, seed=1) / D**0.25
    return at.Attention(query, key, 0.7 * EYE, **options)


def heads(**options: object) -> at.Attention:
    """Two heads with V = O V', as in models."""
    query, key, value = random(3, 2, 5, D, seed=2) / D**0.5
    return at.Attention(query, key, value, output=random(2, D, 5, seed=3) / D**0.5, **options)


def gram(points: torch.Tensor) -> torch.Tensor:
    return points @ points.mT


def compare(law: at.Law, state: at.Tokens, space: at.Space | None = None, **options: object) -> at.Trajectory:
    """Integrate in both dimensions and compare points, which the start fixes, and Gram matrices."""
    space, options = at.Euclidean() if space is None else space, {**FIXED, **options}
    reduced = at.flow(law, state, space=space, reduce=True, **options)
    full = at.flow(law, state, space=space, reduce=False, **options)
    assert full.stats.reduced_dim is None
    assert reduced.stats.reduced_dim is not None
    assert reduced.points.shape == full.points.shape
    size = max(1.0, float(gram(full.points).abs().max()))
    assert float((gram(reduced.points) - gram(full.points)).abs().max()) < 1e-12 * size
    assert float((reduced.final.points - full.final.points).abs().max()) < 1e-12 * size
    return reduced


MATRIX = torch.diag(torch.linspace(0.5, 2.0, D, dtype=torch.float64)) + 0.1 * torch.ones(D, D, dtype=torch.float64) / D
SPACES = {"euclidean": at.Euclidean(), "sphere": at.Sphere(1.5), "ellipsoid": at.Ellipsoid(MATRIX)}


@pytest.mark.theorem
@pytest.mark.parametrize("name", SPACES)
def test_gram_matrices_are_the_same_on_every_space(name: str) -> None:
    # A27: random P on three spaces
    run = compare(attention(), tokens(), SPACES[name])
    assert run.stats.reduced_dim == N
    assert run.space is SPACES[name] or name == "ellipsoid"


@pytest.mark.parametrize("kernel", ["softmax", "exponential", "l2", "sigmoid", "linear", "capped", "sinkhorn"])
def test_every_kernel(kernel: str) -> None:
    compare(attention(kernel=kernel, scale=0.5), tokens(), at.Sphere())


@pytest.mark.parametrize("mask", ["causal", "window:2", np.tril(np.ones((N, N), dtype=bool))])
def test_masks_masses_and_places(mask: object) -> None:
    state = at.Tokens(
        tokens().points, masses=np.arange(1.0, N + 1), positions=np.arange(N) * 2.0 if isinstance(mask, str) else None
    )
    compare(attention(mask=mask), state, at.Sphere())


@pytest.mark.parametrize(
    ("positions", "dim"),
    [
        (at.Rotary(50.0), N),
        (at.Alibi([0.3]), N),
        (at.Absolute(random(N, D, seed=4)), 2 * N),
        (at.Absolute(random(N, D, seed=4), on="qk"), 2 * N),
        (at.Absolute(random(N, D, seed=4), when="input"), N),
        ([at.Absolute(random(N, D, seed=4) / 5), at.Rotary(50.0)], 2 * N),
    ],
)
def test_positions(positions: object, dim: int) -> None:
    assert compare(attention(positions=positions), tokens(), at.Sphere()).stats.reduced_dim == dim


def test_biases_join_the_span() -> None:
    law = attention(query_bias=random(D, seed=5), key_bias=random(D, seed=6), value_bias=random(D, seed=8))
    assert compare(law, tokens()).stats.reduced_dim == N + 1
    law = heads(query_bias=random(2, 5, seed=5), value_bias=random(2, 5, seed=8), output_bias=random(D, seed=9))
    assert compare(law, tokens()).stats.reduced_dim == N + 11


def test_factored_values_join_the_span() -> None:
    assert compare(heads(positions=at.Alibi([0.1, 0.3]), mask="causal"), tokens()).stats.reduced_dim == N + 10


def test_biases_with_distances() -> None:
    compare(attention(kernel="l2", query_bias=random(D, seed=5)), tokens())


@pytest.mark.parametrize("isotropic", [True, False])
def test_members_have_spans_of_their_own(isotropic: bool) -> None:
    law = at.Attention.isotropic(D, 3.0) if isotropic else attention()
    state = tokens(2, 3)
    run = compare(law, state, at.Sphere())
    alone = at.flow(law, at.Tokens(state.points[1, 2]), space=at.Sphere(), reduce=True, **FIXED)
    assert torch.allclose(run.final.points[1, 2], alone.final.points, atol=1e-13)


def test_parameters_of_members() -> None:
    query, key = random(2, 3, 1, D, D, seed=1) / D**0.25
    compare(at.Attention(query, key, EYE.expand(3, 1, D, D)), tokens(3), at.Sphere())


@pytest.mark.parametrize("placement", ["none", "pre", "post", "peri"])
@pytest.mark.parametrize("norm", [at.RMSNorm(), at.RMSNorm(2.0 * torch.ones(D), eps=1e-3), at.LayerNorm(eps=1e-5)])
def test_blocks(placement: str, norm: at.RMSNorm | at.LayerNorm) -> None:
    law = at.Block(attention(), placement=placement, norms=() if placement == "none" else norm)
    state = tokens()
    state = at.Tokens(norm(state.points)) if placement == "post" else state
    run = compare(law, state, method="layers", step=0.25)
    assert run.stats.reduced_dim == N + (placement != "none" and type(norm) is at.LayerNorm)
    compare(law, state)


def test_norms_with_a_bias() -> None:
    norm = at.LayerNorm(gain=1.5 * torch.ones(D), bias=random(D, seed=4))
    law = at.Block(heads(), placement="pre", norms=norm)
    assert compare(law, tokens(), method="layers", step=0.5).stats.reduced_dim == N + 12


def test_sums_stacks_and_schedules() -> None:
    affine = at.Affine(-0.3 * EYE, random(D, seed=3))
    assert compare(attention() + affine, tokens()).stats.reduced_dim == N + 1
    compare(at.Stack((attention(), at.Attention.isotropic(D, 2.0)), 0.5), tokens(), at.Sphere())
    law = at.Schedule.interpolate([0.0, 1.0], [attention(), at.Attention.isotropic(D, 2.0)])
    compare(law, tokens(), at.Sphere())


def test_more_tokens_than_half_the_dimension_coincide() -> None:
    """Coinciding and collinear tokens make the start rank-deficient."""
    points = tokens().points
    points = torch.cat((points, points[:3], -2.0 * points[3:4], torch.zeros(1, D, dtype=torch.float64)))
    compare(attention(), at.Tokens(points))


def test_the_reduced_run_solves_the_equation() -> None:
    """The full equation by SciPy, with nothing of this package."""
    state, P = tokens().points.numpy(), (attention().query.mT @ attention().key).numpy()
    start = state / np.linalg.norm(state, axis=1, keepdims=True)

    def field(_: float, flat: np.ndarray) -> np.ndarray:
        x = flat.reshape(N, D)
        weights = np.exp(x @ P @ x.T)
        pull = 0.7 * (weights / weights.sum(1, keepdims=True)) @ x
        return (pull - x * (pull * x).sum(1, keepdims=True)).ravel()

    exact = solve_ivp(field, (0, 1), start.ravel(), method="DOP853", rtol=1e-12, atol=1e-13).y[:, -1].reshape(N, D)
    run = at.flow(attention(), at.Tokens(start), space=at.Sphere(), until=1.0, rtol=1e-11, atol=1e-13)
    assert run.stats.reduced_dim == N
    assert np.abs(run.final.points.numpy() - exact).max() < 1e-9


def test_it_is_chosen_where_it_saves_work() -> None:
    options = {"space": at.Sphere(), "until": 1.0}
    law, state = at.Attention.isotropic(D, 2.0), tokens()
    assert at.flow(law, state, **options).stats.reduced_dim == N
    assert at.flow(law, state, reduce=False, **options).stats.reduced_dim is None
    assert at.flow(law, at.Tokens.uniform(D // 2 + 1, D), **options).stats.reduced_dim is None
    small = at.flow(at.Attention.isotropic(31, 2.0), at.Tokens.uniform(3, 31), **options)
    assert small.stats.reduced_dim is None


def test_merges_observables_and_outcomes() -> None:
    law, state = at.Attention.isotropic(D, 9.0), tokens()
    options = {"space": at.Sphere(), "until": 1e5}
    reduced, full = at.flow(law, state, **options), at.flow(law, state, reduce=False, **options)
    assert reduced.outcome.name == full.outcome.name == "consensus"
    assert [event.members for event in reduced.events] == [event.members for event in full.events]
    assert reduced.space == full.space
    assert reduced.final.points.shape == (N, D)
    seen = at.flow(law, state, observe="diameter", save=[0.5, 1.0], space=at.Sphere())
    kept = at.flow(law, state, save=[0.5, 1.0], space=at.Sphere(), reduce=False)
    assert seen.stats.reduced_dim == N
    assert torch.allclose(seen.observed["diameter"], kept.observe("diameter"), atol=1e-7)


def test_a_saved_run_is_read_in_all_coordinates(tmp_path: object) -> None:
    pytest.importorskip("zarr")
    run = at.flow(attention(), tokens(), until=1.0)
    run.save(f"{tmp_path}/run.zarr")
    same = at.load(f"{tmp_path}/run.zarr")
    assert run.stats.reduced_dim == N
    assert torch.equal(same.points, run.points)
    assert torch.equal(same.final.points, run.final.points)
    assert torch.equal(at.resume(f"{tmp_path}/run.zarr").points, run.points)


def test_float32() -> None:
    state = at.Tokens(tokens().points, dtype=torch.float32)
    run = at.flow(attention(), state, space=at.Sphere(), until=1.0)
    full = at.flow(attention(), state, space=at.Sphere(), until=1.0, reduce=False)
    assert run.stats.reduced_dim == N
    assert run.points.dtype == torch.float32
    assert float((run.final.points - full.final.points).abs().max()) < 1e-4


class Peeking(at.Softmax):
    """A kernel from outside the package."""


INVALID = {
    "a full value": (lambda: at.Attention(EYE, EYE, random(D, D)), {}, "not known to keep"),
    "a gain": (lambda: at.Block(attention(), placement="pre", norms=at.RMSNorm(torch.arange(1.0, D + 1))), {}, "gains"),
    "a feed-forward": (lambda: at.Block(attention(), at.MLP(random(3, D), None, random(D, 3))), {}, "feed-forward"),
    "hardmax": (lambda: attention(kernel="hardmax"), {}, "not known to keep"),
    "a schedule of time": (lambda: at.Schedule(lambda t: attention()), {}, "not known to keep"),
    "a kernel of one's own": (lambda: attention(kernel=Peeking()), {}, "outside the package"),
    "noise": (attention, {"noise": at.Noise(0.1), "method": "strang2", "merge": None, "stop": None}, "noise"),
    "events": (attention, {"events": [at.Event(lambda tokens, time: 1.0)]}, "events"),
    "a store": (attention, {"store": "never"}, "store"),
    "progress": (attention, {"progress": lambda run: None}, "progress"),
    "gradients": (lambda: at.Attention(EYE.clone().requires_grad_(), EYE, EYE), {}, "gradients"),
}


@pytest.mark.parametrize("name", INVALID)
def test_where_it_is_not_valid(name: str) -> None:
    law, options, why = INVALID[name]
    with pytest.raises(UnsupportedError, match=why):
        at.flow(law(), tokens(), reduce=True, **{**FIXED, **options})
    if name != "a store":
        assert at.flow(law(), tokens(), **{**FIXED, **options}).stats.reduced_dim is None


def test_members_with_vectors_of_the_law() -> None:
    with pytest.raises(UnsupportedError, match="different spans"):
        at.flow(heads(), tokens(2), reduce=True, **FIXED)
    assert at.flow(heads(), tokens(2), **FIXED).stats.reduced_dim is None


def test_bad_input() -> None:
    with pytest.raises(UnsupportedError, match="span all 40 dimensions"):
        at.flow(attention(), at.Tokens.uniform(D, D), reduce=True, **FIXED)
    with pytest.raises(InputError, match="reduce must be"):
        at.flow(attention(), tokens(), reduce="yes", **FIXED)  # type: ignore[arg-type]
