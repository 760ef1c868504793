"""One march of the compiled loop: fields by name, arrays by address."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.engines.fused import kernels

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
