"""Relative positions: learned numbers or vectors for every head and distance, added to scores."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.laws.positions.position import Positions, indices
from attractor.states import Tokens, check_finite, to_float_tensor


@dataclass(frozen=True, eq=False)
class Relative(Positions):
    r"""Scores :math:`s_{ij} + b_h[\text{bucket}(p_j - p_i)]` with ``table`` b (buckets, h) [raffel2020exploring].

    Half of the buckets are single distances, the others widen geometrically up to ``reach`` and the last holds all that is
    beyond; with ``both_sides`` keys after the query have separate buckets, without it they share bucket 0. The bias is
    carried by n further coordinates of queries and keys, so it costs as much memory as the scores.

    Symbols: ``table`` is T5's ``relative_attention_bias``, ``reach`` its ``relative_attention_max_distance``.
    """

    table: Tensor
    reach: int = 128
    both_sides: bool = True
    name: ClassVar[str] = "relative"
    adds_to_scores: ClassVar[bool] = True

    def __post_init__(self) -> None:
        table = check_finite(to_float_tensor(self.table, "the table of biases"), "the table of biases")
        sides = 2 if self.both_sides else 1
        if table.ndim != 2 or table.shape[0] % (2 * sides) or not table.shape[0]:
            raise InputError(
                f"the table of biases must be (buckets, h) with buckets a multiple of {2 * sides}, got {tuple(table.shape)}"
            )
        if self.reach <= table.shape[0] // (2 * sides):
            raise InputError(
                f"the last bucket must lie beyond the {table.shape[0] // (2 * sides)} single distances, got reach {self.reach}"
            )
        object.__setattr__(self, "table", table)

    def bucket(self, ahead: Tensor) -> Tensor:
        """The bucket of every difference, place of the key minus place of the query."""
        count = self.table.shape[0] // (2 if self.both_sides else 1)
        distance = ahead.abs() if self.both_sides else (-ahead).clamp(min=0)
        single = count // 2
        growth = torch.log(distance.clamp(min=1) / single) / math.log(self.reach / single)
        wide = (single + (growth * (count - single)).trunc()).clamp(max=count - 1)
        bucket = torch.where(distance < single, distance, wide).long()
        return bucket + count * (ahead > 0) if self.both_sides else bucket

    def pair(self, q: Tensor, k: Tensor, tokens: Tokens, scale: Tensor | float) -> tuple[Tensor, Tensor]:
        if self.table.shape[1] != q.shape[-3]:
            raise InputError(f"the table has biases for {self.table.shape[1]} heads, the law has {q.shape[-3]}")
        places = indices(tokens).to(torch.float64)
        bias = self.table.to(q)[self.bucket(places.unsqueeze(-2) - places.unsqueeze(-1))]  # (..., query, key, h)
        carried = (bias.movedim(-1, -3) / scale).mT.expand(*k.shape[:-1], k.shape[-2])  # (..., h, key, query)
        ones = torch.eye(q.shape[-2], dtype=q.dtype, device=q.device).expand(*q.shape[:-1], q.shape[-2])
        return torch.cat((q, ones), dim=-1), torch.cat((k, carried), dim=-1)

    def head(self, index: int) -> Relative:
        return replace(self, table=self.table[:, index : index + 1])

    def citations(self) -> tuple[str, ...]:
        return ("raffel2020exploring",)


@dataclass(frozen=True, eq=False)
class Disentangled(Positions):
    r"""Scores :math:`\langle q_i, k_j\rangle + \langle q_i, a_h[b(i - j)]\rangle + \langle k_j, c_h[b(i - j)]\rangle`
    [he2021deberta] with learned vectors a = ``keys`` and c = ``queries``, each (h, 2 span, k) or None.

    The bucket b is the difference itself up to ``buckets`` / 2 and widens geometrically up to ``reach``, or the difference where
    ``buckets`` is 0; it is shifted by the span and clipped to the table. The terms are carried by n further coordinates.
    """

    keys: Tensor | None = None
    queries: Tensor | None = None
    buckets: int = 0
    reach: int = 512
    name: ClassVar[str] = "disentangled"
    adds_to_scores: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("keys", "queries"):
            given = getattr(self, name)
            if given is not None:
                table = check_finite(to_float_tensor(given, f"the table of {name}"), f"the table of {name}")
                if table.ndim != 3 or table.shape[1] % 2:
                    raise InputError(f"the table of {name} must be (h, 2 span, k), got {tuple(table.shape)}")
                object.__setattr__(self, name, table)

    @property
    def reads_queries(self) -> bool:
        return self.keys is not None

    def bucket(self, difference: Tensor) -> Tensor:
        """The bucket of every difference of positions, between -span and span."""
        if not self.buckets:
            return difference.long()
        middle = self.buckets // 2
        distance = difference.abs().clamp(min=1)
        growth = torch.log(distance / middle) / math.log((self.reach - 1) / middle)
        wide = (growth * (middle - 1)).ceil() + middle
        return torch.where(difference.abs() <= middle, difference, wide * difference.sign()).long()

    def pair(self, q: Tensor, k: Tensor, tokens: Tokens, scale: Tensor | float) -> tuple[Tensor, Tensor]:
        places = indices(tokens).to(torch.float64)
        ahead = self.bucket(places.unsqueeze(-1) - places.unsqueeze(-2))  # query minus key
        n, added = q.shape[-2], torch.zeros((), dtype=q.dtype, device=q.device)
        for table, vectors, difference in ((self.keys, q, ahead), (self.queries, k, -ahead)):
            if table is not None:
                span = table.shape[1] // 2
                place = (difference + span).clamp(0, 2 * span - 1).expand(*vectors.shape[:-1], n)
                products = vectors @ table.to(vectors).mT  # (..., h, n, 2 span)
                terms = products.gather(-1, place)
                added = added + (terms if table is self.keys else terms.mT)
        ones = torch.eye(n, dtype=q.dtype, device=q.device).expand(*q.shape[:-1], n)
        return torch.cat((q, ones), dim=-1), torch.cat((k, added.mT.expand(*k.shape[:-1], n)), dim=-1)

    def head(self, index: int) -> Disentangled:
        parts = {name: part for name in ("keys", "queries") if (part := getattr(self, name)) is not None}
        return replace(self, **{name: part[index : index + 1] for name, part in parts.items()})

    def citations(self) -> tuple[str, ...]:
        return ("he2021deberta",)
