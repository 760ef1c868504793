"""Flat space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attractor.spaces.space import Space
from attractor.states.tokens import Tokens


@dataclass(frozen=True)
class Euclidean(Space):
    """R^d: no constraint, the identity as retraction."""

    name: ClassVar[str] = "euclidean"
    curved: ClassVar[bool] = False

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        return v

    def stretch(self, y: Tensor) -> Tensor:
        return torch.ones_like(y[..., :1])

    def retract(self, y: Tensor) -> Tensor:
        return y

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x - y, dim=-1)

    def norm(self, x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x, dim=-1)

    def to_sphere(self, x: Tensor) -> Tensor:
        """Directions x / |x|."""
        return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)

    def random(self, n: int, dim: int, seed: int = 0, ensemble: int | Sequence[int] = ()) -> Tensor:
        """Standard normal points."""
        return Tokens.gaussian(n, dim, seed, ensemble=ensemble).points
