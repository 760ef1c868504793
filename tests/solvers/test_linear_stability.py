"""Jacobians against differences and against formulas, spectra of rests, and transient growth."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import attractor as at
from attractor.errors import InputError, UnsupportedError


def circle(*angles: float) -> torch.Tensor:
    turns = torch.tensor(angles, dtype=torch.float64)
    return torch.stack((turns.cos(), turns.sin()), -1)


def differences(law: at.Law, tokens: at.Tokens, space: at.Space, direction: torch.Tensor) -> torch.Tensor:
    """Tangent part of the derivative of the tangent velocity along a direction, by central differences of fourth order."""
    h = 1e-3

    def moved(length: float) -> torch.Tensor:
        return at.velocity(law, tokens.with_points(tokens.points + length * direction), space)

    slope = (8 * (moved(h) - moved(-h)) - (moved(2 * h) - moved(-2 * h))) / (12 * h)
    return space.tangent(tokens.points, slope)


KERNELS = ["softmax", "l2", "exponential", "sigmoid", "linear"]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("place", ["euclidean", "sphere", "ellipsoid"])
def test_products_and_matrix(rng: np.random.Generator, kernel: str, place: str) -> None:
    n, d = 5, 3
    W = torch.diag(torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64))
    space = {"euclidean": at.Euclidean(), "sphere": at.Sphere(), "ellipsoid": at.Ellipsoid(W)}[place]
    law = at.Attention.random(d, seed=3, scale=0.5, kernel=kernel, mask="causal" if kernel == "softmax" else None)
    x = space.enter(0.5 * torch.from_numpy(rng.standard_normal((n, d))))
    tokens = at.Tokens(x, masses=rng.random(n) + 0.1)
    J = at.jacobian(law, tokens, space)
    direction = space.tangent(x, torch.from_numpy(rng.standard_normal((n, d))))
    wanted = differences(law, tokens, space, direction)
    torch.testing.assert_close(J.apply(direction), wanted, rtol=1e-9, atol=1e-9)
    vector, other = rng.standard_normal(J.size), rng.standard_normal(J.size)
    assert J.size == n * (d - (place != "euclidean"))
    np.testing.assert_allclose(J.matrix @ vector, J.matvec(vector), rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(J.matrix.T @ vector, J.rmatvec(vector), rtol=1e-11, atol=1e-11)
    assert J.numerical_abscissa >= J.spectral_abscissa - 1e-12
    assert vector @ J.matvec(other) == pytest.approx(J.rmatvec(vector) @ other, abs=1e-11)


@pytest.mark.theorem
@pytest.mark.parametrize("d", [2, 3])
def test_consensus_spectrum(rng: np.random.Generator, d: int) -> None:
    """At consensus with V = I and any P: 0 (d - 1 times) and -1; -e^beta under the exponential kernel."""
    n, eye = 4, torch.eye(d, dtype=torch.float64)
    point = torch.from_numpy(rng.standard_normal(d))
    tokens = at.Tokens((point / point.norm()).expand(n, d).clone())
    law = at.Attention(torch.from_numpy(rng.standard_normal((d, d))), eye, eye)
    found = at.jacobian(law, tokens, at.Sphere()).eigenvalues()
    np.testing.assert_allclose(found.real, [0.0] * (d - 1) + [-1.0] * ((n - 1) * (d - 1)), atol=1e-12)
    rest = at.stability(law, tokens, at.Sphere())
    assert (rest.name, rest.unstable, rest.neutral, rest.decaying) == ("neutral", 0, d - 1, (n - 1) * (d - 1))
    beta = 1.7
    law = at.Attention.isotropic(d, beta, kernel="exponential")
    found = at.jacobian(law, tokens, at.Sphere()).eigenvalues()
    np.testing.assert_allclose(found[d - 1 :], -math.exp(beta), rtol=1e-12)


@pytest.mark.theorem
def test_antipodal_spectrum() -> None:
    """A31: three tokens against two on the circle, beta = 1."""
    tokens = at.Tokens(circle(0.0, 0.0, 0.0, math.pi, math.pi))
    law = at.Attention.isotropic(2, 1.0)
    found = np.sort(at.jacobian(law, tokens, at.Sphere()).eigenvalues())
    wanted = [-0.83448619, -0.83448619, -0.66250635, 0.0, 0.25150373]
    np.testing.assert_allclose(found, wanted, atol=1e-8)
    rest = at.stability(law, tokens, at.Sphere())
    assert (rest.name, rest.unstable, rest.neutral) == ("saddle", 1, 1)
    assert rest.kreiss_constant == math.inf
    assert "1 grow" in rest.message
    assert "0.2515" in rest.message


@pytest.mark.theorem
@pytest.mark.parametrize(("n", "abscissa"), [(2, 0.1035533906), (8, 0.2879597899), (64, 0.4869512868)])
def test_causal_consensus_is_not_normal(n: int, abscissa: float) -> None:
    """A35: nothing grows at late times, but a deviation grows by sqrt n on the way."""
    tokens = at.Tokens(circle(*[0.3] * n))
    law = at.Attention.isotropic(2, 2.0, mask="causal")
    J = at.jacobian(law, tokens, at.Sphere())
    wanted = np.tril(np.ones((n, n)) / np.arange(1, n + 1)[:, None]) - np.eye(n)
    np.testing.assert_allclose(np.abs(J.matrix), np.abs(wanted), atol=1e-12)
    np.testing.assert_allclose(np.sort(J.eigenvalues().real), np.sort(np.diag(wanted)), atol=1e-10)
    assert J.numerical_abscissa == pytest.approx(abscissa, abs=1e-9)
    assert J.growth([0.0, 80.0])[0] == pytest.approx(1.0)
    assert J.growth(80.0)[0] == pytest.approx(math.sqrt(n), abs=1e-9)
    assert max(J.growth(np.linspace(0, 20, 21))) <= math.sqrt(n) + 1e-9
    if n <= 8:
        assert J.kreiss_constant() == pytest.approx(math.sqrt(n), rel=1e-6)


def test_krylov_agrees_with_dense(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    from attractor.solvers import linear_stability

    law = at.Attention.random(3, seed=1)
    tokens = at.Tokens.uniform(12, 3, seed=2)
    J = at.jacobian(law, tokens, at.Sphere())
    values, abscissa = J.eigenvalues(), J.numerical_abscissa
    monkeypatch.setattr(linear_stability, "DENSE", 4)
    K = at.jacobian(law, tokens, at.Sphere())
    np.testing.assert_allclose(K.eigenvalues(3).real, values[:3].real, rtol=1e-8, atol=1e-10)
    assert K.numerical_abscissa == pytest.approx(abscissa, rel=1e-8)
    with pytest.raises(UnsupportedError, match="use matvec"):
        _ = K.matrix


def test_layers(rng: np.random.Generator) -> None:
    """At post-norm consensus a layer of size h shrinks deviations by 1 / (1 + h)."""
    tokens, law = at.Tokens(circle(*[0.4] * 3)), at.Attention.isotropic(2, 3.0)
    J = at.jacobian(law, tokens, at.Sphere(), step=0.5)
    np.testing.assert_allclose(J.eigenvalues(), [1.0, 1 / 1.5, 1 / 1.5], atol=1e-12)
    with pytest.raises(UnsupportedError, match="belongs to a velocity"):
        _ = J.numerical_abscissa


def test_stability_of_runs() -> None:
    law = at.Attention.isotropic(3, 1.0)
    run = at.flow(law, at.Tokens.hemisphere(6, 3, seed=1), space="sphere", until=200.0)
    rest = at.stability(run)
    assert run.outcome.name == "consensus"
    assert rest.name == "neutral"
    assert rest.unstable == 0
    decay = at.flow(at.Affine(-torch.eye(2, dtype=torch.float64)), at.Tokens.gaussian(3, 2), until=60.0)
    assert at.stability(decay).name == "stable"
    assert at.stability(at.Affine(torch.eye(2, dtype=torch.float64)), at.Tokens(torch.zeros(3, 2))).name == "unstable"
    with pytest.raises(InputError, match="the state moves"):
        at.stability(law, at.Tokens.uniform(4, 3), "sphere")


def test_bad_input() -> None:
    tokens = at.Tokens.uniform(4, 3)
    with pytest.raises(UnsupportedError, match="hardmax has no Jacobian"):
        at.jacobian(at.Attention.isotropic(3, 1.0, kernel="hardmax"), tokens, "sphere")
    with pytest.raises(InputError, match="one state"):
        at.jacobian(at.Attention.isotropic(3, 1.0), at.Tokens.uniform(4, 3, ensemble=2))
    with pytest.raises(InputError, match="Tokens"):
        at.jacobian(at.Attention.isotropic(3, 1.0), at.Gaussian(torch.zeros(3), torch.eye(3)))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="step must be positive"):
        at.jacobian(at.Attention.isotropic(3, 1.0), tokens, step=-1.0)
    with pytest.raises(InputError, match="until"):
        at.lyapunov(at.Attention.isotropic(3, 1.0), tokens, until=-1.0)
    with pytest.raises(UnsupportedError, match="hardmax has no Jacobian"):
        at.lyapunov(at.Attention.isotropic(3, 1.0, kernel="hardmax"), tokens, until=1.0)
    with pytest.raises(InputError, match="count"):
        at.lyapunov(at.Attention.isotropic(3, 1.0), tokens, "sphere", until=1.0, count=9)


def rotating_polygon(n: int, beta: float) -> tuple[float, np.ndarray]:
    """Angular speed and exponents of the regular n-gon under P = beta J on the circle, from the formula."""
    u = 2 * np.pi * np.arange(n) / n
    w = np.exp(beta * np.sin(u))
    w /= w.sum()
    omega = float((w * np.sin(u)).sum())
    c = w * np.cos(u) * (1 + beta * (np.sin(u) - omega))
    return omega, np.array([(c * (np.exp(1j * k * u) - 1)).sum().real for k in range(n)])


@pytest.mark.theorem
def test_rotating_pentagon() -> None:
    """A32: the pentagon turns, two pairs of deviations decay; the square has a second direction without growth."""
    eye = torch.eye(2, dtype=torch.float64)
    law = at.Attention(eye, torch.tensor([[0.0, -4.0], [4.0, 0.0]], dtype=torch.float64), eye)
    omega, rates = rotating_polygon(5, 4.0)
    assert omega == pytest.approx(0.8633930486, abs=1e-10)
    np.testing.assert_allclose(np.sort(rates), [-0.6136223, -0.6136223, -0.2682949, -0.2682949, 0.0], atol=1e-7)
    tokens = at.Tokens(circle(*(2 * np.pi * np.arange(5) / 5)))
    speed = at.velocity(law, tokens, "sphere").norm(dim=-1)
    np.testing.assert_allclose(speed.numpy(), omega, atol=1e-12)
    found = at.lyapunov(law, tokens, "sphere", until=58.0, burn_in=50.0, step=0.05)
    np.testing.assert_allclose(found.exponents, np.sort(rates)[::-1], atol=1e-6)
    assert found.divergence == pytest.approx(float(found.exponents.sum()), abs=1e-6)
    omega, rates = rotating_polygon(4, 4.0)
    assert omega == pytest.approx(math.tanh(2.0), abs=1e-12)
    assert int((np.abs(rates) < 1e-12).sum()) == 2


@pytest.mark.theorem
def test_exponents_at_consensus() -> None:
    """0 and -1 for the flow, 0 and -log(1 + h) for a layer, from any tokens that have come together."""
    tokens, law = at.Tokens(circle(*[1.0] * 4)), at.Attention.isotropic(2, 1.5)
    flow = at.lyapunov(law, tokens, "sphere", until=30.0, burn_in=18.0, step=0.1)
    np.testing.assert_allclose(flow.exponents, [0, -1, -1, -1], atol=2e-6)
    layers = at.lyapunov(law, tokens, "sphere", until=60.0, burn_in=40.0, step=0.5, method="layers")
    np.testing.assert_allclose(layers.exponents, [0, *[-math.log(1.5)] * 3], atol=1e-10)


def test_both_ways_of_carrying_tangent_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dense Jacobian at every stage against derivatives of whole steps, in flat space and on an ellipsoid."""
    from attractor.solvers import lyapunov_exponents

    law = at.Attention.random(3, seed=4)
    W = torch.diag(torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64))
    for space in (at.Euclidean(), at.Ellipsoid(W)):
        tokens = at.Tokens(0.5 * at.Tokens.gaussian(3, 3, seed=1).points)
        with monkeypatch.context() as patch:
            dense = at.lyapunov(law, tokens, space, until=0.5, count=4)
            patch.setattr(lyapunov_exponents, "DENSE", 0)
            products = at.lyapunov(law, tokens, space, until=0.5, count=4)
        np.testing.assert_allclose(dense.exponents, products.exponents, atol=1e-7)
