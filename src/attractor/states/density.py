r"""Densities on the circle: a measure with infinitely many tokens, on a uniform grid of angles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.html_repr import curve, html_card
from attractor.serialization import Record
from attractor.states.arrays import check_finite, to_float_tensor
from attractor.states.tokens import Tokens

SMALLEST, LARGEST = 12, 8192  # points of a grid
RESOLVED = 1e-8  # highest Fourier coefficients of a density that its grid resolves
NEGATIVE = 1e-12  # negative values, relative to the largest, that count as rounding
PART = 0.9  # orders from this part of the highest one on belong to the tail


@dataclass(frozen=True, eq=False)
class Density(Record):
    r"""A probability density f on the unit circle, :math:`f(\theta) = \frac1{2\pi}\sum_k c_k e^{ik\theta}`, :math:`c_0 = 1`.

    It is the mean-field limit of infinitely many tokens in dimension 2. Of the Fourier coefficients those up to the order N/3 are kept
    (the rule of two thirds, so that products have no aliasing error).

    Parameters
    ----------
    values : (..., N), f at the angles :math:`2\pi j/N`, j = 0, ..., N - 1, not negative and up to a factor: they are divided by their
        integral. Leading axes are an ensemble.

    References
    ----------
    [orszag1971elimination]_
    """

    values: Tensor

    def __post_init__(self) -> None:
        values = check_finite(to_float_tensor(self.values, "the density", torch.float64), "the density").cpu()
        if values.ndim < 1 or values.numel() == 0:
            raise InputError(
                f"a density has values (..., N) at N angles of the circle, got shape {tuple(values.shape)}"
            )
        _check_size(values.shape[-1])
        least, most = values.amin(-1), values.amax(-1)
        if bool((least < -NEGATIVE * most.abs()).any()) or bool((most <= 0).any()):
            raise InputError(
                f"a density must not be negative, and not zero everywhere; its values lie between {float(least.min()):.6g} and "
                f"{float(most.max()):.6g}"
            )
        total = 2.0 * math.pi * values.mean(-1, keepdim=True)
        values = torch.where((total - 1.0).abs() > 1e-13, values / total, values)
        tail = torch.fft.rfft(values)[..., values.shape[-1] // 3 + 1 :].abs().amax() * (
            2.0 * math.pi / values.shape[-1]
        )
        if float(tail) > RESOLVED:
            raise InputError(
                f"a grid of {values.shape[-1]} angles does not resolve this density: a Fourier coefficient above the order "
                f"{values.shape[-1] // 3} is {float(tail):.2g}, and at most {RESOLVED:g} may be left out; give more angles, or a "
                "smoother density"
            )
        object.__setattr__(self, "values", values)

    # ------------------------------------------------------------------ constructors

    @classmethod
    def uniform(cls, size: int = 256) -> Density:
        """Return the uniform density on a grid of ``size`` angles."""
        _check_size(size)
        return cls(torch.full((size,), 1.0 / (2.0 * math.pi), dtype=torch.float64))

    @classmethod
    def from_modes(cls, modes: Sequence[complex] | Any, size: int = 256) -> Density:
        r"""Return the density with given Fourier coefficients :math:`c_1, c_2, \dots`, (..., m).

        :math:`c_k = \int e^{-ik\theta}f\,d\theta`; those of higher order are zero.
        """
        _check_size(size)
        try:
            given = np.asarray(modes, dtype=np.complex128)
        except (TypeError, ValueError):
            raise InputError(f"modes are the numbers c_1, c_2, ..., got {modes!r}") from None
        if given.ndim < 1 or given.shape[-1] > size // 3:
            raise InputError(
                f"a grid of {size} angles has the modes c_1, ..., c_{size // 3}, got an array of shape {given.shape}"
            )
        if not np.isfinite(given).all():
            raise InputError("modes must be finite")
        full = np.zeros((*given.shape[:-1], size // 3 + 1), dtype=np.complex128)
        full[..., 0], full[..., 1 : given.shape[-1] + 1] = 1.0, given
        return cls(torch.from_numpy(grid_values(full, size)))

    @classmethod
    def from_function(cls, function: Callable[[np.ndarray], Any], size: int = 256) -> Density:
        """Return the density proportional to a function of the angle."""
        _check_size(size)
        return cls(torch.as_tensor(np.asarray(function(grid_angles(size)), dtype=np.float64)))

    @classmethod
    def von_mises(cls, concentration: float, angle: float = 0.0, size: int = 256) -> Density:
        r"""Return the density proportional to :math:`e^{\kappa\cos(\theta-\theta_0)}`."""
        if not math.isfinite(concentration) or not math.isfinite(angle):
            raise InputError(f"concentration and angle must be finite, got {concentration} and {angle}")
        return cls.from_function(lambda theta: np.exp(concentration * np.cos(theta - angle) - abs(concentration)), size)

    # ------------------------------------------------------------------ what it is

    @property
    def size(self) -> int:
        """Number of angles."""
        return self.values.shape[-1]

    @property
    def order(self) -> int:
        """Highest order of the Fourier coefficients."""
        return self.size // 3

    @property
    def dim(self) -> int:
        return 2

    @property
    def batch_shape(self) -> torch.Size:
        """The ensemble axes."""
        return self.values.shape[:-1]

    @property
    def angles(self) -> np.ndarray:
        """The angles of the grid, (N,)."""
        return grid_angles(self.size)

    @cached_property
    def modes(self) -> np.ndarray:
        r"""Fourier coefficients :math:`c_0 = 1, c_1, \dots` up to the order N/3, (..., order + 1), complex."""
        found = np.fft.rfft(self.values.numpy())[..., : self.order + 1] * (2.0 * np.pi / self.size)
        found[..., 0] = 1.0
        return found

    @property
    def tail(self) -> np.ndarray:
        """Largest Fourier coefficient among the highest orders, (...): the error of the truncation."""
        return modes_tail(self.modes)

    def rows(self) -> Tensor:
        """Return real and imaginary parts of the Fourier coefficients, (..., order + 1, 2), the state that a flow integrates."""
        return torch.view_as_real(torch.from_numpy(self.modes)).clone()

    def with_points(self, rows: Tensor) -> Density:
        """Return the density with these Fourier coefficients, without checks."""
        density = object.__new__(Density)
        modes = torch.view_as_complex(rows.detach().cpu().double().contiguous()).numpy()
        object.__setattr__(density, "values", torch.from_numpy(grid_values(modes, self.size)))
        density.__dict__["modes"] = modes
        return density

    def at(self, angles: Any) -> np.ndarray:
        """Evaluate the density at any angles (m,): (..., m)."""
        angles = np.asarray(angles, dtype=np.float64)
        waves = np.exp(1j * np.multiply.outer(np.arange(self.order + 1), angles))
        weights = np.where(np.arange(self.order + 1) == 0, 1.0, 2.0) / (2.0 * np.pi)
        return np.tensordot(self.modes * weights, waves, axes=1).real

    def tokens(self) -> Tokens:
        """Return the points of the grid as tokens (..., N, 2) with masses f(theta) 2 pi / N: integrals become sums."""
        masses = self.values.clamp_min(0.0) * (2.0 * math.pi / self.size)
        points = circle_points(self.angles).expand(*self.batch_shape, -1, -1)
        return Tokens.unchecked(points, masses)

    def sample(self, n: int, seed: int = 0) -> Tokens:
        """Draw n independent tokens (n, 2) from the density."""
        return self._at_levels(np.random.default_rng(seed).random(int(n)), n)

    def quantiles(self, n: int) -> Tokens:
        """Return n tokens (n, 2) at the angles between which the mass is 1/n: a particle approximation without chance."""
        return self._at_levels((np.arange(int(n)) + 0.5) / max(int(n), 1), n)

    def _at_levels(self, levels: np.ndarray, n: int) -> Tokens:
        """Tokens at the angles below which a share of the mass lies, by Newton's method safeguarded by bisection."""
        if int(n) != n or n < 1:
            raise InputError(f"the number of tokens must be a whole number of at least 1, got {n}")
        if self.batch_shape:
            raise InputError(f"this density is an ensemble of shape {tuple(self.batch_shape)}: take one of its members")
        fine = np.linspace(0.0, 2.0 * np.pi, 8 * self.size + 1)
        total = np.maximum.accumulate(self._integral(fine))
        place = np.clip(np.searchsorted(total, levels, side="right"), 1, len(fine) - 1)
        low, high = fine[place - 1], fine[place]
        angle = (low + high) / 2.0
        for _ in range(60):
            gap = self._integral(angle) - levels
            low, high = np.where(gap <= 0, angle, low), np.where(gap > 0, angle, high)
            slope = np.maximum(self.at(angle), 1e-300)
            newton = angle - gap / slope
            angle = np.where((newton >= low) & (newton <= high), newton, (low + high) / 2.0)
            if float((high - low).max()) < 1e-14 or float(np.abs(gap).max()) < 1e-14:
                break
        return Tokens(circle_points(angle))

    def _integral(self, angles: np.ndarray) -> np.ndarray:
        """Mass between the angle 0 and some angles."""
        orders = np.arange(1, self.order + 1)
        found = angles / (2.0 * np.pi)
        for start in range(0, len(angles), 1 << 14):  # bounds the memory
            some = slice(start, start + (1 << 14))
            waves = np.expm1(1j * np.multiply.outer(angles[some], orders)) / (1j * orders)
            found[some] = found[some] + (waves @ self.modes[1:]).real / np.pi
        return found

    def entropy(self) -> np.ndarray:
        r""":math:`-\int f\log f\,d\theta`, (...); :math:`\log 2\pi` of the uniform density."""
        values = np.maximum(self.values.numpy(), 0.0)
        return -np.where(values > 0, values * np.log(np.where(values > 0, values, 1.0)), 0.0).mean(-1) * 2.0 * np.pi

    def peaks(self, prominence: float = 0.05) -> np.ndarray:
        r"""Number of local maxima that exceed both neighbouring minima by ``prominence`` times the uniform density, (...).

        They are the clusters of a density.
        """
        values = self.values.numpy()
        flat = values.reshape(-1, self.size)
        counts = np.array([_count_peaks(row, prominence / (2.0 * np.pi)) for row in flat])
        return counts.reshape(values.shape[:-1])

    def citations(self) -> tuple[str, ...]:
        return ("orszag1971elimination",)

    def _repr_html_(self) -> str:
        """HTML for notebooks, with the graph of the density."""
        rows: dict[str, Any] = {"grid": f"{self.size} angles"}
        rows |= {"ensemble": " x ".join(map(str, self.batch_shape))} if self.batch_shape else {}
        first = self.values.reshape(-1, self.size)[0]
        return html_card("Density", rows, curve(first, "density along the angle"))

    def __repr__(self) -> str:
        return f"Density(size={self.size}, ensemble={tuple(self.batch_shape)})"


def grid_angles(size: int) -> np.ndarray:
    r"""The angles :math:`2\pi j/N`."""
    return 2.0 * np.pi * np.arange(size) / size


def circle_points(angles: np.ndarray) -> Tensor:
    """Points (m, 2) of the unit circle."""
    return torch.from_numpy(np.stack((np.cos(angles), np.sin(angles)), axis=-1))


def grid_values(modes: np.ndarray, size: int) -> np.ndarray:
    """Values (..., N) of the density with Fourier coefficients (..., order + 1)."""
    return np.fft.irfft(modes, n=size) * (size / (2.0 * np.pi))


def modes_tail(modes: np.ndarray) -> np.ndarray:
    """Largest of the highest Fourier coefficients, (...); a symmetric density has zeros among them, so that one is not enough."""
    return np.abs(modes[..., int(PART * (modes.shape[-1] - 1)) :]).max(-1)


def _check_size(size: int) -> None:
    if int(size) != size or not SMALLEST <= size <= LARGEST:
        raise InputError(f"a density needs a grid of {SMALLEST} to {LARGEST} angles of the circle, got {size}")


def _count_peaks(values: np.ndarray, prominence: float) -> int:
    """Number of maxima along a closed curve that rise by the prominence above the minima on both sides."""
    start = int(values.argmin())
    turned = np.append(np.roll(values, -start), values[start])
    count, low, high, rising = 0, turned[0], turned[0], False
    for value in turned[1:]:
        if rising:
            high = max(high, value)
            if value < high - prominence:
                count, rising, low = count + 1, False, value
        else:
            low = min(low, value)
            if value > low + prominence:
                rising, high = True, value
    return count
