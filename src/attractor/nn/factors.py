r"""Matrices whose symmetric part has signs that training cannot change.

:math:`S = L\,\mathrm{diag}(\sigma \odot \mathrm{softplus}(\theta))\,L^\top + (T - T^\top)` with L unit lower triangular. By
Sylvester's law the inertia of sym S is the count of the signs :math:`\sigma`, whatever L, :math:`\theta` and T become. Only
the free entries are parameters.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

PIVOT = 0.15  # where pivots start, as in the published experiments
SKEW = 0.02  # standard deviation of the skew part at the start


class Signed(nn.Module):
    """One (size, size) matrix, or ``copies`` of them, with pivots of the given ``signs``, (size,) or (copies, size).

    ``diagonal`` keeps the pivots alone; ``skew`` adds T - T'. Products are made in float32 at least, also inside autocast.
    """

    signs: Tensor

    def __init__(
        self,
        signs: Tensor,
        copies: int | None = None,
        *,
        diagonal: bool = False,
        skew: bool = False,
        pivot: float = PIVOT,
    ) -> None:
        super().__init__()
        self.size, self.copies, self.diagonal = signs.shape[-1], copies, diagonal
        leading = () if copies is None else (copies,)
        below = self.size * (self.size - 1) // 2
        self.register_buffer("signs", signs.to(torch.get_default_dtype()))
        self.pivots = nn.Parameter(torch.full((*leading, self.size), math.log(math.expm1(pivot))))
        self.lower = None if diagonal else nn.Parameter(torch.zeros(*leading, below))
        self.skew = nn.Parameter(SKEW * torch.randn(*leading, below)) if skew else None

    def start(self, lower: Tensor) -> None:
        """Take the strictly lower triangle of a matrix as L's."""
        assert self.lower is not None
        row, column = _below(self.size, lower.device)
        with torch.no_grad():
            self.lower.copy_(lower[..., row, column])

    def scaled_pivots(self, dtype: torch.dtype | None = None) -> Tensor:
        """The signed pivots (..., size)."""
        pivots = self.pivots.to(working(self.pivots.dtype, dtype))
        # far below zero a softplus is rounded to zero, which has no sign
        return self.signs.to(pivots) * functional.softplus(pivots).clamp_min(torch.finfo(pivots.dtype).tiny)

    def forward(self, dtype: torch.dtype | None = None) -> Tensor:
        """The matrix (..., size, size)."""
        with torch.autocast(self.pivots.device.type, enabled=False):
            pivots = self.scaled_pivots(dtype)
            matrix = torch.diag_embed(pivots) if self.lower is None else self._product(self.lower.to(pivots), pivots)
            if self.skew is None:
                return matrix
            half = self._fill(self.skew.to(pivots))
            return matrix + half - half.mT

    def _product(self, lower: Tensor, pivots: Tensor) -> Tensor:
        factor = self._fill(lower) + torch.eye(self.size, dtype=lower.dtype, device=lower.device)
        return (factor * pivots.unsqueeze(-2)) @ factor.mT

    def _fill(self, packed: Tensor) -> Tensor:
        """A strictly lower triangular matrix from its entries, row by row."""
        row, column = _below(self.size, packed.device)
        empty = packed.new_zeros(*packed.shape[:-1], self.size * self.size)
        filled = empty.index_copy(-1, row * self.size + column, packed)
        return filled.unflatten(-1, (self.size, self.size))


def working(own: torch.dtype, asked: torch.dtype | None) -> torch.dtype:
    """The precision for products of factors: what was asked for, or that of the parameters but float32 at least."""
    if asked is not None:
        return asked
    return torch.float32 if own in (torch.float16, torch.bfloat16) else own


def _below(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    row, column = torch.tril_indices(size, size, -1, device=device)
    return row, column
