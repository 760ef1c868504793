"""Step-size control."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attractor.solvers.steppers.stepper import Field, Step, Stepper

SAFETY = 0.85  # a rejected step costs as much as an accepted one: 0.9 has a fifth of them rejected where clusters form
SHRINK = 0.2
GROW = 5.0  # dense output interpolates through past steps, so neighbours must not differ too much


class Control:
    """Accepts or rejects steps: the error of every token must stay below atol + rtol |token|."""

    def __init__(self, stepper: Stepper, rtol: float, atol: float) -> None:
        self.stepper, self.rtol, self.atol = stepper, rtol, atol

    def scale(self, *points: Tensor) -> Tensor:
        """What is tolerated for each token, (members, n)."""
        norm = torch.linalg.vector_norm(points[0], dim=-1)
        for other in points[1:]:
            norm = torch.maximum(norm, torch.linalg.vector_norm(other, dim=-1))
        return self.atol + self.rtol * norm

    def error(self, step: Step, y: Tensor, alive: Tensor | None) -> np.ndarray:
        """Error of the worst token of each member, as a multiple of what is tolerated; NaN counts as infinite."""
        error = self.stepper.error(step, self.scale(y, step.y)).detach()
        error = error if alive is None else error.masked_fill(~alive, 0.0)
        worst = error.amax(-1).cpu().double().numpy()
        return np.where(np.isfinite(worst), worst, np.inf)

    def factor(self, error: np.ndarray, accepted: np.ndarray, retried: np.ndarray) -> np.ndarray:
        """How much longer or shorter the next step is; right after a rejection it does not grow."""
        with np.errstate(divide="ignore", over="ignore"):
            ideal = SAFETY * np.maximum(error, 1e-300) ** (-1.0 / self.stepper.error_order)
        return np.clip(ideal, SHRINK, np.where(accepted & ~retried, GROW, 1.0))

    def first(self, field: Field, t: np.ndarray, y: Tensor, f: Tensor, longest: np.ndarray) -> np.ndarray:
        """A first step from the sizes of the field and of its change (Hairer, Norsett, Wanner, II.4)."""
        scale = self.scale(y)

        def size(vectors: Tensor) -> np.ndarray:
            return (torch.linalg.vector_norm(vectors, dim=-1) / scale).detach().amax(-1).cpu().double().numpy()

        value, slope = size(y), size(f)
        guess = np.where((value < 1e-5) | (slope < 1e-5), 1e-6, 0.01 * value / np.maximum(slope, 1e-300))
        guess = np.minimum(guess, longest)
        column = torch.from_numpy(guess).to(y).view(-1, 1, 1)
        change = size(field.lifted(t + guess, y + column * f) - f)
        with np.errstate(divide="ignore", invalid="ignore"):  # of slopes whose squares overflow there is no guess
            steep = np.maximum(slope, change / guess)
            second = np.where(
                steep <= 1e-15,
                np.maximum(1e-6, guess * 1e-3),
                (0.01 / np.maximum(steep, 1e-300)) ** (1.0 / self.stepper.error_order),
            )
        step = np.minimum(np.minimum(100.0 * guess, second), longest)
        return np.where(np.isfinite(step) & (step > 0), step, np.minimum(1e-6, longest))
