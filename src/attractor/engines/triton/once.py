"""When the Triton engine computes each pair once, for both of its rows: queries that are a multiple of the keys, small scores.

Whether they are is found on the device, and nobody waits for the answer: the kernels for both cases are launched, and those that
are not called for return at once. Sums meet by atomic additions, whose order is not fixed: the last bits may differ from call to
call. Where ``torch.use_deterministic_algorithms`` asks for the same bits each row is computed by itself.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from attractor.engines.contract import Problem
from attractor.engines.triton.layout import tiles
from attractor.engines.triton.narrow import TILE
from attractor.engines.triton.symmetric import settle, symmetric

COPIES = 16
ROOM = {torch.float32: 100.0, torch.float64: 900.0}  # spread of exponents, in powers of two, that cannot underflow
SHAPES = {
    torch.float32: (16, 2),
    torch.float64: (8, 4),
}  # rows of a warp and unrolled tiles, by the registers they take
FEWEST = 4096  # tokens below which the sums of the keys are too short a way from each other
MOST = 1 << 30  # bytes that the copies may take
PER_LOG2 = 1.4426950408889634


def suits(problem: Problem) -> bool:
    """Whether pairs may be computed once, as far as shapes and options tell; the rest is found on the device."""
    v = problem.v
    if v is None or v.shape[-1] == 0 or problem.mode not in ("softmax", "exponential"):
        return False
    size = COPIES * problem.batch.numel() * problem.keys * (1 + v.shape[-1]) * problem.q.element_size()
    return (
        problem.queries == problem.keys >= FEWEST
        and problem.offset == 0
        and not problem.causal
        and problem.window is None
        and problem.visible is None
        and size <= MOST
        and not torch.are_deterministic_algorithms_enabled()
    )


def multiple(problem: Problem, q: Tensor, k: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
    """By what queries (entries, n, e) are multiples of keys, in units of log 2, (entries,); and whether that is so, to
    rounding, with all scores and biases of all entries so small that exponents need no shift: 1 or 0, on the device, without
    waiting. ``largest`` has (longest key, largest bias, smallest bias) of each entry."""
    longest, *biases = largest.double().unbind(-1)
    if problem.q is problem.k:
        c, close = torch.ones_like(longest), True
    else:
        a, b = q.double(), k.double()
        c = (a * b).sum((1, 2)) / (b * b).sum((1, 2))
        close = ((a - c[:, None, None] * b).abs() <= 2 * torch.finfo(q.dtype).eps * a.abs()).all()
    reached = c.abs() * PER_LOG2 * longest**2 + torch.maximum(biases[0], -biases[1]).clamp_min(0.0)
    small = (reached < 0.5 * ROOM[q.dtype]).all()  # not so for what is not a number
    return (c * PER_LOG2).to(q.dtype), (small & close).to(torch.int32).reshape(1)


def once(k: Tensor, v: Tensor | None, bias: Tensor | None, factor: Tensor, flag: Tensor, skip: bool, mode: int,
         output: Tensor, logsumexp: Tensor) -> None:  # fmt: skip
    """Write the results where the flag is 1. Values None are the keys; biases, in units of log 2, become masses: of a key in the
    sum of a row, and of that row in the sum of the key's."""
    same, values, masses = v is None and bias is None, k if v is None else v, k
    if bias is not None:
        masses = torch.exp2(bias)
        values = values * masses.unsqueeze(-1)
    packed = tiles(k, None if same else values, None if bias is None else masses)
    (entries, n, e), c = k.shape, values.shape[-1]
    count = packed.shape[1]
    rows, sums = k.new_empty((entries, n, 1 + c)), k.new_zeros((COPIES, entries, count, 1 + c, TILE))
    height, unroll = SHAPES[k.dtype]
    first: Any = symmetric
    first[(triton.cdiv(n, height), entries)](
        k, values, masses, packed, factor, flag, rows, sums, n, packed[0].numel(), E=e, C=c, SAME=same, MASS=bias is not None,
        SKIP=skip, SLOTS=packed.shape[2], COPIES=COPIES, BM=height, UNROLL=unroll, num_warps=1, num_stages=1,
    )  # fmt: skip
    second: Any = settle
    second[(count, entries)](flag, rows, sums, output, logsumexp, n, C=c, MODE=mode, COPIES=COPIES, num_warps=1)
