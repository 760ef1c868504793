"""Rotary positions with angles of their own: what models do to reach longer contexts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attractor.attention.positions.rotary import Rotary
from attractor.errors import InputError


@dataclass(frozen=True)
class ScaledRotary(Rotary):
    r"""Rotary positions that turn pair p by ``angles[p]`` per position instead of :math:`\theta^{-2p/\text{dim}}`
    (linear, Llama 3 and YaRN scaling); ``theta`` is kept for the record."""

    angles: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "angles", tuple(float(angle) for angle in self.angles))
        object.__setattr__(self, "dim", 2 * len(self.angles))
        if not all(abs(angle) < float("inf") for angle in self.angles):
            raise InputError("every angle of rotary positions must be finite")
        super().__post_init__()

    def frequencies(self, head_dim: int) -> Tensor:
        return torch.tensor(self.angles, dtype=torch.float64)
