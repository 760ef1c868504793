"""States of a Gaussian shortly before its blow-up, in which eigenvalues that stay finite keep their digits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import integrate, optimize

from attractor.errors import AttractorError
from attractor.laws import Law, closure_field
from attractor.solvers.gaussian_integration import PARALLEL, RELATIVE, TINY, RescaledGaussian

LEFT = (1e-12, 1e-17)  # time left at two states, relative to the length of the run
MOST_STEPS = 5_000
SWEEPS = 60


def orthogonalise_graded(factors: np.ndarray) -> np.ndarray:
    r"""Factors (..., d, r) of the same covariances with orthogonal columns, the longest first.

    One-sided Jacobi rotations: they keep the relative accuracy of short columns beside long ones, which the singular value
    decomposition loses, since its errors are relative to the longest column.
    """
    columns = np.moveaxis(np.array(factors, dtype=np.float64), -1, 0)
    for _ in range(SWEEPS):
        largest = 0.0
        for i in range(len(columns)):
            for j in range(i + 1, len(columns)):
                largest = max(largest, _rotate(columns, i, j))
        if largest < 1e-15:
            break
    order = np.argsort(-np.linalg.norm(columns, axis=-1), axis=0, kind="stable")
    return np.moveaxis(np.take_along_axis(columns, order[..., None], axis=0), 0, -1)


def _rotate(columns: np.ndarray, i: int, j: int) -> float:
    """Make two columns orthogonal; return the largest cosine that they had."""
    x, y = columns[i].copy(), columns[j].copy()
    a, b = np.linalg.norm(x, axis=-1), np.linalg.norm(y, axis=-1)
    cosine = np.sum(x / np.maximum(a, TINY)[..., None] * (y / np.maximum(b, TINY)[..., None]), axis=-1)
    # tan of the angle solves t^2 + 2 z t - 1 = 0, z = (b^2 - a^2) / (2 a b cosine); the smaller root is stable
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        z = (b / a - a / b) / (2 * cosine)
        tangent = np.where(z >= 0, 1.0, -1.0) / (np.abs(z) + np.hypot(1.0, z))
    tangent = np.where((cosine != 0) & np.isfinite(tangent), tangent, 0.0)[..., None]
    c = 1 / np.hypot(1.0, tangent)
    columns[i], columns[j] = c * (x - tangent * y), c * (tangent * x + y)
    return float(np.abs(cosine).max(initial=0.0))


def factor_eigenvalues(factors: np.ndarray) -> np.ndarray:
    """Eigenvalues (..., d) of covariances from factors (..., d, r), the largest first, each with its own relative accuracy."""
    values = np.linalg.norm(orthogonalise_graded(factors), axis=-2) ** 2
    missing = factors.shape[-2] - values.shape[-1]
    return np.concatenate((values, np.zeros((*values.shape[:-1], max(missing, 0)))), axis=-1)[..., : factors.shape[-2]]


@dataclass(frozen=True, eq=False)
class Approach:
    """States (k, 1 + d, d) at the requested times, the last state, and one some decades before it, each as rows (1 + d, d).

    ``left`` are the times left at ``earlier`` and ``last``, relative to the length of the run.
    """

    states: np.ndarray
    last: np.ndarray
    earlier: np.ndarray
    left: tuple[float, float]


def integrate_to_blow_up(
    law: Law, rows: np.ndarray, start: float, end: float, times: Sequence[float] | np.ndarray, rtol: float
) -> Approach:
    r"""Integrate a Gaussian, given as rows (1 + d, d), from ``start`` to its blow-up at ``end``, and save it at ``times`` before.

    The tolerance is relative to each column of the factor, and columns that become parallel are made orthogonal, so that short
    columns remain accurate although the longest grows without bound. The last state is :math:`10^{-17}(T^* - t_0)` before the
    blow-up, in rescaled time, which knows no rounding of t.
    """
    columns = np.flatnonzero(np.abs(rows[1:]).max(axis=1) > 0)
    factor = orthogonalise_graded(rows[1:][columns].T) if len(columns) else np.zeros((rows.shape[1], 1))
    dim, rank = factor.shape
    cut, length = rank * dim, end - start
    problem = RescaledGaussian(closure_field(law), rank, dim, start, end)
    z, tau, step, solver = problem.pack(rows[0], factor), 0.0, None, None
    due, found, earlier, before = list(times), [], None, LEFT[0]
    rate = problem.velocity(*problem.unpack(z))[2]
    for _ in range(MOST_STEPS):
        if solver is None:
            atol: Any = _tolerances(z, cut, rank, rtol)
            solver = integrate.DOP853(problem, tau, z, np.inf, rtol=RELATIVE, atol=atol, first_step=step)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            if solver.step() is not None or not np.isfinite(solver.y).all():
                break
        z, old, inside = solver.y, tau, solver.dense_output()
        tau = solver.t
        while due and problem.time(z) >= due[0]:
            found.append(_rows_at(problem, inside(_find_tau(inside, old, tau, problem.clock(due.pop(0)))), rows.shape))
        mean, factor = problem.unpack(z)
        last_rate, rate = rate, problem.velocity(mean, factor)[2]
        growth = np.log(rate / last_rate) / (tau - old)
        left = 1.0 / (rate * growth * length) if growth > 0 else np.inf
        if earlier is None and left <= LEFT[0]:
            earlier, before = _rows_at(problem, z, rows.shape), left
        if left <= LEFT[1]:
            found += [_rows_at(problem, z, rows.shape)] * len(due)  # times within rounding of the blow-up
            assert earlier is not None
            states = np.array(found).reshape(-1, *rows.shape)
            return Approach(states, _rows_at(problem, z, rows.shape), earlier, (before, left))
        solver.atol = _tolerances(z, cut, rank, rtol)
        shape = z[:cut].reshape(dim, rank)
        if rank > 1 and _largest_cosine(shape) > PARALLEL:
            z = np.concatenate((orthogonalise_graded(shape).ravel(), z[cut:]))
            step, solver = min(solver.h_abs, 1.0), None
    raise AttractorError(f"the approach to the blow-up at t = {end:.12g} could not be resolved")


def _tolerances(z: np.ndarray, cut: int, rank: int, rtol: float) -> np.ndarray:
    """Absolute tolerances: of each column of the factor relative to its length, of all else ``rtol``."""
    lengths = np.maximum(np.linalg.norm(z[:cut].reshape(-1, rank), axis=0), TINY)
    return rtol * np.concatenate((np.tile(lengths, cut // rank), np.ones(len(z) - cut)))


def _largest_cosine(shape: np.ndarray) -> float:
    unit = shape / np.maximum(np.linalg.norm(shape, axis=0), TINY)
    gram = np.abs(unit.T @ unit)
    np.fill_diagonal(gram, 0.0)
    return float(gram.max(initial=0.0))


def _find_tau(inside: Any, low: float, high: float, theta: float) -> float:
    """The rescaled time at which the interpolant of a step reaches ``theta``."""
    if inside(low)[-1] >= theta:
        return low
    if inside(high)[-1] <= theta:
        return high
    return float(
        optimize.brentq(lambda tau: float(inside(tau)[-1]) - theta, low, high, xtol=4e-16 * max(1.0, high), rtol=1e-15)  # type: ignore[arg-type]
    )


def _rows_at(problem: RescaledGaussian, z: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    mean, factor = problem.unpack(z)
    rows = np.zeros(shape)
    rows[0], rows[1 : 1 + factor.shape[1]] = mean, orthogonalise_graded(factor).T
    return rows
