"""The search for tokens that may become one, in C++ (``cpp/cells.h``)."""

from __future__ import annotations

import numpy as np
import torch

from attractor.engines.fused import kernels

AXES = 3  # dimensions up to which the cells around a cell are few


def cell_mates(points: np.ndarray, tolerance: float) -> np.ndarray | None:
    """Pairs of rows of (n, d) in a common cell; None where this way does not serve."""
    return _search("cell_mates", points, tolerance)


def mutual_pairs(points: np.ndarray, tolerance: float) -> np.ndarray | None:
    """Pairs of rows of (n, d) that are each other's nearest; None where this way does not serve."""
    return _search("mutual_pairs", points, tolerance)


def _search(name: str, points: np.ndarray, tolerance: float) -> np.ndarray | None:
    n, axes = points.shape
    if kernels.reason or not n or not 1 <= axes <= AXES:
        return None
    points = np.ascontiguousarray(points, dtype=np.float64)
    pairs = np.empty((n // 2, 2), dtype=np.int64)
    search = getattr(kernels.module(), name)
    count = search(points.ctypes.data, n, axes, tolerance, torch.get_num_threads(), pairs.ctypes.data)
    return None if count < 0 else pairs[:count]
