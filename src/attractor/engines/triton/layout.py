"""Operands as the kernels read them: batch axes in one, coordinates packed or split."""

from __future__ import annotations

import torch
from torch import Tensor

from attractor.engines.contract import Problem
from attractor.engines.triton.engine import INTERPRETED
from attractor.engines.triton.narrow import TILE

LOG2E = 1.4426950408889634


def flat(tensor: Tensor, batch: torch.Size, own: int = 2) -> Tensor:
    """(entries, ...) with the last ``own`` axes kept, contiguous; broadcast batch axes are written out."""
    return tensor.detach().expand(*batch, *tensor.shape[-own:]).reshape(-1, *tensor.shape[-own:]).contiguous()


def bias_of(problem: Problem) -> Tensor | None:
    """Biases (entries, m) in the units of the scores."""
    if problem.key_bias is None:
        return None
    bias = flat(problem.key_bias, problem.batch, 1)
    return bias if problem.mode == "linear" else bias * LOG2E


def visible_of(problem: Problem) -> tuple[Tensor | None, int]:
    """The boolean matrix as bytes, and its stride over entries (0 where all share one)."""
    if problem.visible is None:
        return None, 0
    shared = problem.visible.ndim == 2
    rows = problem.visible if shared else flat(problem.visible, problem.batch)
    return rows.contiguous().view(torch.uint8), 0 if shared else problem.queries * problem.keys


def columns(size: int) -> int:
    """Columns a tile has: a power of two that the tensor cores take."""
    return max(16, 1 << (size - 1).bit_length())


def padded(tensor: Tensor, size: int) -> Tensor:
    missing = size - tensor.shape[-1]
    return tensor if missing == 0 else torch.nn.functional.pad(tensor, (0, missing))


def parts(tensor: Tensor) -> Tensor:
    """Float32 as three bfloat16 numbers, first axis 3; float64 as it is, first axis 1 (the interpreter knows no bfloat16)."""
    if tensor.dtype == torch.float64 or INTERPRETED:
        return tensor.unsqueeze(0)
    pieces = tensor.new_empty((3, *tensor.shape), dtype=torch.bfloat16)
    pieces[0] = tensor
    rest = tensor - pieces[0]
    pieces[1] = rest
    pieces[2] = rest - pieces[1]
    return pieces


def tiles(k: Tensor, v: Tensor | None, bias: Tensor | None) -> Tensor:
    """Keys, values and biases of each entry as (tiles, slots, TILE), zero past the end."""
    pieces = [k, *([] if v is None else [v]), *([] if bias is None else [bias.unsqueeze(-1)])]
    rows = torch.cat(pieces, dim=-1) if len(pieces) > 1 else k
    rows = torch.nn.functional.pad(rows, (0, 0, 0, -rows.shape[1] % TILE))
    return rows.unflatten(1, (-1, TILE)).transpose(-1, -2).contiguous()


def reach(k: Tensor, bias: Tensor | None) -> Tensor:
    """(longest key, largest bias, smallest finite bias) of each entry."""
    longest = torch.linalg.vector_norm(k, dim=-1).amax(-1)
    if bias is None:
        return torch.nn.functional.pad(longest.unsqueeze(-1), (0, 2))
    open = bias > -torch.inf
    top = bias.amax(-1)
    # where no key is open there is nothing to compare, and no row sees anything
    low = torch.where(open.any(-1), torch.where(open, bias, torch.inf).amin(-1), 0.0)
    return torch.stack([longest, torch.where(top > -torch.inf, top, 0.0), low], dim=-1)
