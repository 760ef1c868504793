"""Rotary positional encoding, with the frequency scalings of long-context models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.laws.positions.position import Positions, indices
from attractor.states import Tokens


@dataclass(frozen=True)
class Rotary(Positions):
    r"""Scores :math:`\langle R_i Q x_i, R_j K x_j\rangle`: :math:`R_i` turns the pair (2p, 2p+1) by the angle
    :math:`i\,\theta^{-2p/\text{dim}}` [su2021roformer].

    ``dim`` (even) coordinates at the start of each head are turned, all of them by default; the rest stay (partial rotary).

    Symbols: our :math:`R_i` is :math:`R^d_{\Theta,i}` in [su2021roformer], ``theta`` its base 10000, pair p its index i - 1.
    """

    theta: float = 1e4
    dim: int | None = None
    name: ClassVar[str] = "rotary"

    def __post_init__(self) -> None:
        if not self.theta > 0:
            raise InputError(f"rotary positions need theta > 0, got {self.theta}")
        if self.dim is not None and (self.dim < 2 or self.dim % 2):
            raise InputError(
                f"rotary positions turn pairs of coordinates: dim must be even and at least 2, got {self.dim}"
            )

    def check(self, dim: int, head_dim: int) -> None:
        if self.dim is None and head_dim % 2:
            raise InputError(
                f"rotary positions turn pairs of coordinates: the head dimension must be even, got {head_dim}"
            )
        if self.dim is not None and self.dim > head_dim:
            raise InputError(f"rotary positions turn {self.dim} coordinates but the head has {head_dim}")

    def frequencies(self, head_dim: int) -> Tensor:
        """Angle per position of every pair, float64 (dim/2,)."""
        dim = self.dim or head_dim
        return self.theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)

    def turn(self, vectors: Tensor, tokens: Tokens) -> Tensor:
        frequencies = self.frequencies(vectors.shape[-1]).to(vectors.device)
        angles = indices(tokens).to(torch.float64).unsqueeze(-1) * frequencies  # (..., n, dim/2)
        cos, sin = angles.cos().to(vectors.dtype).unsqueeze(-3), angles.sin().to(vectors.dtype).unsqueeze(-3)
        return turn_pairs(vectors, cos, sin)

    def citations(self) -> tuple[str, ...]:
        return ("su2021roformer",)


def rotary_of(positions: Positions | None) -> Rotary | None:
    """The encoding if it is rotary, else None."""
    return positions if isinstance(positions, Rotary) else None


def turn_pairs(vectors: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The pairs (0, 1), (2, 3), ... turned by angles whose cosines and sines are (..., n, pairs); further coordinates stay."""
    turned = 2 * cos.shape[-1]
    even, odd = vectors[..., 0:turned:2], vectors[..., 1:turned:2]
    pairs = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
    return pairs if turned == vectors.shape[-1] else torch.cat((pairs, vectors[..., turned:]), dim=-1)


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
