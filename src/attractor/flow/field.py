"""The law on its space, as the steppers see it: one vector field for all members of an ensemble."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attractor.attention import Law
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
