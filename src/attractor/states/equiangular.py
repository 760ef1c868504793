r"""Equiangular tokens: n tokens of one length with one cosine between any two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.html_repr import html_card
from attractor.serialization import Record
from attractor.states.arrays import check_finite, to_float_tensor
from attractor.states.tokens import Tokens

MOST = 4096  # tokens that are written out


@dataclass(frozen=True, eq=False)
class Equiangular(Record):
    r"""n tokens with :math:`|x_i| = r` and :math:`\langle x_i, x_j\rangle = \rho r^2`, of mass 1/n each, in float64.

    Laws that treat all tokens and all directions alike keep them equiangular: with
    :math:`\dot x_i = U x_i + Y\sum_{j\ne i}x_j` the eigenvalues :math:`a^2 = (1-\rho)r^2` and :math:`b^2 = (1+(n-1)\rho)r^2` of the Gram
    matrix obey :math:`\dot a = (U-Y)a`, :math:`\dot b = (U+(n-1)Y)b`, so that a flow has two coordinates whatever n is. They exist in
    dimension n (and n - 1 for a simplex, :math:`\rho = -1/(n-1)`); the dimension of the law matters only to its norms.

    Parameters
    ----------
    rho : cosine of two tokens, (...), between -1/(n-1) and 1; leading axes are an ensemble.
    n : number of tokens, at least 2.
    radius : r, (...), positive.
    """

    rho: Tensor
    n: int
    radius: Tensor | Any = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.n, bool) or int(self.n) != self.n or self.n < 2:
            raise InputError(f"equiangular tokens need a whole number of at least 2 tokens, got {self.n}")
        object.__setattr__(self, "n", int(self.n))
        rho = check_finite(to_float_tensor(self.rho, "rho", torch.float64), "rho")
        radius = check_finite(to_float_tensor(self.radius, "the radius", torch.float64), "the radius")
        least = -1.0 / (self.n - 1)
        if bool(((rho < least * (1 + 1e-12)) | (rho > 1.0)).any()):
            wrong = float(rho.min() if bool((rho < least * (1 + 1e-12)).any()) else rho.max())
            raise InputError(
                f"the cosine rho of {self.n} equiangular tokens lies between -1/(n-1) = {least:.6g} and 1, got {wrong:.6g}"
            )
        if bool((radius <= 0).any()):
            raise InputError(f"the radius of equiangular tokens must be positive, got {float(radius.min()):.6g}")
        try:
            rho, radius = torch.broadcast_tensors(rho, radius)
        except RuntimeError:
            raise InputError(
                f"rho {tuple(rho.shape)} and radius {tuple(radius.shape)} have different ensemble axes"
            ) from None
        object.__setattr__(self, "rho", rho.clone())
        object.__setattr__(self, "radius", radius.clone())

    @property
    def batch_shape(self) -> torch.Size:
        """The ensemble axes."""
        return self.rho.shape

    @property
    def kappa(self) -> Tensor:
        r""":math:`\kappa = (1-\rho)/(1+(n-1)\rho)`, zero at consensus: it falls by :math:`\dot\kappa = -2nY\kappa`."""
        return (1.0 - self.rho) / (1.0 + (self.n - 1) * self.rho)

    def rows(self) -> Tensor:
        """Return a and b as one row (..., 1, 2), the state that a flow integrates."""
        a = self.radius * (1.0 - self.rho).clamp_min(0.0).sqrt()
        b = self.radius * (1.0 + (self.n - 1) * self.rho).clamp_min(0.0).sqrt()
        return torch.stack((a, b), dim=-1).unsqueeze(-2)

    def with_points(self, rows: Tensor) -> Equiangular:
        """Return the tokens with these rows, without checks."""
        found = object.__new__(Equiangular)
        rho, radius = cosine_and_radius(rows, self.n)
        for name, value in (("rho", rho), ("n", self.n), ("radius", radius)):
            object.__setattr__(found, name, value)
        return found

    def tokens(self, dim: int | None = None) -> Tokens:
        """Return the tokens themselves, (..., n, dim); the dimension is n unless a larger one is given."""
        dim = self.n if dim is None else dim
        if dim < self.n or self.n > MOST:
            raise InputError(
                f"{self.n} equiangular tokens are written out in at least {self.n} dimensions, and {MOST} at most; got {dim}"
            )
        a, b = self.rows()[..., 0, :].unbind(-1)
        eye = torch.eye(self.n, dim, dtype=a.dtype, device=a.device)
        ones = torch.ones(self.n, 1, dtype=a.dtype, device=a.device) * eye.sum(0)
        return Tokens(a[..., None, None] * eye + ((b - a) / self.n)[..., None, None] * ones)

    def _repr_html_(self) -> str:
        """HTML for notebooks."""
        rows: dict[str, Any] = {"tokens": f"{self.n:,}"}
        rows |= {"ensemble": " x ".join(map(str, self.batch_shape))} if self.batch_shape else {}
        if not self.batch_shape:
            rows |= {"cosine": float(self.rho), "radius": float(self.radius)}
        return html_card("Equiangular", rows)

    def __repr__(self) -> str:
        if self.batch_shape:
            return f"Equiangular(n={self.n}, ensemble={tuple(self.batch_shape)})"
        return f"Equiangular(rho={float(self.rho):.6g}, n={self.n}, radius={float(self.radius):.6g})"


def cosine_and_radius(rows: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Cosines and radii (...) of rows (..., 1, 2)."""
    a, b = rows[..., 0, 0], rows[..., 0, 1]
    square = ((n - 1) * a.square() + b.square()) / n
    return 1.0 - a.square() / square, square.sqrt()
