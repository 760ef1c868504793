"""When the fused engine runs, and one call of it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad

from attractor.engines.contract import Problem
from attractor.engines.fused import kernels
from attractor.engines.fused.gradient import Attend
from attractor.engines.fused.layout import adjacent, column, operand, options, scaled_bias
from attractor.engines.spread import Ranks, Results

Settle = Callable[[Tensor], Results]

AXES = 16  # batch axes that the kernels can walk
PADDING = 64  # sums of shared pairs have room for so many rows, or a multiple
EXCHANGED = (
    4  # features up to which ranks without common memory exchange sums: of more, rows of results are less to send
)
TYPES = (torch.float32, torch.float64)


def accepts(problem: Problem) -> bool:
    """Float32 or float64 on the CPU, outside tracing, ``torch.func`` and forward-mode differentiation."""
    parts = [part for part in (problem.q, problem.k, problem.v, problem.key_bias) if part is not None]
    return (
        problem.q.dtype in TYPES
        and all(part.device.type == "cpu" and part.dtype == problem.q.dtype for part in parts)
        and (problem.visible is None or (problem.visible.device.type == "cpu" and problem.visible.dtype == torch.bool))
        and (problem.window is None or problem.window > 0)
        and all(type(part) in (Tensor, torch.nn.Parameter) and part.layout == torch.strided for part in parts)
        and max(part.ndim for part in parts) - 2 <= AXES
        and not torch.compiler.is_compiling()
        and torch._C._functorch.maybe_current_level() is None  # type: ignore[attr-defined]
        and forward_ad._current_level < 0
    )


def obstacle(problem: Problem) -> str:
    """Why it cannot run a problem, or nothing."""
    if accepts(problem):
        return ""
    if problem.q.device.type != "cpu":
        return f"it runs on the CPU, and the tensors are on {problem.q.device}"
    if problem.q.dtype not in TYPES:
        return f"it computes in float32 and float64, and the tensors are {problem.q.dtype}"
    return "it takes plain CPU tensors of one type, outside torch.compile, torch.func and forward-mode differentiation"


def rank(problem: Problem) -> float:
    """Above all others."""
    return 3.0


def run(problem: Problem) -> tuple[Tensor | None, Tensor | None]:
    if problem.needs_gradient:
        return Attend.apply(problem, problem.q, problem.k, problem.v, problem.key_bias)  # type: ignore[return-value]
    return forward(problem)


def forward(problem: Problem) -> tuple[Tensor | None, Tensor | None]:
    """Output and logsumexp, without gradients."""
    if not problem.keys:  # an empty tensor has no address
        return _nothing(problem)
    call = _Call(problem)
    call.kernel.attend()
    return call.output, call.logsumexp


def share(problem: Problem, ranks: Ranks) -> Results | None:
    """Results by several ranks together; None: not of the kind where pairs are shared.

    So it is where the queries are a multiple of the keys and each pair is computed but once (``cpp/symmetric.h``). Ranks that share
    memory take the pairs as they come, as threads do, and have the bits of one process. Others divide them beforehand if tokens have
    few features, and add their sums in the order of the ranks; with two of them the bits are those of one process too.
    """
    if problem.v is None or not problem.keys:
        return None
    call = _Call(problem)
    room = call.kernel.room()
    board = ranks.board(room) if room else None
    if board is None:
        few = room and problem.v.shape[-1] <= EXCHANGED
        found = _portion(call, problem, ranks.rank, ranks.size) if few else None
        if found is None:
            return None
        sums, settle = found
        everyone = ranks.gather(sums)
        total = everyone[0]
        for part in everyone[1:]:
            total += part
        return settle(total)
    if board.kept is None:
        memory = board.memory
        board.kept = kernels.module().Shared(memory.data_ptr(), memory.numel(), board.rank, board.size, board.watch)
    try:
        fine = call.kernel.together(board.kept)
    except TimeoutError as error:
        raise ranks.lost(error) from None
    if not fine:
        raise ranks.lost(RuntimeError("Connection closed"))
    return call.output, call.logsumexp


def portion(problem: Problem, part: int, parts: int) -> tuple[Tensor, Settle] | None:
    """What some of the pairs give to sums over all of them, and what makes the results of all sums; None: not of that kind."""
    return None if problem.v is None or not problem.keys else _portion(_Call(problem), problem, part, parts)


def _portion(call: _Call, problem: Problem, part: int, parts: int) -> tuple[Tensor, Settle] | None:
    assert problem.v is not None
    padded = -(-problem.keys // PADDING) * PADDING
    sums = torch.zeros((call.members, problem.v.shape[-1] + 1, padded), dtype=torch.float64)
    if not call.kernel.share(part, parts, sums.data_ptr()):
        return None

    def settle(total: Tensor) -> tuple[Tensor | None, Tensor | None]:
        total = total.contiguous()
        call.kernel.settle(total.data_ptr())
        return call.output, call.logsumexp

    return sums, settle


class _Call:
    """A call of the kernels, with its results and the copies that it needs."""

    def __init__(self, problem: Problem) -> None:
        batch, v = problem.batch, problem.v
        rows, dtype = (*batch, problem.queries), problem.q.dtype
        self.members = batch.numel()
        self.output = None if v is None else torch.empty((*rows, v.shape[-1]), dtype=dtype)
        sums = problem.mode in ("softmax", "exponential")
        self.logsumexp = torch.empty(rows, dtype=dtype) if sums else None
        parts = [None if part is None else adjacent(part) for part in (problem.q, problem.k, v)]
        bias = scaled_bias(problem)
        self.kept = (parts, bias, problem.visible)
        self.kernel = kernels.module().Forward(
            *options(problem, batch),
            *(operand(part, batch) for part in parts),
            column(bias, batch),
            operand(problem.visible, batch),
            operand(self.output, batch),
            column(self.logsumexp, batch),
        )


def _nothing(problem: Problem) -> tuple[Tensor | None, Tensor | None]:
    """Every row sees nothing."""
    rows, q = (*problem.batch, problem.queries), problem.q
    output = None if problem.v is None else torch.zeros((*rows, problem.v.shape[-1]), dtype=q.dtype)
    sums = problem.mode in ("softmax", "exponential")
    return output, torch.full(rows, -torch.inf, dtype=q.dtype) if sums else None
