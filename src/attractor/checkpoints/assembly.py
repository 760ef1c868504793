r"""Projections as files hold them become an ``Attention`` in attractor's convention.

Grouped keys and values are repeated for their queries, the output projection is split by heads, and rotary coordinates that a
model pairs as (p, p + r/2) are permuted to (2p, 2p+1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attractor.attention import Attention, LayerNorm, Norm, NormedAttention, Positions, RMSNorm
from attractor.errors import CheckpointError


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


@dataclass(frozen=True)
class Turning:
    """How a model turns queries and keys: ``turned`` coordinates, paired across the halves or as neighbours; cosines and sines
    are multiplied by ``factor``."""

    positions: Positions
    turned: int
    halves: bool = True
    factor: float = 1.0


def split_rows(matrix: Tensor, heads: int) -> Tensor:
    """(h k, d) or (h k,) by heads."""
    if matrix.shape[0] % heads:
        raise CheckpointError(f"a projection with {matrix.shape[0]} rows does not split into {heads} heads")
    return matrix.unflatten(0, (heads, matrix.shape[0] // heads))


def split_columns(matrix: Tensor, heads: int) -> Tensor:
    """An output projection (d, h r) by heads, (h, d, r)."""
    return split_rows(matrix.mT, heads).mT


def attention_from(
    parts: Projections,
    *,
    scale: float,
    mask: Any = None,
    turning: Turning | None = None,
    positions: Positions | None = None,
    kernel: Any = "softmax",
    joint: bool = False,
) -> Attention | NormedAttention:
    """The law of a layer."""
    heads = parts.query.shape[0]
    query, key, query_bias, key_bias = parts.query, parts.key, parts.query_bias, parts.key_bias
    query_norm, key_norm = parts.query_norm, parts.key_norm
    if turning is not None:
        order, stretch = _order(turning, query.shape[1]).to(query.device), _stretch(turning, query.shape[1])
        stretch = stretch.to(query)
        if query_norm is None:
            query, key = (part[:, order] * stretch[:, None] for part in (query, key))
            query_bias, key_bias = (_reordered(bias, order, stretch) for bias in (query_bias, key_bias))
        else:
            query, key = query[:, order], key[:, order]
            query_bias, key_bias = (_reordered(bias, order, None) for bias in (query_bias, key_bias))
            assert key_norm is not None
            query_norm, key_norm = (_norm_reordered(norm, order, stretch) for norm in (query_norm, key_norm))
        positions = turning.positions
    groups = key.shape[0]
    if query_norm is not None and joint and key_norm is not None and key_norm.gain is not None:
        key_norm = _with_gain(key_norm, _repeated(split_rows(key_norm.gain, groups), heads).flatten())
    law = Attention(
        query,
        _repeated(key, heads),
        _repeated(parts.value, heads),
        kernel=kernel,
        mask=mask,
        positions=positions,
        scale=scale,
        output=parts.output,
        query_bias=query_bias,
        key_bias=None if key_bias is None else _repeated(key_bias, heads),
        value_bias=None if parts.value_bias is None else _repeated(parts.value_bias, heads),
        output_bias=parts.output_bias,
    )
    if query_norm is None or key_norm is None:
        return law
    return NormedAttention(law, query_norm, key_norm, joint)


def _repeated(part: Tensor, heads: int) -> Tensor:
    """Groups of keys or values, one copy for each of their queries."""
    groups = part.shape[0]
    return part if groups == heads else part.repeat_interleave(heads // groups, dim=0)


def _order(turning: Turning, head_dim: int) -> Tensor:
    """Coordinates in the order in which attractor pairs them."""
    turned, half = turning.turned, turning.turned // 2
    if not turning.halves:
        return torch.arange(head_dim)
    pairs = torch.stack((torch.arange(half), torch.arange(half) + half), dim=-1).flatten()
    return torch.cat((pairs, torch.arange(turned, head_dim)))


def _stretch(turning: Turning, head_dim: int) -> Tensor:
    stretch = torch.ones(head_dim, dtype=torch.float64)
    stretch[: turning.turned] = turning.factor
    return stretch


def _reordered(bias: Tensor | None, order: Tensor, stretch: Tensor | None) -> Tensor | None:
    if bias is None:
        return None
    return bias[:, order] if stretch is None else bias[:, order] * stretch


def _norm_reordered(norm: Norm, order: Tensor, stretch: Tensor) -> Norm:
    """The norm of reordered coordinates; a norm over all heads has a gain for each of them."""
    count = 1 if norm.gain is None else norm.gain.shape[0] // len(order)
    gain = torch.ones(len(order), dtype=stretch.dtype) if norm.gain is None else norm.gain
    gain = (gain.reshape(count, -1)[:, order] * stretch).flatten()
    bias = None if norm.bias is None else (norm.bias.reshape(count, -1)[:, order] * stretch).flatten()
    return type(norm)(gain, bias, norm.eps)


def _with_gain(norm: Norm, gain: Tensor) -> Norm:
    return type(norm)(gain, norm.bias, norm.eps)


def layer_norm(gain: Tensor | None, bias: Tensor | None, eps: float) -> LayerNorm:
    return LayerNorm(gain, bias, eps)


def rms_norm(gain: Tensor | None, eps: float) -> RMSNorm:
    return RMSNorm(gain, None, eps)
