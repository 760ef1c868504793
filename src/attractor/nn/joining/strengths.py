"""Weights (d, h r) times the strengths of heads, and the gradients of both: one kernel each, where PyTorch would take eight."""

# pyright: reportInvalidTypeForm=false, reportCallIssue=false, reportAttributeAccessIssue=false, reportIndexIssue=false
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 32


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
def unscale_kernel(
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


def scaled(weight: Tensor, strength: Tensor, dtype: torch.dtype) -> Tensor:
    """The product in another precision, rows contiguous."""
    d, width, heads = *weight.shape, strength.shape[0]
    out = weight.new_empty(d, width, dtype=dtype)
    kernel: Any = scale_kernel
    with torch.cuda.device_of(weight):
        kernel[triton.cdiv(d, ROWS), heads](weight, strength, out, d, width, *weight.stride(), *_sizes(width // heads))
    return out


def unscaled(gradient: Tensor, weight: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    """From the gradient of the product those of the weights, laid out as they are, and of the strengths."""
    d, width, heads = *weight.shape, strength.shape[0]
    blocks = triton.cdiv(d, ROWS)
    gradient, to_weight = gradient.contiguous(), torch.empty_like(weight)
    if to_weight.stride() != weight.stride():
        weight = weight.contiguous()
        to_weight = torch.empty_like(weight)
    sums = weight.new_empty(blocks, heads, dtype=torch.float32)
    kernel: Any = unscale_kernel
    with torch.cuda.device_of(weight):
        kernel[blocks, heads](
            gradient, weight, strength, to_weight, sums, d, width, *weight.stride(), heads, *_sizes(width // heads)
        )
    return to_weight, sums.sum(0).to(strength.dtype)


def _sizes(r: int) -> tuple[int, int, int]:
    return r, triton.next_power_of_2(r), ROWS
