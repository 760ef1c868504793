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

    def set_noise(self, method: str, layer: bool, seed: int) -> None:
        """Noise: its method, euler or strang2, whether it is of the kind "layer", and the seed of its random numbers."""
        self._loop.set_noise(method, layer, seed)

    def run_noise(self, first: int, count: int, step: float) -> None:
        """Take so many steps of this length with noise; ``first`` is the number of the first."""
        self._loop.set_steps(first, count, step)
        self._loop.run_noise(kernels.instruction_set(), torch.get_num_threads())

    @property
    def parts(self) -> int:
        """Number of parts of a step's dense output polynomial."""
        return self._loop.parts

    def set_record(self, record: StepRecord) -> None:
        """Record the accepted steps of a run."""
        self._loop.set_record(record.record)

    def differentiate(
        self, record: StepRecord, member: np.ndarray, step: np.ndarray, place: np.ndarray, grads: np.ndarray
    ) -> None:
        """Compute gradients from those of states (rows, n, d), at places that ``StepRecord.locate`` found.

        They are added to the arrays ``grad_...`` of the loop; parameters that members share have an array for each of ``groups`` of
        members.
        """
        self._loop.differentiate(
            record.record, kernels.instruction_set(), torch.get_num_threads(), member, step, place, grads
        )

    def run(self, seconds: float) -> None:
        """Advance all members until each has made its attempts or needs a check, or the time is over."""
        self._loop.run(kernels.instruction_set(), torch.get_num_threads(), seconds)


class StepRecord:
    """The accepted steps of every member of a run: ``StepRecord`` in ``cpp/native_loop.cpp``.

    States are kept at the start of at most ``slots`` steps of each member, so that memory does not grow with the number of steps,
    apart from the length of each.
    """

    def __init__(self, members: int, n: int, d: int, slots: int) -> None:
        self.record: Any = kernels.module().StepRecord(members, n, d, slots)
        self.groups = min(members, kernels.module().gradient_groups)

    def lengths(self) -> list[np.ndarray]:
        """Lengths of the steps of every member."""
        return [np.array(self.record.lengths_of(member)) for member in range(len(self.record.steps()))]

    @property
    def kept(self) -> int:
        """The largest number of states that are kept of a member."""
        return self.record.kept()

    def locate(
        self, start: float, end: float, member: np.ndarray, time: np.ndarray, last: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Steps, and places in them from 0 to 1, of states of members at some times.

        States of a member come in the order of time, its last state (``last``) at the end. Step -1 is the start.
        """
        step, place = np.empty(len(member), dtype=np.int64), np.empty(len(member))
        self.record.locate(start, end, member, time, last, step, place)
        return step, place
