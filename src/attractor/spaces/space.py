r"""What a space must offer.

A space M in R^d is described by its retraction :math:`N: \mathbb R^d \to M`, a positive scaling of the ambient point.
Steppers work in retraction coordinates: an ambient y stands for the token :math:`x = N(y)`, and the field is lifted to
:math:`y' = \lambda(y)\, v(N(y))` with :math:`\lambda(y) = |y| / |N(y)|`, whose flow keeps :math:`|y|` and projects to the flow on M.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.records import Record


class Space(Record):
    """The methods every space has; tokens x are (..., n, d)."""

    name: ClassVar[str] = "space"
    curved: ClassVar[bool] = True

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        """The part of v that is tangent to the space at x."""
        raise NotImplementedError

    def stretch(self, y: Tensor) -> Tensor:
        """The factor (..., n, 1) by which y is longer than its retraction."""
        raise NotImplementedError

    def retract(self, y: Tensor) -> Tensor:
        """The point of the space that an ambient y stands for."""
        raise NotImplementedError

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Distance of points along the space, (...)."""
        raise NotImplementedError

    def norm(self, x: Tensor) -> Tensor:
        """Length of vectors in the metric of the space, (...)."""
        raise NotImplementedError

    def to_sphere(self, x: Tensor) -> Tensor:
        """Coordinates in which a curved space is the unit sphere."""
        raise NotImplementedError

    def random(self, n: int, dim: int, seed: int = 0, ensemble: int | Sequence[int] = ()) -> Tensor:
        """n independent points spread over the space, float64."""
        raise NotImplementedError

    def check_dimension(self, dim: int) -> None:
        """Refuse tokens of a dimension that the space does not have."""

    def contains(self, x: Tensor, tolerance: float = 1e-12) -> Tensor:
        """True for each point that lies on the space up to a relative tolerance."""
        return (self.stretch(x).squeeze(-1) - 1.0).abs() <= tolerance

    def enter(self, x: Tensor) -> Tensor:
        """Put tokens on the space before a flow; a zero vector has no direction and is refused."""
        if not self.curved:
            return x
        # points already on the space are kept bit for bit, so that a flow can continue another
        inside = (self.stretch(x) - 1.0).abs_() <= 16 * torch.finfo(x.dtype).eps
        if inside.all():
            return x
        length = self.norm(x)
        if bool((length == 0).any()):
            where = torch.nonzero(length == 0)[0].tolist()
            raise InputError(f"token {where[-1]} is the zero vector, which has no place on the {self.name}")
        return torch.where(inside, x, self.retract(x))


def space_named(name: str) -> Space:
    """A space by name: "euclidean" or "sphere" (an ellipsoid needs its matrix: ``Ellipsoid(W)``)."""
    from attractor.spaces.euclidean import Euclidean
    from attractor.spaces.sphere import Sphere

    spaces = {"euclidean": Euclidean, "sphere": Sphere}
    if name not in spaces:
        raise InputError(f"space {name!r} is not known; give 'euclidean', 'sphere' or Ellipsoid(W)")
    return spaces[name]()
