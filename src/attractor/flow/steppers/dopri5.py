"""Dormand-Prince 5(4)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from scipy.integrate import RK45
from torch import Tensor

from attractor.flow.field import Field
from attractor.flow.steppers.stepper import RungeKutta, Step


class Dopri5(RungeKutta):
    """Order 5 with an embedded fourth-order error estimate; the coefficients are scipy's [dormand1980family]."""

    name: ClassVar[str] = "dopri5"
    order: ClassVar[int] = 5
    error_order: ClassVar[int] = 5
    adaptive: ClassVar[bool] = True
    nodes: ClassVar[int] = 3
    cites: ClassVar[tuple[str, ...]] = ("dormand1980family", "hairer1993solving")
    A = np.pad(RK45.A, ((0, 0), (0, 1)))
    B = RK45.B
    C = RK45.C
    E: ClassVar[np.ndarray] = RK45.E

    def attempt(self, field: Field, t: np.ndarray, h: np.ndarray, y: Tensor, f: Tensor) -> Step:
        end, slope, slopes = self.stages(field, t, h, y, f)
        column = torch.from_numpy(h).to(y).view(-1, 1, 1)
        return Step(end, slope, (column * torch.tensordot(torch.from_numpy(self.E).to(y), slopes, 1),))

    def error(self, step: Step, scale: Tensor) -> Tensor:
        return torch.linalg.vector_norm(step.errors[0], dim=-1) / scale
