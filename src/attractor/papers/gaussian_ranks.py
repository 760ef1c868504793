r"""Histograms of the rank of limits in dimensions three to five [castin2025unified], with and without the published censoring.

Draws: ``Q = randn(d // 2, d)``, K = -Q, V = I or G'G, :math:`\Sigma_0 = GG^\top`, all Gaussian, from one legacy generator for each
dimension, in this order; the seed is not in the description, so it is an argument. Scores are divided by :math:`\sqrt d`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attractor.errors import InputError
from attractor.laws import Attention
from attractor.meanfield import find_limit
from attractor.papers.gaussian_cases import published_procedure

VALUES = ("identity", "definite", "generic")


@dataclass(frozen=True)
class Histogram:
    """Ranks by dimension: ``accurate`` and ``emulated`` count labels (a rank, or a kind of growth) for each dimension."""

    kernel: str
    value: str
    draws: int
    seed: int
    accurate: dict[int, dict[str, int]]
    emulated: dict[int, dict[str, int]]
    kernel_dimension: dict[int, int]

    def summary(self) -> dict[str, Any]:
        plain = {str(d): counts for d, counts in self.accurate.items()}
        emulated = {str(d): counts for d, counts in self.emulated.items()}
        expected = {str(d): rank for d, rank in self.kernel_dimension.items()}
        head = {"kernel": self.kernel, "value": self.value, "draws": self.draws, "seed": self.seed}
        return {**head, "accurate": plain, "emulated_published_procedure": emulated, "dim_ker_S": expected}


def draws(dim: int, count: int, value: str, seed: int, keys: str = "opposite") -> list[tuple[np.ndarray, ...]]:
    """(Q, K, V, covariance) of each draw."""
    if value not in VALUES:
        raise InputError(f"value {value!r} is not known; give one of {', '.join(VALUES)}")
    source = np.random.RandomState(seed)
    found = []
    for _ in range(count):
        query = source.randn(max(dim // 2, 1), dim)
        key = -query if keys == "opposite" else source.randn(*query.shape)
        root = np.eye(dim) if value == "identity" else source.randn(dim, dim)
        matrix = root if value in ("identity", "generic") else root.T @ root
        start = source.randn(dim, dim)
        found.append((query, key, matrix, start @ start.T))
    return found


def rank_histogram(
    kernel: str = "softmax",
    value: str = "identity",
    dims: Sequence[int] = (3, 4, 5),
    count: int = 100,
    seed: int = 0,
    *,
    emulate: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Histogram:
    """Ranks of the limits of ``count`` draws in each dimension, by an accurate integrator and by the emulated published procedure."""
    accurate: dict[int, dict[str, int]] = {}
    emulated: dict[int, dict[str, int]] = {}
    done = 0
    for dim in dims:
        ours, theirs = Counter[str](), Counter[str]()
        for query, key, matrix, covariance in draws(dim, count, value, seed):
            law = Attention(query, key, matrix, kernel=kernel, scale=dim**-0.5)  # type: ignore[arg-type]
            found = find_limit(law, covariance)
            ours[str(found.rank) if found.rank is not None else found.kind.replace("_", "-")] += 1
            if emulate:
                theirs[_published(law, covariance)] += 1
            done += 1
            if progress is not None:
                progress(done, count * len(dims))
        accurate[dim], emulated[dim] = _sorted(ours), _sorted(theirs)
    expected = {dim: dim - max(dim // 2, 1) for dim in dims}
    return Histogram(kernel, value, count, seed, accurate, emulated, expected)


def _published(law: Attention, covariance: np.ndarray) -> str:
    found = published_procedure(law, covariance, steps=2000)
    return "diverged" if found.diverged else "dropped" if found.censored else str(found.rank)


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items()))
