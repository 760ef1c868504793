"""Rotary positional encoding, with the frequency scalings of long-context models."""

from __future__ import annotations

import math
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

    def rotary_base(self, head_dim: int) -> float | None:
        return float(self.theta) if type(self) is Rotary and self.dim in (None, head_dim) else None

    def frequencies(self, head_dim: int) -> Tensor:
        """Angle per position of every pair, float64 (dim/2,)."""
        dim = self.dim or head_dim
        return self.theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)

    def frequencies_for(self, head_dim: int, tokens: Tokens) -> Tensor:
        """The frequencies for a text of this length."""
        return self.frequencies(head_dim)

    def turning_angles(self, head_dim: int, tokens: Tokens) -> Tensor:
        places = indices(tokens).to(torch.float64)
        return places.unsqueeze(-1) * self.frequencies_for(head_dim, tokens).to(places.device)

    def turn(self, vectors: Tensor, tokens: Tokens) -> Tensor:
        angles = self.turning_angles(vectors.shape[-1], tokens)
        cos, sin = angles.cos().to(vectors.dtype).unsqueeze(-3), angles.sin().to(vectors.dtype).unsqueeze(-3)
        return turn_pairs(vectors, cos, sin)

    def citations(self) -> tuple[str, ...]:
        return ("su2021roformer",)


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


@dataclass(frozen=True)
class LongRotary(ScaledRotary):
    r"""Rotary positions with two sets of angles (LongRoPE [ding2024longrope]): ``angles`` for texts whose positions stay below
    ``limit``, ``long_angles`` for longer ones."""

    long_angles: tuple[float, ...] = ()
    limit: int = 4096

    def __post_init__(self) -> None:
        object.__setattr__(self, "long_angles", tuple(float(angle) for angle in self.long_angles))
        super().__post_init__()
        if len(self.long_angles) != len(self.angles):
            raise InputError(f"there are {len(self.angles)} short angles and {len(self.long_angles)} long ones")

    def frequencies_for(self, head_dim: int, tokens: Tokens) -> Tensor:
        beyond = float(indices(tokens).max()) + 1 > self.limit
        return torch.tensor(self.long_angles if beyond else self.angles, dtype=torch.float64)


@dataclass(frozen=True)
class DynamicRotary(Rotary):
    r"""Rotary positions whose base grows with the length l of the text [peng2023yarn], for partial rotary ``dim``:
    :math:`\theta\,(s l/L - s + 1)^{\text{dim}/(\text{dim} - 2)}` for l above L = ``limit``, with s = ``factor``."""

    factor: float = 1.0
    limit: int = 2048

    def frequencies_for(self, head_dim: int, tokens: Tokens) -> Tensor:
        dim = self.dim or head_dim
        length = max(float(indices(tokens).max()) + 1, self.limit)
        theta = self.theta * (self.factor * length / self.limit - (self.factor - 1)) ** (dim / (dim - 2))
        return theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)


@dataclass(frozen=True)
class Temperature(Positions):
    r"""Scores multiplied by :math:`1 + a\log(1 + \lfloor (i + 1)/f\rfloor)` at query i, with a = ``strength`` and f = ``floor``
    (layers of Llama 4 without rotary positions)."""

    floor: float = 8192.0
    strength: float = 0.1
    name: ClassVar[str] = "temperature"

    @property
    def reads_queries(self) -> bool:
        return True

    def pair(self, q: Tensor, k: Tensor, tokens: Tokens, scale: Tensor | float) -> tuple[Tensor, Tensor]:
        steps = ((indices(tokens).to(torch.float64) + 1.0) / self.floor).floor()
        factor = 1.0 + self.strength * torch.log1p(steps)
        return q * factor.to(q).unsqueeze(-1).unsqueeze(-3), k


@dataclass(frozen=True)
class GridRotary(Positions):
    r"""Rotary positions of the patches of a square image (DINOv3): pair p turns by :math:`2\pi y\,\theta^{-4p/k}` for the first half
    of the pairs and likewise with x for the second half, with the centre (y, x) of a patch in [-1, 1]; ``prefix`` tokens at the start
    stay."""

    theta: float = 100.0
    prefix: int = 1
    name: ClassVar[str] = "grid rotary"
    adds_to_scores: ClassVar[bool] = True  # there is no one offset by which queries and keys differ

    @property
    def reads_queries(self) -> bool:
        return True

    def turn(self, vectors: Tensor, tokens: Tokens) -> Tensor:
        k, patches = vectors.shape[-1], tokens.n - self.prefix
        side = math.isqrt(max(0, patches))
        if side * side != patches or k % 4:
            raise InputError(
                f"grid rotary positions are those of a square image with {self.prefix} further tokens and heads of dimension 4 m, "
                f"got {tokens.n} tokens and dimension {k}"
            )
        centres = (torch.arange(side, dtype=torch.float64) + 0.5) / side * 2.0 - 1.0
        places = torch.stack(torch.meshgrid(centres, centres, indexing="ij"), dim=-1).reshape(-1, 2, 1)
        frequencies = self.theta ** -torch.arange(0, 1, 4 / k, dtype=torch.float64)
        angles = (2 * math.pi * places * frequencies).flatten(1)
        angles = torch.cat((torch.zeros(self.prefix, k // 2, dtype=torch.float64), angles)).to(vectors.device)
        return turn_pairs(vectors, angles.cos().to(vectors.dtype), angles.sin().to(vectors.dtype))
