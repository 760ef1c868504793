"""CUDA graphs of single steps, for small systems on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.engines import distributed
from attractor.laws import Attention, Law
from attractor.solvers.steppers.stepper import Field, RungeKutta, Step, Stepper

WARM_UP = 3  # steps of one shape before one is captured
MAX_PAIRS = 1 << 27  # of an evaluation; above, the time to launch kernels is negligible


def can_capture(stepper: Stepper, law: Law, points: Tensor) -> bool:
    """Whether steps can be captured as a CUDA graph."""
    return points.device.type == "cuda" and is_device_only(stepper, law, points)


def is_device_only(stepper: Stepper, law: Law, points: Tensor) -> bool:
    """Whether steps run without gradients and without synchronisation with the host, if the points are on a GPU."""
    return (
        isinstance(stepper, RungeKutta)
        and stepper.adaptive
        and isinstance(law, Attention)
        and not law.kernel.reads_values
        and law.mask is None
        and law.positions is None
        and points.shape[0] * law.heads * points.shape[1] ** 2 <= MAX_PAIRS
        and not torch.is_grad_enabled()
        and not distributed.is_active()
    )


class StepGraph:
    """``Stepper.attempt``, replayed from a CUDA graph where one has been captured for the same shapes and law."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper = stepper
        self._reset()

    def _reset(self) -> None:
        self.key: tuple[Any, ...] = ()
        self.seen = self.cost = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, field: Field, t: np.ndarray, h: np.ndarray, y: Tensor, f: Tensor) -> Step:
        if not can_capture(self.stepper, field.law, y):
            return self.stepper.attempt(field, t, h, y, f)
        # the objects themselves, not their addresses, which could be reused
        key = (y.shape, y.dtype, y.device, field.law, field.masses, field.positions)
        if len(key) != len(self.key) or any(
            one is not two and not _same(one, two) for one, two in zip(key, self.key, strict=True)
        ):
            self._reset()
            self.key = key
        self.seen += 1
        if self.seen <= WARM_UP:
            return self.stepper.attempt(field, t, h, y, f)
        if self.graph is None:
            self._capture(field, t, y)
        assert self.graph is not None
        self.h.copy_(torch.from_numpy(h))
        self.y.copy_(y)
        self.f.copy_(f)
        self.graph.replay()
        field.evaluations += self.cost
        step = self.step
        slopes = None if step.slopes is None else step.slopes.clone()
        # copies: the next replay overwrites these, and dense output needs past steps
        return Step(step.y.clone(), step.f.clone(), tuple(error.clone() for error in step.errors), slopes)

    def _capture(self, field: Field, t: np.ndarray, y: Tensor) -> None:
        self.y, self.f = torch.zeros_like(y), torch.zeros_like(y)
        self.y.copy_(y)
        self.h = torch.zeros(y.shape[0], dtype=y.dtype, device=y.device)
        before = field.evaluations
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step = self.stepper.attempt(field, t, self.h, self.y, self.f)  # type: ignore[arg-type]
        self.cost = field.evaluations - before
        field.evaluations = before


def _same(one: Any, two: Any) -> bool:
    return type(one) is type(two) and not isinstance(one, (Tensor, Law)) and one == two
