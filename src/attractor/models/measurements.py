"""Quantities measured at every block during a forward pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attractor import observables
from attractor.errors import UnsupportedError
from attractor.laws import Attention, LatentAttention, NormedAttention, Rotary, has_kernel, rotary_of
from attractor.models.attention_layers import Layer
from attractor.models.hooks import Passage
from attractor.observables import masses, pairing_of
from attractor.states import Tokens

LINEAR = ("token_norm", "pairwise_distance", "cosine", "sharpness")
REST = "_without_first"
Sums = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def sums(points: Tensor, scratch: Tensor | None = None) -> Sums:
    """Of tokens (n, d): their lengths (n,), the first direction and the sum of the others' (d,), the spread of the others and the
    distance of the first from their mean. In the precision of the tokens, float32 at least; ``scratch`` is room like theirs for what is
    computed on the way, since fresh memory for every block costs more than the arithmetic."""
    x = points if points.dtype in (torch.float64, torch.float32) else points.float()
    first, others = x[0], x[1:]
    lengths = torch.linalg.vector_norm(x, dim=-1)
    share = lengths.clamp_min(torch.finfo(x.dtype).tiny).reciprocal()
    mean = others.mean(0)
    room = scratch[1:] if scratch is not None and scratch.dtype == x.dtype else None
    spread = torch.linalg.vector_norm(torch.sub(others, mean, out=room))
    return lengths, share[0] * first, share[1:] @ others, spread, torch.linalg.vector_norm(first - mean)


def curves(states: Sequence[Sums]) -> dict[str, Tensor]:
    """The measurements of every state, (states,) each; and how long the first token is beside the others."""
    lengths, first, others, spread, away = (torch.stack(parts).double() for parts in zip(*states, strict=True))
    n, rest = lengths.shape[1], spread.square()
    found = _of(n, lengths, (others + first).square().sum(-1), rest + away.square() * (n - 1) / n)
    without = _of(n - 1, lengths[:, 1:], others.square().sum(-1), rest)
    found |= {name + REST: values for name, values in without.items()}
    found["first_norm"] = lengths[:, 0] / without["token_norm"]
    return found


def _of(n: int, lengths: Tensor, way: Tensor, spread: Tensor) -> dict[str, Tensor]:
    norm = lengths.mean(-1)
    if n < 2:
        return {name: torch.full_like(norm, torch.nan) for name in LINEAR} | {"token_norm": norm}
    distance = 2.0 * spread / (n - 1)
    cosine = (way - (lengths > 0).sum(-1)) / (n * (n - 1))
    sharpness = distance / (2.0 * lengths.square().mean(-1))
    return {
        "token_norm": norm,
        "pairwise_distance": distance,
        "cosine": cosine.clamp(-1.0, 1.0),
        "sharpness": sharpness,
    }


def moved(before: Tensor, after: Tensor, scratch: Tensor | None = None) -> Tensor:
    """The root mean square over tokens of how far they went."""
    return torch.linalg.vector_norm(torch.sub(after, before, out=scratch)) / len(before) ** 0.5


def query_expansion(law: Attention, tokens: Tokens, weights: Tensor | None = None) -> Tensor:
    """e_l for every head and token, (h, n); ``weights`` (h, n, n) are those of the law, if they are known."""
    if not has_kernel(law, "softmax"):
        raise UnsupportedError(f"the query-path expansion is that of softmax; this law has the kernel {law.kernel!r}")
    if tokens.batch_shape:
        raise UnsupportedError("the query-path expansion is computed for one text at a time")
    points = tokens.points
    query, key, value = (_heads(part).to(points) for part in (law.query, law.key, law.value))
    output = None if law.output is None else _heads(law.output).to(points)
    weights = law.weights(tokens) if weights is None else weights
    k, v = points @ key.mT, points @ value.mT  # (h, n, k) and (h, n, r)
    if law.key_bias is not None:
        k = k + law.key_bias.to(points).unsqueeze(-2)
    w = v @ (query if output is None else query @ output).mT  # (h, n, k)
    rotary = rotary_of(law.positions)
    if rotary is not None:
        k = rotary.turn(k, tokens)
        together = _turned_pairs(weights, k, w, rotary, tokens)
        apart = ((weights @ k) * rotary.turn(weights @ w, tokens)).sum(-1)
    else:  # what other positions add to scores does not depend on the query
        together = (weights @ (k * w).sum(-1, keepdim=True)).squeeze(-1)
        apart = ((weights @ k) * (weights @ w)).sum(-1)
    return float(law.scale) * (together - apart)


def _turned_pairs(weights: Tensor, k: Tensor, w: Tensor, positions: Rotary, tokens: Tokens) -> Tensor:
    """sum_i P_li <k_i, R_l w_i>, (h, n); coordinates that are not turned are pairs of angle zero."""
    ones = torch.zeros_like(k[0])
    ones[:, 0::2] = 1.0
    angles = positions.turn(ones.unsqueeze(0), tokens).squeeze(0)  # cosines at even places, sines at odd ones
    (cos, sin), (k1, k2), (w1, w2) = (_pairs(part) for part in (angles, k, w))
    return (cos * (weights @ (k1 * w1 + k2 * w2)) + sin * (weights @ (k2 * w1 - k1 * w2))).sum(-1)


def _pairs(vectors: Tensor) -> tuple[Tensor, Tensor]:
    even = torch.nn.functional.pad(vectors, (0, vectors.shape[-1] % 2))
    return even[..., 0::2], even[..., 1::2]


def _heads(matrix: Tensor) -> Tensor:
    return matrix.unsqueeze(0) if matrix.ndim == 2 else matrix


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
        self._scratch: Tensor | None = None
        self._sums: list[Sums] = []
        self._curves: list[dict[str, Tensor]] = []
        self._blocks: list[dict[str, Tensor]] = []
        self._heads: list[dict[str, Tensor]] = []

    def add(self, passage: Passage) -> None:
        self._tokens = len(passage.before)
        if passage.index == 0:
            self._scratch = torch.empty_like(passage.before) if self._summary else None
            self._stream(passage.before)
        self._stream(passage.after)
        by_attention = moved(passage.before, passage.middle, self._scratch)
        by_feedforward = moved(passage.middle, passage.after, self._scratch)
        self._blocks.append({"attention": by_attention, "feedforward": by_feedforward})
        if self._attention:
            self._heads.append(by_head(self._layer(passage.index), Tokens(passage.reads.double()), self._positions))

    def _stream(self, points: Tensor) -> None:
        self._sums.append(sums(points, self._scratch) if self._summary else sums(points.double()))
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
    if isinstance(law, Attention) and has_kernel(law, "softmax"):  # scores that are bilinear
        energy = _log_energy(law, tokens)
    return {**found, "expansion": expansion, "log_energy": energy}


def _placeless(law: Attention | NormedAttention | LatentAttention) -> Attention | NormedAttention | LatentAttention:
    if isinstance(law, NormedAttention):
        return replace(law, attention=replace(law.attention, positions=None))
    return replace(law, positions=None)


def _log_energy(law: Attention, tokens: Tokens) -> Tensor:
    equal = masses(tokens, False)
    terms = equal.log() + pairing_of(law, tokens).log_partition(equal)
    return torch.logsumexp(terms, dim=-1) - math.log(2.0)


def _column(rows: list[dict[str, Tensor]], name: str) -> Tensor:
    return torch.stack([row[name].double() for row in rows])
