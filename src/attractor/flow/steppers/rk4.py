"""The classical fourth-order method: attention is evaluated anew in every stage."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import numpy as np
from torch import Tensor

from attractor.flow.field import Field
from attractor.flow.steppers.stepper import RungeKutta, Step


class RK4(RungeKutta):
    """Order 4, fixed step."""

    name: ClassVar[str] = "rk4"
    order: ClassVar[int] = 4
    nodes: ClassVar[int] = 3
    cites: ClassVar[tuple[str, ...]] = ("hairer1993solving",)

    @cached_property
    def tableau(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        A = np.array([[0, 0, 0, 0], [0.5, 0, 0, 0], [0, 0.5, 0, 0], [0, 0, 1, 0]])
        return A, np.array([1 / 6, 1 / 3, 1 / 3, 1 / 6]), np.array([0, 0.5, 0.5, 1])

    def attempt(self, field: Field, t: np.ndarray, h: np.ndarray, y: Tensor, f: Tensor) -> Step:
        end, slope, _ = self.stages(field, t, h, y, f)
        return Step(end, slope, ())
