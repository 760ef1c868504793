"""The same verb moves a Gaussian: closed forms, blow-up, and the particles it stands for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import torch

import attractor as at
from attractor.errors import InputError, UnsupportedError


def random_law(seed: int, d: int = 2, heads: int = 1, scale: float = 0.4, **options) -> at.Attention:
    rng = np.random.default_rng(seed)
    query, key = (scale * rng.standard_normal((heads, d, d)) for _ in range(2))
    return at.Attention(query, key, 0.5 * rng.standard_normal((heads, d, d)), **options)


def random_gaussian(seed: int, d: int = 2) -> at.Gaussian:
    rng = np.random.default_rng(seed)
    factor = rng.standard_normal((d, d))
    return at.Gaussian(0.3 * rng.standard_normal(d), factor @ factor.T / d + 0.1 * np.eye(d))


def quadrature(gaussian: at.Gaussian, order: int) -> at.Tokens:
    """Weighted tokens that integrate polynomials against the Gaussian exactly (Gauss-Hermite in each axis)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    grid = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), axis=-1).reshape(-1, 2)
    masses = np.outer(weights, weights).reshape(-1) / weights.sum() ** 2
    return at.Tokens(gaussian.mean + torch.from_numpy(grid) @ gaussian.factor.mT, masses=masses)


@pytest.mark.theorem
def test_identity_value_follows_the_closed_form_up_to_nine_tenths_of_the_blow_up_time():
    law, start = at.Attention([[1.0, 0.3], [0.1, 0.5]], np.eye(2), np.eye(2)), random_gaussian(1)
    interaction = law.interaction.numpy()
    root = scipy.linalg.sqrtm(start.covariance.numpy()).real
    M = root @ ((interaction + interaction.T) / 2) @ root
    blow_up = 1 / (2 * np.linalg.eigvalsh(M)[-1])
    run = at.flow(law, start, until=0.9 * blow_up, rtol=1e-12, atol=1e-13)
    expected = root @ np.linalg.inv(np.eye(2) - 1.8 * blow_up * M) @ root
    assert np.abs(run.covariances[-1].numpy() - expected).max() < 1e-10 * np.abs(expected).max()
    longer = at.flow(law, start, until=10 * blow_up)
    assert longer.outcome.name == "blow_up"
    assert abs(longer.outcome.time / blow_up - 1) < 1e-7


@pytest.mark.theorem
@pytest.mark.parametrize(("v", "a"), [(-0.7, 1.3), (0.5, -0.8)])
def test_one_dimension_follows_its_closed_form(v, a):
    sigma, alpha, t = 1.7, 0.4, 3.0
    run = at.flow(at.Attention([[a]], [[1.0]], [[v]]), at.Gaussian([alpha], [[sigma]]), until=t, rtol=1e-12, atol=1e-14)
    growth = 1 - 2 * v * a * sigma * t
    assert float(run.covariances[-1]) == pytest.approx(sigma / growth, rel=1e-10)
    assert float(run.means[-1]) == pytest.approx(alpha * np.exp(v * t) * growth**-0.5, rel=1e-10)


@pytest.mark.theorem
def test_linear_attention_closes_for_every_law_of_the_tokens():
    law = random_law(3, kernel="linear")
    tokens = at.Tokens(torch.rand(7, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 0.3)
    mean, covariance = at.mean(tokens), at.covariance(tokens)
    moments = at.flow(law, at.Gaussian(mean, covariance), save=[0.5, 1.0], rtol=1e-12, atol=1e-14)
    particles = at.flow(law, tokens, save=[0.5, 1.0], rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(moments.means, particles.observe(at.mean), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(moments.covariances, particles.observe(at.covariance), rtol=1e-10, atol=1e-12)


@pytest.mark.theorem
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize(("kernel", "order"), [("softmax", 24), ("l2", 48), (at.Sinkhorn(eps=0.8), 24)])
def test_the_field_of_a_gaussian_is_the_affine_one_of_the_closure(kernel, order, heads):
    """Tokens at quadrature points stand for the Gaussian, and their velocities do not know of the closure."""
    law, start = random_law(5, heads=heads, scale=0.3, kernel=kernel), random_gaussian(6)
    tokens = quadrature(start, order)
    step = 1e-6
    run = at.flow(law, start, until=step, method="rk4", step=step, save=[0.0, step])
    near = (tokens.points - start.mean).norm(dim=-1) < 2.0
    velocity = at.velocity(law, tokens)
    slope = (run.points[1] - run.points[0]) / step  # the mean's velocity, then B times the columns of the factor
    B = torch.linalg.solve(start.factor, slope[1:].mT, left=False)
    affine = slope[0] + (tokens.points - start.mean) @ B.mT
    assert float((velocity - affine)[near].abs().max()) < 1e-5


def test_an_affine_feed_forward_adds_to_the_closure():
    matrix, offset = np.array([[-0.3, 0.2], [0.0, -0.5]]), np.array([0.1, -0.2])
    start = random_gaussian(7)
    run = at.flow(at.Affine(matrix, offset), start, until=2.0, rtol=1e-12, atol=1e-14)
    grown = scipy.linalg.expm(2.0 * matrix)
    np.testing.assert_allclose(run.covariances[-1], grown @ start.covariance.numpy() @ grown.T, rtol=1e-10)
    rest = -np.linalg.solve(matrix, offset)
    np.testing.assert_allclose(run.means[-1], rest + grown @ (start.mean.numpy() - rest), rtol=1e-9)
    both = at.flow(random_law(8) + at.Affine(matrix, offset), start, until=0.3)
    assert both.outcome.name == "reached"


def test_rank_stays_and_covariances_stay_positive():
    start = at.Gaussian([0.0, 0.0, 0.0], np.diag([1.0, 0.5, 0.0]))
    run = at.flow(random_law(9, d=3), start, until=1.0)
    values = torch.linalg.eigvalsh(run.covariances)
    assert float(values[..., 0].abs().max()) < 1e-12
    assert float(values[..., 1].min()) > 1e-3


def test_an_ensemble_of_gaussians_equals_its_members():
    starts = [random_gaussian(seed) for seed in (1, 2, 3)]
    law = random_law(10)
    together = at.flow(
        law, at.Gaussian(torch.stack([s.mean for s in starts]), torch.stack([s.covariance for s in starts])), until=0.2
    )
    for index, start in enumerate(starts):
        alone = at.flow(law, start, until=0.2)
        torch.testing.assert_close(together.covariances[-1][index], alone.covariances[-1], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    ("law", "reason"),
    [
        (lambda: random_law(0, kernel="sigmoid"), "not affine"),
        (lambda: random_law(0, kernel="exponential"), "not affine"),
        (lambda: random_law(0, mask="window:3"), "single tokens"),
        (lambda: random_law(0, positions=at.Rotary()), "positions single out tokens"),
        (lambda: at.MLP(np.eye(2), None, np.eye(2)), "not affine"),
    ],
)
def test_laws_without_a_closure_are_refused_with_the_reason(law, reason):
    with pytest.raises(UnsupportedError, match=reason):
        at.flow(law(), random_gaussian(0), until=1.0)


def test_a_gaussian_does_not_live_on_a_sphere_and_has_no_tokens():
    with pytest.raises(UnsupportedError, match="flat space"):
        at.flow(random_law(0), random_gaussian(0), space=at.Sphere(), until=1.0)
    run = at.flow(random_law(0), random_gaussian(0), until=0.1)
    with pytest.raises(UnsupportedError, match="no tokens"):
        run.observe(at.diameter)
    with pytest.raises(UnsupportedError, match="runs of a Gaussian"):
        _ = at.flow(random_law(0), at.Tokens.gaussian(3, 2), until=0.1).means


@pytest.mark.parametrize(
    ("mean", "covariance", "message"),
    [
        ([0.0, 0.0], [[1.0, 0.0], [0.0, -0.1]], "positive semi-definite"),
        ([0.0, 0.0], [[1.0, 0.5], [0.0, 1.0]], "symmetric"),
        ([0.0, 0.0, 0.0], [[1.0, 0.0], [0.0, 1.0]], "like the mean"),
        ([0.0, float("nan")], [[1.0, 0.0], [0.0, 1.0]], "NaN"),
    ],
)
def test_what_is_not_a_gaussian_is_refused(mean, covariance, message):
    with pytest.raises(InputError, match=message):
        at.Gaussian(mean, covariance)


@pytest.mark.parametrize("variance", [1e-14, 1e-18, 1e-24])
def test_small_variances_grow(variance: float) -> None:
    """Under x' = diag(0, 1) x the second variance is multiplied by e^2t, also where it is below the rounding of the first."""
    law, until = at.Affine(np.diag([0.0, 1.0])), 40.0
    start = at.Gaussian(np.zeros(2), np.diag([1.0, variance]))
    run = at.flow(law, start, until=until)
    assert run.outcome.name == "reached"
    np.testing.assert_allclose(run.final.covariance[1, 1], variance * np.exp(2 * until), rtol=0.1)


def test_rank_of_graded_covariances() -> None:
    """Factors have the rank of the covariance and its digits, relative to the standard deviations of rows and columns."""
    for seed in range(100):
        rng = np.random.default_rng(seed)
        d = int(rng.integers(1, 6))
        rank = int(rng.integers(1, d + 1))
        root = torch.from_numpy(rng.standard_normal((d, rank)) * 10.0 ** rng.uniform(-12, 12, (d, 1)))
        covariance = root @ root.mT
        factor = at.Gaussian(torch.zeros(d, dtype=torch.float64), covariance).factor
        assert int((factor.abs().amax(0) > 0).sum()) == rank
        deviations = covariance.diagonal().sqrt()
        assert float(((factor @ factor.mT - covariance) / torch.outer(deviations, deviations)).abs().max()) < 1e-12


def test_a_run_that_rounding_limits_ends() -> None:
    """Under Sinkhorn attention with V = I one standard deviation grows like e^t and another stays: rounding soon limits the steps."""
    law = at.Attention.isotropic(2, 0.01, kernel="sinkhorn")
    start = at.Gaussian([4.77, -7.45], [[0.368, -0.738], [-0.738, 2.152]])
    run = at.flow(law, start, until=1e4, max_evaluations=60_000)
    assert run.outcome.name == "diverged"
    assert "rounding" in run.outcome.message
    assert run.stats.accepted < 3000


@pytest.mark.parametrize(
    ("law", "start", "until"),
    [
        (at.Attention.isotropic(2, 1.0), at.Gaussian([0.3, 0.1], [[1.0, 0.2], [0.2, 0.5]]), 3.0),  # blows up
        (at.Affine(-np.diag([1.0, 1e4]), np.ones(2)), at.Gaussian([1.0, 0.2], [[1.0, 0.2], [0.2, 0.5]]), 2e-3),  # stiff
        (
            at.Affine(-np.eye(2)),
            at.Gaussian(np.ones((2, 2)), np.stack([np.eye(2), 3 * np.eye(2)])),
            40.0,
        ),  # an ensemble
    ],
)
def test_a_resumed_run_has_the_same_bits(tmp_path: Path, law: at.Law, start: at.Gaussian, until: float) -> None:
    pytest.importorskip("zarr")
    whole = at.flow(law, start, until=until, save=30)
    share = whole.stats.evaluations // 7
    part = at.flow(law, start, until=until, save=30, store=tmp_path / "run", max_evaluations=share)
    resumed = 0
    while "budget" in [outcome.name for outcome in part.outcomes]:
        part, resumed = at.resume(tmp_path / "run", max_evaluations=share), resumed + 1
    assert resumed > 2
    assert part.outcomes == whole.outcomes
    assert part.stats.evaluations == whole.stats.evaluations
    assert torch.equal(part.final.covariance, whole.final.covariance)
    assert torch.equal(torch.nan_to_num(part.covariances), torch.nan_to_num(whole.covariances))


def test_a_collapse_is_followed_below_the_smallest_numbers() -> None:
    run = at.flow(at.Affine(-np.eye(2)), at.Gaussian([1.0, 0.5], np.eye(2)), until=1e4, stop=())
    assert run.outcome.name == "reached"
    assert float(run.final.covariance.abs().max()) == 0.0
