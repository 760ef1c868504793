r"""What is measured in every block, as tokens pass it.

Beside the observables of the stream there is its energy, :math:`\frac12\,\text{mean}_{ij} e^{\cos(x_i, x_j)}`: that of attention on
the sphere with :math:`\beta = 1`, which knows no weights and so can be compared along depth (e/2 at consensus). The energy of every
head under its own scores, :math:`\log\frac12\,\text{mean}_{ij} e^{s_{ij}}` over visible pairs, stands among the heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attractor import observables
from attractor.attention import Attention, LatentAttention, NormedAttention, Softmax
from attractor.checkpoints.expansion import query_expansion
from attractor.checkpoints.layer import Layer
from attractor.checkpoints.linear import LINEAR, REST, Sums, curves, moved, sums
from attractor.checkpoints.watching import Passage
from attractor.errors import UnsupportedError
from attractor.observables.interaction import log_partition, masses
from attractor.observables.laws import pairing_of
from attractor.states import Tokens

STREAM = ("token_norm", "pairwise_distance", "cosine", "cosine_min", "effective_rank", "sharpness", "clusters")
COSTLY = tuple(name for name in STREAM if name not in LINEAR)
HEADS = ("attention_entropy", "self_weight", "first_weight", "expansion", "log_energy")


@dataclass(frozen=True)
class Measurements:
    """One text in numbers.

    ``curves`` along depth, (blocks + 1,) each: those of the stream, and with ``_without_first`` appended those of all tokens but the
    first, whose norm may be hundreds of times the others' (``first_norm`` is that ratio). ``blocks`` for every block, (blocks,): the
    root mean square over tokens of what attention and feed-forward moved (each with the norm after it where there is one). ``heads``
    for every block and head, (blocks, h), data-dependent, NaN where undefined.
    """

    curves: dict[str, Tensor]
    blocks: dict[str, Tensor]
    heads: dict[str, Tensor]
    tokens: int = 0


class measured:
    """Collects numbers block by block; ``summary`` leaves out all that is not linear in the number of tokens, and heads."""

    def __init__(
        self, layer: Callable[[int], Layer], attention: bool, summary: bool = False, positions: bool = True
    ) -> None:
        self._positions = positions
        self._layer, self._attention, self._summary = layer, attention and not summary, summary
        self._sums: list[Sums] = []
        self._curves: list[dict[str, Tensor]] = []
        self._blocks: list[dict[str, Tensor]] = []
        self._heads: list[dict[str, Tensor]] = []

    def add(self, passage: Passage) -> None:
        self._tokens = len(passage.before)
        if passage.index == 0:
            self._stream(passage.before)
        self._stream(passage.after)
        by_attention, by_feedforward = moved(passage.before, passage.middle), moved(passage.middle, passage.after)
        self._blocks.append({"attention": by_attention, "feedforward": by_feedforward})
        if self._attention:
            self._heads.append(by_head(self._layer(passage.index), Tokens(passage.reads.double()), self._positions))

    def _stream(self, points: Tensor) -> None:
        self._sums.append(sums(points if self._summary else points.double()))
        if self._summary:
            return
        found: dict[str, Tensor] = {}
        for suffix, part in (("", points), (REST, points[1:])):
            if len(part) < 2:
                found |= {name + suffix: torch.tensor(torch.nan) for name in (*COSTLY, "energy")}
                continue
            tokens = Tokens(part.double())
            found |= {name + suffix: observables.named(name)(tokens) for name in COSTLY}
            found["energy" + suffix] = sphere_energy(tokens.points)
        self._curves.append(found)

    def result(self) -> Measurements:
        """Everything in tables."""
        costly = {name: _column(self._curves, name) for name in self._curves[0]} if self._curves else {}
        blocks = {name: _column(self._blocks, name) for name in self._blocks[0]}
        heads = {name: torch.stack([row[name] for row in self._heads]) for name in HEADS} if self._heads else {}
        return Measurements({**curves(self._sums), **costly}, blocks, heads, self._tokens)


def sphere_energy(points: Tensor) -> Tensor:
    """The energy of the directions of tokens (n, d)."""
    units = torch.nn.functional.normalize(points, dim=-1)
    return (units @ units.mT).exp().mean() / 2.0


def by_head(layer: Layer, tokens: Tokens, positions: bool = True) -> dict[str, Tensor]:
    """Measurements of every head of a layer on the tokens that it reads, (h,) each; scores know no places without ``positions``."""
    law = layer.attention if positions else _placeless(layer.attention)
    weights = law.weights(tokens)
    logs = torch.where(weights > 0, weights, 1.0).log()
    found = {
        "attention_entropy": -(weights * logs).sum(-1).mean(-1),
        "self_weight": weights.diagonal(dim1=-2, dim2=-1).mean(-1),
        "first_weight": weights[..., 1:, 0].mean(-1),
    }
    undefined = torch.full((layer.heads,), torch.nan, dtype=torch.float64)
    try:
        expansion = query_expansion(law, tokens, weights).mean(-1) if isinstance(law, Attention) else undefined
    except UnsupportedError:
        expansion = undefined
    energy = undefined
    if isinstance(law, Attention) and isinstance(law.kernel, Softmax):  # scores that are bilinear
        energy = _log_energy(law, tokens)
    return {**found, "expansion": expansion, "log_energy": energy}


def _placeless(law: Attention | NormedAttention | LatentAttention) -> Attention | NormedAttention | LatentAttention:
    if isinstance(law, NormedAttention):
        return replace(law, attention=replace(law.attention, positions=None))
    return replace(law, positions=None)


def _log_energy(law: Attention, tokens: Tokens) -> Tensor:
    equal = masses(tokens, False)
    terms = equal.log() + log_partition(pairing_of(law, tokens), equal)
    return torch.logsumexp(terms, dim=-1) - math.log(2.0)


def _column(rows: list[dict[str, Tensor]], name: str) -> Tensor:
    return torch.stack([row[name].double() for row in rows])
