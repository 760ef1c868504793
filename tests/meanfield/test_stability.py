"""Stability: constants, the support, and the distance of two measures under their bounds."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import integrate
from scipy.linalg import expm

from attractor import L2, Attention, Gaussian, Sigmoid, Sinkhorn, Tokens, flow, velocity
from attractor.errors import InputError, UnsupportedError
from attractor.meanfield import (
    conditional_wasserstein,
    dobrushin_constants,
    local_constants,
    log_stability_bound,
    measure_stability,
    perturb,
    support_bound,
    support_rate,
    wasserstein,
)

KERNELS = ["softmax", "l2", Sigmoid(-0.4), Sinkhorn(0.7)]


def cloud(seed: int, n: int = 12, dim: int = 2) -> Tokens:
    generator = np.random.default_rng(seed)
    masses = generator.random(n)
    return Tokens(Tokens.sample("ball", n, dim, seed).points, masses / masses.sum())


@pytest.mark.theorem
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_measured_is_below_the_bound(kernel: object, seed: int) -> None:
    """T12 and T13 on random laws of two heads, weighted tokens, W_1 and W_2."""
    law = Attention.random(2, heads=2, head_dim=2, seed=seed, kernel=kernel, scale=1.2)
    first = cloud(seed)
    found = measure_stability(law, first, perturb(first, 0.3, seed), until=0.8, p=1.0 + seed % 2, save=5, rtol=1e-6)
    assert found.holds
    assert found.explicit is not isinstance(kernel, Sinkhorn)
    assert found.ratio[0] == 1.0
    assert float(found.radius[-1]) <= float(found.radius_bound[-1])


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_the_field_is_lipschitz_with_the_constants(kernel: object) -> None:
    """Finite differences of the field between measures far apart, in the point and in the measure, mass 1.7."""
    law = Attention.random(2, heads=2, head_dim=2, seed=4, kernel=kernel, scale=0.9)
    first, second = (Tokens(cloud(seed).points, 1.7 * cloud(seed).weights) for seed in (1, 2))
    probes = Tokens.sample("ball", 9, 2, 5).points
    constants = dobrushin_constants(law, 1.0, mass=1.7)

    def field(tokens: Tokens) -> torch.Tensor:
        masses = torch.cat((torch.zeros(9, dtype=torch.float64), tokens.weights))
        return velocity(law, Tokens(torch.cat((probes, tokens.points)), masses))[:9]

    here, there = field(first), field(second)
    gaps = torch.cdist(here, here) / (torch.cdist(probes, probes) + torch.eye(9, dtype=torch.float64))
    assert float(gaps.max()) <= constants.point
    if constants.influence is not None:
        between = float(wasserstein(first, second, 1.0))
        assert float((here - there).norm(dim=-1).max()) <= constants.influence * between


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_local_constants_are_derivatives(kernel: object) -> None:
    """Against finite differences of the field, and below the bounds."""
    law = Attention.random(2, seed=3, kernel=kernel)
    tokens = cloud(3, n=5)
    constants = dobrushin_constants(law, 1.0)
    point, influence = local_constants(law, tokens)
    assert point <= constants.point
    assert constants.influence is None or influence <= local_constants(law, tokens, 1.0)[1] <= constants.influence
    whole = torch.autograd.functional.jacobian(lambda x: velocity(law, tokens.with_points(x)), tokens.points)
    masses = torch.cat((torch.zeros(5, dtype=torch.float64), tokens.weights))
    step = 1e-6 * torch.from_numpy(np.random.default_rng(0).standard_normal((5, 2)))

    def field(shift: torch.Tensor) -> torch.Tensor:
        return velocity(law, Tokens(torch.cat((tokens.points, tokens.points + shift)), masses))[:5]

    by_measure = (field(step) - field(-step)) / 2
    size = float((tokens.weights * step.square().sum(-1)).sum().sqrt())
    assert float(by_measure.norm(dim=-1).max()) <= influence * size * (1 + 1e-6)
    together = torch.einsum("iajb,jb->ia", whole, step)
    assert float((together - by_measure).norm(dim=-1).max()) <= point * float(step.norm(dim=-1).max()) * (1 + 1e-6)


def test_the_sinkhorn_derivative_in_the_point() -> None:
    """V Cov A / eps, with the covariance of the keys under the weights of each row."""
    law, tokens = Attention.random(2, seed=3, kernel=Sinkhorn(0.7)), cloud(3, n=6)
    weights = law.weights(tokens)[0]
    x = tokens.points
    norms = []
    for row in weights:
        mean = row @ x
        covariance = (x - mean).T @ (row[:, None] * (x - mean))
        norms.append(
            float(torch.linalg.matrix_norm(law.value[0] @ covariance @ (law.key[0].T @ law.query[0]) / 0.7, ord=2))
        )
    found = local_constants(law, tokens)
    assert found[0] == pytest.approx(max(norms), rel=1e-9)
    padded = Tokens(
        torch.cat((x, torch.ones(1, 2, dtype=torch.float64))), torch.cat((tokens.weights, torch.zeros(1).double()))
    )
    assert local_constants(law, padded) == pytest.approx(found, rel=1e-9)


def test_constants_by_hand() -> None:
    """One head, Q = diag(2, 1), K = I, V = 3 I, scale 1/2, R = 0.7."""
    Q, K, V, R = np.diag([2.0, 1.0]), np.eye(2), 3 * np.eye(2), 0.7
    softmax = dobrushin_constants(Attention(Q, K, V, scale=-0.5), R)
    assert softmax.point == pytest.approx(3 * R**2)
    assert softmax.influence == pytest.approx(3 * (1 + 2 * R**2) * math.exp(2 * R**2))
    l2 = dobrushin_constants(Attention(Q, K, V, kernel=L2(), scale=0.5), R)
    rho = math.sqrt(0.5) * 3 * R
    assert l2.point == pytest.approx(6 * R**2)
    assert l2.influence == pytest.approx(3 * math.exp(rho**2) * (1 + 2 * math.sqrt(2 / math.e) * math.sqrt(0.5) * R))
    sigmoid = dobrushin_constants(Attention(Q, K, V, kernel="sigmoid", scale=0.5), R, mass=2.0)
    assert sigmoid.point == pytest.approx(2 * 3 * R**2 / 4)
    assert sigmoid.influence == pytest.approx(2 * 3 * (1 + R**2 / 4))
    sinkhorn = dobrushin_constants(Attention(Q, K, V, kernel=Sinkhorn(0.25), scale=0.5), R)
    assert sinkhorn.point == pytest.approx(3 * R**2 / 0.25)
    assert sinkhorn.influence is None
    assert sinkhorn.total == math.inf
    two = Attention(np.stack((Q, Q)), np.stack((K, K)), np.stack((V, -V)), scale=0.5)
    assert dobrushin_constants(two, R).point == pytest.approx(2 * softmax.point)
    assert support_rate(two) == pytest.approx(6.0)
    causal = dobrushin_constants(Attention(Q, K, V, scale=0.5, mask="causal"), R, p=3.0)
    assert causal.total == pytest.approx(softmax.point + 1.5 * float(softmax.influence or 0))


def test_the_bound_over_time_is_the_integral() -> None:
    law = Attention.random(2, heads=2, head_dim=2, seed=1)
    times, radii = np.array([0.0, 0.4, 1.0]), np.array([0.5, 0.9])
    found, rate = log_stability_bound(law, radii, times), support_rate(law)
    for k, t in enumerate(times):
        for j, R in enumerate(radii):
            wanted, _ = integrate.quad(
                lambda s, R=R: dobrushin_constants(law, R * math.exp(rate * s)).total, 0, t, epsabs=1e-12
            )
            assert found[k, j] == pytest.approx(wanted, rel=1e-9)
    np.testing.assert_allclose(support_bound(law, radii, times)[2], radii * math.exp(rate), rtol=1e-14)
    assert log_stability_bound(law, 50.0, np.array([1.0]))[0] == math.inf


@pytest.mark.theorem
def test_hardy() -> None:
    """Prefix means: norm below 2 at p = 2, for equal and for random masses; at p = 1 it grows like log n."""
    previous = 0.0
    for n in (100, 300, 900):
        mean = np.tril(np.ones((n, n))) / np.arange(1, n + 1)[:, None]
        assert previous < np.linalg.norm(mean, 2) < 2.0
        previous = np.linalg.norm(mean, 2)
        assert np.abs(mean).sum(0).max() == pytest.approx(math.log(n) + np.euler_gamma, rel=2e-2)
    masses = np.random.default_rng(0).random(400) ** 4
    weighted = np.tril(np.ones((400, 400))) * masses / np.cumsum(masses)[:, None]
    root = np.sqrt(masses)
    assert np.linalg.norm(root[:, None] * weighted / root, 2) < 2.0


@pytest.mark.theorem
@pytest.mark.parametrize("kernel", ["softmax", "l2", Sigmoid(0.2)], ids=str)
def test_causal_attention_is_stable_position_by_position(kernel: object) -> None:
    """T14: d_2 below the bound with Hardy's factor; positions do not move."""
    law = Attention.random(2, seed=2, kernel=kernel, mask="causal")
    first = Tokens.sample("ball", 40, 2, 1)
    second = perturb(first, 0.2)
    found = measure_stability(law, first, second, until=0.6, save=4, rtol=1e-6)
    assert found.holds
    assert found.constants.hardy == (1.0 if isinstance(kernel, Sigmoid) else 2.0)
    assert float(found.distance[0]) == pytest.approx(float(conditional_wasserstein(first, second)), rel=1e-12)


@pytest.mark.theorem
def test_the_first_token_sees_itself_alone() -> None:
    """T14: x_1(t) = exp(t sum_h V_h) x_1(0)."""
    law = Attention.random(3, heads=2, head_dim=2, seed=0, mask="causal")
    tokens = Tokens.gaussian(20, 3)
    run = flow(law, tokens, until=1.5, rtol=1e-10, atol=1e-12)
    wanted = expm(1.5 * law.value.sum(0).numpy()) @ tokens.points[0].numpy()
    np.testing.assert_allclose(run.final.points[0], wanted, rtol=1e-8)


@pytest.mark.theorem
def test_product_data_do_not_see_the_mask() -> None:
    """T14: blocks of equal tokens at every position, so that each prefix has the law of the whole."""
    block = Tokens.sample("ball", 6, 2, 3).points
    places = torch.arange(4.0).repeat_interleave(6)
    law = {mask: Attention.random(2, seed=5, mask=mask) for mask in (None, "causal")}
    runs = {
        mask: flow(law[mask], Tokens(block.repeat(4, 1), positions=places), until=1.0, rtol=1e-10, atol=1e-12)
        for mask in law
    }
    np.testing.assert_allclose(runs["causal"].final.points, runs[None].final.points, atol=1e-9)
    alone = flow(law[None], Tokens(block), until=1.0, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(runs["causal"].final.points[-6:], alone.final.points, atol=1e-9)


def test_ratios_are_to_the_start() -> None:
    first, law = Tokens.sample("ball", 6, 2), Attention.random(2, seed=1)
    found = measure_stability(law, first, perturb(first, 0.1), until=1.0, save=[0.5, 1.0])
    assert found.times.tolist() == [0.0, 0.5, 1.0]
    assert found.distance[0] == pytest.approx(float(wasserstein(first, perturb(first, 0.1))), rel=1e-12)


def test_refusals() -> None:
    first = Tokens.sample("ball", 6, 2)
    second, law = perturb(first, 0.1), Attention.random(2)
    with pytest.raises(UnsupportedError, match="infinity in finite time"):
        measure_stability(Attention.random(2, kernel="exponential"), first, second, until=1.0)
    with pytest.raises(InputError, match="orders p > 1"):
        measure_stability(Attention.random(2, mask="causal"), first, second, until=1.0, p=1.0)
    with pytest.raises(UnsupportedError, match="causal masks"):
        measure_stability(Attention.random(2, mask="window:2"), first, second, until=1.0)
    with pytest.raises(InputError, match="must differ"):
        measure_stability(law, first, first, until=0.1)
    with pytest.raises(InputError, match="clouds of tokens"):
        measure_stability(law, *([Gaussian(np.zeros(2), np.eye(2))] * 2), until=0.1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="same total mass"):
        measure_stability(law, first, Tokens(second.points, np.ones(6)), until=0.1)
    with pytest.raises(UnsupportedError, match="influence"):
        log_stability_bound(Attention.random(2, kernel="sinkhorn"), 1.0, np.ones(1))
    with pytest.raises(InputError, match="radius"):
        dobrushin_constants(law, math.nan)
    with pytest.raises(InputError, match="positive share"):
        perturb(first, 0.0)


def test_the_picture(tmp_path: Path) -> None:
    first = Tokens.sample("ball", 8, 2, ensemble=2)
    found = measure_stability(Attention.random(2, seed=1), first, perturb(first, 0.1), until=1.0, save=6)
    figure = found.plot()
    assert [axes.get_title() for axes in figure.axes] == ["how far two measures part", "how far tokens get"]
    assert found.plot(tmp_path / "stability.pdf").stat().st_size > 5000
