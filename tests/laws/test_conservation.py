"""Laws of conservation and symmetry that hold for every kernel, whatever the implementation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attractor.engines import using
from attractor.laws import L2, Absolute, Attention, Exponential, Kernel, Linear, Rotary, Sigmoid, Sinkhorn, Softmax
from attractor.spaces import Ellipsoid, Sphere
from attractor.states import Tokens

KERNELS: tuple[Kernel, ...] = (Softmax(), L2(), Sinkhorn(1.5), Sigmoid(-0.4), Exponential(), Linear())
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)


def random_law(kernel: Kernel, seed: int = 0, dim: int = 3, heads: int = 2, **options: object) -> Attention:
    rng = np.random.default_rng(seed)
    query, key, value = (0.6 * rng.standard_normal((heads, size, dim)) for size in (2, 2, dim))
    return Attention(query, key, value, kernel=kernel, **options)  # type: ignore[arg-type]


@pytest.mark.theorem
@every_kernel
def test_the_first_causal_token_rests_on_the_sphere(kernel: Kernel) -> None:
    """Causal, V = I: token 1 sees itself alone, and its own direction is not tangent (consensus T3)."""
    tokens = Tokens.uniform(9, 4, seed=2)
    rng = np.random.default_rng(1)
    law = Attention(rng.standard_normal((4, 4)), rng.standard_normal((4, 4)), np.eye(4), kernel=kernel, mask="causal")
    sphere = Sphere()
    drive = law.velocity(tokens, skip_self=True)
    assert drive[0].abs().max() == 0
    assert sphere.tangent(tokens.points, law.velocity(tokens))[0].abs().max() < 1e-15
    assert sphere.tangent(tokens.points, law.velocity(tokens))[1].abs().max() > 1e-3


@pytest.mark.theorem
@every_kernel
@pytest.mark.parametrize("weighted", [False, True], ids=["uniform", "weighted"])
def test_coinciding_tokens_are_one_token_of_their_joint_mass(kernel: Kernel, weighted: bool) -> None:
    """Merging is exact: the velocity depends on the measure alone."""
    rng = np.random.default_rng(3)
    points = rng.standard_normal((7, 3))
    points[5] = points[6] = points[2]
    masses = rng.random(7) + 0.1 if weighted else np.full(7, 1 / 7)
    merged_masses = masses[:5].copy()
    merged_masses[2] += masses[5] + masses[6]
    law = random_law(kernel)
    assert law.merge_obstacle() is None
    apart = law.velocity(Tokens(points, masses=masses if weighted else None))
    together = law.velocity(Tokens(points[:5], masses=merged_masses))
    torch.testing.assert_close(apart[:5], together, rtol=0, atol=1e-12)
    torch.testing.assert_close(apart[5:], together[2].expand(2, 3), rtol=0, atol=1e-12)


@pytest.mark.theorem
@every_kernel
def test_tokens_of_mass_zero_are_passengers(kernel: Kernel) -> None:
    """They move in the field of the others and nobody feels them."""
    rng = np.random.default_rng(4)
    points = rng.standard_normal((6, 3))
    masses = np.array([0.2, 0.0, 0.5, 0.3, 0.0, 1.0])
    law = random_law(kernel)
    heavy = masses > 0
    whole = law.velocity(Tokens(points, masses=masses))
    alone = law.velocity(Tokens(points[heavy], masses=masses[heavy]))
    assert bool(torch.isfinite(whole).all())
    torch.testing.assert_close(whole[torch.from_numpy(heavy)], alone, rtol=0, atol=1e-12)


def test_explicit_uniform_masses_are_the_default() -> None:
    points = np.random.default_rng(5).standard_normal((6, 3))
    for kernel in KERNELS:
        law = random_law(kernel)
        torch.testing.assert_close(
            law.velocity(Tokens(points)), law.velocity(Tokens(points, masses=np.full(6, 1 / 6))), rtol=0, atol=1e-13
        )


@every_kernel
def test_weights_of_normalised_kernels_do_not_feel_the_total_mass(kernel: Kernel) -> None:
    """Row-normalised kernels are blind to it; averaged kernels are linear in it."""
    points, masses = np.random.default_rng(6).standard_normal((6, 3)), np.random.default_rng(7).random(6) + 0.1
    law = random_law(kernel)
    one, three = (law.velocity(Tokens(points, masses=factor * masses)) for factor in (1.0, 3.0))
    torch.testing.assert_close(three, one if kernel.normalised else 3.0 * one, rtol=0, atol=1e-12)
    rows = law.weights(Tokens(points, masses=masses)).sum(-1)
    assert bool(((rows - 1).abs() < 1e-13).all()) == kernel.normalised


@pytest.mark.theorem
@given(seed=st.integers(0, 1000), which=st.sampled_from(KERNELS), data=st.data())
def test_permutation_equivariance(seed: int, which: Kernel, data: st.DataObject) -> None:
    """Renaming tokens renames velocities, also under masks and positions if the places move along."""
    n = 7
    order = data.draw(st.permutations(range(n)))
    options = data.draw(st.sampled_from(({}, {"mask": "causal"}, {"mask": "window:3"}, {"positions": Rotary(10.0)})))
    rng = np.random.default_rng(seed)
    points, masses, places = rng.standard_normal((n, 3)), rng.random(n) + 0.1, rng.integers(0, 5, n).astype(float)
    law = random_law(which, seed, **options)
    expected = law.velocity(Tokens(points, masses, places))[list(order)]
    got = law.velocity(Tokens(points[order], masses[order], places[order]))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-11)


@every_kernel
@pytest.mark.parametrize(
    "options", [{}, {"mask": "causal"}, {"positions": Rotary(10.0)}], ids=["plain", "causal", "rotary"]
)
def test_an_ensemble_is_a_loop(kernel: Kernel, options: dict[str, object]) -> None:
    rng = np.random.default_rng(8)
    points, masses = rng.standard_normal((2, 3, 5, 3)), rng.random((2, 3, 5)) + 0.1
    law = random_law(kernel, **options)
    for given_masses in (None, masses, masses[0, 0]):
        together = law.velocity(Tokens(points, given_masses))
        weights = law.weights(Tokens(points, given_masses))
        assert weights.shape == (2, 3, 2, 5, 5)
        for a in range(2):
            for b in range(3):
                one = given_masses if given_masses is None or given_masses.ndim == 1 else given_masses[a, b]
                alone = Tokens(points[a, b], one)
                torch.testing.assert_close(together[a, b], law.velocity(alone), rtol=0, atol=1e-12)
                torch.testing.assert_close(weights[a, b], law.weights(alone), rtol=0, atol=1e-12)


@every_kernel
@pytest.mark.parametrize("shared_biases", [False, True])
def test_members_with_their_own_parameters_are_a_loop(kernel: Kernel, shared_biases: bool) -> None:
    """Parameters (members, h, k, d): member m moves by parameters m; ``member`` picks them, shared biases stay."""
    members, heads, k, d = 4, 2, 4, 3  # as many members as head dimensions: the axes must not be confused
    rng = np.random.default_rng(9)
    sizes = {"query": (k, d), "key": (k, d), "value": (k, d), "output": (d, k)}
    parameters = {name: 0.5 * rng.standard_normal((members, heads, *size)) for name, size in sizes.items()}
    axes = () if shared_biases else (members, heads)
    biases = {name: rng.standard_normal((*axes, k)) for name in ("query_bias", "key_bias", "value_bias")}
    law = Attention(**parameters, **biases, output_bias=rng.standard_normal(d), kernel=kernel)
    tokens = Tokens(rng.standard_normal((members, 5, d)), rng.random((members, 5)) + 0.1)
    law.check(tokens)
    together = law.velocity(tokens)
    assert tokens.masses is not None
    for m in range(members):
        own = {name: part[m] for name, part in parameters.items()}
        own |= {name: part if shared_biases else part[m] for name, part in biases.items()}
        alone = Attention(**own, output_bias=law.output_bias, kernel=kernel)
        expected = alone.velocity(Tokens(tokens.points[m], tokens.masses[m]))
        torch.testing.assert_close(together[m], expected, rtol=0, atol=1e-12)
    index = torch.tensor([3, 1])
    picked = law.member(index)
    picked_tokens = Tokens(tokens.points[index], tokens.masses[index])
    torch.testing.assert_close(picked.velocity(picked_tokens), together[index], rtol=0, atol=1e-12)


@every_kernel
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mask": "causal"},
        {"positions": Rotary(10.0)},
        {"positions": Absolute(np.random.default_rng(0).standard_normal((6, 4)))},
        {"positions": Absolute(np.random.default_rng(0).standard_normal((6, 4)), on="qk")},
    ],
    ids=["plain", "causal", "rotary", "absolute qkv", "absolute qk"],
)
def test_skipping_the_self_term_changes_no_tangent(kernel: Kernel, options: dict[str, object]) -> None:
    """A law may leave out only what is parallel to the token: the tangent velocity stays, on sphere and ellipsoid."""
    rng = np.random.default_rng(10)
    query, key = (0.5 * rng.standard_normal((2, 4, 4)) for _ in range(2))
    W = np.diag([1.0, 2.0, 3.0, 0.5])
    for value in (np.stack((2.0 * np.eye(4), -0.5 * np.eye(4))), rng.standard_normal((2, 4, 4))):
        law = Attention(query, key, value, kernel=kernel, **options)  # type: ignore[arg-type]
        for space in (Sphere(), Ellipsoid(W)):
            x = space.random(6, 4, seed=3)
            tokens = Tokens(x, rng.random(6) + 0.1)
            whole, rest = (space.tangent(x, law.velocity(tokens, skip_self=skip)) for skip in (False, True))
            torch.testing.assert_close(rest, whole, rtol=0, atol=1e-13)


def test_skipping_biases_is_not_allowed_either() -> None:
    x = Sphere().random(5, 3, seed=0)
    law = Attention(np.eye(3), np.eye(3), np.eye(3), value_bias=[1.0, 2.0, 3.0], output_bias=[0.5, 0.0, 0.0])
    whole, rest = (Sphere().tangent(x, law.velocity(Tokens(x), skip_self=skip)) for skip in (False, True))
    torch.testing.assert_close(rest, whole, rtol=0, atol=1e-14)


def test_engines_do_not_matter(engine: str) -> None:
    """Nothing outside the engines knows which one ran."""
    tokens = Tokens(np.random.default_rng(11).standard_normal((2, 30, 3)), np.random.default_rng(12).random((2, 30)))
    for kernel in KERNELS:
        for mask in (None, "causal", "window:4"):
            law = replace(random_law(kernel), mask=mask)
            expected = law.velocity(tokens)
            with using(engine):
                torch.testing.assert_close(law.velocity(tokens), expected, rtol=0, atol=1e-12)


@pytest.mark.theorem
def test_metric_times_velocity_is_the_gradient_of_the_log_partition() -> None:
    """A x_i' = grad phi(x_i), phi(x) = log sum_j m_j exp(s(x, x_j)), A = Q'K inv(V) (regimes T0)."""
    rng = np.random.default_rng(13)
    law = Attention(*(rng.standard_normal((4, 4)) for _ in range(3)))
    tokens = Tokens(rng.standard_normal((6, 4)), rng.random(6))
    assert tokens.masses is not None
    x = tokens.points.clone().requires_grad_()
    phi = torch.logsumexp(x @ law.interaction @ tokens.points.mT + tokens.masses.log(), dim=-1)
    (gradient,) = torch.autograd.grad(phi.sum(), x)
    torch.testing.assert_close(law.velocity(tokens) @ law.metric.mT, gradient, rtol=1e-11, atol=1e-11)
