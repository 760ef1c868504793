"""Slopes of errors in n on log-log axes, with intervals from the scatter of repeated runs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

RESAMPLES = 4000


@dataclass(frozen=True)
class Slope:
    """``value`` with a ``level`` interval from ``low`` to ``high``, nan where a single repeat says nothing about scatter."""

    value: float
    low: float
    high: float
    level: float = 0.95


def root_mean_square(errors: np.ndarray) -> np.ndarray:
    """Over repeats, the last axis."""
    return np.sqrt(np.mean(np.square(errors), axis=-1))


def fitted_slope(sizes: np.ndarray, errors: np.ndarray, level: float = 0.95, seed: int = 0) -> Slope:
    """Least squares of log rms error (sizes, repeats) on log n.

    The interval is a bootstrap: repeats are drawn again with replacement, for each n by itself, and the line fitted anew.
    Errors of zero (a quantity that is exact for every n) have no slope.
    """
    rms = root_mean_square(errors)
    if len(sizes) < 2 or not np.all(rms > 0):
        return Slope(math.nan, math.nan, math.nan, level)
    value = float(_slopes(sizes, rms[None])[0])
    if errors.shape[1] < 2:
        return Slope(value, math.nan, math.nan, level)
    draws = np.random.default_rng(seed).integers(errors.shape[1], size=(RESAMPLES, *errors.shape))
    again = root_mean_square(np.take_along_axis(np.broadcast_to(errors, draws.shape), draws, axis=-1))
    again = again[np.all(again > 0, axis=1)]
    low, high = np.quantile(_slopes(sizes, again), [(1 - level) / 2, (1 + level) / 2])
    return Slope(value, float(low), float(high), level)


def _slopes(sizes: np.ndarray, rms: np.ndarray) -> np.ndarray:
    """Slopes of the lines through rows of rms (rows, sizes)."""
    x = np.log(sizes) - np.log(sizes).mean()
    return np.log(rms) @ x / (x @ x)
