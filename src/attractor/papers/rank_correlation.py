"""Rank correlations over the layers of models: resampled intervals and permutation tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
    """Spearman's rho between a predictor and an outcome.

    Attributes
    ----------
    low, high : 95% interval from resampled layers.
    p, family : two-sided p-values of a permutation test, for this predictor and for all predictors together.
    null : the 95% quantile of |rho| under permutations.
    p_shift : p-value against outcomes that are shifted cyclically (and reversed) along depth.
    given_depth : partial correlation given the index of the layer.
    """

    rho: float
    low: float
    high: float
    p: float
    family: float
    null: float
    p_shift: float
    given_depth: float


@dataclass(frozen=True)
class Difference:
    """|rho| of one predictor minus |rho| of another, with its 95% interval over the same resamples."""

    value: float
    low: float
    high: float


class Ranks:
    """Correlations of all predictors with one outcome, over one model or several."""

    def __init__(self, samples: Sequence[Sample], seed: int, resamples: int) -> None:
        draw = np.random.default_rng(seed)
        weights = np.array([sample.layers for sample in samples], dtype=np.float64)
        weights /= weights.sum()
        mean = lambda parts: np.tensordot(weights, np.stack(parts), 1)  # noqa: E731
        self.rho: Array = mean([spearman(sample.predictors, sample.outcome[None]) for sample in samples])
        self._resampled: Array = mean([_bootstrap(sample, draw, resamples) for sample in samples])  # (b, p)
        self._permuted: Array = mean([_permutations(sample, draw, resamples) for sample in samples])
        self._shifted: Array = mean([_shifts(sample, draw, resamples) for sample in samples])
        self._partial: Array = mean([partial_given_depth(sample) for sample in samples])

    def correlation(self, index: int) -> Correlation:
        low, high = np.quantile(self._resampled[:, index], (0.025, 0.975))
        null, seen = np.abs(self._permuted[:, index]), abs(self.rho[index])
        largest = np.abs(self._permuted).max(1)
        slack = 1e-12  # permutations that give the same rho up to rounding count
        share = lambda values: float((1 + (values >= seen - slack).sum()) / (1 + len(values)))  # noqa: E731
        limit = float(np.quantile(null, 0.95))
        shifted = share(np.abs(self._shifted[:, index]))
        ends = float(self.rho[index]), float(low), float(high)
        return Correlation(*ends, share(null), share(largest), limit, shifted, float(self._partial[index]))

    def difference(self, one: int, other: int) -> Difference:
        change = np.abs(self._resampled[:, one]) - np.abs(self._resampled[:, other])
        low, high = np.quantile(change, (0.025, 0.975))
        return Difference(float(abs(self.rho[one]) - abs(self.rho[other])), float(low), float(high))


def spearman(first: Array, second: Array) -> Array:
    """Return rank correlations over the last axis, other axes broadcast; zero where either is constant."""
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


def _shifts(sample: Sample, draw: np.random.Generator, count: int) -> Array:
    layers = np.arange(sample.layers)
    turned = (layers + draw.integers(0, sample.layers, (count, 1))) % sample.layers
    turned = np.where(draw.random((count, 1)) < 0.5, turned, turned[:, ::-1])
    return spearman(sample.predictors[None], sample.outcome[turned][:, None])


def partial_given_depth(sample: Sample) -> Array:
    """Return the partial rank correlations (p,) given the index of the layer."""
    depth = np.arange(sample.layers, dtype=np.float64)[None]
    both = spearman(sample.predictors, sample.outcome[None])
    one, other = spearman(sample.predictors, depth), spearman(sample.outcome[None], depth)
    left = np.sqrt(np.clip((1 - one**2) * (1 - other**2), 0.0, None))
    return (both - one * other) / np.where(left > 1e-12, left, 1.0) * (left > 1e-12)
