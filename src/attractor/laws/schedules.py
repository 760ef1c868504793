"""Laws that depend on time or on the layer."""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attractor.errors import InputError, UnsupportedError
from attractor.laws.attention import Attention
from attractor.laws.law import CompositeLaw, Law, join_vectors
from attractor.serialization import Record
from attractor.spaces import Space
from attractor.states import Tokens


@dataclass(frozen=True, eq=False)
class Schedule(Law):
    """A law for every time: ``Schedule(function)`` with function(t) -> Law, or ``Schedule.interpolate(times, laws)``.

    Interpolation is linear in every parameter between the given times and constant outside them.
    """

    function: Callable[[float], Law] | None = None
    times: tuple[float, ...] = ()
    laws: tuple[Law, ...] = ()
    autonomous = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "times", tuple(float(time) for time in self.times))
        object.__setattr__(self, "laws", tuple(self.laws))
        if self.function is None and (len(self.times) < 2 or len(self.times) != len(self.laws)):
            raise InputError("a schedule needs a function of time, or at least two times with one law each")
        if any(later <= earlier for earlier, later in zip(self.times, self.times[1:], strict=False)):
            raise InputError(f"the times of a schedule must increase, got {self.times}")
        if self.function is not None and not isinstance(self.function(0.0), Law):
            raise InputError(
                f"a schedule's function must return a law, it returned {type(self.function(0.0)).__name__}"
            )

    @classmethod
    def interpolate(cls, times: Sequence[float], laws: Sequence[Law]) -> Schedule:
        """Linear interpolation of all parameters between the laws given at some times."""
        return cls(None, tuple(times), tuple(laws))

    def at(self, time: float) -> Law:
        """The law at one time."""
        if self.function is not None:
            return self.function(time)
        index = min(max(bisect_right(self.times, time) - 1, 0), len(self.times) - 2)
        share = (time - self.times[index]) / (self.times[index + 1] - self.times[index])
        share = min(max(share, 0.0), 1.0)
        return _blend(self.laws[index], self.laws[index + 1], share)

    @property
    def dim(self) -> int | None:
        return self.at(self.times[0] if self.times else 0.0).dim

    def velocity(self, tokens: Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor:
        return self.at(time).velocity(tokens, time, skip_self=skip_self)

    def layer(self, tokens: Tokens, step: float, space: Space, time: float = 0.0) -> Tensor:
        return self.at(time).layer(tokens, step, space, time)

    def enter(self, tokens: Tokens) -> Tokens:
        return self.at(self.times[0] if self.times else 0.0).enter(tokens)

    def breaks(self, start: float, end: float) -> list[float]:
        return [time for time in self.times if start < time < end]

    def member(self, index: Tensor) -> Law:
        if self.function is None:
            return Schedule.interpolate(self.times, [law.member(index) for law in self.laws])
        whole = self.function
        return Schedule(lambda time: whole(time).member(index))

    def _moved(self, device: torch.device | None, dtype: torch.dtype | None) -> Schedule:
        if self.function is None:
            return super()._moved(device, dtype)
        whole = self.function
        return Schedule(lambda time: whole(time)._moved(device, dtype))

    def for_equiangular(self, n: int) -> Law:
        whole = self
        return Schedule(lambda time: whole.at(time).for_equiangular(n), ()) if self.function else self._equiangular(n)

    def _equiangular(self, n: int) -> Law:
        for law in self.laws:
            law.for_equiangular(n)  # raises if it does not apply
        whole = self
        found = Schedule(lambda time: whole.at(time).for_equiangular(n))
        object.__setattr__(found, "times", self.times)  # where it is not smooth
        return found

    def added_vectors(self, tokens: Tokens) -> Tensor | None:
        # interpolated parameters of one form: factors of an output may be interpolated, but not kernels and norms that differ
        return None if self.function is not None else join_vectors(self.laws, tokens)

    def restrict(self, basis: Tensor, linear: bool = False) -> Law:
        return Schedule.interpolate(self.times, [law.restrict(basis, linear=True) for law in self.laws])

    def merge_obstacle(self) -> str | None:
        if self.function is not None:
            return "a schedule given as a function may become masked at any time; use Schedule.interpolate or a Stack"
        return next((reason for law in self.laws if (reason := law.merge_obstacle())), None)

    def jacobian(self, tokens: Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor | None:
        return self.at(time).jacobian(tokens, time, skip_self=skip_self)

    def is_smooth(self) -> bool:
        return self.at(self.times[0] if self.times else 0.0).is_smooth()

    def is_attracting(self) -> bool:
        return self.function is None and all(law.is_attracting() for law in self.laws)

    def check(self, tokens: Tokens) -> None:
        self.at(self.times[0] if self.times else 0.0).check(tokens)


@dataclass(frozen=True, eq=False)
class Rescaled(Law):
    r"""One head of attention for the rescaled tokens :math:`z_i(t) = e^{-tV}x_i(t)` [geshkovski2023emergence]:

    .. math:: \dot z_i = V\Big(\sum_j w_{ij}(t)\,z_j - z_i\Big), \qquad w_{ij}(t) \text{ the weights of the tokens } e^{tV}z_j.

    ``Trajectory.rescaled`` gives the rescaled tokens of a run of the law itself; this law integrates them directly.
    """

    law: Attention
    autonomous = False

    def __post_init__(self) -> None:
        law = self.law
        if type(law) is not Attention or law.heads > 1 or law.query.ndim > 3:
            raise UnsupportedError(
                "tokens are rescaled by e^(-tV) for Attention(...) with one head and the same V for all members"
            )
        if (
            law.value_bias is not None
            or law.output_bias is not None
            or (law.positions is not None and law.positions.shifts_values)
        ):
            raise UnsupportedError(
                "tokens are rescaled by e^(-tV) where velocities are sums of V x_j: no biases, no positions in values"
            )

    @property
    def dim(self) -> int:
        return self.law.dim

    @property
    def value(self) -> Tensor:
        """V, (d, d)."""
        return self.law.value_map.reshape(self.dim, self.dim).detach().double()

    def rescale(self, points: Tensor, time: float) -> Tensor:
        """Return e^(-time V) x for points x (..., d)."""
        return points @ torch.linalg.matrix_exp(-time * self.value).to(points).mT

    def velocity(self, tokens: Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor:
        z = tokens.points
        weights = self.law.weights(tokens.with_points(self.rescale(z, -time)))
        weights = weights.squeeze(-3) if weights.ndim > z.ndim else weights
        return (weights @ z - z) @ self.value.to(z).mT

    def is_smooth(self) -> bool:
        return self.law.is_smooth()

    def merge_obstacle(self) -> str | None:
        return self.law.merge_obstacle()

    def check(self, tokens: Tokens) -> None:
        self.law.check(tokens)

    def describe(self) -> str:
        """The law in words, for titles."""
        return f"{self.law.describe()}, rescaled by e^(-tV)"

    def citations(self) -> tuple[str, ...]:
        return (*self.law.citations(), "geshkovski2023emergence")


def _blend(first: Any, second: Any, share: float) -> Any:
    """first + share (second - first), field by field."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        if first.shape != second.shape:
            raise InputError(f"laws of a schedule differ in shape: {tuple(first.shape)} and {tuple(second.shape)}")
        if not first.is_floating_point() and not torch.equal(first, second):
            raise InputError("laws of a schedule must have the same form to be interpolated; got two different masks")
        return first + share * (second - first) if first.is_floating_point() else first
    if isinstance(first, float) and isinstance(second, float):
        return first + share * (second - first)
    if isinstance(first, tuple) and isinstance(second, tuple) and len(first) == len(second):
        return tuple(_blend(a, b, share) for a, b in zip(first, second, strict=True))
    if isinstance(first, Record) and type(first) is type(second) and dataclasses.is_dataclass(first):
        names = [field.name for field in dataclasses.fields(first) if field.init]
        return dataclasses.replace(
            first, **{name: _blend(getattr(first, name), getattr(second, name), share) for name in names}
        )
    if first == second:
        return first
    raise InputError(f"laws of a schedule must have the same form to be interpolated; got {first!r} and {second!r}")


@dataclass(frozen=True, eq=False)
class Stack(CompositeLaw):
    """Law number k acts during [k duration, (k+1) duration); past the last layer the last law goes on.

    With ``method="layers"`` and a step equal to ``duration`` this is a Transformer, one law a block.
    """

    laws: tuple[Law, ...]
    duration: float = 1.0
    autonomous = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "laws", tuple(self.laws))
        if not self.laws:
            raise InputError("a stack needs at least one law")
        if not self.duration > 0:
            raise InputError(f"a layer of a stack needs a positive duration, got {self.duration}")
        self.check_dimensions("the laws of a stack")

    @property
    def depth(self) -> float:
        """Time at which the last layer ends."""
        return len(self.laws) * self.duration

    def at(self, time: float) -> Law:
        """The law that acts from this time on."""
        # a relative nudge keeps k * duration in layer k when the product is rounded down
        layer = time / self.duration * (1 + 1e-12) + 1e-12
        return self.laws[math.floor(min(max(layer, 0.0), len(self.laws) - 1.0))]

    @property
    def components(self) -> tuple[Law, ...]:
        return self.laws

    def velocity(self, tokens: Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor:
        return self.at(time).velocity(tokens, time, skip_self=skip_self)

    def layer(self, tokens: Tokens, step: float, space: Space, time: float = 0.0) -> Tensor:
        return self.at(time).layer(tokens, step, space, time)

    def enter(self, tokens: Tokens) -> Tokens:
        return self.laws[0].enter(tokens)

    def between(self, start: float, end: float) -> Law:
        return self.at((start + end) / 2).between(start, end)

    def breaks(self, start: float, end: float) -> list[float]:
        edges = [k * self.duration for k in range(1, len(self.laws)) if start < k * self.duration < end]
        return sorted({*edges, *super().breaks(start, end)})

    def for_equiangular(self, n: int) -> Law:
        return Stack(tuple(law.for_equiangular(n) for law in self.laws), self.duration)

    def restrict(self, basis: Tensor, linear: bool = False) -> Law:
        return Stack(tuple(law.restrict(basis, linear) for law in self.laws), self.duration)

    def member(self, index: Tensor) -> Law:
        return Stack(tuple(law.member(index) for law in self.laws), self.duration)

    def is_attracting(self) -> bool:
        return all(law.is_attracting() for law in self.laws)
