"""Vector field of a run, stepper interface and explicit Runge-Kutta steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from attractor.laws import Law
from attractor.registry import find
from attractor.spaces import Space
from attractor.states import Tokens


class Field:
    """Velocities of points (members, n, d), in the ambient space lifted by the retraction.

    Tokens are x = N(y); the lifted field |y|/|x| v(x) has the length of y as an invariant, so a step may leave the space at
    its own high order and is retracted at its end.
    """

    def __init__(self, law: Law, space: Space, tokens: Tokens, skip_self: bool = False) -> None:
        self.law = law
        self.space = space
        self.masses = tokens.masses
        self.positions = tokens.positions
        self.skip_self = skip_self
        self.evaluations = 0

    def _tokens(self, x: Tensor) -> Tokens:
        return Tokens.trusted(x, self.masses, self.positions)

    def velocity(self, t: np.ndarray, x: Tensor) -> Tensor:
        """Tangent velocity at points of the space."""
        self.evaluations += x.shape[0]
        return self.space.tangent(x, self._drive(t, x))

    def _drive(self, t: np.ndarray, x: Tensor) -> Tensor:
        if self.law.autonomous or len(t) == 1:
            return self.law.velocity(self._tokens(x), float(t[0]), skip_self=self.skip_self)
        # members stand at different times, so a time-varying law is a different law for each
        return torch.cat(
            [self.one(index)._drive(t[index : index + 1], x[index : index + 1]) for index in range(len(t))]
        )

    def lifted(self, t: np.ndarray, y: Tensor, out: Tensor | None = None) -> Tensor:
        """The field in retraction coordinates, written to ``out`` if it is given."""
        if not self.space.curved:
            velocity = self.velocity(t, y)
            return velocity if out is None else out.copy_(velocity)
        stretch = self.space.stretch(y)
        return torch.mul(stretch, self.velocity(t, y / stretch), out=out)

    def layer(self, t: np.ndarray, step: float, x: Tensor) -> Tensor:
        """One discrete layer; members go in step, so they share the time."""
        self.evaluations += x.shape[0]
        return self.law.layer(self._tokens(x), step, self.space, float(t[0]))

    def one(self, index: int) -> Field:
        """The field of one member."""
        field = Field(self.law, self.space, self._tokens(torch.empty(0)), self.skip_self)
        field.keep(torch.tensor([index]))
        return field

    def keep(self, index: Tensor | slice) -> None:
        """Go on with some members only; a slice, for which no law is asked, means nobody."""
        if not isinstance(index, slice):
            self.law = self.law.member(index)
        if self.masses is not None and self.masses.ndim > 1:
            self.masses = self.masses[index]
        if self.positions is not None and self.positions.ndim > 1:
            self.positions = self.positions[index]


# rows of A, the weights B, those of the errors, of further slopes inside a step, and of the polynomial's parts from the fourth on
Coefficients = tuple[list[list[float]], list[float], list[list[float]], list[list[float]], list[list[float]]]


@dataclass(frozen=True)
class Step:
    """A tried step of every member: ambient end points, lifted field there, and local errors of each token or None.

    ``y`` is not yet retracted. ``errors`` are vectors (members, n, d), the last entry the one to control; DOP853 gives two.
    ``slopes`` (stages + 1, members, n, d) are kept by methods that interpolate inside their own steps.
    """

    y: Tensor
    f: Tensor
    errors: tuple[Tensor, ...]
    slopes: Tensor | None = None


class Inside:
    r"""A polynomial inside a step of every member: :math:`y + x(F_0 + (1-x)(F_1 + x(F_2 + (1-x)(F_3 + \dots))))`.

    ``parts`` (k, members, n, d) are the F, x runs from 0 to 1 over the step.
    """

    def __init__(self, h: np.ndarray, y: Tensor, parts: Tensor) -> None:
        self.h, self.y, self.parts = h, y, parts

    def at(self, members: np.ndarray, lag: np.ndarray) -> Tensor:
        """Points of some members at times (<= 0) before the end of the step, not retracted."""
        index = torch.from_numpy(members).to(self.y.device)
        x = torch.from_numpy(1.0 + lag / self.h[members]).to(self.y).view(-1, 1, 1)
        total = torch.zeros_like(self.y[index])
        for count, part in enumerate(reversed(self.parts[:, index])):
            total = (total + part) * (x if (len(self.parts) - count) % 2 else 1.0 - x)
        return self.y[index] + total

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Inside:
        """The same after a linear change of rows, such as a merge."""
        return Inside(self.h, change(self.y), torch.stack([change(part) for part in self.parts]))


_steppers: dict[str, type[Stepper]] = {}


class Stepper:
    """One method.

    ``error_order`` is the order that controls its steps; ``nodes`` is how many step ends dense output uses, unless the method
    ``interpolates`` inside its own steps; ``arrays`` is how many arrays of the size of the state a run holds at most, beside the
    saved ones.
    """

    name: ClassVar[str] = ""
    order: ClassVar[int] = 1
    error_order: ClassVar[int] = 1
    adaptive: ClassVar[bool] = False
    nodes: ClassVar[int] = 2
    interpolates: ClassVar[bool] = False
    arrays: ClassVar[int] = 45
    cites: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        if cls.name:
            _steppers[cls.name] = cls

    @property
    def coefficients(self) -> Coefficients | None:
        """What the native loop must know of the method, or None if it does not know such methods."""
        return None

    def attempt(self, field: Field, t: np.ndarray, h: np.ndarray, y: Tensor, f: Tensor) -> Step:
        """Step every member b from t[b] by h[b]; y, f are (members, n, d)."""
        raise NotImplementedError

    def error(self, step: Step, scale: Tensor) -> Tensor:
        """Error of each token relative to what is tolerated, (members, n)."""
        raise NotImplementedError

    def inside(self, field: Field, t: np.ndarray, h: np.ndarray, y: Tensor, f: Tensor, step: Step) -> Inside | None:
        """The method's own interpolant of a step, or None: then step ends are interpolated."""
        return None


class RungeKutta(Stepper):
    """An explicit method from its tableau, in retraction coordinates."""

    @cached_property
    def tableau(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows A (strictly lower), weights B, nodes C."""
        raise NotImplementedError

    def stages(self, field: Field, t: np.ndarray, h: np.ndarray, y: Tensor, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """End points, the lifted field there, and all slopes (stages + 1, members, n, d)."""
        if torch.is_grad_enabled():
            return self._recorded_stages(field, t, h, y, f)
        _, B, C = self.tableau
        column = column_of(h, y)
        rows = _rows(type(self), y.dtype, y.device)
        # one block of memory, so that a sum over slopes is one product and no slope is held twice
        slopes = y.new_empty((len(C) + 1, *y.shape))
        flat = slopes.view(len(C) + 1, -1)
        slopes[0] = f
        for i in range(1, len(C)):
            inner = torch.addcmul(y, column, (rows[i] @ flat[:i]).view_as(y))
            field.lifted(later(t, C[i], h), inner, out=slopes[i])
        end = torch.addcmul(y, column, (rows[-1] @ flat[: len(B)]).view_as(y))
        field.lifted(later(t, 1.0, h), end, out=slopes[-1])
        return end, slopes[-1], slopes

    def _recorded_stages(
        self, field: Field, t: np.ndarray, h: np.ndarray, y: Tensor, f: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same out of tensors that are never written to, as gradients need it."""
        A, B, C = self.tableau
        column = torch.from_numpy(h).to(y).view(-1, 1, 1)
        slopes = [f]
        for i in range(1, len(C)):
            inner = y + column * combine(A[i, :i], slopes)
            slopes.append(field.lifted(t + C[i] * h, inner))
        end = y + column * combine(B, slopes)
        slopes.append(field.lifted(t + h, end))
        return end, slopes[-1], torch.stack(slopes)


@cache
def _rows(method: type[RungeKutta], dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Rows of A without their zeros above the diagonal, and B."""
    A, B, C = method().tableau
    return [torch.as_tensor(row, dtype=dtype, device=device) for row in [*(A[i, :i] for i in range(len(C))), B]]


def column_of(h: np.ndarray | Tensor, y: Tensor) -> Tensor:
    """Steps of the members beside their points; they are on the device already where a step is recorded."""
    return h.view(-1, 1, 1) if isinstance(h, Tensor) else torch.from_numpy(h).to(y).view(-1, 1, 1)


def later(t: np.ndarray, part: float, h: np.ndarray | Tensor) -> np.ndarray:
    """Times inside a step; a step that is recorded belongs to a law that does not ask for the time."""
    return t if isinstance(h, Tensor) else t + part * h


def estimate(weights: Tensor, column: Tensor, slopes: Tensor) -> Tensor:
    """An error estimate: the step times a sum of slopes."""
    there = weights.to(slopes) if slopes.device.type == "cpu" else _sent(weights, slopes.dtype, slopes.device)
    return column * torch.tensordot(there, slopes, 1)


@lru_cache(maxsize=32)
def _sent(weights: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Weights on a device, sent there once: a step that is recorded must not wait for the host."""
    return weights.to(dtype).to(device)


def combine(coefficients: np.ndarray, slopes: list[Tensor]) -> Tensor:
    """Sum of coefficients times slopes; zero coefficients cost nothing."""
    used = [(float(c), k) for c, k in zip(coefficients.tolist(), slopes, strict=True) if c != 0.0]
    total = used[0][0] * used[0][1]
    for c, k in used[1:]:
        total = torch.add(total, k, alpha=c)
    return total


def default_method(rtol: float) -> str:
    """The method for a tolerance, where the user names none."""
    return "dop853" if rtol <= 1e-7 else "dopri5"


def stepper_named(name: str) -> Stepper:
    """Return the stepper of that name."""
    return find(name, _steppers, "method")()
