"""Triton kernels that append refinement coordinates to queries and keys, with their autograd nodes."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

# pyright: reportInvalidTypeForm=false, reportCallIssue=false, reportAttributeAccessIssue=false, reportIndexIssue=false


ROWS = 32
BLOCK = 4096


@triton.jit
def concatenate_kernel(
    first,
    second,
    scale,
    out,
    rows,
    n,
    first_batch,
    first_head,
    first_row,
    second_batch,
    second_head,
    second_row,
    heads,
    C: tl.constexpr,
    E: tl.constexpr,
    C2: tl.constexpr,
    E2: tl.constexpr,
    SCALED: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    batch, place = row // n, row % n
    inside = (row < rows)[:, None]
    to = (row * heads + head)[:, None] * (C + E)
    c = tl.arange(0, C2)[None, :]
    kept = inside & (c < C)
    x = tl.load(first + (batch * first_batch + place * first_row)[:, None] + head * first_head + c, mask=kept)
    tl.store(out + to + c, x, mask=kept)
    e = tl.arange(0, E2)
    kept = inside & (e < E)[None, :]
    y = tl.load(
        second + (batch * second_batch + place * second_row)[:, None] + head * second_head + e[None, :], mask=kept
    )
    if SCALED:
        factor = tl.load(scale + head * E + e, mask=e < E)
        y = y.to(tl.float32) * factor[None, :]
    tl.store(out + to + C + e[None, :], y.to(out.dtype.element_ty), mask=kept)


@triton.jit
def split_kernel(
    gradient,
    more,
    second,
    scale,
    to_first,
    to_second,
    to_scale,
    rows,
    n,
    batch_step,
    head_step,
    row_step,
    second_batch,
    second_head,
    second_row,
    more_batch,
    more_head,
    more_row,
    heads,
    C: tl.constexpr,
    E: tl.constexpr,
    C2: tl.constexpr,
    E2: tl.constexpr,
    SCALED: tl.constexpr,
    MORE: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    batch, place = row // n, row % n
    inside = (row < rows)[:, None]
    at = gradient + (batch * batch_step + place * row_step)[:, None] + head * head_step
    c = tl.arange(0, C2)[None, :]
    kept = inside & (c < C)
    tl.store(to_first + (row * heads + head)[:, None] * C + c, tl.load(at + c, mask=kept), mask=kept)
    e = tl.arange(0, E2)
    kept = inside & (e < E)[None, :]
    y = tl.load(at + C + e[None, :], mask=kept, other=0.0)
    part = (batch * second_batch + place * second_row)[:, None] + head * second_head + e[None, :]
    if SCALED:
        y = y.to(tl.float32)
        x = tl.load(second + part, mask=kept, other=0.0).to(tl.float32)
        tl.store(to_scale + (tl.program_id(0) * heads + head) * E + e, tl.sum(x * y, 0), mask=e < E)
        y = y * tl.load(scale + head * E + e, mask=e < E)[None, :]
    if MORE:
        away = (batch * more_batch + place * more_row)[:, None] + head * more_head + e[None, :]
        y = y.to(tl.float32) + tl.load(more + away, mask=kept, other=0.0).to(tl.float32)
    tl.store(to_second + (row * heads + head)[:, None] * E + e[None, :], y.to(to_second.dtype.element_ty), mask=kept)


@triton.jit
def sum_kernel(first, second, out, size, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    kept = at < size
    x = tl.load(first + at, mask=kept).to(tl.float32) + tl.load(second + at, mask=kept).to(tl.float32)
    tl.store(out + at, x.to(out.dtype.element_ty), mask=kept)


def concatenate(first: Tensor, second: Tensor, factors: Tensor | None = None) -> Tensor:
    """Concatenate (batch, h, n, c) and (batch, h, n, e), the latter multiplied by factors (h, e) in float32."""
    batch, heads, n, c = first.shape
    e = second.shape[-1]
    out = first.new_empty(batch, n, heads, c + e)
    steps = (*_strides(first), *_strides(second))
    sizes: dict[str, Any] = {**_sizes(c, e), "SCALED": factors is not None}
    with torch.cuda.device_of(first):
        grid = triton.cdiv(batch * n, ROWS), heads
        concatenate_kernel[grid](
            first, second, out if factors is None else factors, out, batch * n, n, *steps, heads, **sizes
        )
    return out.transpose(1, 2)


def split_gradient(
    gradient: Tensor,
    e: int,
    more: Tensor | None = None,
    second: Tensor | None = None,
    factors: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of both parts of a concatenation, with ``more`` added to the second; for the factors a sum over every block of tokens."""
    gradient = _with_unit_stride(gradient)
    batch, heads, n, width = gradient.shape
    c, blocks = width - e, triton.cdiv(batch * n, ROWS)
    first, rest = gradient.new_empty(batch, n, heads, c), gradient.new_empty(batch, n, heads, e)
    sums = None if factors is None else gradient.new_empty(blocks, heads, e, dtype=torch.float32)
    added = gradient if more is None else _with_unit_stride(more)
    read, scale = (gradient, gradient) if second is None or factors is None else (second, factors)
    tensors = gradient, added, read, scale, first, rest, gradient if sums is None else sums
    steps = (*_strides(gradient), *_strides(read), *_strides(added))
    sizes: dict[str, Any] = {**_sizes(c, e), "SCALED": factors is not None, "MORE": more is not None}
    with torch.cuda.device_of(gradient):
        split_kernel[blocks, heads](*tensors, batch * n, n, *steps, heads, **sizes)
    return first.transpose(1, 2), rest.transpose(1, 2), sums


def add_rounded(first: Tensor, second: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum of two tensors in another precision."""
    first, second = first.contiguous(), second.contiguous()
    out = torch.empty_like(first, dtype=dtype)
    kernel: Any = sum_kernel
    with torch.cuda.device_of(first):
        kernel[(triton.cdiv(out.numel(), BLOCK),)](first, second, out, out.numel(), BLOCK)
    return out


def _with_unit_stride(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _strides(x: Tensor) -> tuple[int, int, int]:
    return x.stride(0), x.stride(1), x.stride(2)


def _sizes(c: int, e: int) -> dict[str, Any]:
    return {"C": c, "E": e, "C2": triton.next_power_of_2(c), "E2": triton.next_power_of_2(e), "ROWS": ROWS}


STRENGTH_ROWS = 32


@triton.jit
def scale_kernel(
    weight, strength, out, d, width, row_step, column_step, R: tl.constexpr, R2: tl.constexpr, ROWS: tl.constexpr
):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    head = tl.program_id(1)
    r = tl.arange(0, R2)[None, :]
    kept = (row < d) & (r < R)
    column = head * R + r
    x = tl.load(weight + row * row_step + column * column_step, mask=kept).to(tl.float32)
    x = x * tl.load(strength + head).to(tl.float32)
    tl.store(out + row * width + column, x.to(out.dtype.element_ty), mask=kept)


@triton.jit
def scale_backward_kernel(
    gradient,
    weight,
    strength,
    to_weight,
    sums,
    d,
    width,
    row_step,
    column_step,
    heads,
    R: tl.constexpr,
    R2: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    head = tl.program_id(1)
    r = tl.arange(0, R2)[None, :]
    kept = (row < d) & (r < R)
    column = head * R + r
    g = tl.load(gradient + row * width + column, mask=kept, other=0.0).to(tl.float32)
    x = tl.load(weight + row * row_step + column * column_step, mask=kept, other=0.0).to(tl.float32)
    tl.store(sums + tl.program_id(0) * heads + head, tl.sum(g * x))
    g = g * tl.load(strength + head).to(tl.float32)
    tl.store(to_weight + row * row_step + column * column_step, g.to(to_weight.dtype.element_ty), mask=kept)


def scale_weights(weight: Tensor, strength: Tensor, dtype: torch.dtype) -> Tensor:
    """Output weights (d, h r) times the strengths of their heads, in another precision."""
    d, width, heads = *weight.shape, strength.shape[0]
    out = weight.new_empty(d, width, dtype=dtype)
    kernel: Any = scale_kernel
    with torch.cuda.device_of(weight):
        kernel[triton.cdiv(d, STRENGTH_ROWS), heads](
            weight, strength, out, d, width, *weight.stride(), *_constants(width // heads)
        )
    return out


def scale_backward(gradient: Tensor, weight: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the weights and the strengths from that of their product."""
    d, width, heads = *weight.shape, strength.shape[0]
    blocks = triton.cdiv(d, STRENGTH_ROWS)
    gradient, to_weight = gradient.contiguous(), torch.empty_like(weight)
    if to_weight.stride() != weight.stride():
        weight = weight.contiguous()
        to_weight = torch.empty_like(weight)
    sums = weight.new_empty(blocks, heads, dtype=torch.float32)
    kernel: Any = scale_backward_kernel
    with torch.cuda.device_of(weight):
        kernel[blocks, heads](
            gradient,
            weight,
            strength,
            to_weight,
            sums,
            d,
            width,
            *weight.stride(),
            heads,
            *_constants(width // heads),
        )
    return to_weight, sums.sum(0).to(strength.dtype)


def _constants(r: int) -> tuple[int, int, int]:
    return r, triton.next_power_of_2(r), STRENGTH_ROWS


# pyright: reportIncompatibleMethodOverride=false


class ConcatShift(torch.autograd.Function):
    r"""[q ; :math:`\lambda O^\top x`], [k ; v] and v, from tokens (batch, n, d), weights (d, h r) and strengths (h)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, output: Tensor, strength: Tensor, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        strength = strength.contiguous()
        weights = scale_weights(output, strength, q.dtype)
        x = x.to(q.dtype)
        a = torch.mm(x.flatten(0, 1), weights).view(*x.shape[:2], strength.shape[0], -1).transpose(1, 2)
        ctx.save_for_backward(x, output, strength, weights)
        return concatenate(q, a), concatenate(k, v), v.view_as(v)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_q: Tensor, to_k: Tensor, to_v: Tensor) -> tuple[Tensor, ...]:
        x, output, strength, weights = ctx.saved_tensors
        q, a, _ = split_gradient(to_q, output.shape[1] // strength.shape[0])
        k, v, _ = split_gradient(to_k, to_v.shape[-1], more=to_v)
        flat = a.transpose(1, 2).flatten(2).flatten(0, 1)
        tokens = torch.mm(flat, weights.mT).view_as(x)
        to_output, to_strength = scale_backward(torch.mm(x.flatten(0, 1).mT, flat), output, strength)
        return tokens, to_output, to_strength, q, k, v


class ConcatSlice(torch.autograd.Function):
    r"""[q ; :math:`\lambda` s] and [k ; s], from slices s (batch, h, n, e) of tokens and strengths (h, e)."""

    @staticmethod
    def forward(ctx: Any, slices: Tensor, strength: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        slices = slices.to(q.dtype)
        slices = slices if slices.stride(-1) == 1 else slices.contiguous()  # tokens may be a view with strided columns
        factors = strength.float().contiguous()
        ctx.save_for_backward(slices, factors)
        ctx.dtype = strength.dtype
        return concatenate(q, slices, factors), concatenate(k, slices)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_q: Tensor, to_k: Tensor) -> tuple[Tensor, ...]:
        slices, factors = ctx.saved_tensors
        k, tokens, _ = split_gradient(to_k, slices.shape[-1])
        q, tokens, sums = split_gradient(to_q, slices.shape[-1], more=tokens, second=slices, factors=factors)
        assert sums is not None
        return tokens, sums.sum(0).to(ctx.dtype), q, k


class RoundForTwo(torch.autograd.Function):
    """Tokens in the precision of autocast for two consumers, whose gradients are added in one pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        ctx.dtype = x.dtype
        y = x.to(dtype)
        return y, y.view_as(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, first: Tensor, second: Tensor) -> tuple[Tensor, None]:
        return add_rounded(first, second, ctx.dtype), None
