"""Operand layout, kernel launches and gradients of the Triton engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor

from attractor.engines.autograd import OutputGradients
from attractor.engines.problem import INTERPRETED, LOG2E, MODES, NARROW, Problem, Results
from attractor.engines.triton.backward import over_keys, over_queries
from attractor.engines.triton.narrow import TILE, narrow, shifts
from attractor.engines.triton.symmetric import finish_symmetric, symmetric
from attractor.engines.triton.wide import wide

ROOM = {torch.float32: 100.0, torch.float64: 900.0}  # spread of exponents, in powers of two, that cannot underflow
SHAPES = {torch.float32: (16, 2), torch.float64: (8, 4)}  # rows of a warp and unrolled tiles that fit in registers
ADDITIONS = (64, 128, 256)  # additions to one sum of a copy: as few as memory allows, because rounding grows with them
MIN_TOKENS = 4096  # tokens below which a warp has too few tiles
TUNED_PAIRS = 1 << 62 if INTERPRETED else 1 << 30  # pairs from which kernels are autotuned: about a millisecond
SYMMETRIC_PAIRS = 1 << 30  # pairs from which checking for symmetric scores pays off


def flatten(tensor: Tensor, batch: torch.Size, own: int = 2) -> Tensor:
    """(entries, ...) with the last ``own`` axes kept, contiguous; broadcast batch axes are written out."""
    return tensor.detach().expand(*batch, *tensor.shape[-own:]).reshape(-1, *tensor.shape[-own:]).contiguous()


def scaled_bias(problem: Problem) -> Tensor | None:
    """Key biases (entries, m) in the units of the scores."""
    if problem.key_bias is None:
        return None
    bias = flatten(problem.key_bias, problem.batch, 1)
    return bias if problem.mode == "linear" else bias * LOG2E


def visible_bytes(problem: Problem) -> tuple[Tensor | None, int]:
    """The boolean matrix as bytes, and its stride over entries (0 where all share one)."""
    if problem.visible is None:
        return None, 0
    shared = problem.visible.ndim == 2
    rows = problem.visible if shared else flatten(problem.visible, problem.batch)
    return rows.contiguous().view(torch.uint8), 0 if shared else problem.queries * problem.keys


def tile_columns(size: int) -> int:
    """Columns of a tile: a power of two that the tensor cores support."""
    return max(16, 1 << (size - 1).bit_length())


def pad_columns(tensor: Tensor, size: int) -> Tensor:
    missing = size - tensor.shape[-1]
    return tensor if missing == 0 else torch.nn.functional.pad(tensor, (0, missing))


def split_bfloat16(tensor: Tensor) -> Tensor:
    """Float32 as three bfloat16 numbers, first axis 3; float64 as it is, first axis 1 (the interpreter has no bfloat16)."""
    if tensor.dtype == torch.float64 or INTERPRETED:
        return tensor.unsqueeze(0)
    pieces = tensor.new_empty((3, *tensor.shape), dtype=torch.bfloat16)
    pieces[0] = tensor
    rest = tensor - pieces[0]
    pieces[1] = rest
    pieces[2] = rest - pieces[1]
    return pieces


def pack_tiles(k: Tensor, v: Tensor | None, bias: Tensor | None) -> Tensor:
    """Keys, values and biases of each entry as (tiles, slots, TILE), zero past the end."""
    pieces = [k, *([] if v is None else [v]), *([] if bias is None else [bias.unsqueeze(-1)])]
    rows = torch.cat(pieces, dim=-1) if len(pieces) > 1 else k
    rows = torch.nn.functional.pad(rows, (0, 0, 0, -rows.shape[1] % TILE))
    return rows.unflatten(1, (-1, TILE)).transpose(-1, -2).contiguous()


def key_bounds(k: Tensor, bias: Tensor | None) -> Tensor:
    """(longest key, largest bias, smallest finite bias) of each entry."""
    longest = torch.linalg.vector_norm(k, dim=-1).amax(-1)
    if bias is None:
        return torch.nn.functional.pad(longest.unsqueeze(-1), (0, 2))
    open = bias > -torch.inf
    top = bias.amax(-1)
    # without a finite bias no row sees a key
    low = torch.where(open.any(-1), torch.where(open, bias, torch.inf).amin(-1), 0.0)
    return torch.stack([longest, torch.where(top > -torch.inf, top, 0.0), low], dim=-1)


def may_be_symmetric(problem: Problem) -> bool:
    """Whether shapes and options allow each pair to be computed once."""
    v = problem.v
    if v is None or v.shape[-1] == 0 or not problem.has_logsumexp:
        return False
    return (
        problem.queries == problem.keys >= MIN_TOKENS
        and problem.offset == 0
        and not problem.causal
        and problem.window is None
        and problem.visible is None
        and not torch.are_deterministic_algorithms_enabled()
        and not (problem.q.is_cuda and torch.cuda.is_current_stream_capturing())  # the check synchronises
    )


def count_copies(entries: int, n: int, columns: int, like: Tensor) -> int:
    """Number of copies of the sums; 0 where memory is too small for them."""
    rows = -(-n // TILE) * TILE * entries
    each, spare = rows * (1 + columns) * like.element_size(), _spare_memory(like.device)
    wanted = (-(-n // (SHAPES[like.dtype][0] * additions)) for additions in ADDITIONS)
    return next((count for count in wanted if count * each <= spare), 0)


def _spare_memory(device: torch.device) -> int:
    """A quarter of the free memory."""
    if device.type != "cuda":
        return 1 << 30
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return (torch.cuda.mem_get_info(device)[0] + held) // 4


def find_multiple(problem: Problem, q: Tensor, k: Tensor, largest: Tensor) -> Tensor | None:
    """Factors (entries,), in units of log 2, by which queries (entries, n, e) are multiples of keys; None where they are not, to
    rounding, or where scores and biases are so large that exponents need a shift. ``largest``: see ``key_bounds``."""
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
    small = (reached < 0.5 * ROOM[q.dtype]).all()  # False for NaN
    return (c * LOG2E).to(q.dtype) if bool(small & close) else None


def run_symmetric(k: Tensor, v: Tensor | None, bias: Tensor | None, factor: Tensor, parts: int, skip: bool, mode: int,
         output: Tensor, logsumexp: Tensor) -> None:  # fmt: skip
    """Write the results, with so many copies (``parts``) of the sums. If ``v`` is None the values are the keys. Biases, in units of log 2,
    become masses of the keys."""
    same, values, masses = v is None and bias is None, k if v is None else v, k
    if bias is not None:
        masses = torch.exp2(bias)
        values = values * masses.unsqueeze(-1)
    packed = pack_tiles(k, None if same else values, None if bias is None else masses)
    (entries, n, e), c = k.shape, values.shape[-1]
    count = packed.shape[1]
    rows, sums = k.new_empty((entries, n, 1 + c)), k.new_zeros((parts, entries, count, 1 + c, TILE))
    height, unroll = SHAPES[k.dtype]
    first: Any = symmetric
    first[(triton.cdiv(n, height), entries)](
        k, values, masses, packed, factor, rows, sums, n, packed[0].numel(), parts, E=e, C=c, SAME=same, MASS=bias is not None,
        SKIP=skip, SLOTS=packed.shape[2], BM=height, UNROLL=unroll, num_warps=1, num_stages=1,
    )  # fmt: skip
    second: Any = finish_symmetric
    second[(count, entries)](rows, sums, output, logsumexp, n, parts, C=c, MODE=mode, num_warps=1)


def forward(problem: Problem) -> Results:
    """Output and logsumexp, without gradients."""
    entries = problem.batch.numel()
    rows = (*problem.batch, problem.queries)
    width = 0 if problem.v is None else problem.v.shape[-1]
    sums = problem.has_logsumexp
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
    """Key for autotuning: powers of four of the rows and of the keys."""
    return ((entries * problem.queries).bit_length() // 2) * 64 + problem.keys.bit_length() // 2


def launch(
    kernel: Any, problem: Problem, grid: Callable[[dict[str, Any]], tuple[int, ...]], *arguments: Any, **options: Any
) -> None:
    """Run a kernel: autotuned where an evaluation is long enough, else in its first configuration."""
    if problem.pairs >= TUNED_PAIRS:
        kernel[grid](*arguments, **options)
        return
    first = kernel.configs[0]
    kernel.fn[grid(first.kwargs)](
        *arguments, **options, **first.kwargs, num_warps=first.num_warps, num_stages=first.num_stages
    )


def mask_options(problem: Problem) -> dict[str, bool]:
    return {
        "SKIP": problem.skip_self and problem.v is not None,
        "CAUSAL": problem.causal,
        "WINDOW": problem.window is not None,
        "VISIBLE": problem.visible is not None,
    }


def _narrow(problem: Problem, entries: int) -> tuple[Tensor, Tensor]:
    batch, n, m = problem.batch, problem.queries, problem.keys
    q, k = flatten(problem.q, batch), flatten(problem.k, batch)
    same = problem.v is problem.k
    v = None if problem.v is None or same else flatten(problem.v, batch)
    bias, (visible, stride) = scaled_bias(problem), visible_bytes(problem)
    packed = pack_tiles(k, v, bias)
    width = 0 if problem.v is None else problem.v.shape[-1]
    output, logsumexp = q.new_empty((entries, n, width)), q.new_empty((entries, n))
    seen = packed if visible is None else visible
    hidden = mask_options(problem)
    numbers = (n, m, problem.offset, packed[0].numel(), stride, problem.window or 0)
    shape: dict[str, Any] = {"E": q.shape[-1], "BIAS": bias is not None, "SLOTS": packed.shape[2]}
    base = logsumexp
    if problem.has_logsumexp:
        largest = key_bounds(k, bias)
        parts = (
            count_copies(entries, n, width, k) if problem.pairs >= SYMMETRIC_PAIRS and may_be_symmetric(problem) else 0
        )
        factor = find_multiple(problem, q, k, largest) if parts else None
        if factor is not None:
            run_symmetric(k, v, bias, factor, parts, hidden["SKIP"], MODES.index(problem.mode), output, logsumexp)
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
        EVEN=m % TILE == 0 and not problem.is_masked,
        **shape,
        **hidden,
    )
    return output, logsumexp


def _wide(problem: Problem, entries: int) -> tuple[Tensor, Tensor]:
    batch, n, m = problem.batch, problem.queries, problem.keys
    q, k = flatten(problem.q, batch), flatten(problem.k, batch)
    q = q if problem.mode == "linear" else q * LOG2E
    bias, (visible, stride) = scaled_bias(problem), visible_bytes(problem)
    own = self_scores(problem, q, k, bias)
    width = tile_columns(q.shape[-1])
    queries, keys = (split_bfloat16(pad_columns(part, width)) for part in (q, k))
    values, breadth = keys, 1
    if problem.v is not None:
        breadth = tile_columns(problem.v.shape[-1])
        values = keys if problem.v is problem.k else split_bfloat16(pad_columns(flatten(problem.v, batch), breadth))
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
        **mask_options(problem),
    )
    return output, logsumexp


def self_scores(problem: Problem, q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor | None:
    """Scores (entries, n) of every query with its own key if ``skip_self``; -inf where the mask hides it."""
    if not problem.skip_self or problem.v is None or not problem.has_logsumexp:
        return None
    n, place = problem.queries, problem.offset
    both = max(0, min(n, problem.keys - place))
    own = (q[:, :both] * k[:, place : place + both]).sum(-1)
    own = own if bias is None else own + bias[:, place : place + both]
    if problem.visible is not None:
        shown = torch.diagonal(problem.visible, place, dim1=-2, dim2=-1)
        shown = shown if problem.visible.ndim == 2 else flatten(shown, problem.batch, 1)
        own = torch.where(shown, own, -torch.inf)
    return torch.nn.functional.pad(own, (0, n - both), value=-torch.inf).contiguous()


def backward(problem: Problem, grads: OutputGradients, needed: tuple[bool, ...]) -> list[Tensor | None]:
    """Gradients (batch, ...) of q, k, v and the key bias, those that are needed."""
    batch, n, m = problem.batch, problem.queries, problem.keys
    entries = batch.numel()
    level, term = (
        problem.q.new_zeros((entries, n)) if row is None else flatten(row, batch, 1)
        for row in (grads.log2sum, grads.row_term)
    )
    width = tile_columns(problem.q.shape[-1])
    q, k = (pad_columns(flatten(part, batch), width) for part in (problem.q, problem.k))
    breadth = 1 if problem.v is None else tile_columns(problem.v.shape[-1])
    v = q if problem.v is None else pad_columns(flatten(problem.v, batch), breadth)
    g = q if grads.output is None else pad_columns(flatten(grads.output, batch), breadth)
    bias, (visible, stride) = scaled_bias(problem), visible_bytes(problem)
    grad_q, grad_k, grad_v = torch.empty_like(q), torch.empty_like(k), q.new_empty((entries, m, breadth))
    grad_bias = q.new_empty((entries, m))
    shared = (q, k, v, q if bias is None else bias, g, level, term, q if visible is None else visible)
    numbers = (n, m, problem.offset, stride, problem.window or 0, size_class(problem, entries))
    options: dict[str, Any] = {
        "E": width,
        "C": breadth,
        "MODE": MODES.index(problem.mode),
        "BIAS": bias is not None,
        **mask_options(problem),
    }
    if needed[0]:
        launch(
            over_keys,
            problem,
            lambda chosen: (triton.cdiv(n, chosen["BM"]), entries),
            *shared,
            grad_q,
            *numbers,
            **options,
        )
    if any(needed[1:]):
        launch(
            over_queries,
            problem,
            lambda chosen: (triton.cdiv(m, chosen["BN"]), entries),
            *shared,
            grad_k,
            grad_v,
            grad_bias,
            *numbers,
            **options,
        )
    inputs = (problem.q, problem.k, problem.v, problem.key_bias)
    shapes = [None if part is None else part.shape[-(1 if part is problem.key_bias else 2) :] for part in inputs]
    found = (grad_q, grad_k, grad_v, grad_bias)
    return [
        gradient[..., : shape[-1]].reshape(*batch, *shape) if need and shape is not None else None
        for gradient, shape, need in zip(found, shapes, needed, strict=True)
    ]
