"""The discrete residual layer: what a Transformer does."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from attractor.flow.field import Field
from attractor.flow.steppers.stepper import Step, Stepper


class Layers(Stepper):
    """x <- N(x + h b(x)) with the full drive b, not its tangent part; blocks apply their own norms.

    It is of first order as h tends to 0, but one layer with h = 1 is not one unit of time: near consensus it is ln 2 of it
    for full attention and 2 ln(4/3) for causal attention, whose rate is 1/2 (consensus.md, section 5).
    """

    name: ClassVar[str] = "layers"
    order: ClassVar[int] = 1

    def attempt(self, field: Field, t: np.ndarray, h: np.ndarray, y: Tensor, f: Tensor) -> Step:
        end = field.layer(t, float(h[0]), y)
        return Step(end, (end - y) / torch.from_numpy(h).to(y).view(-1, 1, 1), ())
