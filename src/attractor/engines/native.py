"""Bindings of the compiled integration loop and of the cell-based neighbor search."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.engines import fused as kernels

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


reason = kernels.reason  # why there is no native loop, or nothing

LOOK, ARRIVED, FAILED, LOCATED, ENTERED = 1, 2, 4, 8, 16  # bits of a member's flags; cpp/march.h


class Loop:
    """The fields of ``March`` in ``cpp/march.h``; arrays given here are kept alive until others take their place."""

    def __init__(self) -> None:
        self._march: Any = kernels.module().March()
        self._arrays: dict[str, Tensor | np.ndarray] = {}

    def set(self, **numbers: float) -> None:
        """Fields that are numbers."""
        for name, number in numbers.items():
            setattr(self._march, name, number)

    def hold(self, **arrays: Tensor | np.ndarray) -> None:
        """Fields that are arrays, which must be contiguous."""
        self._arrays |= arrays
        for name, array in arrays.items():
            # by type and not by isinstance, which is slow for tensors
            if type(array) is np.ndarray:
                setattr(self._march, name, array)
            else:
                assert array.is_contiguous(), name  # type: ignore[union-attr]
                setattr(self._march, name, array.data_ptr())  # type: ignore[union-attr]

    def set_method(self, order: int, rows: tuple[list[Any], ...]) -> None:
        """The tableau of a method: see ``set_tableau`` in ``cpp/march.cpp``."""
        self._march.set_tableau(order, *rows)

    def set_rules(self, order: list[int]) -> None:
        """Which rules are asked, in their order: 0 consensus, 1 collapse, 2 steady."""
        self._march.set_order(order)

    @property
    def parts(self) -> int:
        """Parts of the polynomial inside a step."""
        return self._march.parts

    def run(self, seconds: float) -> None:
        """Steps of all members, until each has made its attempts, or must be looked at, or the time is over."""
        kernels.module().run(self._march, kernels.instruction_set(), torch.get_num_threads(), seconds)
