"""What a stepper must offer, and explicit Runge-Kutta steps from a tableau."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.flow.field import Field


@dataclass(frozen=True)
class Step:
    """A tried step of every member: ambient end points, lifted field there, and local errors of each token or None.

    ``y`` is not yet retracted. ``errors`` are vectors (members, n, d), the last entry the one to control; DOP853 gives two.
    """

    y: Tensor
    f: Tensor
    errors: tuple[Tensor, ...]


class Stepper:
    """One method. ``nodes`` is how many step ends its dense output uses, ``error_order`` the order that controls steps."""

    name: ClassVar[str] = ""
    order: ClassVar[int] = 1
    error_order: ClassVar[int] = 1
    adaptive: ClassVar[bool] = False
    nodes: ClassVar[int] = 2
    cites: ClassVar[tuple[str, ...]] = ()

    def attempt(self, field: Field, t: np.ndarray, h: np.ndarray, y: Tensor, f: Tensor) -> Step:
        """Step every member b from t[b] by h[b]; y, f are (members, n, d)."""
        raise NotImplementedError

    def error(self, step: Step, scale: Tensor) -> Tensor:
        """Error of each token relative to what is tolerated, (members, n)."""
        raise NotImplementedError


class RungeKutta(Stepper):
    """An explicit method from its tableau, in retraction coordinates."""

    @cached_property
    def tableau(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows A (strictly lower), weights B, nodes C."""
        raise NotImplementedError

    def stages(self, field: Field, t: np.ndarray, h: np.ndarray, y: Tensor, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """End points, the lifted field there, and all slopes (stages + 1, members, n, d)."""
        A, B, C = self.tableau
        column = torch.from_numpy(h).to(y).view(-1, 1, 1)
        slopes = [f]
        for i in range(1, len(C)):
            inner = y + column * _combine(A[i, :i], slopes)
            slopes.append(field.lifted(t + C[i] * h, inner))
        end = y + column * _combine(B, slopes)
        slopes.append(field.lifted(t + h, end))
        return end, slopes[-1], torch.stack(slopes)


def _combine(coefficients: np.ndarray, slopes: list[Tensor]) -> Tensor:
    """Sum of coefficients times slopes; zero coefficients cost nothing."""
    used = [(float(c), k) for c, k in zip(coefficients.tolist(), slopes, strict=True) if c != 0.0]
    total = used[0][0] * used[0][1]
    for c, k in used[1:]:
        total = torch.add(total, k, alpha=c)
    return total


def stepper_named(name: str) -> Stepper:
    """A method by name."""
    from attractor.flow import steppers

    methods = {
        found.name: found for found in (steppers.Dopri5, steppers.Dop853, steppers.RK4, steppers.Euler, steppers.Layers)
    }
    if name not in methods:
        raise InputError(f"method {name!r} is not known; the methods are {', '.join(methods)}")
    return methods[name]()
