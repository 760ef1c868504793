"""One forward call: prepare the operands, launch, give the results their shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor

from attractor.engines.contract import MODES, Problem
from attractor.engines.triton.engine import INTERPRETED, NARROW
from attractor.engines.triton.layout import (
    LOG2E,
    bias_of,
    columns,
    flat,
    padded,
    parts,
    reach,
    tiles,
    visible_of,
)
from attractor.engines.triton.narrow import TILE, narrow, shifts
from attractor.engines.triton.once import ROOM, copies, multiple, once, suits
from attractor.engines.triton.wide import wide

TUNED = 1 << 62 if INTERPRETED else 1 << 30  # pairs from which kernels are tuned: a millisecond or so
ONCE = 1 << 30  # pairs from which it pays to look whether each can be computed once


def forward(problem: Problem) -> tuple[Tensor | None, Tensor | None]:
    """Output and logsumexp, without gradients."""
    entries = problem.batch.numel()
    rows = (*problem.batch, problem.queries)
    width = 0 if problem.v is None else problem.v.shape[-1]
    sums = problem.mode in ("softmax", "exponential")
    if not entries or not problem.queries or not problem.keys:
        output = None if problem.v is None else problem.q.new_zeros((*rows, width))
        return output, problem.q.new_full(rows, -torch.inf) if sums else None
    small = max(problem.q.shape[-1], width) <= NARROW
    output, logsumexp = (_narrow if small else _wide)(problem, entries)
    return (
        None if problem.v is None else output[..., :width].reshape(*rows, width),
        logsumexp.reshape(rows) if sums else None,
    )


def size_class(problem: Problem, entries: int) -> int:
    """What autotuning tells apart: powers of four of the rows and of the keys."""
    return ((entries * problem.queries).bit_length() // 2) * 64 + problem.keys.bit_length() // 2


def launch(
    kernel: Any, problem: Problem, grid: Callable[[dict[str, Any]], tuple[int, ...]], *arguments: Any, **options: Any
) -> None:
    """Run a kernel, tuned where one evaluation is long enough to repay the tuning, else as its first configuration says."""
    if problem.pairs >= TUNED:
        kernel[grid](*arguments, **options)
        return
    first = kernel.configs[0]
    kernel.fn[grid(first.kwargs)](
        *arguments, **options, **first.kwargs, num_warps=first.num_warps, num_stages=first.num_stages
    )


def masks(problem: Problem) -> dict[str, bool]:
    return {
        "SKIP": problem.skip_self and problem.v is not None,
        "CAUSAL": problem.causal,
        "WINDOW": problem.window is not None,
        "VISIBLE": problem.visible is not None,
    }


def _narrow(problem: Problem, entries: int) -> tuple[Tensor, Tensor]:
    batch, n, m = problem.batch, problem.queries, problem.keys
    q, k = flat(problem.q, batch), flat(problem.k, batch)
    same = problem.v is problem.k
    v = None if problem.v is None or same else flat(problem.v, batch)
    bias, (visible, stride) = bias_of(problem), visible_of(problem)
    packed = tiles(k, v, bias)
    width = 0 if problem.v is None else problem.v.shape[-1]
    output, logsumexp = q.new_empty((entries, n, width)), q.new_empty((entries, n))
    seen = packed if visible is None else visible
    hidden = masks(problem)
    numbers = (n, m, problem.offset, packed[0].numel(), stride, problem.window or 0)
    shape: dict[str, Any] = {"E": q.shape[-1], "BIAS": bias is not None, "SLOTS": packed.shape[2]}
    base = logsumexp
    if problem.mode in ("softmax", "exponential"):
        largest = reach(k, bias)
        parts = copies(entries, n, width, k) if problem.pairs >= ONCE and suits(problem) else 0
        factor = multiple(problem, q, k, largest) if parts else None
        if factor is not None:
            once(k, v, bias, factor, parts, hidden["SKIP"], MODES.index(problem.mode), output, logsumexp)
            return output, logsumexp
        base = torch.empty_like(logsumexp)
        find: Any = shifts
        find[(triton.cdiv(n, 32), entries)](
            q,
            packed,
            largest,
            seen,
            base,
            *numbers,
            ROOM[q.dtype],
            PLACE=q.shape[-1] + (0 if same else width),
            BM=32,
            **shape,
            **{name: hidden[name] for name in ("CAUSAL", "WINDOW", "VISIBLE")},
        )
    launch(
        narrow,
        problem,
        lambda chosen: (triton.cdiv(n, chosen["BM"]), entries),
        q,
        packed,
        base,
        seen,
        output,
        logsumexp,
        *numbers,
        size_class(problem, entries),
        C=width,
        MODE=MODES.index(problem.mode),
        SAME=same,
        EVEN=m % TILE == 0 and not problem.masked,
        **shape,
        **hidden,
    )
    return output, logsumexp


def _wide(problem: Problem, entries: int) -> tuple[Tensor, Tensor]:
    batch, n, m = problem.batch, problem.queries, problem.keys
    q, k = flat(problem.q, batch), flat(problem.k, batch)
    q = q if problem.mode == "linear" else q * LOG2E
    bias, (visible, stride) = bias_of(problem), visible_of(problem)
    own = own_scores(problem, q, k, bias)
    width = columns(q.shape[-1])
    queries, keys = (parts(padded(part, width)) for part in (q, k))
    values, breadth = keys, 1
    if problem.v is not None:
        breadth = columns(problem.v.shape[-1])
        values = keys if problem.v is problem.k else parts(padded(flat(problem.v, batch), breadth))
    output, logsumexp = q.new_empty((entries, n, breadth)), q.new_empty((entries, n))
    launch(
        wide,
        problem,
        lambda chosen: (triton.cdiv(n, chosen["BM"]), entries),
        queries,
        keys,
        values,
        q if bias is None else bias,
        q if own is None else own,
        keys if visible is None else visible,
        output,
        logsumexp,
        n,
        m,
        problem.offset,
        stride,
        problem.window or 0,
        size_class(problem, entries),
        queries[0].numel(),
        keys[0].numel(),
        values[0].numel(),
        E=width,
        C=breadth,
        MODE=MODES.index(problem.mode),
        BIAS=bias is not None,
        SPLIT=q.dtype == torch.float32 and not INTERPRETED,
        **masks(problem),
    )
    return output, logsumexp


def own_scores(problem: Problem, q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor | None:
    """Scores (entries, n) of every query with its own key where that is left out of the output; -inf where it is not seen."""
    if not problem.skip_self or problem.v is None or problem.mode not in ("softmax", "exponential"):
        return None
    n, place = problem.queries, problem.offset
    both = max(0, min(n, problem.keys - place))
    own = (q[:, :both] * k[:, place : place + both]).sum(-1)
    own = own if bias is None else own + bias[:, place : place + both]
    if problem.visible is not None:
        shown = torch.diagonal(problem.visible, place, dim1=-2, dim2=-1)
        shown = shown if problem.visible.ndim == 2 else flat(shown, problem.batch, 1)
        own = torch.where(shown, own, -torch.inf)
    return torch.nn.functional.pad(own, (0, n - both), value=-torch.inf).contiguous()
