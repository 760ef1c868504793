"""Tensors as the kernels read them: an address and strides, with broadcast batch axes of stride 0 and nothing copied."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attractor.engines.contract import MODES, Problem
from attractor.engines.fused.kernels import instruction_set

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
