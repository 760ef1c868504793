r"""Rank correlations over the layers of a model, and of several models together.

Spearman's rho of a predictor and an outcome over layers; intervals by resampling layers (percentiles), and the null by permuting the
outcome over layers. Several models: the mean of their rhos weighted by layers, layers resampled and permuted inside each model, so that
differences between models count for nothing. ``family`` is the p-value of the largest |rho| of all predictors under the same permutations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """One model: an outcome over layers (n,) and predictors (p, n)."""

    outcome: Array
    predictors: Array

    @property
    def layers(self) -> int:
        return len(self.outcome)


@dataclass(frozen=True)
class Correlation:
    """Spearman's rho with its interval, the two-sided p-value of a permutation test and the one for all predictors together, and
    the largest |rho| that 95% of permutations stay below (``null``)."""

    rho: float
    low: float
    high: float
    p: float
    family: float
    null: float

    def row(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Difference:
    """|rho| of one predictor minus |rho| of another, with its interval over the same resamples."""

    value: float
    low: float
    high: float

    def row(self) -> dict[str, Any]:
        return dict(vars(self))


class Ranks:
    """Correlations of all predictors with one outcome, over one model or several."""

    def __init__(self, samples: Sequence[Sample], seed: int, resamples: int = RESAMPLES) -> None:
        draw = np.random.default_rng(seed)
        weights = np.array([sample.layers for sample in samples], dtype=np.float64)
        weights /= weights.sum()
        mean = lambda parts: np.tensordot(weights, np.stack(parts), 1)  # noqa: E731
        self.rho: Array = mean([spearman(sample.predictors, sample.outcome[None]) for sample in samples])
        self._resampled: Array = mean([_bootstrap(sample, draw, resamples) for sample in samples])  # (b, p)
        self._permuted: Array = mean([_permutations(sample, draw, resamples) for sample in samples])

    def correlation(self, index: int) -> Correlation:
        low, high = np.quantile(self._resampled[:, index], (0.025, 0.975))
        null, seen = np.abs(self._permuted[:, index]), abs(self.rho[index])
        largest = np.abs(self._permuted).max(1)
        slack = 1e-12  # permutations that give the same rho up to rounding count
        share = lambda values: float((1 + (values >= seen - slack).sum()) / (1 + len(values)))  # noqa: E731
        limit = float(np.quantile(null, 0.95))
        return Correlation(float(self.rho[index]), float(low), float(high), share(null), share(largest), limit)

    def difference(self, one: int, other: int) -> Difference:
        change = np.abs(self._resampled[:, one]) - np.abs(self._resampled[:, other])
        low, high = np.quantile(change, (0.025, 0.975))
        return Difference(float(abs(self.rho[one]) - abs(self.rho[other])), float(low), float(high))


def spearman(first: Array, second: Array) -> Array:
    """Rank correlations of the last axes, other axes broadcast; zero where either is constant."""
    from scipy.stats import rankdata

    a, b = (rankdata(part, axis=-1) for part in (first, second))
    a, b = a - a.mean(-1, keepdims=True), b - b.mean(-1, keepdims=True)
    size = np.sqrt((a**2).sum(-1) * (b**2).sum(-1))
    return (a * b).sum(-1) / np.where(size > 0, size, 1.0) * (size > 0)


def _bootstrap(sample: Sample, draw: np.random.Generator, count: int) -> Array:
    chosen = draw.integers(0, sample.layers, (count, sample.layers))
    return spearman(sample.predictors[:, chosen].swapaxes(0, 1), sample.outcome[chosen][:, None])


def _permutations(sample: Sample, draw: np.random.Generator, count: int) -> Array:
    mixed = draw.permuted(np.tile(sample.outcome, (count, 1)), axis=1)
    return spearman(sample.predictors[None], mixed[:, None])
