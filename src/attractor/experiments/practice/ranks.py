r"""Rank correlations over the layers of a model, and of several models together.

Spearman's rho of a predictor and an outcome over layers; intervals by resampling layers (percentiles), and the null by permuting the
outcome over layers. Several models: the mean of their rhos weighted by layers, layers resampled and permuted inside each model, so that
differences between models count for nothing. ``family`` is the p-value of the largest |rho| of all predictors under the same permutations.

Neighbouring layers are alike, so that two curves along depth agree more often than permuted ones do. Two guards: ``p_shift`` is the
p-value against outcomes that are only turned round along depth and perhaps reversed, which keeps neighbours together;
``given_depth`` is the partial rank correlation with the number of the layer taken out.
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
    the largest |rho| that 95% of permutations stay below (``null``); see above for ``p_shift`` and ``given_depth``."""

    rho: float
    low: float
    high: float
    p: float
    family: float
    null: float
    p_shift: float
    given_depth: float

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
        self._shifted: Array = mean([_shifts(sample, draw, resamples) for sample in samples])
        self._partial: Array = mean([given_depth(sample) for sample in samples])

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


def _shifts(sample: Sample, draw: np.random.Generator, count: int) -> Array:
    layers = np.arange(sample.layers)
    turned = (layers + draw.integers(0, sample.layers, (count, 1))) % sample.layers
    turned = np.where(draw.random((count, 1)) < 0.5, turned, turned[:, ::-1])
    return spearman(sample.predictors[None], sample.outcome[turned][:, None])


def given_depth(sample: Sample) -> Array:
    """Partial rank correlations (p,) with the layer's number held fixed."""
    depth = np.arange(sample.layers, dtype=np.float64)[None]
    both = spearman(sample.predictors, sample.outcome[None])
    one, other = spearman(sample.predictors, depth), spearman(sample.outcome[None], depth)
    left = np.sqrt(np.clip((1 - one**2) * (1 - other**2), 0.0, None))
    return (both - one * other) / np.where(left > 1e-12, left, 1.0) * (left > 1e-12)
