"""The ellipsoid of a symmetric positive definite matrix: tokens after a normalisation with gains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.spaces.space import Space
from attractor.spaces.sphere import angle
from attractor.states.arrays import finite, floating
from attractor.states.tokens import Tokens


@dataclass(frozen=True, eq=False)
class Ellipsoid(Space):
    r""":math:`E_W = \{x : x^\top W x = 1\}` with :math:`N(y) = y/\sqrt{y^\top W y}` and
    :math:`\Pi_x = I - x x^\top W / (x^\top W x)`.

    The map :math:`y = W^{1/2} x` carries it to the unit sphere, the interaction to :math:`W^{-1/2} P W^{-1/2}` and the value
    to :math:`W^{1/2} V W^{-1/2}`; distances are those of that sphere. (The Euclidean projector would not keep consensus
    points at rest.)
    """

    W: Tensor
    name: ClassVar[str] = "ellipsoid"

    def __post_init__(self) -> None:
        W = finite(floating(self.W, "the ellipsoid's matrix"), "the ellipsoid's matrix")
        if W.ndim != 2 or W.shape[0] != W.shape[1] or W.numel() == 0:
            raise InputError(f"an ellipsoid needs a square matrix, got shape {tuple(W.shape)}")
        asymmetry = float(((W - W.T).abs().max() / W.abs().max().clamp_min(1e-300)).detach())
        if asymmetry > 1e-10:
            raise InputError(
                f"an ellipsoid needs a symmetric matrix; this one is asymmetric by {asymmetry:.2g} of its size"
            )
        W = (W + W.T) / 2
        values = torch.linalg.eigvalsh(W.detach())
        smallest, rounding = float(values[0]), len(W) * torch.finfo(W.dtype).eps * float(values[-1])
        if smallest <= max(0.0, rounding):
            raise InputError(
                f"an ellipsoid needs a positive definite matrix; the smallest eigenvalue is {smallest:.6g}"
            )
        object.__setattr__(self, "W", W)

    def _quadratic(self, x: Tensor, v: Tensor) -> Tensor:
        return ((x @ self.W.to(x)) * v).sum(-1, keepdim=True)

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        return v - x * (self._quadratic(x, v) / self._quadratic(x, x))

    def stretch(self, y: Tensor) -> Tensor:
        return self._quadratic(y, y).sqrt()

    def retract(self, y: Tensor) -> Tensor:
        return y / self.stretch(y)

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        return angle(self.to_sphere(x), self.to_sphere(y))

    def norm(self, x: Tensor) -> Tensor:
        return self.stretch(x).squeeze(-1)

    def root(self, power: float = 0.5) -> Tensor:
        """W to a power, symmetric."""
        values, vectors = torch.linalg.eigh(self.W)
        return (vectors * values**power) @ vectors.T

    def to_sphere(self, x: Tensor) -> Tensor:
        return x @ self.root().to(x)

    def from_sphere(self, y: Tensor) -> Tensor:
        """The inverse of ``to_sphere``."""
        return y @ self.root(-0.5).to(y)

    def random(self, n: int, dim: int, seed: int = 0, ensemble: int | Sequence[int] = ()) -> Tensor:
        self.check_dimension(dim)
        return self.retract(self.from_sphere(Tokens.uniform(n, dim, seed, ensemble).points))

    def check_dimension(self, dim: int) -> None:
        if dim != self.W.shape[0]:
            raise InputError(f"the ellipsoid lives in dimension {self.W.shape[0]}, the tokens in dimension {dim}")
