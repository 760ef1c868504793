"""Step-size control."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attractor.solvers.steppers.stepper import Field, Step, Stepper
from attractor.states import vector_norm

SAFETY = 0.85  # a rejected step costs as much as an accepted one, and with 0.9 a fifth is rejected where clusters form
SHRINK = 0.2  # smallest ratio of two steps
GROW = 5.0  # largest ratio: interpolation through step ends needs steps of similar length


class StepControl:
    """Step-size control: the error of every token must stay below atol + rtol |token|."""

    def __init__(self, stepper: Stepper, rtol: float, atol: float) -> None:
        self.stepper, self.rtol, self.atol = stepper, rtol, atol

    def tolerance(self, *points: Tensor) -> Tensor:
        """Tolerated error of each token, (members, n); of several states the largest."""
        norm = vector_norm(points[0])
        for other in points[1:]:
            norm = torch.maximum(norm, vector_norm(other))
        return self.atol + self.rtol * norm

    def error(self, step: Step, y: Tensor, alive: Tensor | None) -> np.ndarray:
        """Largest error of a token of each member, in units of its tolerance; NaN counts as infinite."""
        error = self.stepper.error(step, self.tolerance(y, step.y)).detach()
        error = error if alive is None else error.masked_fill(~alive, 0.0)
        worst = error.amax(-1).cpu().double().numpy()
        return np.where(np.isfinite(worst), worst, np.inf)

    def factor(self, error: np.ndarray, accepted: np.ndarray, retried: np.ndarray) -> np.ndarray:
        """Ratio of the next step to this one; at most 1 right after a rejection."""
        with np.errstate(divide="ignore", over="ignore"):
            ideal = SAFETY * np.maximum(error, 1e-300) ** (-1.0 / self.stepper.error_order)
        return np.clip(ideal, SHRINK, np.where(accepted & ~retried, GROW, 1.0))

    def first_step(self, field: Field, t: np.ndarray, y: Tensor, f: Tensor, longest: np.ndarray) -> np.ndarray:
        """First step size, from the sizes of the field and of its change (Hairer, Norsett and Wanner, section II.4)."""
        allowed = self.tolerance(y)

        def size(vectors: Tensor) -> np.ndarray:
            return (vector_norm(vectors) / allowed).detach().amax(-1).cpu().double().numpy()

        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # slopes may be infinite
            value, slope = size(y), size(f)
            guess = np.where((value < 1e-5) | (slope < 1e-5), 1e-6, 0.01 * value / np.maximum(slope, 1e-300))
            guess = np.minimum(guess, longest)
            column = torch.from_numpy(guess).to(y).view(-1, 1, 1)
            change = size(field.lifted_velocity(t + guess, y + column * f) - f)
            steep = np.maximum(slope, change / guess)
            second = np.where(
                steep <= 1e-15,
                np.maximum(1e-6, guess * 1e-3),
                (0.01 / np.maximum(steep, 1e-300)) ** (1.0 / self.stepper.error_order),
            )
        step = np.minimum(np.minimum(100.0 * guess, second), longest)
        return np.where(np.isfinite(step) & (step > 0), step, np.minimum(1e-6, longest))
