"""One march of the compiled loop: fields by name, arrays by address."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.engines.fused import kernels

reason = kernels.reason  # why there is no native loop, or nothing

LOOK, ARRIVED, FAILED, LOCATED = 1, 2, 4, 8  # bits of a member's flags; cpp/march.h


class Loop:
    """The fields of ``March`` in ``cpp/march.h``; arrays given here are kept alive until others take their place."""

    def __init__(self) -> None:
        self._march: Any = kernels.module().March()
        self._arrays: dict[str, Tensor | np.ndarray] = {}

    def set(self, **fields: Tensor | np.ndarray | float | None) -> None:
        """Numbers as they are; contiguous arrays, or None where there is none."""
        for name, value in fields.items():
            if isinstance(value, Tensor):
                assert value.is_contiguous(), name
                self._arrays[name] = value
                setattr(self._march, name, value.data_ptr())
            elif isinstance(value, np.ndarray):
                assert value.flags.c_contiguous, name
                self._arrays[name] = value
                setattr(self._march, name, value.__array_interface__["data"][0])
            else:
                setattr(self._march, name, 0 if value is None else value)

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
