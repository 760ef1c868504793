"""Several positional encodings at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.laws.positions.absolute import Absolute
from attractor.laws.positions.position import Positions
from attractor.laws.positions.rotary import Rotary
from attractor.states import Tokens


@dataclass(frozen=True, eq=False)
class Combined(Positions):
    r"""Encodings that act together: ``positions=[Absolute(table), Rotary()]``.

    Points are shifted first, :math:`y_i = x_i + p_i`; queries and keys of :math:`y_i` are then rotated, and what adds to scores comes
    last: :math:`s_{ij} = \langle R_i Q y_i, R_j K y_j\rangle + b_{ij}`, whatever the order of the list. With one ``Absolute`` on queries,
    keys and values this is the rotary law at x + p. (To rotate before adding is another law.) Several ``Absolute`` add up; there
    is at most one encoding of each other kind.
    """

    encodings: tuple[Positions, ...]

    def __post_init__(self) -> None:
        encodings = tuple(self.encodings)
        object.__setattr__(self, "encodings", encodings)
        for encoding in encodings:
            if not isinstance(encoding, Positions) or isinstance(encoding, Combined):
                raise InputError(
                    "a list of positions holds Absolute(...), Rotary(...), Alibi(...) or Relative(...), "
                    f"got {type(encoding).__name__}"
                )
        names = [encoding.name for encoding in encodings if not isinstance(encoding, Absolute)]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InputError(f"a list of positions holds at most one {twice} encoding, got {names.count(twice)}")
        # of the class in other encodings
        object.__setattr__(self, "name", " and ".join(dict.fromkeys(encoding.name for encoding in encodings)))
        object.__setattr__(self, "adds_to_scores", any(encoding.adds_to_scores for encoding in encodings))

    @property
    def changes_dynamics(self) -> bool:
        return any(encoding.changes_dynamics for encoding in self.encodings)

    @property
    def shifts_scores(self) -> bool:
        return any(encoding.shifts_scores for encoding in self.encodings)

    @property
    def shifts_values(self) -> bool:
        return any(encoding.shifts_values for encoding in self.encodings)

    @property
    def reads_queries(self) -> bool:
        return any(encoding.reads_queries for encoding in self.encodings)

    def enter(self, tokens: Tokens) -> Tensor:
        for encoding in self.encodings:
            tokens = tokens.with_points(encoding.enter(tokens))
        return tokens.points

    def shift(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        paired = valued = tokens
        for encoding in self.encodings:
            paired = paired.with_points(encoding.shift(paired)[0])
            valued = valued.with_points(encoding.shift(valued)[1])
        return paired.points, valued.points

    def added_vectors(self, tokens: Tokens) -> Tensor | None:
        parts = [encoding.added_vectors(tokens) for encoding in self.encodings]
        known = [part for part in parts if part is not None]
        return torch.cat(known) if len(known) == len(parts) else None

    def restrict(self, basis: Tensor) -> Positions:
        return Combined(tuple(encoding.restrict(basis) for encoding in self.encodings))

    def pair(self, q: Tensor, k: Tensor, tokens: Tokens, scale: Tensor | float) -> tuple[Tensor, Tensor]:
        # what adds to scores appends coordinates, which are not rotated
        for encoding in sorted(self.encodings, key=_appends):
            q, k = encoding.pair(q, k, tokens, scale)
        return q, k

    def head(self, index: int) -> Combined:
        return Combined(tuple(encoding.head(index) for encoding in self.encodings))

    def check(self, dim: int, head_dim: int) -> None:
        for encoding in self.encodings:
            encoding.check(dim, head_dim)


def _appends(encoding: Positions) -> bool:
    """Whether the encoding appends coordinates to queries and keys."""
    return encoding.adds_to_scores and type(encoding).turn is Positions.turn


def as_positions(positions: Any) -> Positions | None:
    """Positions from None, an encoding, or a list of encodings."""
    if isinstance(positions, (list, tuple)):
        if not positions:
            return None
        return (
            positions[0] if len(positions) == 1 and isinstance(positions[0], Positions) else Combined(tuple(positions))
        )
    if positions is None or isinstance(positions, Positions):
        return positions
    raise InputError(
        "positions must be None, Absolute(...), Rotary(...), Alibi(...) or Relative(...), or a list of these, "
        f"got {positions!r}"
    )


def acts_on_heads(encoding: Positions) -> bool:
    """Whether the encoding depends on coordinates of queries and keys, beyond their inner products."""
    return type(encoding).turn is not Positions.turn or type(encoding).pair is not Positions.pair


def encodings_of(positions: Positions | None) -> Iterator[Positions]:
    """The single encodings."""
    if isinstance(positions, Combined):
        yield from positions.encodings
    elif positions is not None:
        yield positions


def rotary_of(positions: Positions | None) -> Rotary | None:
    """The rotary encoding among the encodings, or None."""
    return next((encoding for encoding in encodings_of(positions) if isinstance(encoding, Rotary)), None)
