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
from attractor.solvers.noise import Deviations, Source
from attractor.spaces import Space
from attractor.states import Tokens


class Field:
    """The vector field of a run on points (members, n, d).

    On a curved space with retraction N tokens are x = N(y), and steps are taken in y with the lifted field |y|/|x| v(x). It
    leaves |y| constant, so that a step leaves the space only by its own error and is retracted at its end.
    """

    def __init__(self, law: Law, space: Space, tokens: Tokens, skip_self: bool = False) -> None:
        self.law = law
        self.space = space
        self.masses = tokens.masses
        self.positions = tokens.positions
        self.skip_self = skip_self
        self.source: Source | None = None  # of noise
        self.evaluations = 0

    def _tokens(self, x: Tensor) -> Tokens:
        return Tokens.unchecked(x, self.masses, self.positions)

    def velocity(self, t: np.ndarray, x: Tensor) -> Tensor:
        """Tangent velocity at points of the space."""
        self.evaluations += x.shape[0]
        return self.space.tangent(x, self._drive(t, x))

    def _drive(self, t: np.ndarray, x: Tensor) -> Tensor:
        if self.law.autonomous or len(t) == 1 or (t == t[0]).all():
            return self.law.velocity(self._tokens(x), float(t[0]), skip_self=self.skip_self)
        # members are at different times, so a time-varying law is a different law for each
        return torch.cat(
            [self.member(index)._drive(t[index : index + 1], x[index : index + 1]) for index in range(len(t))]
        )

    def lifted_velocity(self, t: np.ndarray, y: Tensor, out: Tensor | None = None) -> Tensor:
        """The lifted field at y, written to ``out`` if it is given."""
        if not self.space.is_curved:
            velocity = self.velocity(t, y)
            return velocity if out is None else out.copy_(velocity)
        stretch = self.space.stretch(y)
        return torch.mul(stretch, self.velocity(t, y / stretch), out=out)

    def layer(self, t: np.ndarray, step: float, x: Tensor) -> Tensor:
        """One discrete layer; all members have the same time."""
        self.evaluations += x.shape[0]
        return self.law.layer(self._tokens(x), step, self.space, float(t[0]))

    def member(self, index: int) -> Field:
        """The field of one member."""
        return self.members(torch.tensor([index]))

    def members(self, index: Tensor) -> Field:
        """The field of some members, each of them any number of times."""
        field = Field(self.law, self.space, self._tokens(torch.empty(0)), self.skip_self)
        field.select(index)
        return field

    def select(self, index: Tensor | slice) -> None:
        """Keep some members only; a slice stands for none of them, and leaves the law unchanged."""
        if not isinstance(index, slice):
            self.law = self.law.member(index)
        if self.masses is not None and self.masses.ndim > 1:
            self.masses = self.masses[index]
        if self.positions is not None and self.positions.ndim > 1:
            self.positions = self.positions[index]
        if self.source is not None:
            self.source = self.source.select(index)


# rows of A, weights B, weights of the error estimates, rows of A for further slopes of the interpolant, and weights of the
# coefficients of the interpolant from the fourth on
Coefficients = tuple[list[list[float]], list[float], list[list[float]], list[list[float]], list[list[float]]]


@dataclass(frozen=True)
class Step:
    """A trial step of every member.

    Attributes
    ----------
    y, f : end points, not retracted, and the lifted field there, (members, n, d).
    errors : local error estimates (members, n, d): none for a fixed step, two for DOP853.
    slopes : (stages + 1, members, n, d), kept by methods that interpolate inside their own steps; of an implicit method the
        coefficients of its ``StepPolynomial``.
    longest, radius : of an implicit method, the longest next step that follows repelling directions, and the spectral radius of
        the Jacobian, (members,).
    """

    y: Tensor
    f: Tensor
    errors: tuple[Tensor, ...]
    slopes: Tensor | None = None
    longest: np.ndarray | None = None
    radius: np.ndarray | None = None


class StepPolynomial:
    r"""The interpolant of a step of every member: :math:`y + x(F_0 + (1-x)(F_1 + x(F_2 + (1-x)(F_3 + \dots))))`.

    ``parts`` (k, members, n, d) are the coefficients F; x runs from 0 to 1 over the step of length h from y.
    """

    def __init__(self, h: np.ndarray, y: Tensor, parts: Tensor) -> None:
        self.h, self.y, self.parts = h, y, parts

    def at(self, members: np.ndarray, lag: np.ndarray) -> Tensor:
        """Points of some members at times ``lag`` (<= 0) relative to the end of the step, not retracted."""
        index = torch.from_numpy(members).to(self.y.device)
        x = torch.from_numpy(1.0 + lag / self.h[members]).to(self.y).view(-1, 1, 1)
        total = torch.zeros_like(self.y[index])
        for count, part in enumerate(reversed(self.parts[:, index])):
            total = (total + part) * (x if (len(self.parts) - count) % 2 else 1.0 - x)
        return self.y[index] + total

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> StepPolynomial:
        """Apply a linear map of rows, such as a merge."""
        return StepPolynomial(self.h, change(self.y), torch.stack([change(part) for part in self.parts]))


_steppers: dict[str, type[Stepper]] = {}


class Stepper:
    """A one-step method; subclasses with a ``name`` register themselves.

    Attributes
    ----------
    order, error_order : order of the method, and of the error estimate that controls its steps.
    adaptive : whether it has an error estimate.
    discrete : whether it applies discrete layers, which have no states between step ends.
    implicit : whether it solves equations for its stages, and so takes long steps of stiff systems.
    weak_order : weak order with noise, 0 if it takes none.
    needs_noise : whether it is only for runs with noise.
    nodes : number of step ends that dense output interpolates, unless the method ``interpolates`` inside its own steps.
    arrays : largest number of arrays of the size of the state that a run holds, apart from saved states.
    cites : keys in ``references.bib``.
    """

    name: ClassVar[str] = ""
    order: ClassVar[int] = 1
    error_order: ClassVar[int] = 1
    adaptive: ClassVar[bool] = False
    discrete: ClassVar[bool] = False
    implicit: ClassVar[bool] = False
    weak_order: ClassVar[int] = 0
    needs_noise: ClassVar[bool] = False
    nodes: ClassVar[int] = 2
    interpolates: ClassVar[bool] = False
    arrays: ClassVar[int] = 45
    cites: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        if cls.name:
            _steppers[cls.name] = cls

    @property
    def coefficients(self) -> Coefficients | None:
        """Coefficients for the native loop, or None if it cannot run the method."""
        return None

    def with_tolerances(self, rtol: float, atol: float) -> Stepper:
        """The method for a run with these tolerances, which limit the errors of equations that a step solves."""
        return self

    def attempt(self, field: Field, t: np.ndarray, h: np.ndarray, y: Tensor, f: Tensor) -> Step:
        """Try a step of every member from time t (members,) of length h (members,); y and f are (members, n, d)."""
        raise NotImplementedError

    def deviations(self, source: Source, time: float, h: float, like: Tensor, space: Space) -> Deviations:
        """Standard deviations of the increments of a step with noise that begins at ``time``."""
        raise NotImplementedError

    def noisy_step(
        self, field: Field, t: np.ndarray, h: float, x: Tensor, f: Tensor, source: Source, step: int
    ) -> Tensor:
        """Points on the space after step number ``step`` with noise; x and its velocities f are (members, n, d)."""
        raise NotImplementedError

    def error(self, step: Step, scale: Tensor) -> Tensor:
        """Error of each token in units of its tolerance ``scale``, (members, n)."""
        raise NotImplementedError

    def interpolate(
        self, field: Field, t: np.ndarray, h: np.ndarray, y: Tensor, f: Tensor, step: Step
    ) -> StepPolynomial | None:
        """The method's own interpolant of a step, or None if step ends are interpolated instead."""
        return None


class RungeKutta(Stepper):
    """An explicit Runge-Kutta method given by its Butcher tableau, applied to the lifted field.

    ``stability`` is the largest h |lambda| of stable steps, for methods whose last stage is at the end of the step.
    """

    stability: ClassVar[float] = np.inf

    @cached_property
    def tableau(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Matrix A (strictly lower triangular), weights B, nodes C."""
        raise NotImplementedError

    def stages(self, field: Field, t: np.ndarray, h: np.ndarray, y: Tensor, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """End points, the lifted field there, and all slopes (stages + 1, members, n, d)."""
        if torch.is_grad_enabled():
            return self._stages_with_gradients(field, t, h, y, f)
        _, B, C = self.tableau
        column = as_column(h, y)
        rows = _rows(type(self), y.dtype, y.device)
        # one block of memory, so that a sum over slopes is one matrix product without copies
        slopes = y.new_empty((len(C) + 1, *y.shape))
        flat = slopes.view(len(C) + 1, -1)
        slopes[0] = f
        for i in range(1, len(C)):
            inner = torch.addcmul(y, column, (rows[i] @ flat[:i]).view_as(y))
            field.lifted_velocity(stage_times(t, C[i], h), inner, out=slopes[i])
        end = torch.addcmul(y, column, (rows[-1] @ flat[: len(B)]).view_as(y))
        field.lifted_velocity(stage_times(t, 1.0, h), end, out=slopes[-1])
        return end, slopes[-1], slopes

    def _stages_with_gradients(
        self, field: Field, t: np.ndarray, h: np.ndarray, y: Tensor, f: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """``stages`` without operations in place, for gradients."""
        A, B, C = self.tableau
        column = torch.from_numpy(h).to(y).view(-1, 1, 1)
        slopes = [f]
        for i in range(1, len(C)):
            inner = y + column * combine(A[i, :i], slopes)
            slopes.append(field.lifted_velocity(t + C[i] * h, inner))
        end = y + column * combine(B, slopes)
        slopes.append(field.lifted_velocity(t + h, end))
        return end, slopes[-1], torch.stack(slopes)


@cache
def _rows(method: type[RungeKutta], dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Rows of A below the diagonal, and B, as tensors."""
    A, B, C = method().tableau
    return [torch.as_tensor(row, dtype=dtype, device=device) for row in [*(A[i, :i] for i in range(len(C))), B]]


def as_column(h: np.ndarray | Tensor, y: Tensor) -> Tensor:
    """Step lengths with shape (members, 1, 1) on the device of y; inside a CUDA graph they are tensors already."""
    return h.view(-1, 1, 1) if isinstance(h, Tensor) else torch.from_numpy(h).to(y).view(-1, 1, 1)


def stage_times(t: np.ndarray, part: float, h: np.ndarray | Tensor) -> np.ndarray:
    """Times t + part h; inside a CUDA graph, where h is a tensor, the law does not depend on time and t is returned."""
    return t if isinstance(h, Tensor) else t + part * h


def estimate_error(weights: Tensor, column: Tensor, slopes: Tensor) -> Tensor:
    """Error estimate: the step length times a weighted sum of slopes."""
    there = weights.to(slopes) if slopes.device.type == "cpu" else _move_weights(weights, slopes.dtype, slopes.device)
    return column * torch.tensordot(there, slopes, 1)


@lru_cache(maxsize=32)
def _move_weights(weights: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Copy weights to a device once: a CUDA graph cannot capture a copy from the host."""
    return weights.to(dtype).to(device)


def combine(coefficients: np.ndarray, slopes: list[Tensor]) -> Tensor:
    """Sum of coefficients times slopes, without the terms whose coefficient is zero."""
    used = [(float(c), k) for c, k in zip(coefficients.tolist(), slopes, strict=True) if c != 0.0]
    total = used[0][0] * used[0][1]
    for c, k in used[1:]:
        total = torch.add(total, k, alpha=c)
    return total


def default_method(rtol: float) -> str:
    """The default method for a relative tolerance."""
    return "dop853" if rtol <= 1e-7 else "dopri5"


def implicit_method(rtol: float) -> str:
    """The method for stiff members at a relative tolerance."""
    return "radau9" if rtol <= 1e-6 else "radau5"


def method_citations(names: str) -> tuple[str, ...]:
    """Keys in ``references.bib`` of methods joined by "+"; those of DOP853 for the rescaled integration of Gaussians."""
    found = [_steppers.get("dop853" if name == "rescaled" else name) for name in names.split("+")]
    return tuple(dict.fromkeys(key for stepper in found if stepper is not None for key in stepper.cites))


def stepper_named(name: str) -> Stepper:
    """Return the stepper of that name."""
    return find(name, _steppers, "method")()
