r"""Projections as files hold them become an ``Attention`` in attractor's convention.

Grouped keys and values are repeated for their queries, the output projection is split by heads, and rotary coordinates that a
model pairs as (p, p + r/2) are permuted to (2p, 2p+1).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attractor.attention import Attention, Norm, NormedAttention, Positions
from attractor.errors import CheckpointError, UnsupportedError

GROUPED = ("key", "value", "key_bias", "value_bias")
PARTS = ("query", "output", "query_bias", "output_bias", *GROUPED)


@dataclass(frozen=True)
class Projections:
    """Matrices of one layer: query (h, k, d), key (g, k, d), value (g, r, d), output (h, d, r), with g dividing h."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    query_bias: Tensor | None = None
    key_bias: Tensor | None = None
    value_bias: Tensor | None = None
    output_bias: Tensor | None = None
    query_norm: Norm | None = None
    key_norm: Norm | None = None

    @classmethod
    def of(
        cls,
        matrices: Iterable[Tensor],
        output: Tensor,
        biases: Iterable[Tensor | None] = (None, None, None),
        output_bias: Tensor | None = None,
    ) -> Projections:
        """From query, key and value in this order, and their biases."""
        (query, key, value), (query_bias, key_bias, value_bias) = matrices, biases
        return cls(query, key, value, output, query_bias, key_bias, value_bias, output_bias)


@dataclass(frozen=True)
class Turning:
    """How a model turns queries and keys: ``turned`` coordinates, paired across the halves or as neighbours; cosines and sines
    are multiplied by ``factor``."""

    positions: Positions
    turned: int
    halves: bool = True
    factor: float = 1.0

    def __call__(self, rows: Tensor, axis: int) -> Tensor:
        """Rows of heads in the order in which attractor pairs them, the turned ones multiplied by the factor."""
        ordered = self.order(rows, axis)
        if self.factor == 1.0:
            return ordered
        stretch = torch.ones(rows.shape[axis], dtype=torch.float64, device=rows.device)
        stretch[: self.turned] = self.factor
        return ordered.double() * stretch.reshape(-1, *[1] * (rows.ndim - 1 - axis))

    def order(self, rows: Tensor, axis: int) -> Tensor:
        """The order alone, for what a norm will rescale."""
        return rows.index_select(axis, self._order(rows.shape[axis]).to(rows.device)) if self.halves else rows

    def _order(self, head_dim: int) -> Tensor:
        half = self.turned // 2
        pairs = torch.stack((torch.arange(half), torch.arange(half) + half), dim=-1).flatten()
        return torch.cat((pairs, torch.arange(self.turned, head_dim)))


def split_rows(matrix: Tensor, heads: int) -> Tensor:
    """(h k, d) or (h k,) by heads."""
    if matrix.shape[0] % heads:
        raise CheckpointError(f"a projection with {matrix.shape[0]} rows does not split into {heads} heads")
    return matrix.unflatten(0, (heads, matrix.shape[0] // heads))


def split_columns(matrix: Tensor, heads: int) -> Tensor:
    """An output projection (d, h r) by heads, (h, d, r)."""
    return split_rows(matrix.mT, heads).mT


@dataclass(frozen=True, eq=False)
class Heads:
    """The heads of a layer as they are stored, keys and values once for each group: the law of all of them, or of one.

    Laws are built when asked for, in ``dtype``, and not kept.
    """

    parts: Projections
    options: dict[str, Any]
    joint: bool = False
    dtype: torch.dtype = torch.float64

    @property
    def heads(self) -> int:
        return self.parts.query.shape[0]

    @property
    def groups(self) -> int:
        return self.parts.key.shape[0]

    @property
    def dim(self) -> int:
        return self.parts.query.shape[-1]

    @property
    def bilinear(self) -> bool:
        """Whether scores are bilinear in the tokens."""
        return self.parts.query_norm is None

    def law(self) -> Attention | NormedAttention:
        """The law of all heads; groups are repeated for their queries."""
        given = {name: part.to(self.dtype) for name in PARTS if (part := getattr(self.parts, name)) is not None}
        repeated = {name: _repeated(part, self.heads) for name, part in given.items() if name in GROUPED}
        own = {name: part for name, part in given.items() if name not in GROUPED}
        return self._normed(Attention(**own, **repeated, **self.options))

    def head(self, index: int) -> Attention | NormedAttention:
        """One head alone, without the output bias, which belongs to no head."""
        return self._part(index, index * self.groups // self.heads, index)

    def some(self, indices: range) -> Attention | NormedAttention:
        """Several heads together, without the output bias; not for positions that differ from head to head."""
        groups = [index * self.groups // self.heads for index in indices]
        return self._part(list(indices), groups, 0)

    def _part(self, heads: Any, groups: Any, first: int) -> Attention | NormedAttention:
        if self.joint:
            raise UnsupportedError("queries and keys are normalised over all heads together, so no head stands alone")
        rows = {name: groups if name in GROUPED else heads for name in PARTS if name != "output_bias"}
        given = {name: part for name in rows if (part := getattr(self.parts, name)) is not None}
        parts = {name: part[rows[name]].to(self.dtype) for name, part in given.items()}
        positions = self.options["positions"]
        options = {**self.options, "positions": positions if positions is None else positions.head(first)}
        return self._normed(Attention(**parts, **options))

    def _normed(self, law: Attention) -> Attention | NormedAttention:
        query_norm, key_norm = self.parts.query_norm, self.parts.key_norm
        if query_norm is None or key_norm is None:
            return law
        if self.joint and key_norm.gain is not None:
            gain = _repeated(split_rows(key_norm.gain, self.groups), self.heads).flatten()
            key_norm = replace(key_norm, gain=gain)
        return NormedAttention(law, query_norm, key_norm, self.joint)


def heads_from(
    parts: Projections,
    *,
    scale: float,
    mask: Any = None,
    turning: Turning | None = None,
    positions: Positions | None = None,
    kernel: Any = "softmax",
    joint: bool = False,
    dtype: torch.dtype = torch.float64,
) -> Heads:
    """The heads of a layer from its projections, rotary coordinates in attractor's order."""
    if turning is not None:
        parts, positions = _turned(parts, turning), turning.positions
    return Heads(parts, {"scale": scale, "mask": mask, "positions": positions, "kernel": kernel}, joint, dtype)


def _repeated(part: Tensor, heads: int) -> Tensor:
    """Groups of keys or values, one copy for each of their queries."""
    groups = part.shape[0]
    return part if groups == heads else part.repeat_interleave(heads // groups, dim=0)


def _turned(parts: Projections, turning: Turning) -> Projections:
    """Queries and keys in attractor's order; the factor goes to whatever is last before they turn."""
    if parts.query_norm is None or parts.key_norm is None:
        arrange = turning
        norms = {}
    else:
        arrange, k = turning.order, parts.query.shape[1]
        norms = {name: _turned_norm(getattr(parts, name), turning, k) for name in ("query_norm", "key_norm")}
    biases = {
        name: arrange(bias, 1) for name in ("query_bias", "key_bias") if (bias := getattr(parts, name)) is not None
    }
    return replace(parts, query=arrange(parts.query, 1), key=arrange(parts.key, 1), **biases, **norms)


def _turned_norm(norm: Norm, turning: Turning, k: int) -> Norm:
    """A norm of reordered coordinates, of one head (k,) or of all of them (h k,)."""
    gain = torch.ones(k, dtype=torch.float64) if norm.gain is None else norm.gain
    bias = None if norm.bias is None else turning(norm.bias.reshape(-1, k), 1).flatten()
    return replace(norm, gain=turning(gain.reshape(-1, k), 1).flatten(), bias=bias)
