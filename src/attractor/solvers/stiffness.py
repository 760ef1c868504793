"""Choice between the explicit and the implicit method, for each member of a run."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attractor.solvers.steppers.stepper import RungeKutta, Step, as_column, combine

INTERVAL = 1000  # accepted explicit steps between checks for stiffness
NEAR = 0.5  # share of the limit of stability from which a step counts: the estimate sees slow components too
STIFF_STEPS = 15  # steps at the limit of stability after which a member is stiff
CALM_STEPS = 6  # steps below it after which it is not
WINDOW = 64  # attempts of the implicit method after which its cost is compared
BACKOFF = 4  # factor of the interval after the implicit method was not worthwhile
LONGEST_INTERVAL = 1 << 30

COUNTERS = ("implicit", "steps", "wait", "suspect", "calm")  # arrays that the native loop reads or writes

# seconds of one attempt of the implicit method: overhead, and for each multiplication of its factorisations
OVERHEAD, MULTIPLICATION, FACTORISATIONS = 2e-3, 3e-10, 6.0
PAIR, TOKEN = 2e-9, 2e-8  # approximate seconds of an evaluation for each pair and for each token
CALL = 1e-4  # the same outside the native loop, for each evaluation
STAGES = 12


def cost_ratio(n: int, d: int, native: bool) -> float:
    """Approximate cost of an attempt of the implicit method in explicit steps.

    It is a formula and not a measurement, so that a run gives the same numbers every time.
    """
    evaluation = PAIR * n * n + TOKEN * n
    explicit = STAGES * (evaluation + (0.0 if native else CALL))
    implicit = OVERHEAD + 4 * STAGES * evaluation + FACTORISATIONS * MULTIPLICATION * float(n * d) ** 3
    return implicit / explicit


class Stiffness:
    r"""Counters of each row, by which its method is chosen.

    Steps of an explicit method are at the limit of stability if :math:`h|\lambda|`, estimated from two slopes at the end of the
    step, comes near the method's limit [hairer1996solving, section IV.2]. After ``STIFF_STEPS`` such steps the row changes to the
    implicit method if there is enough time left, and back when explicit steps would have cost less.
    """

    def __init__(self, rows: int, implicit: bool) -> None:
        self.implicit = np.full(rows, implicit)
        self.steps, self.suspect, self.calm, self.attempts = np.zeros((4, rows), dtype=np.int64)
        self.wait = np.full(rows, INTERVAL)
        self.gained = np.zeros(rows)  # explicit steps that implicit ones have replaced

    def find(self, stepper: RungeKutta, accepted: np.ndarray, h: np.ndarray, y: Tensor, step: Step) -> np.ndarray:
        """Count accepted explicit steps; return which rows have become stiff."""
        self.steps = self.steps + accepted
        checked = accepted & ((self.steps >= self.wait) | (self.suspect > 0))
        if not checked.any() or step.slopes is None:
            return np.zeros(len(accepted), dtype=bool)
        over = checked & (_rate(stepper, h, y, step) * h > NEAR * stepper.stability)
        self.suspect = np.where(over, self.suspect + 1, self.suspect)
        self.calm = np.where(over, 0, np.where(checked, self.calm + 1, self.calm))
        rested = checked & ~over & ((self.suspect == 0) | (self.calm >= CALM_STEPS))
        found = self.suspect >= STIFF_STEPS
        for name in ("steps", "suspect"):
            setattr(self, name, np.where(rested | found, 0, getattr(self, name)))
        self.calm = np.where(rested, 0, self.calm)
        return found

    def set_counters(self, **counters: np.ndarray) -> None:
        """Set the counters to what the native loop returned."""
        for name in COUNTERS:
            setattr(self, name, counters[name])

    def reset(self, rows: np.ndarray) -> None:
        """Begin a new interval for some rows."""
        for name in ("steps", "suspect", "calm"):
            setattr(self, name, np.where(rows, 0, getattr(self, name)))

    def change(self, rows: np.ndarray, implicit: bool) -> None:
        """Change the method of some rows."""
        self.implicit = np.where(rows, implicit, self.implicit)
        self.attempts, self.gained = np.where(rows, 0, self.attempts), np.where(rows, 0.0, self.gained)
        self.reset(rows)

    def is_worthless(self, tried: np.ndarray, replaced: np.ndarray, ratio: float) -> np.ndarray:
        """Count attempts of the implicit method, each for as many explicit steps; return which rows should change back."""
        self.attempts = self.attempts + tried
        self.gained = self.gained + np.where(tried, replaced, 0.0)
        due = self.attempts >= WINDOW
        lost = due & (self.gained < ratio * self.attempts)
        self.wait = np.where(
            lost, np.minimum(BACKOFF * self.wait, LONGEST_INTERVAL), np.where(due, INTERVAL, self.wait)
        )
        self.attempts, self.gained = np.where(due, 0, self.attempts), np.where(due, 0.0, self.gained)
        return lost

    def select(self, index: np.ndarray | slice) -> None:
        """Keep some rows only."""
        for name in self.__dict__:
            setattr(self, name, getattr(self, name)[index])

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return the arrays of a checkpoint."""
        return {f"stiffness_{name}": array for name, array in self.__dict__.items()}

    def restore(self, arrays: dict[str, np.ndarray], rows: np.ndarray) -> None:
        """Set the counters to those of a checkpoint; one without them was written by attractor 0.1."""
        for name in self.__dict__:
            known = arrays.get(f"stiffness_{name}")
            setattr(self, name, getattr(self, name)[rows] if known is None else known)


def _rate(stepper: RungeKutta, h: np.ndarray, y: Tensor, step: Step) -> np.ndarray:
    """Estimate of the largest eigenvalue: the change of the field between the last stage and the end, which have the same time."""
    assert step.slopes is not None
    A, _, _ = stepper.tableau
    last = len(A) - 1
    inner = y + as_column(h, y) * combine(A[last, :last], list(step.slopes[:last]))

    def size(vectors: Tensor) -> np.ndarray:
        return torch.linalg.vector_norm(vectors.detach().flatten(1), dim=-1).cpu().double().numpy()

    moved = size(step.y - inner)
    return np.divide(size(step.slopes[last + 1] - step.slopes[last]), moved, out=np.zeros(len(moved)), where=moved > 0)
