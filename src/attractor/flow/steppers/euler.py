"""Euler: the tangent step and a retraction."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from attractor.flow.field import Field
from attractor.flow.steppers.stepper import Step, Stepper


class Euler(Stepper):
    """x <- N(x + h v(x)), order 1."""

    name: ClassVar[str] = "euler"
    order: ClassVar[int] = 1

    def attempt(self, field: Field, t: np.ndarray, h: np.ndarray, y: Tensor, f: Tensor) -> Step:
        end = y + torch.from_numpy(h).to(y).view(-1, 1, 1) * f
        return Step(end, field.lifted(t + h, end), ())
