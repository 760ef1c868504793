"""Bindings of the compiled integration loop and of the cell-based neighbor search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.engines import fused as kernels

AXES = 3  # dimensions up to which a cell has few neighbouring cells

reason = kernels.reason  # why the compiled code does not work here; empty if it does
FLAGS: dict[str, int] = (
    {} if reason else kernels.module().native_loop_flags
)  # bits of a member's flags (cpp/native_loop.h)
RULES: dict[str, int] = {} if reason else kernels.module().native_loop_rules  # numbers of the termination rules


def cell_mates(points: np.ndarray, tolerance: float) -> np.ndarray | None:
    """Pairs of rows of (n, d) in a common cell; None where the search by cells does not apply."""
    return _search("cell_mates", points, tolerance)


def mutual_pairs(points: np.ndarray, tolerance: float) -> np.ndarray | None:
    """Pairs of rows of (n, d) that are each other's nearest; None where the search by cells does not apply."""
    return _search("mutual_pairs", points, tolerance)


def _search(name: str, points: np.ndarray, tolerance: float) -> np.ndarray | None:
    n, axes = points.shape
    if reason or not n or not 1 <= axes <= AXES:
        return None
    points = np.ascontiguousarray(points, dtype=np.float64)
    pairs = np.empty((n // 2, 2), dtype=np.int64)
    count = getattr(kernels.module(), name)(points, tolerance, torch.get_num_threads(), pairs)
    return None if count < 0 else pairs[:count]


class Loop:
    """The compiled integration loop: ``NativeLoop`` in ``cpp/native_loop.h``."""

    def __init__(self) -> None:
        self._loop: Any = kernels.module().NativeLoop()

    def set(self, **numbers: float) -> None:
        """Set fields that are numbers."""
        for name, number in numbers.items():
            setattr(self._loop, name, number)

    def set_arrays(self, **arrays: Tensor | np.ndarray | None) -> None:
        """Set fields that are arrays, which the loop reads and writes in place; None removes one.

        Arrays must be contiguous and of the type of their field; their shapes are checked by ``run``.
        """
        # by type and not by isinstance, which is slow for tensors
        self._loop.set_arrays(
            **{
                name: array if array is None or type(array) is np.ndarray else array.numpy()  # type: ignore[union-attr]
                for name, array in arrays.items()
            }
        )

    def set_method(self, order: int, rows: tuple[list[Any], ...]) -> None:
        """The tableau of a method: see ``set_tableau`` in ``cpp/native_loop.cpp``."""
        self._loop.set_tableau(order, *rows)

    def set_rules(self, rules: Sequence[tuple[str, float]]) -> None:
        """Termination rules (name, tolerance) in the order of their checks."""
        self._loop.set_rules(rules)

    def set_space(self, name: str) -> None:
        """The space: euclidean, sphere or ellipsoid."""
        self._loop.set_space(name)

    @property
    def parts(self) -> int:
        """Number of parts of a step's dense output polynomial."""
        return self._loop.parts

    def run(self, seconds: float) -> None:
        """Advance all members until each has made its attempts or needs a check, or the time is over."""
        self._loop.run(kernels.instruction_set(), torch.get_num_threads(), seconds)
