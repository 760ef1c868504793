r"""A limit of l2 attention whose rank is above half the dimension: d = 4, K'Q invertible, rank 3.

The rank of limits was said to be at most :math:`\lfloor d/2\rfloor`. Under l2 attention that is false in general. A covariance
:math:`\Sigma = LL^\top` of rank 3 rests, with tokens turning on its image, if :math:`2VPAL = L\Omega` for a skew :math:`\Omega`, where
:math:`P = (\Sigma^{-1} + 2K^\top K)^{-1}` maps into that image; so any Q, K, L and :math:`\Omega` fix V on the image, and V is free on the rest. The search
draws these, keeps the first for which all eigenvalues of the linearisation on symmetric matrices have negative real parts, and follows
covariances of full rank drawn at random until one of them goes there. Being stable, the limit persists under small changes of all matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attractor.attention import Attention
from attractor.errors import AttractorError
from attractor.meanfield.limits import Limit, limit

STABLE = -0.02  # largest real part that is accepted


@dataclass(frozen=True)
class Counterexample:
    """The law, the start (full rank) and the limit of rank 3; ``seed`` found it, ``stationary`` is the covariance it was built on."""

    seed: int
    law: Attention
    start: np.ndarray
    limit: Limit
    stationary: np.ndarray
    largest_rate: float


def counterexample(first: int = 0, seeds: int = 20_000, starts: int = 3) -> Counterexample:
    """Search seeds in their order; the same numbers give the same example."""
    for seed in range(first, first + seeds):
        draw = np.random.RandomState(seed)  # noqa: NPY002 reproducible for good
        query, key, value, stationary = candidate(draw)
        rate = largest_rate(query, key, value, stationary)
        if rate > STABLE or np.linalg.cond(key.T @ query) > 100.0 or np.abs(value).max() > 10.0:
            continue
        law = Attention(query, key, value, kernel="l2")
        for _ in range(starts):
            root = draw.randn(4, 4)
            found = limit(law, root @ root.T, evaluations=4000)
            if found.rank == 3:
                return Counterexample(seed, law, root @ root.T, found, stationary, rate)
    raise AttractorError(f"no example was found among {seeds} seeds")


def candidate(draw: np.random.RandomState) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:  # noqa: NPY002
    """Q, K, V and a covariance of rank 3 that rests under them."""
    query, key, L = draw.randn(4, 4), draw.randn(4, 4), draw.randn(4, 3)
    skew = draw.randn(3, 3)
    inner = np.linalg.inv(np.eye(3) + 2.0 * L.T @ key.T @ key @ L)
    M = 2.0 * inner @ L.T @ key.T @ query @ L  # 2 P A L = L M
    normal = np.linalg.svd(L)[0][:, 3:]
    images = np.hstack((L @ (skew - skew.T) @ np.linalg.inv(M), draw.randn(4, 1)))
    return query, key, images @ np.linalg.inv(np.hstack((L, normal))), L @ L.T


def largest_rate(query: np.ndarray, key: np.ndarray, value: np.ndarray, covariance: np.ndarray) -> float:
    """The largest real part among the eigenvalues of the linearised flow on symmetric matrices."""
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
    return float(np.linalg.eigvals(jacobian).real.max())
