"""Adaptive Dormand-Prince methods 5(4) and 8(5,3)."""

from __future__ import annotations

from functools import cache, cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from attractor.solvers.steppers.stepper import (
    Coefficients,
    Field,
    RungeKutta,
    Step,
    StepPolynomial,
    as_column,
    combine,
    estimate_error,
)
from attractor.states import vector_norm


class Dopri5(RungeKutta):
    """Order 5 with an embedded fourth-order error estimate; the coefficients are SciPy's [dormand1980family]."""

    name: ClassVar[str] = "dopri5"
    order: ClassVar[int] = 5
    error_order: ClassVar[int] = 5
    adaptive: ClassVar[bool] = True
    interpolates: ClassVar[bool] = True
    arrays: ClassVar[int] = 60
    stability: ClassVar[float] = 3.25
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
        return Step(end, slope, (estimate_error(self.E, as_column(h, y), slopes),), slopes)

    def interpolate(
        self, field: Field, t: np.ndarray, h: np.ndarray, y: Tensor, f: Tensor, step: Step
    ) -> StepPolynomial:
        """Shampine's quartic through both ends and slopes; its last coefficient comes from the stages, without further evaluations."""
        from scipy.integrate import RK45

        assert step.slopes is not None
        column = torch.from_numpy(h).to(y).view(-1, 1, 1)
        moved = step.y - y
        parts = [moved, column * f - moved, 2.0 * moved - column * (step.f + f)]
        return StepPolynomial(h, y, torch.stack([*parts, column * combine(RK45.P[:, 3], list(step.slopes))]))

    def error(self, step: Step, scale: Tensor) -> Tensor:
        return vector_norm(step.errors[0]) / scale


@cache
def _coefficients() -> Coefficients:
    from scipy.integrate import RK45

    inner = [RK45.A[i, :i].tolist() for i in range(1, len(RK45.C))]
    return inner, RK45.B.tolist(), [RK45.E.tolist()], [], [RK45.P[:, 3].tolist()]


class Dop853(RungeKutta):
    """Order 8 with Hairer's combined fifth- and third-order error estimate; the coefficients are SciPy's [hairer1993solving].

    Its steps are too long to interpolate between their ends, so a step that contains saved times has an interpolant of order
    7, which needs three further evaluations.
    """

    name: ClassVar[str] = "dop853"
    order: ClassVar[int] = 8
    error_order: ClassVar[int] = 8
    adaptive: ClassVar[bool] = True
    interpolates: ClassVar[bool] = True
    arrays: ClassVar[int] = 75
    stability: ClassVar[float] = 6.1
    cites: ClassVar[tuple[str, ...]] = ("hairer1993solving",)

    @cached_property
    def tableau(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        from scipy.integrate import DOP853  # slow to import

        return DOP853.A, DOP853.B, DOP853.C

    @cached_property
    def E(self) -> tuple[Tensor, Tensor]:
        """Weights of the third- and of the fifth-order error estimate."""
        from scipy.integrate import DOP853

        return torch.from_numpy(DOP853.E3), torch.from_numpy(DOP853.E5)

    @property
    def coefficients(self) -> Coefficients:
        return _dop853_coefficients()

    def attempt(self, field: Field, t: np.ndarray, h: np.ndarray, y: Tensor, f: Tensor) -> Step:
        end, slope, slopes = self.stages(field, t, h, y, f)
        third, fifth = (estimate_error(weights, as_column(h, y), slopes) for weights in self.E)
        return Step(end, slope, (third, fifth), slopes)

    def interpolate(
        self, field: Field, t: np.ndarray, h: np.ndarray, y: Tensor, f: Tensor, step: Step
    ) -> StepPolynomial:
        from scipy.integrate import DOP853

        assert step.slopes is not None
        column = torch.from_numpy(h).to(y).view(-1, 1, 1)
        slopes = list(step.slopes)
        for row, node in zip(DOP853.A_EXTRA, DOP853.C_EXTRA, strict=True):
            inner = y + column * combine(row[: len(slopes)], slopes)
            slopes.append(field.lifted_velocity(t + node * h, inner))
        moved = step.y - y
        parts = [moved, column * f - moved, 2.0 * moved - column * (step.f + f)]
        parts += [column * combine(row, slopes) for row in DOP853.D]
        return StepPolynomial(h, y, torch.stack(parts))

    def error(self, step: Step, scale: Tensor) -> Tensor:
        third = vector_norm(step.errors[0]) / scale
        fifth = vector_norm(step.errors[1]) / scale
        both = torch.sqrt(fifth**2 + 0.01 * third**2)
        return torch.where(both > 0, fifth**2 / both.clamp_min(torch.finfo(both.dtype).tiny), both)


@cache
def _dop853_coefficients() -> Coefficients:
    from scipy.integrate import DOP853

    inner = [DOP853.A[i, :i].tolist() for i in range(1, len(DOP853.C))]
    errors, slopes = [DOP853.E3.tolist(), DOP853.E5.tolist()], len(DOP853.C) + 1
    extra = [row[: slopes + k].tolist() for k, row in enumerate(DOP853.A_EXTRA)]
    return inner, DOP853.B.tolist(), errors, extra, DOP853.D.tolist()
