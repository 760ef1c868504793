"""Stationary states with noise: numbers of the specification, and the same by other routes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import integrate, special

import attractor as at
from attractor import meanfield as mf
from attractor.errors import InputError, UnsupportedError


@pytest.mark.theorem
def test_critical_noise():
    """A9, A10."""
    found = [mf.critical_noise(beta, kernel) for kernel in ("exponential", "softmax") for beta in (1.0, 4.0)]
    assert found == pytest.approx([0.5651591040, 2.4398662884, 0.4463899659, 0.2158806528], abs=1e-9)
    assert mf.critical_noise(4.0, dim=3) == pytest.approx(0.1876677876, abs=1e-9)


@pytest.mark.theorem
@pytest.mark.parametrize("dim", [2, 3, 5])
def test_eigenvalues_are_integrals_of_the_kernel(dim):
    """Funk and Hecke: the eigenvalue of degree l is the mean of e^(beta t) C_l(t) / C_l(1) over the sphere."""
    from attractor.meanfield.stationary_states import convolution_eigenvalues

    beta, power = 2.3, (dim - 3) / 2
    nodes, weights = special.roots_jacobi(60, power, power)
    weights = weights / weights.sum()
    expected = [
        float(weights @ (np.exp(beta * nodes) * special.eval_jacobi(k, power, power, nodes)))
        / special.eval_jacobi(k, power, power, 1.0)
        for k in range(6)
    ]
    assert convolution_eigenvalues(beta, 5, "exponential", dim) == pytest.approx(expected, rel=1e-12)
    assert convolution_eigenvalues(beta, 5, "softmax", dim) == pytest.approx(
        np.array(expected) / expected[0], rel=1e-12
    )


@pytest.mark.parametrize(("beta", "kernel"), [(1.0, "exponential"), (4.0, "exponential"), (4.0, "softmax")])
def test_the_equation_finds_the_critical_noise(beta, kernel):
    """Rates at which a deviation grows below and falls above the critical noise, measured in runs, are zero within 2% of it."""
    expected, rates = mf.critical_noise(beta, kernel), []
    law = at.Attention.isotropic(2, beta, kernel=kernel)
    for share in (0.9, 1.1):
        start = at.Density.from_modes([0.002], size=24)
        run = at.flow(law, start, until=2.0, noise=at.Noise(share * expected), save=1)
        rates.append(np.log(abs(run.final.modes[1]) / 0.002) / 2.0)
    assert rates[0] > 0 > rates[1]
    assert 0.9 + 0.2 * rates[0] / (rates[0] - rates[1]) == pytest.approx(1.0, rel=0.02)


def test_order_begins_at_the_critical_noise():
    """The mean cosine at rest falls like a root: its square is linear in the noise, and zero at the critical one, within 2%."""
    expected, squares = mf.critical_noise(4.0), []
    for share in (0.95, 0.97):
        start = at.Density.from_modes([0.25 if share == 0.95 else 0.15], size=64)
        run = at.flow(
            at.Attention.isotropic(2, 4.0), start, until=100.0, noise=at.Noise(share * expected), save=1, rtol=1e-8
        )
        squares.append(abs(run.final.modes[1]) ** 2)
    assert 0.95 + 0.02 * squares[0] / (squares[0] - squares[1]) == pytest.approx(1.0, rel=0.02)


@pytest.mark.theorem
def test_cluster_counts():
    """A33, and the table of the specification."""
    assert mf.cluster_switches(5) == pytest.approx([1.044457, 3.165434, 6.211298, 10.228483, 15.236277], abs=1e-6)
    ranges = {1: (1, 1), 2: (2, 3), 3: (4, 6), 4: (7, 10), 5: (11, 15), 6: (16, 21), 7: (22, 28), 8: (29, 36)}
    for count, (low, high) in (ranges | {9: (37, 45), 10: (46, 50)}).items():
        assert [mf.cluster_count(beta) for beta in (low, high)] == [count, count]
    rates = mf.mode_growth(9.0, count=12)
    exponential = mf.mode_growth(9.0, count=12, kernel="exponential")
    assert rates.argmax() == exponential.argmax() == 3
    late = mf.mode_growth(2000.0, count=200).max()
    assert late == pytest.approx(2 / np.e, rel=1e-2)


@pytest.mark.theorem
def test_where_the_transition_becomes_discontinuous():
    """A12, A14."""
    expected = [2.4469183113, 1.8161545254, 1.5752571501, 1.2665530245]
    assert [mf.tricritical_beta(dim) for dim in (2, 3, 4, 8)] == pytest.approx(expected, abs=1e-8)
    for kernel, curvature in (("exponential", 0.46219), ("softmax", -0.16817)):
        assert mf.branch_curvature(4.0, kernel) == pytest.approx(curvature, abs=1e-5)
        branch = mf.stationary_branch(4.0, kernel, amplitudes=[0.02])
        assert (branch.noise[0] / branch.critical - 1) / 0.02**2 == pytest.approx(curvature, abs=1e-3)
    assert mf.branch_curvature(2.446, "exponential") < 0 < mf.branch_curvature(2.448, "exponential")
    assert max(mf.branch_curvature(beta) for beta in np.geomspace(0.01, 5000, 200)) < 0
    assert mf.is_subcritical(2.5, "exponential")
    assert not mf.is_subcritical(2.4, "exponential")
    assert not mf.is_subcritical(50.0)


@pytest.mark.theorem
@pytest.mark.parametrize("dim", [3, 8])
def test_signs_in_higher_dimensions(dim):
    critical = mf.tricritical_beta(dim)
    for beta, sign in ((0.9 * critical, -1), (1.1 * critical, 1)):
        branch = mf.stationary_branch(beta, "exponential", dim, amplitudes=[0.05])
        assert np.sign(branch.noise[0] - branch.critical) == sign
    softmax = mf.stationary_branch(3 * critical, "softmax", dim, amplitudes=np.linspace(0.05, 0.95, 10))
    assert (np.diff(softmax.noise) < 0).all()
    assert softmax.noise[0] < softmax.critical


@pytest.mark.theorem
def test_folds_and_equal_free_energy():
    """A13."""
    branch = mf.stationary_branch(4.0, "exponential")
    ((amplitude, noise),) = branch.folds
    assert noise / branch.critical == pytest.approx(1.05887718, abs=1e-6)
    assert branch.transition[1] / branch.critical == pytest.approx(1.04695937, abs=1e-6)
    assert not branch.stable[branch.amplitude < amplitude - 0.02].any()
    assert branch.stable[branch.amplitude > amplitude + 0.02].all()
    softmax = mf.stationary_branch(4.0)
    assert not softmax.folds
    assert softmax.stable.all()
    with pytest.raises(UnsupportedError, match="no free energy"):
        _ = softmax.transition


@pytest.mark.theorem
@pytest.mark.parametrize(
    ("kernel", "amplitude", "grows"), [("exponential", 0.3, True), ("exponential", 0.8, False), ("softmax", 0.5, False)]
)
def test_branches_rest_under_the_equation(kernel, amplitude, grows):
    """The spectral method of the flow does not move them, and its derivative tells stable from unstable ones."""
    from attractor.solvers.density_integration import DensityField

    branch = mf.stationary_branch(4.0, kernel, amplitudes=[amplitude])
    density, noise = branch.density(amplitude, size=192), at.Noise(float(branch.noise[0]))
    assert abs(density.modes[1]) == pytest.approx(amplitude, abs=1e-12)
    field = DensityField(at.Attention.isotropic(2, 4.0, kernel=kernel), 192, noise)
    assert np.abs(field.total_rate(0.0, density.modes[None])).max() < 1e-11
    growth = field.growth(0.0, density.modes)
    assert growth > 1e-2 if grows else abs(growth) < 1e-6  # a rotation neither grows nor decays


def test_the_free_energy_never_grows():
    law, noise = at.Attention.isotropic(2, 3.0, kernel="exponential"), 0.8
    run = at.flow(law, at.Density.from_modes([0.05, 0.1j, 0.02], size=96), until=6.0, noise=at.Noise(noise), save=60)
    values = np.array([mf.free_energy(law, run.state(k), noise) for k in range(len(run.times))])
    assert (np.diff(values) <= 1e-13).all()
    assert values[0] - values[-1] > 0.1
    branch = mf.stationary_branch(3.0, "exponential", amplitudes=[0.6])
    eps = float(branch.noise[0])
    difference = mf.free_energy(law, branch.density(0.6), eps) - mf.free_energy(law, at.Density.uniform(), eps)
    assert difference == pytest.approx(float(branch.free_energy[0]), abs=1e-12)


def pair_mean(kernel: str, beta: float, noise: float, dim: int) -> float:
    """E cos of two tokens by the invariant density."""
    law = at.Attention.isotropic(dim, beta, kernel=kernel)

    def weight(turn: float) -> float:
        points = torch.zeros(2, dim, dtype=torch.float64)
        points[0, 0], points[1, 0], points[1, 1] = 1.0, np.cos(turn), np.sin(turn)
        return float(mf.invariant_log_density(law, at.Tokens(points), noise).exp()) * np.sin(turn) ** (dim - 2)

    total = integrate.quad(weight, 0, np.pi, epsabs=1e-13)[0]
    return integrate.quad(lambda turn: np.cos(turn) * weight(turn), 0, np.pi, epsabs=1e-13)[0] / total


@pytest.mark.theorem
def test_invariant_densities_of_two_tokens():
    """A6, A7: expectations by the formula, and one of them by simulation (4 standard errors)."""
    assert pair_mean("exponential", 1.0, 0.5, 2) == pytest.approx(0.54533578, abs=1e-8)
    assert pair_mean("softmax", 1.0, 0.5, 2) == pytest.approx(0.28173320, abs=1e-8)
    assert pair_mean("softmax", 2.0, 0.2, 3) == pytest.approx(0.28073825, abs=1e-8)
    start = at.Tokens.uniform(2, 3, seed=1, ensemble=4000)
    run = at.flow(
        at.Attention.isotropic(3, 2.0), start, space="sphere", until=12.0, step=0.1, noise=at.Noise(0.2, seed=5), save=1
    )
    cosines = (run.final.points[:, 0] * run.final.points[:, 1]).sum(-1)
    assert float(cosines.mean()) == pytest.approx(0.28073825, abs=4 * float(cosines.std()) / 4000**0.5 + 1e-3)


def pair_cosine_of_three(kernel: str, beta: float, eps: float, modes: int) -> float:
    """E cos of tokens 1 and 2 of three on the circle, from the null vector of the Fokker-Planck operator in the two angles relative
    to the third token (Fourier series; the common angle is uniform)."""
    size = 4 * modes
    angles = 2 * np.pi * np.arange(size) / size
    x, y = np.meshgrid(angles, angles, indexing="ij")
    places = np.stack((x, y, 0 * x))

    def speed(i: int) -> np.ndarray:
        weights = np.exp(beta * (np.cos(places - places[i]) - (kernel == "softmax")))
        pushed = (weights * np.sin(places - places[i])).sum(0)
        return pushed / (weights.sum(0) if kernel == "softmax" else 3.0)

    drift = np.fft.fft2(np.stack((speed(0) - speed(2), speed(1) - speed(2)))) / size**2
    orders = np.arange(-modes, modes + 1)
    kx, ky = (part.ravel() for part in np.meshgrid(orders, orders, indexing="ij"))
    ax, ay = (kx[:, None] - kx) % size, (ky[:, None] - ky) % size
    matrix = -1j * (kx[:, None] * drift[0][ax, ay] + ky[:, None] * drift[1][ax, ay])
    matrix[np.arange(len(kx)), np.arange(len(kx))] -= 2 * eps * (kx**2 + ky**2 + kx * ky)
    zero = int(np.flatnonzero((kx == 0) & (ky == 0))[0])
    rest = np.delete(np.arange(len(kx)), zero)
    found = np.linalg.solve(matrix[np.ix_(rest, rest)], -matrix[rest, zero])
    place = int(np.flatnonzero((kx[rest] == 1) & (ky[rest] == -1))[0])
    return float(found[place].real)


@pytest.mark.theorem
def test_three_tokens():
    """A8: the exponential kernel by its formula and by the stationary equation, softmax by the equation alone."""
    law = at.Attention.isotropic(2, 1.0, kernel="exponential")
    angles = 2 * np.pi * np.arange(48) / 48
    x, y = np.meshgrid(angles, angles, indexing="ij")
    turns = torch.from_numpy(np.stack((x, y, 0 * x), axis=-1))
    logs = mf.invariant_log_density(law, at.Tokens(torch.stack((turns.cos(), turns.sin()), -1)), 0.5).numpy()
    weights = np.exp(logs - logs.max())
    mean = float((weights * np.cos(x - y)).sum() / weights.sum())
    assert mean == pytest.approx(0.5031849489, abs=1e-10)
    assert pair_cosine_of_three("exponential", 1.0, 0.5, 12) == pytest.approx(0.5031849489, abs=1e-8)
    assert pair_cosine_of_three("softmax", 1.0, 0.5, 12) == pytest.approx(0.2573638916, abs=1e-8)


@pytest.mark.theorem
def test_densities_with_masses_balance_the_drift():
    """The score of the invariant density is the drift over the strength: no flux. Checked by automatic differentiation."""
    masses = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    strengths = 0.06 / masses
    law, space = at.Attention.isotropic(3, 1.7, kernel="exponential"), at.Sphere()
    points = at.Tokens.uniform(3, 3, seed=4).points.requires_grad_(True)
    mf.invariant_log_density(law, at.Tokens(points, masses=masses), strengths).backward()
    drift = at.velocity(law, at.Tokens(points.detach(), masses=masses), space)
    torch.testing.assert_close(
        space.tangent(points.detach(), points.grad), drift / strengths[:, None], rtol=1e-12, atol=1e-12
    )


BAD = {
    "kernel": (lambda: mf.critical_noise(1.0, "l2"), "softmax and exponential"),
    "beta": (lambda: mf.critical_noise(-1.0), "positive"),
    "dimension": (lambda: mf.critical_noise(1.0, dim=1), "at least 2"),
    "overflow": (lambda: mf.critical_noise(2000.0, "exponential"), "overflows"),
    "amplitude": (lambda: mf.stationary_branch(1.0, amplitudes=[0.5, 1.5]), "between 0 and 0.98"),
    "order": (lambda: mf.stationary_branch(1.0, amplitudes=[0.5, 0.4]), "increasing"),
    "three tokens": (
        lambda: mf.invariant_log_density(at.Attention.isotropic(2, 1.0), at.Tokens.uniform(3, 2), 0.1),
        "not reversible",
    ),
    "unequal": (
        lambda: mf.invariant_log_density(
            at.Attention.isotropic(2, 1.0, kernel="exponential"), at.Tokens(torch.eye(2), masses=[0.3, 0.7]), 0.1
        ),
        "strength times mass",
    ),
    "free energy": (lambda: mf.free_energy(at.Attention.isotropic(2, 1.0), at.Density.uniform(), 0.1), "exponential"),
    "sphere": (lambda: mf.stationary_branch(1.0, dim=3, amplitudes=[0.3]).density(0.3), "lives on the circle"),
    "values": (
        lambda: mf.free_energy(
            at.Attention(torch.eye(2), torch.eye(2), -torch.eye(2), kernel="exponential"), at.Density.uniform(), 0.1
        ),
        "isotropic",
    ),
}


@pytest.mark.parametrize("case", list(BAD))
def test_bad_input_is_rejected(case):
    function, words = BAD[case]
    with pytest.raises((InputError, UnsupportedError), match=words):
        function()
