"""Fixed-step methods: Euler, classical RK4, and the residual layer."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from attractor.solvers.steppers.stepper import Field, RungeKutta, Step, Stepper


class Euler(Stepper):
    """x <- N(x + h v(x)), order 1."""

    name: ClassVar[str] = "euler"
    order: ClassVar[int] = 1

    def attempt(self, field: Field, t: np.ndarray, h: np.ndarray, y: Tensor, f: Tensor) -> Step:
        end = y + torch.from_numpy(h).to(y).view(-1, 1, 1) * f
        return Step(end, field.lifted_velocity(t + h, end), ())


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


class Layers(Stepper):
    """Residual layers x <- N(x + h b(x)) with the velocity b before projection; blocks apply their own norms.

    The order is 1 as h tends to 0, but one layer with h = 1 is not one unit of time: near consensus it corresponds to ln 2 for
    full attention and to 2 ln(4/3) for causal attention, whose rate is 1/2 (consensus.md, section 5).
    """

    name: ClassVar[str] = "layers"
    order: ClassVar[int] = 1
    discrete: ClassVar[bool] = True

    def attempt(self, field: Field, t: np.ndarray, h: np.ndarray, y: Tensor, f: Tensor) -> Step:
        end = field.layer(t, float(h[0]), y)
        return Step(end, (end - y) / torch.from_numpy(h).to(y).view(-1, 1, 1), ())
