"""Three tokens under softmax with noise: probability flows in circles at rest."""

import math

import numpy as np

from attractor.laws import Attention
from attractor.meanfield import invariant_log_density
from attractor.plotting import Curve, Panel
from attractor.solvers import jacobian
from attractor.spaces import Sphere
from attractor.states import Tokens, circle_points
from attractor.theory.claims import CounterExample, Evidence

BETA, NOISE, MODES = 1.0, 0.5, 16


def stationary(kernel: str) -> tuple[float, float]:
    """E cos of tokens 1 and 2 at rest, and the largest part of the stationary flux without divergence, relative to the density.

    The Fokker-Planck operator in the angles of two tokens relative to the third one is solved by a Fourier series.
    """
    size = 4 * MODES
    angles = 2 * np.pi * np.arange(size) / size
    x, y = np.meshgrid(angles, angles, indexing="ij")
    places = np.stack((x, y, 0 * x))

    def speed(token: int) -> np.ndarray:
        weights = np.exp(BETA * (np.cos(places - places[token]) - (kernel == "softmax")))
        pushed = (weights * np.sin(places - places[token])).sum(0)
        return pushed / (weights.sum(0) if kernel == "softmax" else 3.0)

    drift = np.stack((speed(0) - speed(2), speed(1) - speed(2)))
    waves = np.fft.fft2(drift) / size**2
    orders = np.arange(-MODES, MODES + 1)
    kx, ky = (part.ravel() for part in np.meshgrid(orders, orders, indexing="ij"))
    ax, ay = (kx[:, None] - kx) % size, (ky[:, None] - ky) % size
    matrix = -1j * (kx[:, None] * waves[0][ax, ay] + ky[:, None] * waves[1][ax, ay])
    matrix[np.arange(len(kx)), np.arange(len(kx))] -= 2 * NOISE * (kx**2 + ky**2 + kx * ky)
    zero = int(np.flatnonzero((kx == 0) & (ky == 0))[0])
    rest = np.delete(np.arange(len(kx)), zero)
    found = np.zeros(len(kx), dtype=complex)
    found[zero] = 1.0
    found[rest] = np.linalg.solve(matrix[np.ix_(rest, rest)], -matrix[rest, zero])
    grid = np.zeros((size, size), dtype=complex)
    grid[kx % size, ky % size] = found
    slopes = np.zeros((2, size, size), dtype=complex)
    slopes[0][kx % size, ky % size], slopes[1][kx % size, ky % size] = 1j * kx * found, 1j * ky * found
    density, (fx, fy) = np.fft.ifft2(grid).real * size**2, np.fft.ifft2(slopes).real * size**2
    # the noise of the relative angles has the covariance 2 eps [[2, 1], [1, 2]]
    flux = np.stack((drift[0] * density - NOISE * (2 * fx + fy), drift[1] * density - NOISE * (fx + 2 * fy)))
    place = int(np.flatnonzero((kx == 1) & (ky == -1))[0])
    return float(found[place].real), float(np.abs(flux).max() / density.max())


def run() -> Evidence:
    softmax, circling = stationary("softmax")
    exponential, still = stationary("exponential")
    law = Attention.isotropic(2, BETA)
    tokens = Tokens(circle_points(np.array([0.3, 1.4, 3.5])))
    matrix = jacobian(law, tokens, Sphere()).matrix
    asymmetry = float(np.abs(matrix - matrix.T).max() / np.abs(matrix).max())
    turns = np.linspace(0.0, math.pi, 91)
    curves = []
    for kernel in ("softmax", "exponential"):
        pair = Attention.isotropic(2, BETA, kernel=kernel)
        logs = [
            float(invariant_log_density(pair, Tokens(circle_points(np.array([0.0, turn]))), NOISE)) for turn in turns
        ]
        values = np.exp(np.array(logs) - logs[0])
        curves.append(Curve(turns.tolist(), values.tolist(), f"two tokens, {kernel}"))
    facts = {
        "softmax_flux": circling,
        "exponential_flux": still,
        "asymmetry_of_the_derivative": asymmetry,
        "softmax_mean_cosine": softmax,
        "exponential_mean_cosine": exponential,
    }
    sentence = (
        f"three tokens on the circle, beta = {BETA:g}, noise {NOISE:g}: at rest probability still flows at {circling:.2g} of the largest "
        f"density under softmax, and at {still:.1g} under the exponential kernel; the derivative of the softmax drift is asymmetric by "
        f"{asymmetry:.2g}"
    )
    panel = Panel(
        tuple(curves), x="angle between two tokens", y="invariant density", title="what is known in closed form"
    )
    return Evidence(facts, circling > 1e-3 and still < 1e-6 and asymmetry > 1e-3, sentence, (panel,))


EXAMPLE = CounterExample(
    key="consensus.softmax-langevin",
    title="Softmax with noise is no Langevin dynamics",
    claim="Softmax attention follows the gradient of the interaction energy, so with noise its tokens have the Gibbs measure of that "
    "energy as their stationary law.",
    source="geshkovski2023mathematical",
    place="a reading of its gradient flow of softmax attention, in a metric that depends on the state",
    basis="reading",
    verdict="false",
    truth="With equal noise two tokens are reversible and three or more are not; strengths of noise eps / (m_i Z_i) that depend on the "
    "state, with a drift of their own, or the exponential kernel restore the Gibbs measure.",
    run=run,
    theorems=("consensus.N1",),
)
