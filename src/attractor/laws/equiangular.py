"""Attention on equiangular tokens: two coordinates, whatever the number of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attractor.errors import UnsupportedError
from attractor.laws.kernels.kernel import Pairing
from attractor.laws.law import Law
from attractor.states import Tokens

if TYPE_CHECKING:
    from attractor.laws.attention import Attention


@dataclass(frozen=True, eq=False)
class EquiangularAttention(Law):
    r"""Attention with Q, K, V multiples of the identity on n equiangular tokens, in the coordinates (a, b) of ``Equiangular``.

    Every other token has the same weight, so that the weights are those of a pair of tokens with masses 1/n and (n-1)/n. With p the weight
    of a token on itself and q that on each other one, :math:`\dot a = c(p-q)a` and :math:`\dot b = c(p+(n-1)q)b`.
    """

    law: Attention
    n: int

    @property
    def dim(self) -> int:
        return 2

    def velocity(self, tokens: Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor:
        law, n, rows = self.law, self.n, tokens.points
        a, b = rows[..., 0, 0], rows[..., 0, 1]
        square = ((n - 1) * a.square() + b.square()) / n
        safe = torch.where(square > 0, square, 1.0)
        radius, rho = square.sqrt(), (b.square() - a.square()) / (n * safe)
        first = torch.stack((radius, torch.zeros_like(radius)), dim=-1)
        second = torch.stack((rho * radius, a * (1.0 + rho).clamp_min(0.0).sqrt()), dim=-1)
        pair = torch.stack((first, second), dim=-2).unsqueeze(-3)  # (..., 1, 2 tokens, 2 coordinates)
        factors = [law._scalars(name)[0] for name in ("query", "key", "value")]
        query, key, value = (part.to(rows) for part in factors if part is not None)
        masses = rows.new_tensor([1.0 / n, (n - 1.0) / n]).expand(*rows.shape[:-2], 1, 2)
        pairing = Pairing(pair * query[..., None, None], pair * key[..., None, None], law.scale, masses)
        eye = torch.eye(2, dtype=rows.dtype, device=rows.device).expand(*pairing.q.shape[:-2], 2, 2)
        weights = value[..., None] * law.kernel.attend(pairing, eye)[..., 0, :]  # (..., h, 2)
        own, others = weights.sum(-2).unbind(-1)
        moved = torch.stack(((own - others / (n - 1)) * a, (own + others) * b), dim=-1)
        return moved.unsqueeze(-2)

    def is_smooth(self) -> bool:
        return self.law.is_smooth()

    def member(self, index: Tensor) -> Law:
        return EquiangularAttention(self.law.member(index), self.n)

    def citations(self) -> tuple[str, ...]:
        return self.law.citations()


def find_obstacle(law: Any) -> str:
    """Why attention does not keep tokens equiangular, or is not known to; empty if it does."""
    if any(law._scalars(name)[0] is None for name in ("query", "key", "value")) or law.output is not None:
        return "queries, keys and values must be multiples of the identity, as in Attention.isotropic"
    if any(getattr(law, name) is not None for name in ("query_bias", "key_bias", "value_bias", "output_bias")):
        return "biases single out directions"
    if law.mask is not None:
        return f"under a {law.mask.name} mask tokens are not alike"
    if law.positions is not None:
        return f"with {law.positions.name} positions tokens are not alike"
    if law.kernel.sees_hidden_keys:
        return f"rows of the {law.kernel.name} kernel depend on each other"
    return ""


def check_equiangular(what: str, obstacle: str) -> None:
    """Raise UnsupportedError if there is an obstacle."""
    if obstacle:
        raise UnsupportedError(f"{what} does not keep tokens equiangular: {obstacle}; give Tokens(...) as the state")
