"""When the Triton engine computes each pair once, for both of its rows: queries that are a multiple of the keys, small scores.

Sums meet by atomic additions, whose order is not fixed: the last bits may differ from call to call. Where
``torch.use_deterministic_algorithms`` asks for the same bits each row is computed by itself.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from attractor.engines.contract import Problem
from attractor.engines.triton.layout import LOG2E, tiles
from attractor.engines.triton.narrow import TILE
from attractor.engines.triton.symmetric import settle, symmetric

ROOM = {torch.float32: 100.0, torch.float64: 900.0}  # spread of exponents, in powers of two, that cannot underflow
SHAPES = {torch.float32: (16, 2), torch.float64: (8, 4)}  # rows of a warp, unrolled tiles: as many as registers hold
ADDITIONS = (64, 128, 256)  # to one sum of a copy: as few as memory allows, for rounding grows with them
FEWEST = 4096  # tokens below which a warp has too few tiles to itself


def suits(problem: Problem) -> bool:
    """Whether pairs may be computed once, as far as shapes and options tell."""
    v = problem.v
    if v is None or v.shape[-1] == 0 or problem.mode not in ("softmax", "exponential"):
        return False
    return (
        problem.queries == problem.keys >= FEWEST
        and problem.offset == 0
        and not problem.causal
        and problem.window is None
        and problem.visible is None
        and not torch.are_deterministic_algorithms_enabled()
        and not (problem.q.is_cuda and torch.cuda.is_current_stream_capturing())  # we wait for an answer
    )


def copies(entries: int, n: int, columns: int, like: Tensor) -> int:
    """How many copies of the sums there are to be; 0 where there is no memory for them."""
    rows = -(-n // TILE) * TILE * entries
    each, spare = rows * (1 + columns) * like.element_size(), _spare(like.device)
    wanted = (-(-n // (SHAPES[like.dtype][0] * additions)) for additions in ADDITIONS)
    return next((count for count in wanted if count * each <= spare), 0)


def _spare(device: torch.device) -> int:
    """A quarter of the memory that can still be had."""
    if device.type != "cuda":
        return 1 << 30
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return (torch.cuda.mem_get_info(device)[0] + held) // 4


def multiple(problem: Problem, q: Tensor, k: Tensor, largest: Tensor) -> Tensor | None:
    """By what queries (entries, n, e) are multiples of keys, in units of log 2, (entries,); None where they are not, to rounding,
    or where scores and biases are so large that exponents need a shift. ``largest`` has (longest key, largest bias, smallest
    bias) of each entry."""
    longest, *biases = largest.double().unbind(-1)
    close: Tensor | bool = True
    c = torch.ones_like(longest)
    if problem.q is not problem.k:
        a, b = q.double(), k.double()
        c = (a * b).sum((1, 2)) / (b * b).sum((1, 2))
        allowed = (1 if q.dtype == torch.float32 else 2) * torch.finfo(
            q.dtype
        ).eps  # rounding of q, and in float64 of c
        close = ((a - c[:, None, None] * b).abs() <= allowed * a.abs()).all()
    reached = c.abs() * LOG2E * longest**2 + torch.maximum(biases[0], -biases[1]).clamp_min(0.0)
    small = (reached < 0.5 * ROOM[q.dtype]).all()  # not so for what is not a number
    return (c * LOG2E).to(q.dtype) if bool(small & close) else None


def once(k: Tensor, v: Tensor | None, bias: Tensor | None, factor: Tensor, parts: int, skip: bool, mode: int,
         output: Tensor, logsumexp: Tensor) -> None:  # fmt: skip
    """Write the results, with so many copies (``parts``) of the sums. Values None are the keys; biases, in units of log 2, become
    masses: of a key in the sum of a row, and of that row in the sum of the key's."""
    same, values, masses = v is None and bias is None, k if v is None else v, k
    if bias is not None:
        masses = torch.exp2(bias)
        values = values * masses.unsqueeze(-1)
    packed = tiles(k, None if same else values, None if bias is None else masses)
    (entries, n, e), c = k.shape, values.shape[-1]
    count = packed.shape[1]
    rows, sums = k.new_empty((entries, n, 1 + c)), k.new_zeros((parts, entries, count, 1 + c, TILE))
    height, unroll = SHAPES[k.dtype]
    first: Any = symmetric
    first[(triton.cdiv(n, height), entries)](
        k, values, masses, packed, factor, rows, sums, n, packed[0].numel(), parts, E=e, C=c, SAME=same, MASS=bias is not None,
        SKIP=skip, SLOTS=packed.shape[2], BM=height, UNROLL=unroll, num_warps=1, num_stages=1,
    )  # fmt: skip
    second: Any = settle
    second[(count, entries)](rows, sums, output, logsumexp, n, parts, C=c, MODE=mode, num_warps=1)
