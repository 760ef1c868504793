r"""Stationary states of tokens with noise on spheres: modes, critical noise, branches, invariant densities, free energy.

The law is isotropic, :math:`P = \beta I`, V = I, on the unit sphere of :math:`\mathbb{R}^d`; the density f of infinitely many tokens,
relative to the uniform one, and :math:`(K*f)(x) = \int e^{\beta\langle x,y\rangle}f(y)\,dy` satisfy

.. math:: \partial_t f = -\nabla\cdot(f\,\nabla\Phi) + \epsilon\Delta f, \qquad
   \Phi = \tfrac1\beta K*f \ \text{(exponential)}, \quad \tfrac1\beta\log(K*f) \ \text{(softmax)}.

The drift is a gradient, so a stationary density has no flux, and :math:`f\propto e^{\Phi/\epsilon}`. Harmonics of degree l are
eigenfunctions of the convolution with the eigenvalue

.. math:: L_l = \Gamma(d/2)\,(2/\beta)^{d/2-1}\,I_{l+d/2-1}(\beta),

so that a small deviation of degree l from the uniform density grows at the rate :math:`l(l+d-2)(L_l/\beta - \epsilon)`, with
:math:`L_l/L_0` in place of :math:`L_l` for softmax.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.errors import InputError, UnsupportedError
from attractor.laws import Attention, Law
from attractor.states import Density, Tokens

KERNELS = ("softmax", "exponential")
NODES, ORDERS = 240, 120  # of the quadrature, and degrees of a zonal density
CLOSE = 3e-15  # change of the coefficients in an iteration that has converged
ITERATIONS = 2000
LARGEST = 0.98  # largest mean cosine of a branch
COUNT_LIMIT = 1e6  # beta up to which modes are counted


def _check(beta: float, kernel: str, dim: int = 2) -> None:
    if not (math.isfinite(beta) and beta > 0):
        raise InputError(f"beta must be a positive number, got {beta}")
    if kernel not in KERNELS:
        raise InputError(f"stationary states are known for the kernels softmax and exponential, got {kernel!r}")
    if int(dim) != dim or dim < 2:
        raise InputError(f"the sphere needs a dimension of at least 2, got {dim}")


def convolution_eigenvalues(beta: float, count: int, kernel: str = "softmax", dim: int = 2) -> np.ndarray:
    r"""Return :math:`L_0, \dots, L_{m}` of the exponential kernel, or :math:`L_l/L_0` for softmax, m = ``count``."""
    from scipy.special import gammaln, ive

    _check(beta, kernel, dim)
    half = dim / 2.0 - 1.0
    scaled = ive(np.arange(count + 1) + half, beta)
    if kernel == "softmax":
        return scaled / scaled[0]
    log_factor = gammaln(dim / 2.0) + half * math.log(2.0 / beta) + beta
    if log_factor > 700.0:
        raise InputError(f"e^beta overflows at beta = {beta:g} under the exponential kernel: take softmax")
    return scaled * math.exp(log_factor)


def mode_growth(beta: float, noise: float = 0.0, count: int = 20, kernel: str = "softmax", dim: int = 2) -> np.ndarray:
    r"""Return growth rates :math:`l(l+d-2)(L_l/\beta-\epsilon)` of deviations of degree l = 1, ..., ``count`` from the uniform density."""
    degrees = np.arange(1, count + 1)
    values = convolution_eigenvalues(beta, count, kernel, dim)[1:]
    return degrees * (degrees + dim - 2) * (values / beta - noise)


def critical_noise(beta: float, kernel: str = "softmax", dim: int = 2) -> float:
    r"""Return the strength of noise above which the uniform density is stable: :math:`L_1/\beta` or :math:`L_1/(\beta L_0)`."""
    return float(convolution_eigenvalues(beta, 1, kernel, dim)[1] / beta)


def cluster_count(beta: float) -> int:
    r"""Return the number of clusters that uniform tokens on the circle form first: the k with the largest :math:`k^2 I_k(\beta)`.

    It is the same for softmax and the exponential kernel. Random starts excite all modes, so that particles form one or two clusters
    fewer where neighbouring modes grow almost as fast.
    """
    _check(beta, "softmax")
    if beta > COUNT_LIMIT:
        raise InputError(f"modes are counted up to beta = {COUNT_LIMIT:g}, got {beta:g}")
    count = int(3.0 * math.sqrt(beta)) + 10
    return 1 + int(np.argmax(mode_growth(beta, count=count)))


def cluster_switches(count: int) -> np.ndarray:
    r"""Return the values of beta at which the fastest mode changes from k to k + 1, k = 1, ..., ``count``.

    They are the roots of :math:`k^2 I_k = (k+1)^2 I_{k+1}`, near :math:`k(k+1)/2 + 1/4`.
    """
    from scipy.optimize import brentq
    from scipy.special import ive

    if int(count) != count or count < 1:
        raise InputError(f"count must be a whole number of at least 1, got {count}")

    def difference(beta: float, k: int) -> float:
        return math.log(ive(k + 1, beta) / ive(k, beta)) + 2.0 * math.log((k + 1) / k)

    near = [k * (k + 1) / 2.0 + 0.25 for k in range(1, int(count) + 1)]
    return np.array([brentq(difference, 0.5 * b, 1.5 * b, args=(k,), xtol=1e-13) for k, b in enumerate(near, 1)])  # type: ignore[arg-type]


def tricritical_beta(dim: int = 2) -> float:
    r"""Return the beta above which the exponential kernel's transition is discontinuous: :math:`I_{d/2+1}/I_{d/2} = 1/d`."""
    from scipy.optimize import brentq
    from scipy.special import ive

    _check(1.0, "exponential", dim)
    return float(brentq(lambda b: ive(dim / 2 + 1, b) / ive(dim / 2, b) - 1.0 / dim, 1e-6, 100.0 * dim, xtol=1e-14))  # type: ignore[arg-type]


def is_subcritical(beta: float, kernel: str = "softmax", dim: int = 2) -> bool:
    """Whether the branch of ordered states begins towards more noise, so that the transition is discontinuous.

    For softmax it never does: on the circle by the formula of ``branch_curvature``, in other dimensions by numerical evidence only.
    """
    _check(beta, kernel, dim)
    return kernel == "exponential" and beta > tricritical_beta(dim)


def branch_curvature(beta: float, kernel: str = "softmax") -> float:
    r"""Return C of :math:`\epsilon/\epsilon_c = 1 + C a^2 + O(a^4)` on the circle, with the mean cosine a of an ordered state.

    With :math:`r_k = I_k/I_0` and :math:`R = I_2/I_1`, :math:`C = (2R-1)/(2(1-R))` for the exponential kernel, and
    :math:`C = \frac{(1-r_2)(1-r_1)r_1}{2(r_1-r_2)} + r_1^2 - 1` for softmax.
    """
    from scipy.special import ive

    _check(beta, kernel)
    I0, I1, I2 = ive([0, 1, 2], beta)
    if kernel == "exponential":
        R = I2 / I1
        return float((2.0 * R - 1.0) / (2.0 * (1.0 - R)))
    r1, r2 = I1 / I0, I2 / I0
    return float((1.0 - r2) * (1.0 - r1) * r1 / (2.0 * (r1 - r2)) + r1**2 - 1.0)


# ---------------------------------------------------------------------- branches


class Zonal:
    """Densities on the sphere that depend on the cosine t to one axis, relative to the uniform density."""

    def __init__(self, beta: float, kernel: str, dim: int) -> None:
        from scipy.special import eval_jacobi, roots_jacobi

        self.beta, self.kernel, self.dim = beta, kernel, dim
        power = (dim - 3) / 2.0
        self.t, weights = roots_jacobi(NODES, power, power)
        self.weights = weights / weights.sum()
        degrees = np.arange(1, ORDERS + 1)
        harmonics = eval_jacobi(degrees[:, None], power, power, self.t)
        self.harmonics = harmonics / np.sqrt((harmonics**2) @ self.weights)[:, None]
        self.eigenvalues = convolution_eigenvalues(beta, ORDERS, kernel, dim)[1:]

    def coefficients(self, density: np.ndarray) -> np.ndarray:
        return self.harmonics @ (self.weights * density)

    def potential(self, coefficients: np.ndarray) -> np.ndarray:
        """beta Phi up to a constant."""
        field = (self.eigenvalues * coefficients) @ self.harmonics
        return field if self.kernel == "exponential" else np.log1p(np.maximum(field, -1.0 + 1e-15))

    def normalised(self, log_density: np.ndarray) -> np.ndarray:
        density = np.exp(log_density - log_density.max())
        return density / (self.weights @ density)

    def solve(self, amplitude: float, guess: np.ndarray | None = None) -> tuple[float, np.ndarray]:
        """Return the strength of noise, and the coefficients, of the stationary density with a mean cosine."""
        from scipy.optimize import brentq

        found = guess
        if found is None:
            found = self.coefficients(self.normalised(amplitude * self.dim * self.t))
        inverse = 0.0
        previous: list[np.ndarray] = []
        for _ in range(ITERATIONS):
            potential = self.potential(found)

            def excess(log_inverse: float, potential: np.ndarray = potential) -> float:
                return float(self.weights @ (self.t * self.normalised(math.exp(log_inverse) * potential))) - amplitude

            centre = math.log(self.dim * amplitude / (1.0 - amplitude**2) / max(float(np.ptp(potential)) / 2.0, 1e-300))
            low, high = centre - 1.0, centre + 1.0
            while excess(low) > 0:
                low -= 1.0
            while excess(high) < 0:
                high += 1.0
                if high > centre + 60.0:
                    raise InputError(f"no stationary density with the mean cosine {amplitude:g} was found")
            inverse = math.exp(brentq(excess, low, high, xtol=1e-15, rtol=1e-15))  # type: ignore[arg-type]
            new = self.coefficients(self.normalised(inverse * potential))
            change = float(np.abs(new - found).max())
            previous.append(new)
            found = new
            if change < CLOSE * max(1.0, float(np.abs(found).max())):
                break
            if len(previous) == 3:  # Aitken's extrapolation of the slowest direction
                first, second = previous[1] - previous[0], previous[2] - previous[1]
                rate = float(first @ second) / max(float(first @ first), 1e-300)
                if abs(rate) < 0.99:
                    found = previous[2] + second * rate / (1.0 - rate)
                previous = []
        else:
            raise InputError(f"the iteration for the mean cosine {amplitude:g} did not converge: give a smaller one")
        return 1.0 / (self.beta * inverse), found

    def free_energy(self, noise: float, coefficients: np.ndarray) -> float:
        """Free energy less that of the uniform density."""
        density = self.normalised(self.potential(coefficients) / (self.beta * noise))
        entropy = float(self.weights @ (density * np.log(np.maximum(density, 1e-300))))
        return noise * entropy - float((self.eigenvalues * coefficients**2).sum()) / (2.0 * self.beta)


@dataclass(frozen=True, eq=False)
class Branch:
    r"""Stationary densities that are not uniform, around one axis, as a curve that is followed past its folds.

    Attributes
    ----------
    beta, kernel, dim : the law.
    amplitude : mean cosine to the axis, (m,), increasing.
    noise : strength of noise at which the density with that amplitude is stationary, (m,).
    free_energy : less that of the uniform density, (m,); negative where the ordered state is preferred. None for softmax, whose
        dynamics with noise have no known free energy.
    critical : noise above which the uniform density is stable, where the branch begins.
    """

    beta: float
    kernel: str
    dim: int
    amplitude: np.ndarray
    noise: np.ndarray
    free_energy: np.ndarray | None
    critical: float
    _zonal: Zonal
    _coefficients: np.ndarray

    def noise_at(self, amplitude: float) -> float:
        """The strength of noise at which the density with a given mean cosine is stationary."""
        return self._solve(amplitude)[0]

    def _solve(self, amplitude: float) -> tuple[float, np.ndarray]:
        _check_amplitude(amplitude)
        near = int(np.abs(self.amplitude - amplitude).argmin())
        return self._zonal.solve(amplitude, self._coefficients[near])

    def density(self, amplitude: float, size: int = 256) -> Density:
        """The stationary density on the circle with a given mean cosine, with its maximum at the angle 0."""
        if self.dim != 2:
            raise UnsupportedError(
                f"a Density lives on the circle, and this branch on the sphere of dimension {self.dim}"
            )
        noise, coefficients = self._solve(amplitude)
        angles = np.arange(ORDERS + 1)
        modes = np.zeros(ORDERS + 1)
        modes[1:] = coefficients / math.sqrt(2.0)  # the harmonics are sqrt(2) cos(k theta)

        def function(theta: np.ndarray) -> np.ndarray:
            waves = np.cos(np.multiply.outer(theta, angles[1:]))
            field = waves @ (2.0 * self._zonal.eigenvalues * modes[1:])
            potential = field if self.kernel == "exponential" else np.log1p(field)
            return np.exp((potential - potential.max()) / (self.beta * noise))

        return Density.from_function(function, size)

    def profile(self, amplitude: float) -> tuple[np.ndarray, np.ndarray]:
        """Cosines to the axis and the density there, relative to the uniform one."""
        noise, coefficients = self._solve(amplitude)
        return self._zonal.t, self._zonal.normalised(self._zonal.potential(coefficients) / (self.beta * noise))

    @cached_property
    def folds(self) -> list[tuple[float, float]]:
        """Amplitude and noise where the branch turns: states between two folds are unstable."""
        from scipy.optimize import minimize_scalar

        noise = np.concatenate(([self.critical], self.noise))
        amplitude = np.concatenate(([0.0], self.amplitude))
        found = []
        for k in range(1, len(noise) - 1):
            slopes = noise[k] - noise[k - 1], noise[k + 1] - noise[k]
            if slopes[0] * slopes[1] < 0:
                sign = -1.0 if slopes[0] > 0 else 1.0
                best: Any = minimize_scalar(
                    lambda a, sign=sign: sign * self.noise_at(float(a)),
                    bounds=(max(amplitude[k - 1], 1e-3), amplitude[k + 1]),
                    method="bounded",
                    options={"xatol": 1e-8},
                )
                found.append((float(best.x), float(sign * best.fun)))
        return found

    @cached_property
    def transition(self) -> tuple[float, float] | None:
        """Amplitude and noise where the ordered and the uniform state have the same free energy; None if there is no such state."""
        from scipy.optimize import brentq

        if self.free_energy is None:
            raise UnsupportedError("no free energy is known for softmax with noise")

        def energy(amplitude: float) -> float:
            return self._zonal.free_energy(*self._solve(amplitude))

        signs = np.sign(self.free_energy)
        for k in range(len(signs) - 1):
            if signs[k] > 0 > signs[k + 1]:
                place = float(brentq(energy, self.amplitude[k], self.amplitude[k + 1], xtol=1e-12))  # type: ignore[arg-type]
                return place, self.noise_at(place)
        return None

    @property
    def stable(self) -> np.ndarray:
        """Whether states are stable against zonal deviations, (m,): noise falls with the amplitude there, and turns at folds."""
        noise = np.concatenate(([self.critical], self.noise))
        amplitude = np.concatenate(([0.0], self.amplitude))
        return np.gradient(noise, amplitude)[1:] < 0

    def plot(self, path: Any = None) -> Any:
        """Draw the bifurcation diagram: mean cosine over noise, unstable parts dashed."""
        from attractor.plotting import Curve, Panel, draw_panels

        curves, stable = [], self.stable
        edges = [0, *(np.flatnonzero(stable[1:] != stable[:-1]) + 1), len(stable)]
        for begin, end in pairwise(edges):
            some = slice(begin, min(end + 1, len(stable)))
            kind = "stable" if stable[begin] else "unstable"
            first = ([self.critical], [0.0]) if begin == 0 else ([], [])
            x, y = np.append(first[0], self.noise[some]), np.append(first[1], self.amplitude[some])
            curves.append(Curve(list(x), list(y), kind, dashed=not stable[begin]))
        top = 1.25 * max(float(self.noise.max()), self.critical)
        curves.append(Curve([self.critical, top], [0.0, 0.0], "uniform, stable"))
        curves.append(Curve([0.0, self.critical], [0.0, 0.0], "uniform, unstable", dashed=True))
        place = "circle" if self.dim == 2 else f"sphere of dimension {self.dim}"
        words = f"The uniform density is stable above the noise {self.critical:.6g}."
        if self.folds:
            words += " The branch turns at the noise " + ", ".join(f"{noise:.6g}" for _, noise in self.folds) + "."
        title = f"Stationary densities under {self.kernel} attention with beta = {self.beta:g} on the {place}"
        return draw_panels([Panel(tuple(curves), x="strength of noise", y="mean cosine")], title, words, path)

    def row(self) -> dict[str, Any]:
        """The branch for JSON."""
        found: dict[str, Any] = {"beta": self.beta, "kernel": self.kernel, "dim": self.dim, "critical": self.critical}
        found |= {"amplitude": self.amplitude.tolist(), "noise": self.noise.tolist(), "stable": self.stable.tolist()}
        found["folds"] = [{"amplitude": amplitude, "noise": noise} for amplitude, noise in self.folds]
        if self.free_energy is not None:
            found["free_energy"] = self.free_energy.tolist()
            found["transition"] = (
                None if self.transition is None else dict(zip(("amplitude", "noise"), self.transition, strict=True))
            )
        return found


def _check_amplitude(amplitude: float) -> None:
    if not 0 < amplitude <= LARGEST:
        raise InputError(f"a mean cosine lies between 0 and {LARGEST:g} here, got {amplitude:g}")


def stationary_branch(
    beta: float, kernel: str = "softmax", dim: int = 2, *, amplitudes: Sequence[float] | None = None
) -> Branch:
    r"""Follow the stationary densities with one maximum from the uniform density on.

    For every mean cosine a the equation :math:`f\propto e^{\Phi/\epsilon}` is solved for f and :math:`\epsilon` together. The curve is
    a function of a where it is none of :math:`\epsilon`, so that folds need no special treatment.

    Parameters
    ----------
    beta, kernel, dim : the law, on the unit sphere of :math:`\mathbb{R}^d`.
    amplitudes : mean cosines, increasing, between 0 and 0.98; by default 49 from 0.02 on.

    Returns
    -------
    Branch
    """
    _check(beta, kernel, dim)
    wanted = np.linspace(0.02, LARGEST, 49) if amplitudes is None else np.asarray(amplitudes, dtype=np.float64)
    if wanted.ndim != 1 or len(wanted) < 1 or (np.diff(wanted) <= 0).any():
        raise InputError("amplitudes must be increasing numbers")
    for amplitude in wanted:
        _check_amplitude(float(amplitude))
    zonal, noises, rows, guess = Zonal(beta, kernel, int(dim)), [], [], None
    for amplitude in wanted:
        noise, guess = zonal.solve(float(amplitude), guess)
        noises.append(noise)
        rows.append(guess)
    energies = None
    if kernel == "exponential":
        energies = np.array([zonal.free_energy(noise, row) for noise, row in zip(noises, rows, strict=True)])
    critical = critical_noise(beta, kernel, int(dim))
    return Branch(beta, kernel, int(dim), wanted, np.array(noises), energies, critical, zonal, np.array(rows))


# ---------------------------------------------------------------------- finitely many tokens, and the free energy


def invariant_log_density(law: Law, tokens: Tokens, noise: Any) -> Tensor:
    r"""Return the logarithm of the invariant density of n tokens with noise on the unit sphere, up to a constant, (...).

    Exponential kernel, :math:`P = \beta I`, V = I, masses m and strengths :math:`\epsilon_i` with the same
    :math:`\epsilon_i m_i = \kappa` for all tokens: the dynamics are reversible for

    .. math:: \exp\Big(\frac1{2\beta\kappa}\sum_{jk} m_j m_k e^{\beta\langle x_j,x_k\rangle}\Big).

    Softmax: known for two tokens, :math:`c = \langle x_1,x_2\rangle`, and the same strength of both,
    :math:`[(m_1e^\beta+m_2e^{\beta c})(m_2e^\beta+m_1e^{\beta c})]^{1/(2\beta\epsilon)}`. With three or more tokens softmax is not
    reversible, and no formula is known.
    """
    beta = _isotropic_beta(law, "an invariant density")
    assert isinstance(law, Attention)
    masses = tokens.weights.to(tokens.points)
    strengths = torch.as_tensor(noise, dtype=tokens.points.dtype).expand(tokens.n)
    if not bool((strengths > 0).all()):
        raise InputError("an invariant density needs a positive strength of noise")
    gram = tokens.points @ tokens.points.mT
    if _kind(law) == "exponential":
        products = strengths * masses
        if bool((products - products[..., :1]).abs().max() > 1e-12 * products.abs().max()):
            raise UnsupportedError(
                "with these masses and strengths the dynamics are not reversible: strength times mass must be the same for all tokens"
            )
        pairs = masses.unsqueeze(-1) * masses.unsqueeze(-2) * (beta * gram).exp()
        return pairs.sum((-2, -1)) / (2.0 * beta * products[..., 0])
    if _kind(law) != "softmax":
        raise UnsupportedError(f"no invariant density is known for the {law.kernel.label} kernel")
    if tokens.n != 2:
        raise UnsupportedError(
            f"softmax with noise is not reversible for three or more tokens, got {tokens.n}: no invariant density is known"
        )
    if float(strengths[0]) != float(strengths[1]):
        raise UnsupportedError("the invariant density of two tokens under softmax is known for equal strengths")
    partition = (masses.unsqueeze(-2) * (beta * (gram - 1.0)).exp()).sum(-1)
    return partition.log().sum(-1) / (2.0 * beta * float(strengths[0]))


def _kind(law: Attention) -> str | None:
    """How weights follow from inner products of queries and keys; None for kernels of other scores."""
    return law.kernel.mode if law.kernel.bilinear and law.kernel.plain else None


def _isotropic_beta(law: Law, what: str) -> float:
    """beta of a law with P = beta I and V = I; raise for others."""
    value = law.value_map.double().squeeze() if isinstance(law, Attention) and law.heads == 1 else None
    if (
        not isinstance(law, Attention)
        or value is None
        or law.beta is None
        or law.mask is not None
        or law.positions is not None
        or float((value - torch.eye(law.dim, dtype=torch.float64)).abs().max()) > 1e-12
    ):
        raise UnsupportedError(f"{what} is known for Attention.isotropic(dim, beta), without a mask or positions")
    if law.beta <= 0:
        raise UnsupportedError(f"{what} is known for a positive beta, got {law.beta:g}")
    return float(law.beta)


def free_energy(law: Law, density: Density, noise: float) -> np.ndarray:
    r"""Return the free energy of a density on the circle, which never grows along its flow, (...).

    :math:`\epsilon\int f\log f\,d\theta - \frac1{2\beta}\iint e^{\beta\cos(\theta-\phi)}f f` for the exponential kernel with
    :math:`P = \beta I`, V = I. None is known for softmax.
    """
    from scipy.special import iv

    if not isinstance(density, Density):
        raise InputError(f"a free energy is that of a Density, got {type(density).__name__}")
    beta = _isotropic_beta(law, "a free energy")
    assert isinstance(law, Attention)
    if _kind(law) != "exponential":
        raise UnsupportedError(f"a free energy is known for the exponential kernel, not for {law.kernel.name}")
    orders = np.arange(density.order + 1)
    weights = np.where(orders == 0, 1.0, 2.0) * iv(orders, beta)
    energy = (weights * np.abs(density.modes) ** 2).sum(-1)
    return -noise * density.entropy() - energy / (2.0 * beta)
