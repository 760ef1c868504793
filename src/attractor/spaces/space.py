"""Spaces: Euclidean space, spheres and ellipsoids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.registry import find
from attractor.serialization import Record
from attractor.states import Tokens, finite, floating


class Space(Record):
    """Interface of spaces; tokens x are (..., n, d)."""

    name: ClassVar[str] = "space"
    is_curved: ClassVar[bool] = True

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        """Return the tangent part of v at x."""
        raise NotImplementedError

    def stretch(self, y: Tensor) -> Tensor:
        """Return the factor (..., n, 1) by which y is longer than its retraction."""
        raise NotImplementedError

    def retract(self, y: Tensor) -> Tensor:
        """Return the point N(y) of the space that an ambient y represents."""
        raise NotImplementedError

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the geodesic distance of points, (...)."""
        raise NotImplementedError

    def norm(self, x: Tensor) -> Tensor:
        """Return the length of vectors in the metric of the space, (...)."""
        raise NotImplementedError

    def to_sphere(self, x: Tensor) -> Tensor:
        """Return coordinates in which a curved space is the unit sphere."""
        raise NotImplementedError

    def surface(self, dim: int) -> Tensor | None:
        """Return M (dim, dim) if the space is {x : x'Mx = 1}, None in flat space."""
        raise NotImplementedError

    def random(self, n: int, dim: int, seed: int = 0, ensemble: int | Sequence[int] = ()) -> Tensor:
        """Draw n independent points of the space, float64."""
        raise NotImplementedError

    def check_dimension(self, dim: int) -> None:
        """Raise ``InputError`` if the space has another dimension."""

    def contains(self, x: Tensor, tolerance: float = 1e-12) -> Tensor:
        """Return True for each point on the space, up to a relative tolerance."""
        return (self.stretch(x).squeeze(-1) - 1.0).abs() <= tolerance

    def enter(self, x: Tensor) -> Tensor:
        """Project tokens to the space before a flow; a zero vector raises ``InputError``, since it has no direction."""
        if not self.is_curved:
            return x
        # points on the space are not changed, so that a flow can continue another exactly
        inside = (self.stretch(x) - 1.0).abs_() <= 16 * torch.finfo(x.dtype).eps
        if inside.all():
            return x
        length = self.norm(x)
        if bool((length == 0).any()):
            where = torch.nonzero(length == 0)[0].tolist()
            raise InputError(f"token {where[-1]} is the zero vector, which has no place on the {self.name}")
        return torch.where(inside, x, self.retract(x))


def space_named(name: str) -> Space:
    """Return the space of that name: "euclidean" or "sphere" (an ellipsoid needs its matrix: ``Ellipsoid(W)``)."""
    return find(name, {"euclidean": Euclidean, "sphere": Sphere}, "space")()


@dataclass(frozen=True)
class Euclidean(Space):
    """R^d: no constraint, the identity as retraction."""

    name: ClassVar[str] = "euclidean"
    is_curved: ClassVar[bool] = False

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        return v

    def surface(self, dim: int) -> None:
        return None

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


def angle(x: Tensor, y: Tensor) -> Tensor:
    """Angle between unit vectors, accurate near 0 and near pi."""
    return 2.0 * torch.atan2(torch.linalg.vector_norm(x - y, dim=-1), torch.linalg.vector_norm(x + y, dim=-1))


@dataclass(frozen=True)
class Sphere(Space):
    r"""The sphere of a given radius: :math:`\Pi_x v = v - x\langle x, v\rangle / |x|^2`, :math:`N(y) = r\,y/|y|`."""

    radius: float = 1.0
    name: ClassVar[str] = "sphere"

    def __post_init__(self) -> None:
        if not (self.radius > 0 and self.radius < float("inf")):
            raise InputError(f"a sphere needs a positive radius, got {self.radius}")

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        # products with ones, since sums over a short last axis are six times slower in torch
        ones = x.new_ones((x.shape[-1], 1))
        return torch.addcmul(v, x, ((x * v) @ ones) / ((x * x) @ ones), value=-1)

    def surface(self, dim: int) -> Tensor:
        return torch.eye(dim, dtype=torch.float64) / self.radius**2

    def stretch(self, y: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(y, dim=-1, keepdim=True)
        return length if self.radius == 1.0 else length / self.radius

    def retract(self, y: Tensor) -> Tensor:
        return y / self.stretch(y)

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        return self.radius * angle(self.to_sphere(x), self.to_sphere(y))

    def norm(self, x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x, dim=-1)

    def to_sphere(self, x: Tensor) -> Tensor:
        return x / self.radius

    def random(self, n: int, dim: int, seed: int = 0, ensemble: int | Sequence[int] = ()) -> Tensor:
        return self.radius * Tokens.uniform(n, dim, seed, ensemble).points


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

    def surface(self, dim: int) -> Tensor:
        return self.W

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
