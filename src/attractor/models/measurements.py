"""Quantities measured at every block during a forward pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from attractor import observables
from attractor.errors import UnsupportedError
from attractor.laws import Attention, NormedAttention, NormedOutput, Rotary, has_kernel, rotary_of
from attractor.models.attention_layers import Layer
from attractor.models.hooks import BlockStates
from attractor.observables import head_masses, pairing_of
from attractor.serialization import to_frame
from attractor.states import Tokens

LINEAR = ("token_norm", "pairwise_distance", "cosine", "sharpness")  # cost linear in the number of tokens
QUADRATIC = ("cosine_min", "effective_rank", "clusters")
SHAPE = ("centred_cosine", "centred_rank", "anisotropy", "largest_norm")
HEADS = (
    "attention_entropy",
    "relative_entropy",
    "self_weight",
    "first_weight",
    "sink_weight",
    "output_norm",
    "expansion",
    "log_energy",
)
SINK_QUERIES = 4  # a position is a sink only if at least so many other tokens, and a third of all, can attend to it
PARTS = ("displacement", "attention", "feedforward")
MASSIVE = 10.0  # times the median length, from which a token is left out of centred measures
REST = "_without_first"
Rows = Literal["blocks", "heads"]


@dataclass(frozen=True)
class TraceBlock:
    """The residual stream after a block.

    Attributes
    ----------
    block : index of the block, as in ``TraceHead``; -1 is the input of the first.
    stream : measurements of the stream by name, those of ``Measurements.curves``.
    displacement : root mean square over tokens of the displacement by the last block; None for the input.
    attention, feedforward : the same of the parts of the block; None for the input, and for models without a family.
    """

    block: int
    stream: dict[str, float]
    displacement: float | None
    attention: float | None
    feedforward: float | None

    def row(self) -> dict[str, Any]:
        moved = {name: getattr(self, name) for name in PARTS}
        return {"block": self.block, **self.stream, **moved}


@dataclass(frozen=True)
class TraceHead:
    """Measurements of one head on the tokens of one text; NaN where one is undefined.

    Attributes
    ----------
    block, head : indices.
    attention_entropy : mean over tokens of the entropy of the attention weights.
    relative_entropy : mean over tokens of that entropy divided by the logarithm of the number of visible keys, between 0 and 1.
    self_weight, first_weight : mean weight that a token gives to itself, and to the first token.
    sink_weight : largest mean weight that a position receives from the other tokens that see it.
    output_norm : root mean square of the head's contribution to the stream, over that of the input of attention.
    expansion : mean query-path expansion, the divergence of a token's velocity through its own query, with respect to the normalised
        token where attention reads one (norms folded in, as in an audit).
    log_energy : logarithm of the interaction energy of the scores.
    """

    block: int
    head: int
    attention_entropy: float
    relative_entropy: float
    self_weight: float
    first_weight: float
    sink_weight: float
    output_norm: float
    expansion: float
    log_energy: float


@dataclass(frozen=True)
class Measurements:
    """Measurements of one text.

    Attributes
    ----------
    curves : measurements of the residual stream along depth, (blocks + 1,) each. Names that end in ``_without_first`` leave out the
        first token, whose norm may be hundreds of times the others'; ``first_norm`` is that ratio.
    blocks : root mean square over tokens of the "displacement" by every block, (blocks,), and where the parts of blocks are known
        by "attention" and by "feedforward", with the norm after them where there is one.
    heads : measurements of every head, (blocks, h) each, see ``TraceHead``; NaN where undefined, empty if not computed.
    tokens, dim : number and dimension of the tokens.
    places : positions of tokens: "largest_norm" of the longest token (blocks + 1,), and "sink_weight" of the sink of every head
        (blocks, h), -1 where there is none.
    """

    curves: dict[str, Tensor]
    blocks: dict[str, Tensor]
    heads: dict[str, Tensor]
    tokens: int = 0
    dim: int = 0
    places: dict[str, Tensor] = field(default_factory=dict)

    def block_rows(self) -> tuple[TraceBlock, ...]:
        """One row for the input and one after each block."""
        columns = {name: values.tolist() for name, values in self.curves.items()}
        count = len(next(iter(columns.values())))
        moved = [[None, *self.blocks[name].tolist()] if name in self.blocks else [None] * count for name in PARTS]
        return tuple(
            TraceBlock(depth - 1, {name: values[depth] for name, values in columns.items()}, *parts)
            for depth, parts in enumerate(zip(*moved, strict=True))
        )

    def head_rows(self) -> tuple[TraceHead, ...]:
        """One row for each head of each block; empty if heads were not measured."""
        if not self.heads:
            return ()
        columns = [self.heads[name].tolist() for name in HEADS]
        places = [(block, head) for block, row in enumerate(columns[0]) for head in range(len(row))]
        return tuple(TraceHead(block, head, *(column[block][head] for column in columns)) for block, head in places)

    def frame(self, rows: Rows = "blocks") -> Any:
        """A pandas DataFrame with one row for each block, or for each head of each block."""
        return to_frame(self.block_rows() if rows == "blocks" else self.head_rows())


@dataclass(frozen=True)
class TokenSums:
    """Sums over tokens (n, d) from which all linear measurements follow: the lengths (n,), the direction of the first token and the
    sum of the others' directions (d,), the spread of the others about their mean, and the distance of the first from that mean."""

    lengths: Tensor
    first: Tensor
    others: Tensor
    spread: Tensor
    distance: Tensor

    @classmethod
    def of(cls, points: Tensor, scratch: Tensor | None = None) -> TokenSums:
        """In the precision of the tokens, float32 at least; ``scratch`` is memory of the shape of ``points`` that is overwritten,
        because allocating it for every block costs more than the arithmetic."""
        x = points if points.dtype in (torch.float64, torch.float32) else points.float()
        first, others = x[0], x[1:]
        lengths = torch.linalg.vector_norm(x, dim=-1)
        inverse = lengths.clamp_min(torch.finfo(x.dtype).tiny).reciprocal()
        mean = others.mean(0)
        buffer = scratch[1:] if scratch is not None and scratch.dtype == x.dtype else None
        spread = torch.linalg.vector_norm(torch.sub(others, mean, out=buffer))
        distance = torch.linalg.vector_norm(first - mean)
        return cls(lengths, inverse[0] * first, inverse[1:] @ others, spread, distance)


def linear_curves(states: Sequence[TokenSums]) -> dict[str, Tensor]:
    """The linear measurements of every state, (states,) each, with and without the first token, and ``first_norm``."""
    names = ("lengths", "first", "others", "spread", "distance")
    columns = (torch.stack([getattr(state, name) for state in states]).double().cpu() for name in names)
    lengths, first, others, spread, distance = columns
    n, rest = lengths.shape[1], spread.square()
    found = _linear(n, lengths, (others + first).square().sum(-1), rest + distance.square() * (n - 1) / n)
    without = _linear(n - 1, lengths[:, 1:], others.square().sum(-1), rest)
    found |= {name + REST: values for name, values in without.items()}
    found["first_norm"] = lengths[:, 0] / without["token_norm"]
    return found


def _linear(n: int, lengths: Tensor, direction: Tensor, variation: Tensor) -> dict[str, Tensor]:
    """Measurements of n tokens from their lengths, the squared sum of directions, and the sum of squared distances to the mean."""
    norm = lengths.mean(-1)
    if n < 2:
        return {name: torch.full_like(norm, torch.nan) for name in LINEAR} | {"token_norm": norm}
    distance = 2.0 * variation / (n - 1)
    cosine = (direction - (lengths > 0).sum(-1)) / (n * (n - 1))
    sharpness = distance / (2.0 * lengths.square().mean(-1))
    columns = norm, distance, cosine.clamp(-1.0, 1.0), sharpness
    return dict(zip(LINEAR, columns, strict=True))


def rms_displacement(before: Tensor, after: Tensor, scratch: Tensor | None = None) -> Tensor:
    """The root mean square over tokens (n, d) of their displacement."""
    return torch.linalg.vector_norm(torch.sub(after, before, out=scratch)) / len(before) ** 0.5


def query_expansion(
    law: Attention, tokens: Tokens, weights: Tensor | None = None, through: Attention | None = None
) -> Tensor:
    r"""Divergence of the velocity of each token with respect to its own position, through its query.

    .. math:: e_l = s\,\mathrm{tr}\big(\mathrm{Cov}_{P_l}(k, v)\,O Q_l\big), \quad k_i = R_i K x_i,\ v_i = V x_i,\ Q_l = R_l Q

    Parameters
    ----------
    law : attention with the softmax kernel.
    tokens : one text, points (n, d).
    weights : attention weights (h, n, n) of the law, computed if not given.
    through : the law whose Q and O are used, with norms folded in: the divergence is then that with respect to the normalised token,
        as an audit classifies it.

    Returns
    -------
    Tensor : (h, n); negative where a head contracts.
    """
    if not has_kernel(law, "softmax"):
        raise UnsupportedError(f"the query-path expansion is that of softmax; this law has the kernel {law.kernel!r}")
    if tokens.batch_shape:
        raise UnsupportedError("the query-path expansion is computed for one text at a time")
    points = tokens.points
    through = law if through is None else through
    query, key, value = (_heads(part).to(points) for part in (through.query, law.key, law.value))
    output = None if through.output is None else _heads(through.output).to(points)
    weights = law.weights(tokens) if weights is None else weights
    k, v = points @ key.mT, points @ value.mT  # (h, n, k) and (h, n, r)
    if law.key_bias is not None:
        k = k + law.key_bias.to(points).unsqueeze(-2)
    w = v @ (query if output is None else query @ output).mT  # (h, n, k)
    rotary = rotary_of(law.positions)
    if rotary is not None:
        k = rotary.turn(k, tokens)
        together = _rotated_covariance(weights, k, w, rotary, tokens)
        apart = ((weights @ k) * rotary.turn(weights @ w, tokens)).sum(-1)
    else:  # other positional terms of the scores do not depend on the query
        together = (weights @ (k * w).sum(-1, keepdim=True)).squeeze(-1)
        apart = ((weights @ k) * (weights @ w)).sum(-1)
    return float(law.scale) * (together - apart)


def _rotated_covariance(weights: Tensor, k: Tensor, w: Tensor, positions: Rotary, tokens: Tokens) -> Tensor:
    """sum_i P_li <k_i, R_l w_i>, (h, n); coordinates without rotation are pairs of angle zero."""
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


class MeasurementCollector:
    """Collects the measurements of one text block by block.

    Parameters
    ----------
    get_layer : returns a layer by its index; None for a model without a family, whose heads are measured by the attention weights
        that it returns.
    attention : measure heads.
    summary : only measurements whose cost is linear in the number of tokens.
    positions : whether scores contain positional terms.
    ranks : measure also what needs a singular value decomposition or all pairs of tokens.
    """

    def __init__(
        self,
        get_layer: Callable[[int], Layer] | None,
        attention: bool,
        summary: bool = False,
        positions: bool = True,
        ranks: bool = True,
    ) -> None:
        self._get_layer, self._positions = get_layer, positions
        self._attention, self._summary, self._ranks = attention and not summary, summary, ranks
        self._scratch: Tensor | None = None
        self._sums: list[TokenSums] = []
        self._curves: list[dict[str, Tensor]] = []
        self._longest: list[int] = []
        self._blocks: list[dict[str, Tensor]] = []
        self._heads: list[dict[str, Tensor] | None] = []

    def add(self, states: BlockStates) -> None:
        """Measure one block."""
        self._shape = states.before.shape
        if states.index == 0:
            self._scratch = torch.empty_like(states.before) if self._summary else None
            self._add_stream(states.before)
        self._add_stream(states.after)
        moved = {"displacement": rms_displacement(states.before, states.after, self._scratch)}
        if states.middle is not None:
            moved["attention"] = rms_displacement(states.before, states.middle, self._scratch)
            moved["feedforward"] = rms_displacement(states.middle, states.after, self._scratch)
        self._blocks.append(moved)
        if self._attention and self._get_layer is None:
            self._heads.append(None if states.weights is None else measure_weights(states.weights))
        elif self._attention and self._get_layer is not None and states.attention_input is not None:
            tokens = Tokens(states.attention_input.double())
            self._heads.append(measure_heads(self._get_layer(states.index), tokens, self._positions))

    def _add_stream(self, points: Tensor) -> None:
        self._sums.append(TokenSums.of(points, self._scratch) if self._summary else TokenSums.of(points.double()))
        if self._summary:
            return
        found: dict[str, Tensor] = {}
        for suffix, part in (("", points), (REST, points[1:])) if self._ranks else ():
            if len(part) < 2:
                found |= {name + suffix: torch.tensor(torch.nan) for name in (*QUADRATIC, "energy")}
                continue
            tokens = Tokens(part.double())
            found |= {name + suffix: observables.find_observable(name)(tokens) for name in QUADRATIC}
            found["energy" + suffix] = direction_energy(tokens.points)
        shape, longest = measure_shape(points.double())
        self._curves.append(found | shape)
        self._longest.append(longest)

    def result(self) -> Measurements:
        quadratic = _stack(self._curves) if self._curves else {}
        heads = _stack_heads(self._heads)
        places = {"largest_norm": torch.tensor(self._longest)} if self._longest else {}
        if "sink_token" in heads:
            places["sink_weight"] = heads.pop("sink_token").nan_to_num(-1.0).long()
        curves = {**linear_curves(self._sums), **quadratic}
        n, d = self._shape
        return Measurements(curves, _stack(self._blocks), heads, n, d, places)


def measure_shape(points: Tensor) -> tuple[dict[str, Tensor], int]:
    r"""Measures of collapse of tokens (n, d), and the position of the longest token.

    ``largest_norm`` is the largest length over the median one, and ``anisotropy`` the squared length of the mean direction.
    Tokens that are ten times as long as the median are then left out: ``centred_cosine`` is the mean cosine of two different tokens
    less the mean token, and ``centred_rank`` the participation ratio :math:`(\sum\sigma_k^2)^2 / \sum\sigma_k^4` of the same.
    """
    lengths = torch.linalg.vector_norm(points, dim=-1)
    middle = lengths.median().clamp_min(torch.finfo(lengths.dtype).tiny)
    largest = lengths.max() / middle
    anisotropy = torch.nn.functional.normalize(points, dim=-1).mean(0).square().sum()
    centred = points[lengths < MASSIVE * middle]
    n, centred = len(centred), centred - centred.mean(0)
    scale = centred.abs().amax() if n else lengths.new_zeros(())
    if n < 2 or float(scale) == 0:
        cosine = rank = torch.tensor(torch.nan, dtype=points.dtype)
    else:
        units = torch.nn.functional.normalize(centred / scale, dim=-1)
        cosine = (units.sum(0).square().sum() - units.square().sum()) / (n * (n - 1))
        gram = (centred / scale) @ (centred / scale).mT
        rank = gram.trace().square() / gram.square().sum()
    return dict(zip(SHAPE, (cosine, rank, anisotropy, largest), strict=True)), int(lengths.argmax())


def direction_energy(points: Tensor) -> Tensor:
    """The energy (1/2) mean_ij exp(cos(x_i, x_j)) of the directions of tokens (n, d)."""
    units = torch.nn.functional.normalize(points, dim=-1)
    return (units @ units.mT).exp().mean() / 2.0


def measure_heads(layer: Layer, tokens: Tokens, positions: bool = True) -> dict[str, Tensor]:
    """Measurements of every head of a layer on its input tokens, (h,) each; ``positions=False`` drops positions from the scores.

    The expansion follows the convention of the audit: where attention reads a normalised copy of the stream, it is the divergence with
    respect to the normalised token, with the gains of the norms before and after attention folded in.
    """
    if not layer.heads:
        return dict.fromkeys(HEADS, torch.zeros(0, dtype=torch.float64))
    law = layer.attention if positions else _drop_positions(layer.attention)
    law = law.attention if isinstance(law, NormedOutput) else law
    weights = law.weights(tokens)
    expansion = energy = torch.full((layer.heads,), torch.nan, dtype=torch.float64)
    if isinstance(law, Attention) and has_kernel(law, "softmax"):  # scores are bilinear
        if law.positions is None or not law.positions.reads_queries:
            folded = layer.select(range(layer.heads), fold=layer.reads_copy)
            expansion = query_expansion(law, tokens, weights, folded).mean(-1)
        equal = head_masses(tokens, False)
        terms = equal.log() + pairing_of(law, tokens).log_partition(equal)
        energy = torch.logsumexp(terms, dim=-1) - math.log(2.0)
    found = {"expansion": expansion, "log_energy": energy}
    if isinstance(law, Attention):
        found["output_norm"] = output_norms(law, tokens.points, weights)
    return measure_weights(weights) | found


def output_norms(law: Attention, points: Tensor, weights: Tensor) -> Tensor:
    """Root mean square over tokens of what every head adds to the stream, without biases, over that of the tokens, (h,)."""
    moved = weights @ (points @ _heads(law.value).to(points).mT)  # (h, n, r)
    if law.output is not None:
        moved = moved @ _heads(law.output).to(points).mT
    return torch.linalg.vector_norm(moved, dim=(-2, -1)) / torch.linalg.vector_norm(points)


def measure_weights(weights: Tensor) -> dict[str, Tensor]:
    """Measurements of every head that follow from its attention weights (h, n, n) alone, (h,) each; the others are NaN."""
    n = weights.shape[-1]
    logs = torch.where(weights > 0, weights, 1.0).log()
    entropy, own = -(weights * logs).sum(-1), weights.diagonal(dim1=-2, dim2=-1)
    causal = not bool(weights.triu(1).any())
    visible = torch.ones_like(weights[0], dtype=torch.bool)
    visible = visible.tril() if causal else visible & (weights > 0).any(0)
    most = visible.sum(-1).clamp_min(2).to(weights).log()
    several = visible.sum(-1) > 1
    others = visible & ~torch.eye(n, dtype=torch.bool, device=weights.device)
    queries = others.sum(-2)
    received = (weights * others).sum(-2) / queries.clamp_min(1)
    received = torch.where(queries >= max(min(SINK_QUERIES, n - 1), n / 3), received, -1.0)
    sink, place = received.max(-1)
    undefined = torch.full((len(weights),), torch.nan, dtype=weights.dtype)
    found = dict.fromkeys(HEADS, undefined)
    return found | {
        "attention_entropy": entropy.mean(-1),
        "relative_entropy": (entropy / most)[:, several].mean(-1),
        "self_weight": own.mean(-1),
        "first_weight": weights[..., 1:, 0].mean(-1),
        "sink_weight": sink,
        "sink_token": place.to(weights),
    }


def _drop_positions(law: Any) -> Any:
    if isinstance(law, (NormedAttention, NormedOutput)):
        return replace(law, attention=_drop_positions(law.attention))
    return replace(law, positions=None)


def _stack_heads(rows: Sequence[dict[str, Tensor] | None]) -> dict[str, Tensor]:
    """Measurements (blocks, h), NaN where a block has none or fewer heads; empty if no block has any."""
    most = max((len(row[HEADS[0]]) for row in rows if row), default=0)
    if not most:
        return {}
    names = next(row for row in rows if row and len(row[HEADS[0]]))
    found = {name: torch.full((len(rows), most), torch.nan, dtype=torch.float64) for name in names}
    for index, row in enumerate(rows):
        for name, values in (row or {}).items():
            found[name][index, : len(values)] = values
    return found


def _stack(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([row[name].double().cpu() for row in rows]) for name in rows[0]}
