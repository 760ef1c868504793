r"""What can be said of a stream in time linear in its tokens, so that a model at work is hardly slowed.

The mean squared distance of two of n tokens is :math:`\frac{2}{n-1}\sum|x_i - \bar x|^2`, which does not cancel where tokens are close, and
their mean cosine :math:`(|\sum x_i/|x_i||^2 - n)/(n(n-1))`. Sums are taken over all tokens but the first, which may be hundreds of
times as long as the others; the first is joined to them by

.. math:: \sum|x_i - \bar x|^2 = \sum_{i>1}|x_i - \bar x'|^2 + \tfrac{n-1}{n}|x_1 - \bar x'|^2.

A run keeps the sums of every state, and numbers are made of them once at its end.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

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
