"""Refinements as single nodes of autograd, and tokens in a lower precision for two readers.

Gradients of gradients are not there: ``torch.autograd.grad(..., create_graph=True)`` raises PyTorch's own error.
"""

# pyright: reportIncompatibleMethodOverride=false
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attractor.nn.joining.copies import joined, parted, summed
from attractor.nn.joining.strengths import scaled, unscaled


class Shifted(torch.autograd.Function):
    r"""[q ; :math:`\lambda O^\top x`], [k ; v] and v, from tokens (batch, n, d), weights (d, h r) and strengths (h)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, output: Tensor, strength: Tensor, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        strength = strength.contiguous()
        weights = scaled(output, strength, q.dtype)
        x = x.to(q.dtype)
        a = torch.mm(x.flatten(0, 1), weights).view(*x.shape[:2], strength.shape[0], -1).transpose(1, 2)
        ctx.save_for_backward(x, output, strength, weights)
        return joined(q, a), joined(k, v), v.view_as(v)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_q: Tensor, to_k: Tensor, to_v: Tensor) -> tuple[Tensor, ...]:
        x, output, strength, weights = ctx.saved_tensors
        q, a, _ = parted(to_q, output.shape[1] // strength.shape[0])
        k, v, _ = parted(to_k, to_v.shape[-1], more=to_v)
        flat = a.transpose(1, 2).flatten(2).flatten(0, 1)
        tokens = torch.mm(flat, weights.mT).view_as(x)
        to_output, to_strength = unscaled(torch.mm(x.flatten(0, 1).mT, flat), output, strength)
        return tokens, to_output, to_strength, q, k, v


class Sliced(torch.autograd.Function):
    r"""[q ; :math:`\lambda` s] and [k ; s], from slices s (batch, h, n, e) of tokens and strengths (h, e)."""

    @staticmethod
    def forward(ctx: Any, slices: Tensor, strength: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        slices = slices.to(q.dtype)
        slices = slices if slices.stride(-1) == 1 else slices.contiguous()  # tokens may be columns of something
        factors = strength.float().contiguous()
        ctx.save_for_backward(slices, factors)
        ctx.dtype = strength.dtype
        return joined(q, slices, factors), joined(k, slices)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_q: Tensor, to_k: Tensor) -> tuple[Tensor, ...]:
        slices, factors = ctx.saved_tensors
        k, tokens, _ = parted(to_k, slices.shape[-1])
        q, tokens, sums = parted(to_q, slices.shape[-1], more=tokens, second=slices, factors=factors)
        assert sums is not None
        return tokens, sums.sum(0).to(ctx.dtype), q, k


class RoundedTwice(torch.autograd.Function):
    """Tokens in the precision of autocast for two readers; their gradients are summed in one pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        ctx.dtype = x.dtype
        y = x.to(dtype)
        return y, y.view_as(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, first: Tensor, second: Tensor) -> tuple[Tensor, None]:
        return summed(first, second, ctx.dtype), None
