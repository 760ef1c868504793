r"""Heads of one shape, all at once, and the small matrices that everything else is made of.

With :math:`V_h = Z_h V'_h` and orthonormal columns :math:`Z_h`, a head is known up to rotations of token space by the inner products of
the rows of Q, K, V' and the columns of Z: nothing of size d is needed after them. Q and K may come from another head than
V' and Z do: a mismatched head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from attractor.theory.weights.forms import core, from_grams


@dataclass(frozen=True, eq=False)
class Factors:
    """Query and key (n, k, d), scale in the query, value (n, r, d) and output (n, d, r) with orthonormal columns, of the heads
    ``members`` of a law."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    members: tuple[int, ...] = ()

    @property
    def dim(self) -> int:
        return self.query.shape[-1]

    @property
    def rank(self) -> int:
        return self.value.shape[-2]

    def grams(self) -> Grams:
        """The small matrices of every head."""
        return Grams(self, self)

    def mismatched(self, shift: int) -> Grams:
        """The queries and keys of each head with the values and outputs of the one ``shift`` further."""
        rolled = {name: getattr(self, name).roll(-shift, 0) for name in ("value", "output")}
        return Grams(self, replace(self, **rolled))


@dataclass(frozen=True, eq=False)
class Grams:
    """Queries and keys of ``scores`` with values and outputs of ``moves``; every matrix is (n, size of a head, size of a head)."""

    scores: Factors
    moves: Factors

    @property
    def dim(self) -> int:
        return self.scores.dim

    @property
    def members(self) -> tuple[int, ...]:
        return self.scores.members

    @property
    def rank(self) -> int:
        return self.moves.rank

    @property
    def sizes(self) -> tuple[int, int]:
        """Rows of queries and of values."""
        return self.scores.query.shape[-2], self.rank

    @cached_property
    def norms(self) -> tuple[Tensor, Tensor]:
        """The Frobenius norms of W and of the value map, (n,) each."""
        query = self.scores.query @ self.scores.query.mT
        interaction = (query * self._keys).sum((-2, -1)).clamp_min(0.0).sqrt()
        return interaction, torch.linalg.vector_norm(self.moves.value, dim=(-2, -1))

    @cached_property
    def reduced_query(self) -> Tensor:
        """(n, k, r)"""
        return self.scores.query @ self.moves.output

    @cached_property
    def reduced_key(self) -> Tensor:
        """(n, k, r)"""
        return self.scores.key @ self.moves.output

    @cached_property
    def reduced_value(self) -> Tensor:
        """(n, r, r): what the value does on the range of its output."""
        return self.moves.value @ self.moves.output

    @cached_property
    def reduced_interaction(self) -> Tensor:
        """(n, r, r): what the interaction does there."""
        return self.reduced_query.mT @ self.reduced_key

    @cached_property
    def reduced_metric(self) -> Tensor:
        """(n, r, r): congruent to the metric of the reduced system."""
        return self.reduced_value.mT @ self.reduced_interaction

    @cached_property
    def triangles(self) -> tuple[Tensor, Tensor]:
        """W is Z R_1' R_2 Z', up to the rotation Z: R_1' and R_2', (n, min(2k, d), k)."""
        query, key = self.scores.query, self.scores.key
        if 2 * query.shape[-2] >= query.shape[-1]:
            return query.mT, key.mT
        grams = query @ query.mT, query @ key.mT, self._keys
        return from_grams(*grams, lambda rows: torch.cat((query[rows], key[rows]), -2))

    @cached_property
    def interaction(self) -> Tensor:
        """(n, s, s), s = min(2k, d): W but for a rotation and zeros."""
        left, right = self.triangles
        return left @ right.mT

    @cached_property
    def metric(self) -> Tensor:
        """(n, s, s): V'W likewise, V'W = L' K with L = Q Z V'."""
        key, value = self.scores.key, self.moves.value
        if 2 * key.shape[-2] >= key.shape[-1]:
            return core(self.reduced_query @ value, key)
        inner = self.reduced_query @ (value @ value.mT) @ self.reduced_query.mT
        cross = self.reduced_query @ (value @ key.mT)
        exact = lambda rows: torch.cat((self.reduced_query[rows] @ value[rows], key[rows]), -2)  # noqa: E731
        left, right = from_grams(inner, cross, self._keys, exact)
        return left @ right.mT

    @cached_property
    def _keys(self) -> Tensor:
        return self.scores.key @ self.scores.key.mT
