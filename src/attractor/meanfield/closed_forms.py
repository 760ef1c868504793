r"""Gaussian flows that can be written down [castin2025unified; derived for this project].

With :math:`A = \text{scale}\,K^\top Q`, :math:`S = (A + A^\top)/2` and :math:`\Sigma_0^{1/2}` any factor:

- softmax, V = I: :math:`\Sigma_t^{-1} + 2tS` is conserved, :math:`\Sigma_t = L_0(I - 2tM)^{-1}L_0^\top` with
  :math:`M = L_0^\top SL_0`; it blows
  up at :math:`T^* = 1/(2\lambda_{\max}(M))` along :math:`L_0u_{\max}` if that is positive, and never otherwise. If A is symmetric,
  :math:`\alpha_t = e^t\,L_0(I - 2tM)^{-1/2}L_0^{-1}\alpha_0`, for invertible :math:`L_0`.
- softmax, d = 1: :math:`\sigma_t = \sigma_0/(1 - 2va\sigma_0t)`, :math:`\alpha_t = \alpha_0e^{vt}(1 - 2va\sigma_0t)^{-1/2}`.
- softmax, V, A and :math:`\Sigma_0` symmetric and commuting: the case d = 1 in each common eigenvector.
- softmax with :math:`x \mapsto Wx + c`, V = I: :math:`P = \Sigma^{-1}` obeys the linear equation :math:`\dot P = -W^\top P - PW - 2S`.
- sinkhorn, d = 1: with :math:`\sinh\theta = 2a\sigma/\epsilon`, :math:`\theta - \coth(\theta/2) - 2vt` is conserved.
- l2, d = 1, Q = K: with :math:`w = k^2`, :math:`-1/(4w\sigma) + \tfrac12\ln\sigma - vt` is conserved.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from attractor.errors import InputError


def identity_value_covariance(interaction: ArrayLike, covariance: ArrayLike, time: float) -> np.ndarray:
    """The covariance at a time under softmax attention with V = I; ``interaction`` is A (d, d)."""
    S, L = _symmetric(interaction), _factor(covariance)
    values, vectors = np.linalg.eigh(L.T @ S @ L)
    left = 1.0 - 2.0 * time * values
    _before_blow_up(float(left.min(initial=1.0)), values, time)
    return (L @ vectors / left) @ (L @ vectors).T


def identity_value_mean(interaction: ArrayLike, mean: ArrayLike, covariance: ArrayLike, time: float) -> np.ndarray:
    """The mean at a time under softmax attention with V = I and a symmetric A, for an invertible covariance."""
    A, L = np.asarray(interaction, dtype=np.float64), _factor(covariance)
    if np.abs(A - A.T).max() > 1e-12 * np.abs(A).max():
        raise InputError("the mean has this closed form only where A = scale K'Q is symmetric")
    if L.shape[0] != L.shape[1]:
        raise InputError("the mean has this closed form only for an invertible covariance")
    values, vectors = np.linalg.eigh(L.T @ A @ L)
    left = 1.0 - 2.0 * time * values
    _before_blow_up(float(left.min()), values, time)
    inner = vectors.T @ np.linalg.solve(L, np.asarray(mean, dtype=np.float64))
    return math.exp(time) * L @ (vectors @ (inner / np.sqrt(left)))


def identity_value_blow_up(interaction: ArrayLike, covariance: ArrayLike) -> tuple[float, np.ndarray | None]:
    """Blow-up time (infinite if there is none) and unit direction under softmax attention with V = I."""
    L = _factor(covariance)
    values, vectors = np.linalg.eigh(L.T @ _symmetric(interaction) @ L)
    if not len(values) or values[-1] <= 0:
        return math.inf, None
    direction = L @ vectors[:, -1]
    direction = direction / np.linalg.norm(direction)
    return 1.0 / (2.0 * values[-1]), direction * np.sign(direction[np.abs(direction).argmax()])


def identity_value_limit(interaction: ArrayLike, covariance: ArrayLike, tolerance: float = 1e-12) -> np.ndarray:
    r"""The limit for V = I and :math:`S \le 0`: :math:`N(N^\top\Sigma_0^{-1}N)^{-1}N^\top`, N a basis of ker S; invertible covariance.

    Written with :math:`L_0`, it is :math:`L_0\,\Pi\,L_0^\top` with the projection on the kernel of M, for any covariance.
    """
    L = _factor(covariance)
    values, vectors = np.linalg.eigh(L.T @ _symmetric(interaction) @ L)
    size = float(np.abs(values).max(initial=0.0))
    if (values > tolerance * size).any():
        raise InputError(
            f"there is no limit: M has the positive eigenvalue {values.max():.6g}, so the covariance blows up"
        )
    kept = L @ vectors[:, np.abs(values) <= tolerance * size]
    return kept @ kept.T


def one_dimension_moments(
    value: float, interaction: float, mean: float, variance: float, time: float
) -> tuple[float, float]:
    """Mean and variance at a time under softmax attention in one dimension."""
    left = 1.0 - 2.0 * value * interaction * variance * time
    _before_blow_up(left, np.array([value * interaction * variance]), time)
    return mean * math.exp(value * time) / math.sqrt(left), variance / left


def commuting_covariance(value: ArrayLike, interaction: ArrayLike, covariance: ArrayLike, time: float) -> np.ndarray:
    """The covariance at a time under softmax attention where V, A and the covariance are symmetric and commute."""
    rates, vectors, values = _common(value, interaction, covariance)
    left = 1.0 - 2.0 * time * rates * values
    _before_blow_up(float(left.min()), rates * values, time)
    return (vectors * (values / left)) @ vectors.T


def commuting_blow_up(value: ArrayLike, interaction: ArrayLike, covariance: ArrayLike) -> float:
    r"""Blow-up time :math:`1/(2\max_i v_ia_i\lambda_i)` of the commuting case, infinite if that is not positive."""
    rates, _, values = _common(value, interaction, covariance)
    top = float((rates * values).max())
    return 1.0 / (2.0 * top) if top > 0 else math.inf


def affine_feedforward_covariance(
    interaction: ArrayLike, matrix: ArrayLike, covariance: ArrayLike, time: float
) -> np.ndarray:
    r"""The covariance at a time under softmax attention with V = I plus :math:`Wx + c`, for an invertible covariance.

    :math:`P_t = e^{-W^\top t}P_0e^{-Wt} - 2\int_0^t e^{-W^\top u}Se^{-Wu}\,du`; the integral is a block of one matrix exponential.
    """
    from scipy.linalg import expm

    W, S = np.asarray(matrix, dtype=np.float64), _symmetric(interaction)
    d = len(W)
    block = expm(time * np.block([[W.T, 2.0 * S], [np.zeros((d, d)), -W]]))
    shrink = block[d:, d:]  # exp(-W t)
    precision = shrink.T @ (np.linalg.inv(np.asarray(covariance, dtype=np.float64)) @ shrink - block[:d, d:])
    if np.linalg.eigvalsh((precision + precision.T) / 2)[0] <= 0:
        raise InputError(f"the covariance blows up before t = {time:g}")
    return np.linalg.inv((precision + precision.T) / 2)


def one_dimension_sinkhorn_variance(
    value: float, interaction: float, variance: float, time: float, eps: float = 1.0
) -> float:
    """The variance at a time under sinkhorn attention in one dimension: it never blows up."""
    if value == 0 or interaction == 0 or variance == 0:
        return variance
    s, size = math.copysign(1.0, interaction), 2.0 * abs(interaction) / eps
    start = math.asinh(size * variance)

    def conserved(theta: float) -> float:
        return theta - 1.0 / math.tanh(theta / 2.0)

    goal = conserved(start) + 2.0 * value * s * time
    return math.sinh(_increasing(conserved, goal, start)) / size


def one_dimension_l2_variance(value: float, key: float, variance: float, time: float) -> float:
    """The variance at a time under l2 attention with Q = K = k in one dimension."""
    w = key * key
    if value == 0 or w == 0 or variance == 0:
        return variance

    def conserved(log_variance: float) -> float:
        return -math.exp(-log_variance) / (4.0 * w) + 0.5 * log_variance

    start = math.log(variance)
    return math.exp(_increasing(conserved, conserved(start) + value * time, start, signed=True))


def _increasing(function: Callable[[float], float], goal: float, start: float, signed: bool = False) -> float:
    """Where an increasing function takes a value, searched from ``start`` outwards; over all numbers or over the positive ones."""
    from scipy.optimize import brentq

    low = high = start
    while function(high) < goal:
        high = high + 1.0 if signed else 2.0 * high
    while function(low) > goal:
        low = low - 1.0 if signed else 0.5 * low
    return low if low == high else float(brentq(lambda x: function(x) - goal, low, high, xtol=1e-300, rtol=1e-15))  # pyright: ignore


def _common(
    value: ArrayLike, interaction: ArrayLike, covariance: ArrayLike
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Products of the eigenvalues of V and A, the common eigenvectors, and the eigenvalues of the covariance."""
    V, A, Sigma = (np.asarray(part, dtype=np.float64) for part in (value, interaction, covariance))
    for one, other in ((V, V.T), (A, A.T), (V @ A, A @ V), (V @ Sigma, Sigma @ V), (A @ Sigma, Sigma @ A)):
        if np.abs(one - other).max() > 1e-10 * max(1e-300, np.abs(one).max()):
            raise InputError("the commuting case needs V, A and the covariance symmetric, and all to commute")
    _, vectors = np.linalg.eigh(V / _size(V) + math.sqrt(2.0) * A / _size(A) + math.sqrt(3.0) * Sigma / _size(Sigma))
    rates, values = (np.einsum("ji,jk,ki->i", vectors, part, vectors) for part in (V, Sigma))
    return rates * np.einsum("ji,jk,ki->i", vectors, A, vectors), vectors, values


def _size(matrix: np.ndarray) -> float:
    return max(float(np.abs(matrix).max()), 1e-300)


def _symmetric(interaction: ArrayLike) -> np.ndarray:
    A = np.asarray(interaction, dtype=np.float64)
    return (A + A.T) / 2.0


def _factor(covariance: ArrayLike) -> np.ndarray:
    """L (d, r) of full column rank with L L' the covariance."""
    from attractor.states import Gaussian

    Sigma = np.asarray(covariance, dtype=np.float64)
    L = Gaussian(np.zeros(len(Sigma)), Sigma).factor.numpy()  # type: ignore[arg-type]
    return L[:, np.abs(L).max(axis=0) > 0]


def _before_blow_up(left: float, rates: np.ndarray, time: float) -> None:
    if left <= 0:
        when = 1.0 / (2.0 * float(np.max(rates))) if np.max(rates) > 0 else 0.0
        raise InputError(f"the covariance blows up at t = {when:.12g}, so there is none at t = {time:g}")
