"""Fused CPU engine: C++ SIMD kernels for float32 and float64, forward and backward."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from attractor.engines import blockwise
from attractor.engines.distributed import Ranks, Results
from attractor.engines.problem import MODES, Problem
from attractor.errors import InputError

VARIABLE = "ATTRACTOR_ISA"  # forces one of `instruction_sets()`


def _load() -> tuple[ModuleType | None, str]:
    try:
        return importlib.import_module("attractor.engines._kernels"), ""
    except ImportError as error:
        note = Path(__file__).with_name("not_built.txt")
        if note.exists():
            return None, f"the compiled extension is not built: {note.read_text().strip()}"
        if isinstance(error, ModuleNotFoundError):
            return None, "the compiled extension is not built: install attractor with pip where there is a C++ compiler"
        return None, f"the compiled extension cannot be loaded: {error}"


_module, reason = _load()


def module() -> ModuleType:
    if _module is None:
        raise InputError(reason)
    return _module


def instruction_sets() -> list[str]:
    """Those that were compiled and that this processor runs, the fastest first."""
    return [] if _module is None else list(_module.instruction_sets())


_sets = instruction_sets()


def instruction_set() -> str:
    """The one in use: the fastest, or the one that the environment variable ``ATTRACTOR_ISA`` names."""
    name = os.environ.get(VARIABLE)
    if not name:
        return _sets[0]
    if name not in _sets:
        raise InputError(f"{VARIABLE} is {name!r}, but the instruction sets that run here are {', '.join(_sets)}")
    return name


LOG2E = math.log2(math.e)

Operand = list[int]
Options = tuple[str, bool, int, list[int], list[int], int, bool, int, bool, int]


def adjacent(tensor: Tensor) -> Tensor:
    """The same tensor with its columns beside each other; a copy only where they are not."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def operand(tensor: Tensor | None, batch: torch.Size) -> Operand:
    """(address, batch strides, row stride, column stride) of a tensor (..., rows, columns); empty for None."""
    if tensor is None:
        return []
    if tensor.shape[:-2] != batch:
        tensor = tensor.expand(*batch, *tensor.shape[-2:])
    return [tensor.data_ptr(), *tensor.stride()]


def column(tensor: Tensor | None, batch: torch.Size) -> Operand:
    """The same for one number per row, (..., rows); these must lie beside each other."""
    return [] if tensor is None else operand(tensor.unsqueeze(-2), batch)


def scaled_bias(problem: Problem) -> Tensor | None:
    """The kernels compute powers of two, so the bias is given in units of log 2."""
    bias = problem.key_bias
    if bias is None:
        return None
    return adjacent(bias.detach() if problem.mode == "linear" else bias.detach() * LOG2E)


def options(problem: Problem, batch: torch.Size) -> Options:
    """What a call of the kernels starts with."""
    sizes = [problem.queries, problem.keys, problem.q.shape[-1], 0 if problem.v is None else problem.v.shape[-1]]
    return (
        instruction_set(),
        problem.q.dtype == torch.float64,
        torch.get_num_threads(),
        list(batch),
        sizes,
        MODES.index(problem.mode),
        problem.causal,
        # a window wider than all keys hides nothing, and the kernels write "no window" as 0
        0 if problem.window is None else min(problem.window, problem.offset + problem.queries + problem.keys),
        problem.skip_self,
        problem.offset,
    )


class Attend(torch.autograd.Function):
    """``attend`` with analytic first derivatives; where second ones may follow, the gradient is that of ``blockwise``."""

    @staticmethod
    def forward(
        ctx: Any, problem: Problem, q: Tensor, k: Tensor, v: Tensor | None, key_bias: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:

        output, logsumexp = forward(problem)
        ctx.save_for_backward(q, k, v, key_bias, problem.visible, output, logsumexp)
        ctx.set_materialize_grads(False)
        ctx.options = (problem.mode, problem.causal, problem.window, problem.skip_self, problem.offset)
        return output, logsumexp

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        grad_output, grad_logsumexp = grad_outputs
        q, k, v, key_bias, visible, output, logsumexp = ctx.saved_tensors
        mode, causal, window, skip_self, offset = ctx.options
        problem = Problem(q, k, v, key_bias, mode, causal, window, visible, skip_self, offset)
        if torch.is_grad_enabled():  # create_graph=True
            return None, *blockwise.gradients(problem, grad_output, grad_logsumexp)
        return None, *_gradients(problem, output, logsumexp, grad_output, grad_logsumexp, ctx.needs_input_grad[1:])


def _gradients(
    problem: Problem,
    output: Tensor | None,
    logsumexp: Tensor | None,
    grad_output: Tensor | None,
    grad_logsumexp: Tensor | None,
    needed: tuple[bool, ...],
) -> list[Tensor | None]:
    batch = problem.batch
    problem = replace(
        problem, q=adjacent(problem.q), k=adjacent(problem.k), v=None if problem.v is None else adjacent(problem.v)
    )
    bias = scaled_bias(problem)
    unasked = grad_output is None
    if output is not None:
        grad_output = torch.zeros_like(output) if grad_output is None else adjacent(grad_output)
    level, term = _row_terms(problem, output, logsumexp, grad_output, grad_logsumexp)
    parts = (problem.q, problem.k, problem.v, problem.key_bias)
    gradients = [
        torch.empty((*batch, *part.shape[-(1 if part is problem.key_bias else 2) :]), dtype=problem.q.dtype)
        if need and part is not None
        else None
        for part, need in zip(parts, needed, strict=True)
    ]
    module().backward(
        *options(problem, batch),
        *(operand(part, batch) for part in parts[:3]),
        column(bias, batch),
        operand(problem.visible, batch),
        operand(grad_output, batch),
        column(level, batch),
        column(term, batch),
        *(operand(gradient, batch) for gradient in gradients[:2]),
        operand(None if unasked else gradients[2], batch),
        column(gradients[3], batch),
    )
    if unasked and gradients[2] is not None:
        gradients[2].zero_()  # weights that overflow would give 0 times infinity
    # an input that was broadcast over batch axes gets the sum over them
    return [
        None if gradient is None or part is None else gradient.sum_to_size(part.shape)
        for gradient, part in zip(gradients, parts, strict=True)
    ]


def _row_terms(
    problem: Problem,
    output: Tensor | None,
    logsumexp: Tensor | None,
    grad_output: Tensor | None,
    grad_logsumexp: Tensor | None,
) -> tuple[Tensor | None, Tensor | None]:
    """log2 of the normaliser, infinite for a row that sees nothing so that its weights are 0, and the term t of each row."""
    if logsumexp is None:
        return None, None
    blind = logsumexp == -torch.inf
    level = adjacent(torch.where(blind, torch.inf, logsumexp * LOG2E))
    term = torch.zeros_like(logsumexp) if grad_logsumexp is None else grad_logsumexp
    if problem.mode == "softmax" and output is not None and grad_output is not None:
        term = term - (grad_output * output).sum(-1)
    return level, adjacent(torch.where(blind, 0.0, term))


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
        board.kept = module().Shared(memory.data_ptr(), memory.numel(), board.rank, board.size, board.watch)
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
        self.kernel = module().Forward(
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
