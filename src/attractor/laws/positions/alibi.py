"""ALiBi: a score penalty linear in the distance to the key, with a slope for each head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.laws.positions.position import Positions, indices
from attractor.states import Tokens, check_finite, to_float_tensor


@dataclass(frozen=True, eq=False)
class Alibi(Positions):
    r"""Scores :math:`s_{ij} + m_h\,(p_j - p_i)`, :math:`m_h` in ``slopes`` (h,) [press2022train].

    Two further coordinates of queries and keys carry the bias. Under a causal mask :math:`p_j \le p_i` and it is the paper's
    penalty on distance. Symbols: :math:`m_h` is the paper's head-specific slope m.
    """

    slopes: Tensor
    name: ClassVar[str] = "alibi"
    adds_to_scores: ClassVar[bool] = True

    def __post_init__(self) -> None:
        slopes = check_finite(to_float_tensor(self.slopes, "the slopes"), "the slopes")
        if slopes.ndim != 1:
            raise InputError(f"alibi positions have one slope for each head, (h,), got shape {tuple(slopes.shape)}")
        object.__setattr__(self, "slopes", slopes)

    @staticmethod
    def usual(heads: int) -> Alibi:
        r"""The paper's slopes :math:`2^{-8i/h}` for h a power of two, and every other one of the next power's beyond it."""
        power = 1 << (heads.bit_length() - 1)
        slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
        slopes += [2.0 ** (-4.0 * (i + 1) / power) for i in range(0, 2 * (heads - power), 2)]
        return Alibi(torch.tensor(slopes, dtype=torch.float64))

    def pair(self, q: Tensor, k: Tensor, tokens: Tokens, scale: Tensor | float) -> tuple[Tensor, Tensor]:
        if len(self.slopes) != q.shape[-3]:
            raise InputError(f"there are {len(self.slopes)} slopes for {q.shape[-3]} heads")
        slopes = (self.slopes.to(q) / scale).reshape(-1, 1).expand(q.shape[:-1])
        places = indices(tokens).to(k).unsqueeze(-2).expand(k.shape[:-1])
        q = torch.cat((q, torch.stack((slopes, -slopes * places), dim=-1)), dim=-1)
        return q, torch.cat((k, torch.stack((places, torch.ones_like(places)), dim=-1)), dim=-1)

    def head(self, index: int) -> Alibi:
        return Alibi(self.slopes[index : index + 1])

    def citations(self) -> tuple[str, ...]:
        return ("press2022train",)
