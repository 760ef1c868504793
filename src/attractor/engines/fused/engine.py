"""When the fused engine runs, and one call of it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

from attractor.engines.contract import Problem
from attractor.engines.fused import kernels
from attractor.engines.fused.gradient import Attend
from attractor.engines.fused.layout import adjacent, column, operand, options, scaled_bias

AXES = 16  # batch axes that the kernels can walk
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
    batch, q = problem.batch, problem.q
    k, v, bias = adjacent(problem.k), problem.v, scaled_bias(problem)
    output = logsumexp = None
    if not problem.keys:  # an empty tensor has no address
        return _nothing(problem)
    if v is not None:
        v = adjacent(v)
        output = torch.empty((*batch, problem.queries, v.shape[-1]), dtype=q.dtype)
    if problem.mode in ("softmax", "exponential"):
        logsumexp = torch.empty((*batch, problem.queries), dtype=q.dtype)
    q = adjacent(q)
    # q, k, v and bias are named so that a copy lives as long as the call
    kernels.module().forward(
        *options(problem, batch),
        *(operand(part, batch) for part in (q, k, v)),
        column(bias, batch),
        operand(problem.visible, batch),
        operand(output, batch),
        column(logsumexp, batch),
    )
    return output, logsumexp


def _nothing(problem: Problem) -> tuple[Tensor | None, Tensor | None]:
    """Every row sees nothing."""
    rows, q = (*problem.batch, problem.queries), problem.q
    output = None if problem.v is None else torch.zeros((*rows, problem.v.shape[-1]), dtype=q.dtype)
    sums = problem.mode in ("softmax", "exponential")
    return output, torch.full(rows, -torch.inf, dtype=q.dtype) if sums else None
