"""What is measured in every block, as tokens pass it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attractor import observables
from attractor.attention import Attention
from attractor.checkpoints.checkpoint import Checkpoint
from attractor.checkpoints.expansion import query_expansion
from attractor.checkpoints.watching import Passage
from attractor.errors import UnsupportedError
from attractor.states import Tokens

STREAM = ("token_norm", "pairwise_distance", "cosine", "cosine_min", "effective_rank", "sharpness", "clusters")
HEADS = ("attention_entropy", "self_weight", "expansion")


@dataclass(frozen=True)
class Measurements:
    """One text in numbers.

    ``curves`` along depth, (blocks + 1,) each: those of the stream, and with ``_without_first`` appended those of all tokens but the
    first, whose norm may be hundreds of times the others'. ``blocks`` for every block, (blocks,): the root mean square over tokens
    of what attention and feed-forward moved. ``heads`` for every block and head, (blocks, h), data-dependent, NaN where undefined.
    """

    curves: dict[str, Tensor]
    blocks: dict[str, Tensor]
    heads: dict[str, Tensor]
    tokens: int = 0


class measured:
    """Collects numbers block by block."""

    def __init__(self, checkpoint: Checkpoint, stack: str, attention: bool) -> None:
        self._checkpoint, self._stack, self._attention = checkpoint, stack, attention
        places = [checkpoint.layers.place(index) for index in range(len(checkpoint.layers))]
        self._first = next(index for index, (name, _) in enumerate(places) if name == stack)
        self._curves: list[dict[str, float]] = []
        self._blocks: list[dict[str, float]] = []
        self._heads: list[dict[str, Tensor]] = []

    def add(self, passage: Passage) -> None:
        self._tokens = len(passage.before)
        if passage.index == 0:
            self._curves.append(_stream(passage.before))
        self._curves.append(_stream(passage.after))
        moved = {"attention": passage.middle - passage.before, "feedforward": passage.after - passage.middle}
        self._blocks.append({name: float(part.double().pow(2).sum(-1).mean().sqrt()) for name, part in moved.items()})
        if self._attention:
            self._heads.append(self._by_head(passage))

    def _by_head(self, passage: Passage) -> dict[str, Tensor]:
        layer, tokens = self._checkpoint.layers[self._first + passage.index], Tokens(passage.reads.double())
        law = layer.attention
        weights = law.weights(tokens)
        logs = torch.where(weights > 0, weights, 1.0).log()
        found = {
            "attention_entropy": -(weights * logs).sum(-1).mean(-1),
            "self_weight": weights.diagonal(dim1=-2, dim2=-1).mean(-1),
        }
        try:
            expansion = query_expansion(law, tokens).mean(-1) if isinstance(law, Attention) else None
        except UnsupportedError:
            expansion = None
        return {**found, "expansion": torch.full((layer.heads,), torch.nan) if expansion is None else expansion}

    def result(self) -> Measurements:
        """Everything in tables."""
        curves = {name: _column(self._curves, name) for name in self._curves[0]}
        blocks = {name: _column(self._blocks, name) for name in self._blocks[0]}
        heads = {name: torch.stack([row[name] for row in self._heads]) for name in HEADS} if self._heads else {}
        return Measurements(curves, blocks, heads, self._tokens)


def _stream(points: Tensor) -> dict[str, float]:
    found = {}
    for suffix, part in (("", points), ("_without_first", points[1:])):
        tokens = Tokens(part.double())
        for name in STREAM:
            many = len(part) > 1
            found[name + suffix] = float(observables.named(name)(tokens)) if many else float("nan")
    return found


def _column(rows: list[dict[str, float]], name: str) -> Tensor:
    return torch.tensor([row[name] for row in rows], dtype=torch.float64)
