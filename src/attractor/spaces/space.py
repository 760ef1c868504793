"""Spaces: Euclidean space, spheres and ellipsoids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from attractor.errors import InputError, UnsupportedError
from attractor.registry import find
from attractor.serialization import Record
from attractor.states import Tokens, check_finite, in_range, is_in_range, split_size, to_float_tensor, vector_norm


class Space(Record):
    r"""Where tokens move: a tangent projection :math:`\Pi_x` and a retraction N(y) = y / stretch(y).

    A new space is one subclass: a frozen dataclass with ``tangent``, ``stretch``, ``distance``, ``random`` and the maps to the
    unit sphere. Points x are (..., n, d).

    Attributes
    ----------
    name : name in messages, and for ``space="..."`` where the space has no required parameter.
    is_curved : whether the space is a surface, on which points are retracted.
    native_name : name in the native loop, None if that does not support the space.
    """

    name: ClassVar[str] = "space"
    is_curved: ClassVar[bool] = True
    native_name: ClassVar[str | None] = None

    @property
    def dim(self) -> int | None:
        """Dimension of the ambient space, None if any is possible."""
        return None

    @property
    def size(self) -> float:
        """The smallest distance of the space from zero; 1 in flat space."""
        return 1.0

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        """Project vectors v on the tangent space at x."""
        raise NotImplementedError

    def stretch(self, y: Tensor) -> Tensor:
        """The factor (..., n, 1) by which y is longer than its retraction."""
        raise NotImplementedError

    def retract(self, y: Tensor) -> Tensor:
        """The point of the space in the direction of an ambient point y of any size."""
        stretch = self.stretch(y)
        if is_in_range(stretch):
            return y / stretch
        unit, _ = split_size(y)
        return torch.where(in_range(stretch), y / stretch, unit / self.stretch(unit))

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Geodesic distance of points, (...)."""
        raise NotImplementedError

    def norm(self, x: Tensor) -> Tensor:
        """Length of vectors in the metric of the space, (...)."""
        return vector_norm(x)

    def isometric(self, x: Tensor) -> Tensor:
        """Vectors (..., d) in coordinates whose Euclidean length is ``norm``."""
        return x

    def sphere_matrix(self, dim: int, inverse: bool = False) -> Tensor:
        """The symmetric matrix (dim, dim), float64, that maps the space to the unit sphere, or its inverse."""
        return torch.eye(dim, dtype=torch.float64)

    def to_sphere(self, x: Tensor) -> Tensor:
        """Map points of a curved space to the unit sphere."""
        raise NotImplementedError

    def from_sphere(self, y: Tensor) -> Tensor:
        """Map points of the unit sphere to a curved space: the inverse of ``to_sphere``."""
        return y

    def surface(self, dim: int) -> Tensor | None:
        """Return M (dim, dim) if the space is {x : x'Mx = 1}, None in flat space."""
        return None

    def random(self, n: int, dim: int, seed: int = 0, ensemble: int | Sequence[int] = ()) -> Tensor:
        """Sample n independent points of the space, (..., n, dim) in float64."""
        raise NotImplementedError

    @property
    def curvature(self) -> float:
        """Sectional curvature in the metric of the space, for Brownian motion."""
        raise self._no_brownian_motion()

    def white_noise(self, x: Tensor, xi: Tensor) -> Tensor:
        """Map standard normal vectors xi to tangent vectors at x that are standard normal in the metric of the space."""
        raise self._no_brownian_motion()

    def exponential(self, x: Tensor, v: Tensor) -> Tensor:
        """The end of the geodesic that starts at x with the tangent velocity v, after one unit of time."""
        raise self._no_brownian_motion()

    def _no_brownian_motion(self) -> UnsupportedError:
        return UnsupportedError(
            f"tokens on the {self.name} cannot have noise: its class {type(self).__name__} does not define curvature, "
            "white_noise and exponential"
        )

    def check_dimension(self, dim: int) -> None:
        """Raise if tokens of this dimension do not fit the space."""
        if self.dim not in (None, dim):
            raise InputError(f"the {self.name} lives in dimension {self.dim}, the tokens in dimension {dim}")

    def contains(self, x: Tensor, tolerance: float = 1e-12) -> Tensor:
        """Whether each point lies on the space, up to a relative tolerance."""
        return (self.stretch(x).squeeze(-1) - 1.0).abs() <= tolerance

    def enter(self, x: Tensor) -> Tensor:
        """Put tokens on the space before a flow; raise for a zero vector, which has no direction."""
        if not self.is_curved:
            return x
        # points on the space are kept exactly, so that a flow can continue another
        inside = (self.stretch(x) - 1.0).abs_() <= 16 * torch.finfo(x.dtype).eps
        if inside.all():
            return x
        self.check_directions(x)
        entered = torch.where(inside, x, self.retract(x))
        if bool((~torch.isfinite(entered.detach()) | (entered.detach() == 0).all(-1, keepdim=True)).any()):
            kind = str(x.dtype).removeprefix("torch.")
            raise InputError(
                f"{kind} cannot hold the points of this {self.name}; give tokens in float64, or rescale it"
            )
        return entered

    def check_directions(self, x: Tensor) -> None:
        """Raise if a point is the zero vector, which has no direction."""
        zero = (x.detach() == 0).all(-1)
        if self.is_curved and bool(zero.any()):
            raise InputError(
                f"token {torch.nonzero(zero)[0].tolist()[-1]} is the zero vector, which has no place on the {self.name}"
            )


def space_named(name: str) -> Space:
    """Return the space of that name: "euclidean" or "sphere" (an ellipsoid needs its matrix: ``Ellipsoid(W)``)."""
    return find(name, {"euclidean": Euclidean, "sphere": Sphere}, "space")()


@dataclass(frozen=True)
class Euclidean(Space):
    """Flat space R^d, without constraint."""

    name: ClassVar[str] = "euclidean"
    is_curved: ClassVar[bool] = False
    native_name: ClassVar[str | None] = "euclidean"

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        return v

    def stretch(self, y: Tensor) -> Tensor:
        return torch.ones_like(y[..., :1])

    def retract(self, y: Tensor) -> Tensor:
        return y

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        return vector_norm(x - y)

    @property
    def curvature(self) -> float:
        return 0.0

    def white_noise(self, x: Tensor, xi: Tensor) -> Tensor:
        return xi

    def exponential(self, x: Tensor, v: Tensor) -> Tensor:
        return x + v

    def to_sphere(self, x: Tensor) -> Tensor:
        """Directions x / |x|."""
        unit, _ = split_size(x)
        return unit / torch.linalg.vector_norm(unit, dim=-1, keepdim=True)

    def random(self, n: int, dim: int, seed: int = 0, ensemble: int | Sequence[int] = ()) -> Tensor:
        """Sample standard normal points."""
        return Tokens.gaussian(n, dim, seed, ensemble=ensemble).points


def _great_circle(space: Space, x: Tensor, v: Tensor, radius: float) -> Tensor:
    """cos(|v|/r) x + sin(|v|/r) v r/|v|, put on the space to remove rounding."""
    turn = space.norm(v).unsqueeze(-1) / radius
    return space.retract(x * turn.cos() + v * torch.sinc(turn / torch.pi))


def angle(x: Tensor, y: Tensor) -> Tensor:
    """Angle between unit vectors, accurate near 0 and near pi."""
    return 2.0 * torch.atan2(torch.linalg.vector_norm(x - y, dim=-1), torch.linalg.vector_norm(x + y, dim=-1))


@dataclass(frozen=True)
class Sphere(Space):
    r"""The sphere :math:`|x| = r`: :math:`\Pi_x v = v - x\langle x, v\rangle / |x|^2`, :math:`N(y) = r\,y/|y|`.

    Parameters
    ----------
    radius : r, positive.
    """

    radius: float = 1.0
    name: ClassVar[str] = "sphere"
    native_name: ClassVar[str | None] = "sphere"

    def __post_init__(self) -> None:
        if not (self.radius > 0 and self.radius < float("inf")):
            raise InputError(f"a sphere needs a positive radius, got {self.radius}")

    @property
    def size(self) -> float:
        return self.radius

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        if not self._has_squares:
            x, _ = split_size(x)
        # products with ones: torch sums over a short last axis six times slower than it multiplies matrices
        ones = x.new_ones((x.shape[-1], 1))
        return torch.addcmul(v, x, ((x * v) @ ones) / ((x * x) @ ones), value=-1)

    def stretch(self, y: Tensor) -> Tensor:
        if not self._has_squares:
            return vector_norm(y, keepdim=True) / self.radius
        length = torch.linalg.vector_norm(y, dim=-1, keepdim=True)
        return length if self.radius == 1.0 else length / self.radius

    @property
    def _has_squares(self) -> bool:
        """Whether squares of coordinates neither overflow nor underflow, in float32 either."""
        return 1e-12 < self.radius < 1e15

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        return self.radius * angle(self.to_sphere(x), self.to_sphere(y))

    @property
    def curvature(self) -> float:
        return 1.0 / self.radius**2

    def white_noise(self, x: Tensor, xi: Tensor) -> Tensor:
        return self.tangent(x, xi)

    def exponential(self, x: Tensor, v: Tensor) -> Tensor:
        return _great_circle(self, x, v, self.radius)

    def sphere_matrix(self, dim: int, inverse: bool = False) -> Tensor:
        return torch.eye(dim, dtype=torch.float64) * (self.radius if inverse else 1.0 / self.radius)

    def to_sphere(self, x: Tensor) -> Tensor:
        return x / self.radius

    def from_sphere(self, y: Tensor) -> Tensor:
        return self.radius * y

    def surface(self, dim: int) -> Tensor:
        return torch.eye(dim, dtype=torch.float64) / self.radius**2

    def random(self, n: int, dim: int, seed: int = 0, ensemble: int | Sequence[int] = ()) -> Tensor:
        return self.from_sphere(Tokens.uniform(n, dim, seed, ensemble).points)


@dataclass(frozen=True, eq=False)
class Ellipsoid(Space):
    r"""The ellipsoid :math:`\{x : x^\top W x = 1\}`.

    :math:`N(y) = y/\sqrt{y^\top W y}` and :math:`\Pi_x = I - x x^\top W / (x^\top W x)`. The map :math:`y = W^{1/2} x` carries it
    to the unit sphere, the interaction P to :math:`W^{-1/2} P W^{-1/2}` and the value V to :math:`W^{1/2} V W^{-1/2}`; distances are
    those of that sphere. (With the Euclidean projection consensus points would not be at rest.)

    Parameters
    ----------
    W : (d, d), symmetric positive definite.
    """

    W: Tensor
    name: ClassVar[str] = "ellipsoid"
    native_name: ClassVar[str | None] = "ellipsoid"

    def __post_init__(self) -> None:
        W = check_finite(to_float_tensor(self.W, "the ellipsoid's matrix"), "the ellipsoid's matrix")
        if W.ndim != 2 or W.shape[0] != W.shape[1] or W.numel() == 0:
            raise InputError(f"an ellipsoid needs a square matrix, got shape {tuple(W.shape)}")
        asymmetry = float((((W - W.T).abs().max() / W.abs().max()) if bool(W.any()) else W[0, 0]).detach())
        if asymmetry > 1e-10:
            raise InputError(
                f"an ellipsoid needs a symmetric matrix; this one is asymmetric by {asymmetry:.2g} of its size"
            )
        W = W / 2 + W.T / 2
        values = torch.linalg.eigvalsh(W.detach())
        smallest, rounding = float(values[0]), len(W) * torch.finfo(W.dtype).eps * float(values[-1])
        if smallest <= max(0.0, rounding):
            raise InputError(
                f"an ellipsoid needs a positive definite matrix; the smallest eigenvalue is {smallest:.6g}"
            )
        object.__setattr__(self, "W", W)

    @property
    def dim(self) -> int:
        return self.W.shape[0]

    def _quadratic(self, x: Tensor, v: Tensor) -> Tensor:
        return ((x @ self.W.to(x)) * v).sum(-1, keepdim=True)

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        return v - x * (self._quadratic(x, v) / self._quadratic(x, x))

    def stretch(self, y: Tensor) -> Tensor:
        return self._quadratic(y, y).sqrt()

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        return angle(self.to_sphere(x), self.to_sphere(y))

    @property
    def size(self) -> float:
        return float(torch.linalg.eigvalsh(self.W.detach())[-1]) ** -0.5

    def norm(self, x: Tensor) -> Tensor:
        unit, size = split_size(x)
        return (size * self.stretch(unit)).squeeze(-1)

    def root(self, power: float = 0.5) -> Tensor:
        """W to a power, symmetric, in float64."""
        values, vectors = torch.linalg.eigh(self.W.double())
        return (vectors * values**power) @ vectors.T

    def isometric(self, x: Tensor) -> Tensor:
        return self.to_sphere(x)

    @property
    def curvature(self) -> float:
        return 1.0

    @cached_property
    def _inverse_root(self) -> Tensor:
        return self.root(-0.5)

    def white_noise(self, x: Tensor, xi: Tensor) -> Tensor:
        return self.tangent(x, xi @ self._inverse_root.to(xi))

    def exponential(self, x: Tensor, v: Tensor) -> Tensor:
        return _great_circle(self, x, v, 1.0)

    def sphere_matrix(self, dim: int, inverse: bool = False) -> Tensor:
        return self.root(-0.5 if inverse else 0.5)

    def to_sphere(self, x: Tensor) -> Tensor:
        return x @ self.root().to(x)

    def from_sphere(self, y: Tensor) -> Tensor:
        return y @ self.root(-0.5).to(y)

    def surface(self, dim: int) -> Tensor:
        return self.W

    def random(self, n: int, dim: int, seed: int = 0, ensemble: int | Sequence[int] = ()) -> Tensor:
        self.check_dimension(dim)
        return self.retract(self.from_sphere(Tokens.uniform(n, dim, seed, ensemble).points))
