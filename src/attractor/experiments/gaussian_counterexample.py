r"""A limit of l2 attention whose rank is above half the dimension: d = 4, K'Q invertible, rank 3.

The rank of limits was said to be at most :math:`\lfloor d/2\rfloor`. Under l2 attention that is false in general. A covariance
:math:`\Sigma = LL^\top` of rank 3 rests, with tokens turning on its image, if :math:`2VPAL = L\Omega` for a skew :math:`\Omega`, where
:math:`P = (\Sigma^{-1} + 2K^\top K)^{-1}` maps into that image; so any Q, K, L and :math:`\Omega` fix V on the image, and V is free on
the rest. The search
draws these until no eigenvalue of the linearisation on symmetric matrices has a positive real part (a skew matrix of odd size has a
kernel, so
resting covariances come in families, and one or two eigenvalues are zero; the others must be negative), and follows covariances of
full rank
drawn at random until one of them has a limit of rank 3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attractor.attention import Attention
from attractor.errors import AttractorError
from attractor.meanfield.isotropy import stationary_residual
from attractor.meanfield.limits import Limit, limit
from attractor.states import Gaussian

NEUTRAL, STABLE = 1e-6, -0.02  # largest real part that counts as zero, and as negative
RESTS = 1e-7  # what is left of the velocity of the limit, relative to |B| |Sigma|


@dataclass(frozen=True)
class Counterexample:
    """The law, the start (full rank) and the limit of rank 3; ``seed`` found it, ``stationary`` is the covariance it was built on."""

    seed: int
    law: Attention
    start: np.ndarray
    limit: Limit
    stationary: np.ndarray
    rates: tuple[float, ...]


def counterexample(first: int = 0, seeds: int = 20_000, starts: int = 3) -> Counterexample:
    """Search seeds in their order; the same numbers give the same example."""
    for seed in range(first, first + seeds):
        draw = np.random.RandomState(seed)
        query, key, value, stationary = candidate(draw)
        rates = growth_rates(query, key, value, stationary)
        if (
            rates[0] > NEUTRAL
            or rates[2] > STABLE
            or np.linalg.cond(key.T @ query) > 100.0
            or np.abs(value).max() > 10.0
        ):
            continue
        law = Attention(query, key, value, kernel="l2")  # type: ignore[arg-type]
        for _ in range(starts):
            root = draw.randn(4, 4)
            found = limit(law, root @ root.T, evaluations=4000)
            resting = stationary_residual(law, Gaussian(np.zeros(4), found.covariance)) < RESTS  # type: ignore[arg-type]
            if found.rank == 3 and resting:
                return Counterexample(seed, law, root @ root.T, found, stationary, tuple(rates))
    raise AttractorError(f"no example was found among {seeds} seeds")


def candidate(draw: np.random.RandomState) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Q, K, V and a covariance of rank 3 that rests under them."""
    query, key, L = draw.randn(4, 4), draw.randn(4, 4), draw.randn(4, 3)
    skew = draw.randn(3, 3)
    inner = np.linalg.inv(np.eye(3) + 2.0 * L.T @ key.T @ key @ L)
    M = 2.0 * inner @ L.T @ key.T @ query @ L  # 2 P A L = L M
    normal = np.linalg.svd(L)[0][:, 3:]
    images = np.hstack((L @ (skew - skew.T) @ np.linalg.inv(M), draw.randn(4, 1)))
    return query, key, images @ np.linalg.inv(np.hstack((L, normal))), L @ L.T


def growth_rates(query: np.ndarray, key: np.ndarray, value: np.ndarray, covariance: np.ndarray) -> list[float]:
    """Real parts, from the largest down, of the eigenvalues of the linearised flow on symmetric matrices."""
    A, gram, d = key.T @ query, 2.0 * key.T @ key, len(covariance)

    def velocity(Sigma: np.ndarray) -> np.ndarray:
        B = 2.0 * value @ np.linalg.solve(np.eye(d) + Sigma @ gram, Sigma @ A)
        return B @ Sigma + Sigma @ B.T

    rows, columns = np.triu_indices(d)
    jacobian = np.zeros((len(rows), len(rows)))
    for index, (i, j) in enumerate(zip(rows, columns, strict=True)):
        change = np.zeros((d, d))
        change[i, j] = change[j, i] = 1e-5
        jacobian[:, index] = ((velocity(covariance + change) - velocity(covariance - change)) / 2e-5)[rows, columns]
    return sorted((float(rate) for rate in np.linalg.eigvals(jacobian).real), reverse=True)
