"""A Transformer block of several models at once, as one function of tensors.

Tokens are (s, b, n, d) for s models of the same shape; every weight has s in front. Products are batched, so that s small models keep a
GPU as busy as one large one. The function holds no module and no state, so that ``torch.compile`` sees one graph for all layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from attractor.attention.feedforward import ACTIVATIONS
from attractor.attention.positions.rotary import turn_pairs


@dataclass(frozen=True)
class Shape:
    """What is the same for all models and layers. ``extra`` is the refinement: "none", "shift" or "slice"; ``pad`` gives values the
    width of keys, which the fastest kernel wants."""

    heads: int
    placement: str
    activation: str
    scale: float
    causal: bool
    extra: str
    eps: float
    compute: torch.dtype
    pad: bool


@dataclass(frozen=True)
class Maps:
    """Query, key, value (s, h, k, d) and output (s, h, d, k) of one layer; ``strength`` (s, h, channels) or (s, h, 1) of a refinement;
    ``scale`` (s,) where it is learned."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    scale: Tensor | None = None
    strength: Tensor | None = None


def block(x: Tensor, maps: Maps, rest: dict[str, Tensor], turns: tuple[Tensor, Tensor] | None, shape: Shape) -> Tensor:
    """Tokens after the block; ``rest`` holds norms and the feed-forward part by the names that ``TransformerBlock`` gives them."""
    x = _add(x, 0, lambda y: attention(y, maps, turns, shape), rest, shape)
    return x if "widen.weight" not in rest else _add(x, 1, lambda y: _feed(y, rest, shape), rest, shape)


def attention(x: Tensor, maps: Maps, turns: tuple[Tensor, Tensor] | None, shape: Shape) -> Tensor:
    """The attention layer on x (s, b, n, d)."""
    models, batch = x.shape[:2]
    rows = [maps.query, maps.key, maps.value]
    if shape.extra == "shift":
        assert maps.strength is not None
        rows.append(maps.strength.unsqueeze(-1) * maps.output.mT)
    sizes = [part.shape[1] * part.shape[2] for part in rows]
    together = linear(x, torch.cat([part.flatten(1, 2) for part in rows], 1).to(shape.compute))
    parts = [_split(part, shape.heads) for part in together.split(sizes, -1)]
    q, k, v = parts[:3]
    if turns is not None:
        q, k = turn_pairs(q, *turns), turn_pairs(k, *turns)
    if shape.extra == "shift":
        q, k = torch.cat((q, parts[3]), -1), torch.cat((k, v), -1)
    elif shape.extra == "slice":
        assert maps.strength is not None
        slices = x.to(shape.compute).unflatten(-1, (shape.heads, -1))[..., : maps.strength.shape[-1]]
        strong = slices * maps.strength.to(shape.compute)[:, None, None]
        q = torch.cat((q, strong.flatten(0, 1).transpose(1, 2)), -1)
        k = torch.cat((k, slices.flatten(0, 1).transpose(1, 2)), -1)
    scale = shape.scale
    if maps.scale is not None:
        q = (q.unflatten(0, (models, batch)) * maps.scale.to(q.dtype)[:, None, None, None, None]).flatten(0, 1)
        scale = 1.0
    width = v.shape[-1]
    if shape.pad and q.shape[-1] > width:
        v = functional.pad(v, (0, q.shape[-1] - width))
    moved = functional.scaled_dot_product_attention(q, k, v, is_causal=shape.causal, scale=scale)[..., :width]
    joined = moved.transpose(1, 2).flatten(-2).unflatten(0, (models, batch))
    return linear(joined, maps.output.transpose(1, 2).flatten(2).to(shape.compute))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (s, ..., d) by weight (s, out, d), in the weight's precision."""
    flat = x.flatten(1, -2).to(weight.dtype)
    made = (
        torch.bmm(flat, weight.mT)
        if bias is None
        else torch.baddbmm(bias.to(weight.dtype).unsqueeze(1), flat, weight.mT)
    )
    return made.unflatten(1, x.shape[1:-1])


def norm(x: Tensor, gain: Tensor, bias: Tensor, eps: float) -> Tensor:
    """LayerNorm of x (s, b, n, d) with gains and biases (s, d)."""
    return functional.layer_norm(x, x.shape[-1:], eps=eps) * gain[:, None, None] + bias[:, None, None]


def _split(flat: Tensor, heads: int) -> Tensor:
    """(s, b, n, h k) as (s b, h, n, k)."""
    return flat.flatten(0, 1).unflatten(-1, (heads, -1)).transpose(1, 2)


def _add(x: Tensor, part: int, move: Callable[[Tensor], Tensor], rest: dict[str, Tensor], shape: Shape) -> Tensor:
    def normed(y: Tensor, number: int) -> Tensor:
        return norm(y, rest[f"norms.{number}.weight"], rest[f"norms.{number}.bias"], shape.eps)

    before = normed(x, part) if shape.placement in ("pre", "peri") else x
    moved = move(before)
    moved = normed(moved.to(x.dtype), 2 + part) if shape.placement == "peri" else moved
    x = x + moved
    return normed(x, part) if shape.placement == "post" else x


def _feed(x: Tensor, rest: dict[str, Tensor], shape: Shape) -> Tensor:
    wide = linear(x, rest["widen.weight"].to(shape.compute), rest["widen.bias"])
    return linear(ACTIVATIONS[shape.activation](wide), rest["narrow.weight"].to(shape.compute), rest["narrow.bias"])
