"""Fused CPU engine: C++ SIMD kernels for float32 and float64, forward and backward."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor
from torch.autograd import forward_ad

from attractor.engines.autograd import OutputGradients, run_differentiable
from attractor.engines.distributed import ProcessGroup
from attractor.engines.problem import LOG2E, MODES, Problem, Results
from attractor.errors import InputError

VARIABLE = "ATTRACTOR_ISA"  # forces one of `instruction_sets()`
AXES = 16  # batch axes that the kernels can walk
PADDING = 64  # partial sums are padded to a multiple of so many rows
EXCHANGED = (
    4  # features up to which ranks without shared memory exchange sums: of more, rows of results are less to send
)
TYPES = (torch.float32, torch.float64)

# ---------------------------------------------------------------------------------------------- the compiled module


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
    """The compiled extension; raises InputError where it is not built."""
    if _module is None:
        raise InputError(reason)
    return _module


def instruction_sets() -> list[str]:
    """Instruction sets that were compiled and that this processor supports, the fastest first."""
    return [] if _module is None else list(_module.instruction_sets())


_sets = instruction_sets()


def instruction_set() -> str:
    """The instruction set in use: the fastest, or the one named by the environment variable ``ATTRACTOR_ISA``."""
    name = os.environ.get(VARIABLE)
    if not name:
        return _sets[0]
    if name not in _sets:
        raise InputError(f"{VARIABLE} is {name!r}, but the instruction sets that run here are {', '.join(_sets)}")
    return name


# ---------------------------------------------------------------------------------------------- the engine


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
    """Why the engine cannot run a problem; empty if it can."""
    if accepts(problem):
        return ""
    if problem.q.device.type != "cpu":
        return f"it runs on the CPU, and the tensors are on {problem.q.device}"
    if problem.q.dtype not in TYPES:
        return f"it computes in float32 and float64, and the tensors are {problem.q.dtype}"
    return "it takes plain CPU tensors of one type, outside torch.compile, torch.func and forward-mode differentiation"


def priority(problem: Problem) -> float:
    return 3.0


def run(problem: Problem) -> Results:
    return run_differentiable(problem, _forward, _backward)


def _forward(problem: Problem) -> Results:
    if not problem.keys:  # an empty tensor has no address, and no row sees a key
        rows, q = (*problem.batch, problem.queries), problem.q
        output = None if problem.v is None else torch.zeros((*rows, problem.v.shape[-1]), dtype=q.dtype)
        return output, torch.full(rows, -torch.inf, dtype=q.dtype) if problem.has_logsumexp else None
    call = _Call(problem)
    call.kernel.attend()
    return call.output, call.logsumexp


def _backward(problem: Problem, grads: OutputGradients, needed: tuple[bool, ...]) -> list[Tensor | None]:
    batch, v = problem.batch, problem.v
    problem = replace(problem, q=adjacent(problem.q), k=adjacent(problem.k), v=None if v is None else adjacent(v))
    bias = _scaled_bias(problem)
    grad_output, log2sum, row_term = (
        None if part is None else adjacent(part) for part in (grads.output, grads.log2sum, grads.row_term)
    )
    parts = (problem.q, problem.k, problem.v, problem.key_bias)
    gradients = [
        torch.empty((*batch, *part.shape[-(1 if part is problem.key_bias else 2) :]), dtype=problem.q.dtype)
        if need and part is not None
        else None
        for part, need in zip(parts, needed, strict=True)
    ]
    module().backward(
        *_options(problem, batch),
        *(_operand(part, batch) for part in parts[:3]),
        _column(bias, batch),
        _operand(problem.visible, batch),
        _operand(grad_output, batch),
        _column(log2sum, batch),
        _column(row_term, batch),
        *(_operand(gradient, batch) for gradient in gradients[:3]),
        _column(gradients[3], batch),
    )
    return gradients


# ---------------------------------------------------------------------------------------------- arguments of the kernels


class _Call:
    """A forward call of the kernels: its results, and references to the tensors whose memory it reads."""

    def __init__(self, problem: Problem) -> None:
        batch, v = problem.batch, problem.v
        rows, dtype = (*batch, problem.queries), problem.q.dtype
        self.members = batch.numel()
        self.output = None if v is None else torch.empty((*rows, v.shape[-1]), dtype=dtype)
        self.logsumexp = torch.empty(rows, dtype=dtype) if problem.has_logsumexp else None
        parts = [None if part is None else adjacent(part) for part in (problem.q, problem.k, v)]
        bias = _scaled_bias(problem)
        self.inputs = (parts, bias, problem.visible)
        self.kernel = module().Forward(
            *_options(problem, batch),
            *(_operand(part, batch) for part in parts),
            _column(bias, batch),
            _operand(problem.visible, batch),
            _operand(self.output, batch),
            _column(self.logsumexp, batch),
        )


def adjacent(tensor: Tensor) -> Tensor:
    """The tensor with unit stride along its last axis; copied only if necessary."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def _operand(tensor: Tensor | None, batch: torch.Size) -> list[int]:
    """(address, batch strides, row stride, column stride) of a tensor (..., rows, columns); empty for None."""
    if tensor is None:
        return []
    if tensor.shape[:-2] != batch:
        tensor = tensor.expand(*batch, *tensor.shape[-2:])
    return [tensor.data_ptr(), *tensor.stride()]


def _column(tensor: Tensor | None, batch: torch.Size) -> list[int]:
    """The same for one number per row, (..., rows), with unit stride."""
    return [] if tensor is None else _operand(tensor.unsqueeze(-2), batch)


def _scaled_bias(problem: Problem) -> Tensor | None:
    """The key bias in units of log 2, except in linear mode."""
    bias = problem.key_bias
    if bias is None:
        return None
    return adjacent(bias.detach() if problem.mode == "linear" else bias.detach() * LOG2E)


def _options(
    problem: Problem, batch: torch.Size
) -> tuple[str, bool, int, list[int], list[int], int, bool, int, bool, int]:
    """The leading arguments of a forward or backward call."""
    sizes = [problem.queries, problem.keys, problem.q.shape[-1], 0 if problem.v is None else problem.v.shape[-1]]
    return (
        instruction_set(),
        problem.q.dtype == torch.float64,
        torch.get_num_threads(),
        list(batch),
        sizes,
        MODES.index(problem.mode),
        problem.causal,
        # a window wider than all keys hides nothing; 0 means no window to the kernels
        0 if problem.window is None else min(problem.window, problem.offset + problem.queries + problem.keys),
        problem.skip_self,
        problem.offset,
    )


# ---------------------------------------------------------------------------------------------- several processes


def run_distributed(problem: Problem, group: ProcessGroup) -> Results | None:
    """Results by several ranks together, each pair computed once; None where this algorithm does not apply.

    It applies where the queries are a multiple of the keys (``cpp/symmetric.h``). Ranks with shared memory take pairs from
    a common counter, as threads do, and get the bits of one process. Otherwise, for tokens with few features, the pairs are
    divided beforehand and the sums added in the order of the ranks; with two ranks the bits are those of one process too.
    """
    if problem.v is None or not problem.keys:
        return None
    call = _Call(problem)
    bytes = call.kernel.shared_bytes()
    shared = group.shared_memory(bytes) if bytes else None
    if shared is None:
        few = bytes and problem.v.shape[-1] <= EXCHANGED
        found = _partial_sums(call, problem, group.rank, group.size) if few else None
        if found is None:
            return None
        sums, finish = found
        gathered = group.gather(sums)
        total = gathered[0]
        for part in gathered[1:]:
            total += part
        return finish(total)
    if shared.handle is None:
        shared.handle = module().SharedMemory(shared.memory.numpy(), shared.rank, shared.size, shared.monitor)
    try:
        complete = call.kernel.attend_shared(shared.handle)
    except TimeoutError as error:
        raise group.lost(error) from None
    if not complete:
        raise group.lost(RuntimeError("Connection closed"))
    return call.output, call.logsumexp


Finish = Callable[[Tensor], Results]


def partial_sums(problem: Problem, part: int, parts: int) -> tuple[Tensor, Finish] | None:
    """Sums over one part of the pairs, and the function from the total of all parts to the results; None: does not apply."""
    return None if problem.v is None or not problem.keys else _partial_sums(_Call(problem), problem, part, parts)


def _partial_sums(call: _Call, problem: Problem, part: int, parts: int) -> tuple[Tensor, Finish] | None:
    assert problem.v is not None
    padded = -(-problem.keys // PADDING) * PADDING
    sums = torch.zeros((call.members, problem.v.shape[-1] + 1, padded), dtype=torch.float64)
    if not call.kernel.partial_sums(part, parts, sums.numpy()):
        return None

    def finish(total: Tensor) -> Results:
        call.kernel.finish(total.contiguous().numpy())
        return call.output, call.logsumexp

    return sums, finish
