"""What every space promises: a retraction, its derivative as the tangent projection, distances, random points."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attractor as at
import oracles
from attractor.errors import InputError
from attractor.laws import Affine, Attention
from attractor.spaces import Ellipsoid, Euclidean, Space, Sphere, space_named

DIM = 4


def matrix(seed: int = 0, dim: int = DIM) -> np.ndarray:
    factor = np.random.default_rng(seed).standard_normal((dim, dim))
    return factor @ factor.T + 0.3 * np.eye(dim)


SPACES: tuple[Space, ...] = (Euclidean(), Sphere(), Sphere(2.5), Ellipsoid(matrix()))
CURVED = SPACES[1:]
every_space = pytest.mark.parametrize("space", SPACES, ids=["euclidean", "sphere", "sphere 2.5", "ellipsoid"])
every_curved_space = pytest.mark.parametrize("space", CURVED, ids=["sphere", "sphere 2.5", "ellipsoid"])


def draw(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


@pytest.mark.theorem
@every_space
def test_the_tangent_projection_is_the_derivative_of_the_retraction(space: Space) -> None:
    x, v = space.retract(draw(2, 5, DIM)), draw(2, 5, DIM, seed=2)
    _, derivative = torch.autograd.functional.jvp(space.retract, x, v)
    torch.testing.assert_close(space.tangent(x, v), derivative, rtol=0, atol=1e-14)


@pytest.mark.theorem
@every_space
def test_projections_project(space: Space) -> None:
    """P P = P, the retraction fixes the space, and points of the space are recognised."""
    y, v = draw(5, DIM), draw(5, DIM, seed=2)
    x = space.retract(y)
    once = space.tangent(x, v)
    torch.testing.assert_close(space.tangent(x, once), once, rtol=0, atol=1e-14)
    torch.testing.assert_close(space.retract(x), x, rtol=0, atol=1e-15)
    assert bool(space.contains(x, 1e-14).all())
    assert space.contains(x).shape == (5,)
    assert bool(space.contains(2.0 * x).any()) != space.is_curved
    torch.testing.assert_close(x * space.stretch(y), y, rtol=0, atol=1e-14)


@pytest.mark.theorem
@every_curved_space
def test_the_projection_depends_on_the_direction_alone(space: Space) -> None:
    """Off the space too: the denominator x'Wx keeps the sphere from repelling where <x, b> < 0 (consensus 5)."""
    y, v = draw(5, DIM), draw(5, DIM, seed=2)
    W = space.W.numpy() if isinstance(space, Ellipsoid) else np.eye(DIM)
    for factor in (0.1, 1.0, 7.0):
        expected = oracles.tangent(W, factor * y.numpy(), v.numpy())
        np.testing.assert_allclose(space.tangent(factor * y, v).numpy(), expected, rtol=0, atol=1e-14)


@pytest.mark.theorem
@every_curved_space
def test_a_tangent_step_leaves_the_space_at_second_order(space: Space) -> None:
    x = space.retract(draw(5, DIM))
    v = space.tangent(x, draw(5, DIM, seed=2))
    drifts = [float((space.stretch(x + h * v) - 1).abs().max()) for h in (1e-2, 1e-3, 1e-4)]
    assert drifts[0] / drifts[1] == pytest.approx(100, rel=0.05)
    assert drifts[1] / drifts[2] == pytest.approx(100, rel=0.05)


@pytest.mark.theorem
@every_curved_space
def test_the_radial_direction_has_no_tangent_part(space: Space) -> None:
    """So that a consensus state, where the drive points along the token, is at rest."""
    x = space.retract(draw(5, DIM))
    assert space.tangent(x, 3.0 * x).abs().max() < 1e-14


@pytest.mark.theorem
@every_curved_space
def test_a_layer_is_a_tangent_step_of_another_length(space: Space) -> None:
    """N(x + h b) = N(x + h_i P_x b) with h_i = h / (1 + h <x, b> / <x, x>), the products those of the space (consensus 5)."""
    x, b = space.retract(draw(50, DIM)), draw(50, DIM, seed=2)
    W = space.W if isinstance(space, Ellipsoid) else torch.eye(DIM, dtype=torch.float64)
    overlap = ((x @ W) * b).sum(-1, keepdim=True) / ((x @ W) * x).sum(-1, keepdim=True)
    for h in (0.01, 0.2, 1.0):
        kept = (1 + h * overlap).squeeze(-1) > 0.2  # beyond, the layer passes through the origin
        steps = h / (1 + h * overlap)
        layer, tangent = space.retract(x + h * b), space.retract(x + steps * space.tangent(x, b))
        assert int(kept.sum()) > 20
        torch.testing.assert_close(layer[kept], tangent[kept], rtol=0, atol=1e-14 * max(1.0, float(x.abs().max())))


@every_space
def test_distance_is_a_metric_along_the_space(space: Space) -> None:
    x, y, z = (space.random(50, DIM, seed=seed) for seed in (1, 2, 3))
    d = space.distance
    assert d(x, y).shape == (50,)
    torch.testing.assert_close(d(x, y), d(y, x), rtol=0, atol=1e-14)
    assert d(x, x).abs().max() == 0
    assert bool((d(x, z) <= d(x, y) + d(y, z) + 1e-13).all())


@pytest.mark.theorem
@every_space
def test_short_distances_are_lengths_of_tangent_vectors(space: Space) -> None:
    """d(x, N(x + h v)) / h tends to the length of v in the metric of the space, with no floor at 1e-8."""
    x = space.random(20, DIM, seed=1)
    v = space.tangent(x, draw(20, DIM, seed=2))
    for h in (1e-4, 1e-8):
        ratio = space.distance(x, space.retract(x + h * v)) / h
        torch.testing.assert_close(ratio, space.norm(v), rtol=1e-6, atol=0)


@every_curved_space
def test_antipodes_are_half_a_great_circle_apart(space: Space) -> None:
    x = space.random(7, DIM, seed=4)
    radius = space.radius if isinstance(space, Sphere) else 1.0
    torch.testing.assert_close(
        space.distance(x, -x), torch.full((7,), np.pi * radius, dtype=torch.float64), rtol=1e-15, atol=0
    )


@every_space
def test_norm_and_directions(space: Space) -> None:
    x = space.retract(draw(2, 6, DIM))
    W = space.W if isinstance(space, Ellipsoid) else torch.eye(DIM, dtype=torch.float64)
    torch.testing.assert_close(space.norm(x), torch.einsum("lia,ab,lib->li", x, W, x).sqrt(), rtol=1e-14, atol=0)
    unit = torch.linalg.vector_norm(space.to_sphere(x), dim=-1)
    torch.testing.assert_close(unit, torch.ones(2, 6, dtype=torch.float64), rtol=0, atol=1e-14)


@every_space
def test_random_points_lie_on_the_space(space: Space) -> None:
    x = space.random(9, DIM, seed=5, ensemble=(2, 3))
    assert x.shape == (2, 3, 9, DIM)
    assert x.dtype == torch.float64
    assert bool(space.contains(x, 1e-14).all())
    assert torch.equal(x, space.random(9, DIM, seed=5, ensemble=(2, 3)))
    assert not torch.equal(x, space.random(9, DIM, seed=6, ensemble=(2, 3)))


@pytest.mark.theorem
def test_random_points_of_an_ellipsoid_are_uniform_on_its_sphere() -> None:
    space = Ellipsoid(matrix())
    y = space.to_sphere(space.random(40_000, DIM, seed=1))
    assert (y.mT @ y / 40_000 - torch.eye(DIM, dtype=torch.float64) / DIM).abs().max() < 0.01


@every_space
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_tokens_enter_on_the_space_and_stay_bit_for_bit(space: Space, dtype: torch.dtype) -> None:
    y = draw(3, 2000, DIM).to(dtype)
    entered = space.enter(y)
    assert bool(space.contains(entered, 1e-14 if dtype == torch.float64 else 1e-5).all())
    torch.testing.assert_close(entered, space.retract(y), rtol=0, atol=0)
    assert torch.equal(space.enter(entered), entered)


def test_the_zero_vector_has_no_place_on_a_curved_space() -> None:
    y = torch.ones(3, DIM, dtype=torch.float64)
    y[1] = 0
    for space in CURVED:
        with pytest.raises(InputError, match=f"token 1 is the zero vector, which has no place on the {space.name}"):
            space.enter(y)
    with pytest.raises(InputError, match=r"token 1 .*is the zero vector"):
        Sphere().enter(y.unsqueeze(0))
    assert torch.equal(Euclidean().enter(y), y)


@given(dim=st.integers(1, 6), radius=st.floats(1e-3, 1e3))
def test_spheres_of_any_radius(dim: int, radius: float) -> None:
    sphere = Sphere(radius)
    x = sphere.random(4, dim, seed=0)
    torch.testing.assert_close(x.norm(dim=-1), torch.full((4,), radius, dtype=torch.float64), rtol=1e-14, atol=0)
    assert bool(sphere.contains(x, 1e-14).all())


@pytest.mark.parametrize("radius", [0.0, -1.0, float("nan"), float("inf")])
def test_a_sphere_needs_a_positive_radius(radius: float) -> None:
    with pytest.raises(InputError, match="a sphere needs a positive radius, got"):
        Sphere(radius)


def test_spaces_by_name() -> None:
    assert space_named("sphere") == Sphere()
    assert space_named("euclidean") == Euclidean()
    with pytest.raises(InputError, match=r"space 'torus' is not known; the spaces are euclidean, sphere"):
        space_named("torus")


@every_space
def test_single_precision_points_stay_single(space: Space) -> None:
    x = space.retract(draw(5, DIM).float())
    assert x.dtype == torch.float32
    assert space.tangent(x, draw(5, DIM).float()).dtype == torch.float32
    assert space.distance(x, x).dtype == space.norm(x).dtype == space.to_sphere(x).dtype == torch.float32
    assert bool(space.contains(x, 1e-6).all())


@pytest.mark.parametrize("size", [1e-300, 1e-170, 1.0, 1e170, 1e300])
def test_points_of_any_size_have_a_direction(size: float) -> None:
    """Squares of the coordinates overflow or underflow; the projection and the lengths do not."""
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((5, 3)))
    factor = np.random.default_rng(1).standard_normal((3, 3))
    W = torch.from_numpy(factor @ factor.T + np.eye(3))
    law = Attention(*(torch.from_numpy(np.random.default_rng(k).standard_normal((3, 3))) for k in range(3)))
    for space in (Sphere(), Sphere(2.5), Ellipsoid(W)):
        torch.testing.assert_close(space.retract(size * x), space.retract(x), rtol=1e-14, atol=0)
        torch.testing.assert_close(space.norm(size * x), size * space.norm(x), rtol=1e-14, atol=0)
        run = at.flow(law, at.Tokens(size * x), space=space, until=1.0)
        expected = at.flow(law, at.Tokens(space.retract(x)), space=space, until=1.0)
        torch.testing.assert_close(run.final.points, expected.final.points, rtol=0, atol=1e-12)
        moved = at.velocity(Affine(law.value), at.Tokens(size * x), space=space)
        torch.testing.assert_close(
            moved, size * at.velocity(Affine(law.value), at.Tokens(x), space=space), rtol=1e-12, atol=0
        )
        with pytest.raises(InputError, match="token 2 is the zero vector"):
            at.velocity(law, at.Tokens(x * torch.tensor([1.0, 1, 0, 1, 1]).unsqueeze(-1)), space=space)
    assert torch.allclose(Euclidean().distance(size * x[0], size * x[1]), size * (x[0] - x[1]).norm(), rtol=1e-14)
    torch.testing.assert_close(Euclidean().to_sphere(size * x), Euclidean().to_sphere(x), rtol=1e-14, atol=0)


@pytest.mark.parametrize("radius", [1e-250, 1e-120, 1e-20, 1e20, 1e120, 1e250])
def test_spheres_of_any_size(radius: float) -> None:
    """Scaling the sphere by r and the interaction by 1/r^2 scales every trajectory by r."""
    rng = np.random.default_rng(3)
    query, value = (torch.from_numpy(rng.standard_normal((3, 3))) for _ in range(2))
    start = at.Tokens.uniform(6, 3, seed=1).points
    for causal in (None, "causal"):  # with and without merging
        run, expected = (
            at.flow(
                Attention(query / size, query / size, value, mask=causal),
                at.Tokens(size * start),
                space=Sphere(size),
                until=3.0,
                save=5,
            )
            for size in (radius, 1.0)
        )
        assert run.outcome.name == expected.outcome.name
        torch.testing.assert_close(run.points / radius, expected.points, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    "space", [Sphere(1e200), Sphere(1e-60), Ellipsoid(1e209 * matrix()), Ellipsoid(1e-118 * matrix())]
)
def test_surfaces_outside_single_precision(space: Space) -> None:
    tokens = at.Tokens.uniform(3, DIM)
    at.flow(Attention.isotropic(DIM, 0.0), tokens, space=space, until=0.1)
    single = at.Tokens(tokens.points, dtype=torch.float32)
    with pytest.raises(InputError, match="float32 cannot hold the points"):
        at.flow(Attention.isotropic(DIM, 0.0), single, space=space, until=0.1)


@pytest.mark.parametrize("space", CURVED, ids=["sphere", "sphere 2.5", "ellipsoid"])
def test_tolerances_beyond_the_surface_are_rejected(space: Space) -> None:
    law, tokens = Attention.isotropic(DIM, 1.0), at.Tokens.uniform(3, DIM)
    with pytest.raises(InputError, match="merge must be below the size"):
        at.flow(law, tokens, space=space, until=1.0, merge=3.0)
    with pytest.raises(InputError, match="atol must be at most"):
        at.flow(law, tokens, space=space, until=1.0, atol=3.0)
