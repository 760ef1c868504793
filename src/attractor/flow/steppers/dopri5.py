"""Dormand-Prince 5(4)."""

from __future__ import annotations

from functools import cache, cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from attractor.flow.field import Field
from attractor.flow.steppers.stepper import Coefficients, Inside, RungeKutta, Step, column_of, combine, estimate


class Dopri5(RungeKutta):
    """Order 5 with an embedded fourth-order error estimate; the coefficients are scipy's [dormand1980family]."""

    name: ClassVar[str] = "dopri5"
    order: ClassVar[int] = 5
    error_order: ClassVar[int] = 5
    adaptive: ClassVar[bool] = True
    interpolates: ClassVar[bool] = True
    arrays: ClassVar[int] = 60
    cites: ClassVar[tuple[str, ...]] = ("dormand1980family", "hairer1993solving")

    @cached_property
    def tableau(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        from scipy.integrate import RK45  # slow to import

        return np.pad(RK45.A, ((0, 0), (0, 1))), RK45.B, RK45.C

    @cached_property
    def E(self) -> Tensor:
        """Weights of the error estimate."""
        from scipy.integrate import RK45

        return torch.from_numpy(RK45.E)

    @property
    def coefficients(self) -> Coefficients:
        return _coefficients()

    def attempt(self, field: Field, t: np.ndarray, h: np.ndarray, y: Tensor, f: Tensor) -> Step:
        end, slope, slopes = self.stages(field, t, h, y, f)
        return Step(end, slope, (estimate(self.E, column_of(h, y), slopes),), slopes)

    def inside(self, field: Field, t: np.ndarray, h: np.ndarray, y: Tensor, f: Tensor, step: Step) -> Inside:
        """Shampine's quartic through both ends and slopes, whose last coefficient comes from the stages: no evaluation more."""
        from scipy.integrate import RK45

        assert step.slopes is not None
        column = torch.from_numpy(h).to(y).view(-1, 1, 1)
        moved = step.y - y
        parts = [moved, column * f - moved, 2.0 * moved - column * (step.f + f)]
        return Inside(h, y, torch.stack([*parts, column * combine(RK45.P[:, 3], list(step.slopes))]))

    def error(self, step: Step, scale: Tensor) -> Tensor:
        return torch.linalg.vector_norm(step.errors[0], dim=-1) / scale


@cache
def _coefficients() -> Coefficients:
    from scipy.integrate import RK45

    inner = [RK45.A[i, :i].tolist() for i in range(1, len(RK45.C))]
    return inner, RK45.B.tolist(), [RK45.E.tolist()], [], [RK45.P[:, 3].tolist()]
