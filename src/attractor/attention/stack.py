"""A different law for every layer."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from attractor.attention.law import Law
from attractor.errors import InputError
from attractor.spaces import Space
from attractor.states import Tokens


@dataclass(frozen=True, eq=False)
class Stack(Law):
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
        dims = {law.dim for law in self.laws if law.dim is not None}
        if len(dims) > 1:
            raise InputError(f"the laws of a stack move tokens of different dimensions: {sorted(dims)}")

    @property
    def depth(self) -> float:
        """Time at which the last layer ends."""
        return len(self.laws) * self.duration

    def at(self, time: float) -> Law:
        """The law that acts from this time on."""
        # a relative nudge keeps k * duration in layer k when the product is rounded down
        index = math.floor(time / self.duration * (1 + 1e-12) + 1e-12)
        return self.laws[min(max(index, 0), len(self.laws) - 1)]

    @property
    def dim(self) -> int | None:
        return next((law.dim for law in self.laws if law.dim is not None), None)

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
        inner = [time for law in self.laws for time in law.breaks(start, end)]
        return sorted({*edges, *inner})

    def member(self, index: Tensor) -> Law:
        return Stack(tuple(law.member(index) for law in self.laws), self.duration)

    def merge_obstacle(self) -> str | None:
        return next((reason for law in self.laws if (reason := law.merge_obstacle())), None)

    def gathers(self) -> bool:
        return all(law.gathers() for law in self.laws)

    def check(self, tokens: Tokens) -> None:
        for law in self.laws:
            law.check(tokens)
