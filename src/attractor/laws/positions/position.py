"""Positions: what a positional encoding can change."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from attractor.serialization import Record
from attractor.states import Tokens


class Positions(Record):
    """A positional encoding: shifts tokens at the input or at every evaluation, rotates queries and keys, or adds to scores.

    Every method has a neutral default; an encoding overrides what it changes.
    """

    name: ClassVar[str] = ""
    adds_to_scores: ClassVar[bool] = False  # beyond what rotated or shifted queries and keys give

    @property
    def changes_dynamics(self) -> bool:
        """Whether it acts at every evaluation, and not once at the input."""
        return True

    @property
    def shifts_scores(self) -> bool:
        """Whether points are shifted where queries and keys are made, and only there."""
        return False

    @property
    def shifts_values(self) -> bool:
        """Whether points are shifted at every evaluation, values included."""
        return False

    @property
    def reads_queries(self) -> bool:
        """Whether terms that are added to scores, or their scale, depend on the query beyond a rotation."""
        return False

    def __init_subclass__(cls, **options: Any) -> None:
        """A class with rotations of its own declares its own angles."""
        super().__init_subclass__(**options)
        if {"turn", "pair", "shift"} & vars(cls).keys() and "turning_angles" not in vars(cls):
            cls.turning_angles = Positions.turning_angles  # type: ignore[method-assign]

    def turning_angles(self, head_dim: int, tokens: Tokens) -> Tensor | None:
        """Angles (..., n, pairs), float64, by which the pairs (0, 1), (2, 3), ... of queries and keys are turned.

        None if the encoding does anything else.
        """
        return None

    def rotary_base(self, head_dim: int) -> float | None:
        r"""The base of rotary positions that turn all coordinates by :math:`i\,\theta^{-2p/\text{head\_dim}}`; None for any others."""
        return None

    def enter(self, tokens: Tokens) -> Tensor:
        """Points as they enter the first layer."""
        return tokens.points

    def shift(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Points as queries and keys see them, and as values see them."""
        return tokens.points, tokens.points

    def added_vectors(self, tokens: Tokens) -> Tensor | None:
        """Vectors (m, d) that are added to points at every evaluation; None if that is not known."""
        return tokens.points.new_zeros((0, tokens.dim)) if type(self).shift is Positions.shift else None

    def restrict(self, basis: Tensor) -> Positions:
        """The encoding for coordinates z of points x = basis z, basis (d, r) with orthonormal columns."""
        return self

    def turn(self, vectors: Tensor, tokens: Tokens) -> Tensor:
        """Queries or keys (..., h, n, k) after the encoding."""
        return vectors

    def pair(self, q: Tensor, k: Tensor, tokens: Tokens, scale: Tensor | float) -> tuple[Tensor, Tensor]:
        """Return queries and keys with positions applied; terms added to scores are appended as further coordinates."""
        return self.turn(q, tokens), self.turn(k, tokens)

    def head(self, index: int) -> Positions:
        """The encoding of one head alone."""
        return self

    def check(self, dim: int, head_dim: int) -> None:
        """Raise InputError if the sizes of a law do not fit."""


def indices(tokens: Tokens) -> Tensor:
    """Positions of the tokens, 0, 1, ..., n-1 unless the state says otherwise."""
    if tokens.positions is not None:
        return tokens.positions
    return torch.arange(tokens.n, dtype=tokens.points.dtype, device=tokens.points.device)
