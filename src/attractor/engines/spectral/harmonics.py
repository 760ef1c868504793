"""Harmonic expansion of exp(<x, y>) on the circle and the sphere: coefficients, truncation error, basis functions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

HIGHEST = 420  # order up to which harmonics of high degree stay within the range of float64
NEGLIGIBLE = 1e-30  # coefficients below it are left out of the sums


@lru_cache(maxsize=64)
def coefficients(dim: int, beta: float) -> np.ndarray:
    """All coefficients of the series that are not negligible; they sum to one."""
    if beta < NEGLIGIBLE:
        return np.ones(1)
    half = 0.0 if dim == 2 else 0.5
    start, bound = 0, 1.0
    while bound > NEGLIGIBLE:
        bound *= beta / (start + 0.5 + half + np.hypot(beta, start + 0.5 + half))
        start += 1
    values = np.zeros(start + 4)
    values[start + 2] = 1e-280
    # downwards, where the recurrence is stable: I_{v-1} = I_{v+1} + (2v / beta) I_v
    for degree in range(start + 2, 0, -1):
        values[degree - 1] = values[degree + 1] + 2.0 * (degree + half) / beta * values[degree]
    degrees = np.arange(len(values))
    values *= np.where(degrees == 0, 1.0, 2.0) if dim == 2 else 2.0 * degrees + 1.0
    values /= values.sum()
    values.setflags(write=False)
    return values


def truncation_error(dim: int, beta: float, order: int) -> float:
    """The sup over the sphere of the kernel's error if the series stops at this order, relative to the kernel's maximum."""
    return float(coefficients(dim, beta)[order + 1 :].sum())


@lru_cache(maxsize=256)
def order_for(dim: int, beta: float, tolerance: float) -> int:
    """The smallest order whose truncation error is at most the tolerance."""
    tails = np.cumsum(coefficients(dim, beta)[::-1])[::-1]
    return max(0, int(np.count_nonzero(tails > tolerance)) - 1)


@dataclass(frozen=True)
class Basis:
    """Tables up to an order; on the sphere they are (order + 1, stride) over (m, l), on the circle (order + 1, 1) over m."""

    dim: int
    order: int

    @property
    def stride(self) -> int:
        return self.order + 3 if self.dim == 3 else 1

    @cached_property
    def scales(self) -> np.ndarray:
        """s over (m, l), infinite where there is no harmonic."""
        if self.dim == 2:
            return np.ones((self.order + 1, 1))
        rows = np.arange(self.order + 1)
        scales = np.full((self.order + 1, self.stride), np.inf)
        factors = np.concatenate([[1.0], (2.0 * rows[1:] + 1.0) / (2.0 * rows[1:])])
        scales[rows, rows] = scales[rows, rows + 1] = 1.0 / np.sqrt(np.cumprod(factors))
        for gap in range(2, self.order + 1):
            m = rows[: self.order + 1 - gap]
            scales[m, m + gap] = scales[m, m + gap - 2] * _e(m + gap, m) / _e(m + gap - 1, m)
        return scales

    @cached_property
    def steps(self) -> np.ndarray:
        """Of the recurrence :math:`Q_{l+1} = step_{lm} z Q_l - Q_{l-1}`."""
        if self.dim == 2:
            return np.zeros((1, 1))
        m, degree = np.mgrid[: self.order + 1, : self.stride - 1]
        steps = np.zeros((self.order + 1, self.stride))
        inside = (degree >= m) & (degree < self.order)
        after = self.scales[:, 1:][inside] / self.scales[:, :-1][inside]
        steps[:, :-1][inside] = after / _e(degree[inside] + 1, m[inside])
        return steps


@lru_cache(maxsize=32)
def basis(dim: int, order: int) -> Basis:
    return Basis(dim, order)


def series(tables: Basis, beta: float, order: int, sums: np.ndarray) -> np.ndarray:
    """Coefficients (channels, m, l) of the kernel's sums from those of harmonics, up to an order."""
    weights = coefficients(tables.dim, beta)[: order + 1]
    if tables.dim == 2:
        return sums[:, : order + 1] * weights[:, None]
    degrees = np.arange(order + 1)
    by_degree = np.zeros(tables.stride)
    by_degree[: order + 1] = weights / (2.0 * degrees + 1.0)
    by_order = np.where(degrees == 0, 1.0, 2.0)[:, None]
    return sums[:, : order + 1] * (by_degree * by_order / tables.scales[: order + 1])


def with_coordinates(tables: Basis, sums: np.ndarray) -> np.ndarray:
    """From the sums (m, l) of harmonics: those of harmonics, and of harmonics times x, y (and z), one order less."""
    return _on_circle(sums) if tables.dim == 2 else _on_sphere(tables, sums)


def _on_circle(sums: np.ndarray) -> np.ndarray:
    below = np.concatenate([sums[1:2].conj(), sums[:-2]])
    above = sums[1:]
    return np.stack([sums[:-1], (above + below) / 2.0, (above - below) / 2.0j])


def _on_sphere(tables: Basis, sums: np.ndarray) -> np.ndarray:
    order = tables.order - 1
    outwards, inwards, upwards = _products(order)
    # a frame of zeros, so that every (m, l) has all its neighbours
    framed = np.zeros((order + 4, order + 4), dtype=complex)
    framed[1:-1, 1:-1] = sums[:, : order + 2]
    size = order + 1

    def neighbours(dm: int, dl: int) -> np.ndarray:
        return framed[1 + dm : 1 + dm + size, 1 + dl : 1 + dl + size]

    outward = outwards[0] * neighbours(1, 1) - outwards[1] * neighbours(1, -1)
    inward = inwards[1] * neighbours(-1, -1) - inwards[0] * neighbours(-1, 1)
    inward[0] = outward[0].conj()
    result = np.zeros((4, size, tables.stride), dtype=complex)
    result[0, :, :size] = neighbours(0, 0)
    result[1, :, :size] = (outward + inward) / 2.0
    result[2, :, :size] = (outward - inward) / 2.0j
    result[3, :, :size] = upwards[0] * neighbours(0, 1) + upwards[1] * neighbours(0, -1)
    return result


@lru_cache(maxsize=32)
def _products(order: int) -> tuple[tuple[np.ndarray, ...], ...]:
    r"""Factors of :math:`u\Psi_{lm} = c_1 \Psi_{l+1,m+1} - c_2 \Psi_{l-1,m+1}` for u = x + iy, of
    :math:`\bar u\Psi_{lm} = -c_3\Psi_{l+1,m-1} + c_4\Psi_{l-1,m-1}`, and of z; zero where l < m."""
    m, degree = np.mgrid[: order + 1, : order + 1].astype(float)
    inside = degree >= m
    above, below = (2 * degree + 1) * (2 * degree + 3), (2 * degree - 1) * (2 * degree + 1)

    def root(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
        return np.sqrt(np.where(inside & (numerator > 0), numerator, 0.0) / np.where(denominator > 0, denominator, 1.0))

    outward = root((degree + m + 1) * (degree + m + 2), above), root((degree - m) * (degree - m - 1), below)
    inward = root((degree - m + 1) * (degree - m + 2), above), root((degree + m) * (degree + m - 1), below)
    return outward, inward, (_e(degree + 1, m) * inside, _e(degree, m))


def _e(degree: np.ndarray, m: np.ndarray) -> np.ndarray:
    return np.sqrt(np.maximum(degree * degree - m * m, 0.0) / np.abs(4.0 * degree * degree - 1.0))
