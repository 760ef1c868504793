"""Tokens: weighted points, the discrete measures that attention moves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor import memory
from attractor.cards import card, dots
from attractor.errors import InputError
from attractor.records import Record
from attractor.states.arrays import finite, floating

LARGE = 1 << 20  # numbers in a random start above which somebody asks how much memory there is


@dataclass(frozen=True, eq=False)
class Tokens(Record):
    r"""The measure :math:`\mu = \sum_i m_i \delta_{x_i}`.

    Parameters
    ----------
    points : (..., n, d), any leading ensemble axes; kept in float64 unless ``dtype`` says otherwise.
    masses : (n,) or (..., n), non-negative; None means 1/n each.
    positions : (n,) or (..., n), where each token stands in its sequence (for masks and rotary positions); None means
        0, 1, ..., n-1.
    dtype : torch.float64 (the default) or torch.float32.
    """

    points: Tensor
    masses: Tensor | None = None
    positions: Tensor | None = None
    dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        dtype = self.dtype or torch.float64
        if dtype not in (torch.float32, torch.float64):
            raise InputError(f"tokens are kept in float64 or float32, not {dtype}")
        points = floating(self.points, "tokens", dtype)
        if points.ndim < 2:
            raise InputError(f"tokens must have shape (..., n, d), got {tuple(points.shape)}")
        if points.shape[-2] == 0 or points.shape[-1] == 0:
            raise InputError(
                f"there must be at least one token of at least one dimension, got shape {tuple(points.shape)}"
            )
        if points.numel() == 0:
            raise InputError(f"an ensemble axis is empty: tokens have shape {tuple(points.shape)}")
        object.__setattr__(self, "points", finite(points, "tokens"))
        object.__setattr__(self, "masses", self._checked_masses(points))
        object.__setattr__(self, "positions", self._checked_positions(points))
        object.__setattr__(self, "dtype", dtype)

    def _checked_masses(self, points: Tensor) -> Tensor | None:
        if self.masses is None:
            return None
        masses = finite(floating(self.masses, "masses", points.dtype).to(points.device), "masses")
        _check_row(masses, points, "masses")
        if bool((masses < 0).any()):
            raise InputError(f"masses must not be negative, the smallest is {float(masses.min()):.6g}")
        if bool((masses.sum(-1) <= 0).any()):
            raise InputError("masses must not all be zero")
        return masses

    def _checked_positions(self, points: Tensor) -> Tensor | None:
        if self.positions is None:
            return None
        positions = finite(floating(self.positions, "positions", points.dtype).to(points.device), "positions")
        _check_row(positions, points, "positions")
        return positions

    @property
    def n(self) -> int:
        """How many tokens."""
        return self.points.shape[-2]

    @property
    def dim(self) -> int:
        return self.points.shape[-1]

    @property
    def batch_shape(self) -> torch.Size:
        """The ensemble axes."""
        return self.points.shape[:-2]

    @property
    def weights(self) -> Tensor:
        """Masses made explicit, (n,) or (..., n)."""
        return self.masses if self.masses is not None else self.points.new_full((self.n,), 1.0 / self.n)

    def to(self, device: torch.device | str) -> Tokens:
        """The same tokens on another device, such as ``"cuda"``; a law follows them by itself."""
        try:
            points = self.points.to(device)
        except (RuntimeError, AssertionError) as error:
            why = str(error).splitlines()[0]
            raise InputError(f"tokens cannot be put on {device}: {why}") from None
        masses, positions = (None if part is None else part.to(device) for part in (self.masses, self.positions))
        return Tokens.trusted(points, masses, positions)

    def moved(self, points: Tensor) -> Tokens:
        """The same tokens elsewhere; trusts its argument, for inner loops."""
        return Tokens.trusted(points, self.masses, self.positions)

    @classmethod
    def trusted(cls, points: Tensor, masses: Tensor | None = None, positions: Tensor | None = None) -> Tokens:
        """Tokens without the checks, for inner loops whose inputs were checked once."""
        tokens = object.__new__(cls)
        for name, value in (("points", points), ("masses", masses), ("positions", positions), ("dtype", points.dtype)):
            object.__setattr__(tokens, name, value)
        return tokens

    @classmethod
    def uniform(cls, n: int, dim: int, seed: int = 0, ensemble: int | Sequence[int] = (), **options: Any) -> Tokens:
        """n independent tokens, uniform on the unit sphere of R^dim."""
        points = _normal(n, dim, seed, ensemble)
        return cls(points / points.norm(dim=-1, keepdim=True), **options)

    @classmethod
    def gaussian(
        cls, n: int, dim: int, seed: int = 0, scale: float = 1.0, ensemble: int | Sequence[int] = (), **options: Any
    ) -> Tokens:
        """n independent tokens, normal with covariance scale^2 I."""
        return cls(scale * _normal(n, dim, seed, ensemble), **options)

    @classmethod
    def drawn(
        cls,
        start: str,
        n: int,
        dim: int,
        seed: int = 0,
        scale: float = 1.0,
        ensemble: int | Sequence[int] = (),
        **options: Any,
    ) -> Tokens:
        """n independent tokens of a named measure, times ``scale``: ball, box, shell, ellipse:2,1, mixture:3, student:5, laplace, ..."""
        from attractor.states.starts import drawn

        return drawn(start, n, dim, seed, scale, ensemble, **options)

    @classmethod
    def hemisphere(cls, n: int, dim: int, seed: int = 0, ensemble: int | Sequence[int] = (), **options: Any) -> Tokens:
        """n independent tokens, uniform on the open hemisphere whose last coordinate is positive."""
        points = cls.uniform(n, dim, seed, ensemble).points.clone()
        points[..., -1] = points[..., -1].abs()
        return cls(points, **options)

    @classmethod
    def orthonormal(cls, n: int, dim: int, **options: Any) -> Tokens:
        """The first n basis vectors of R^dim: the equiangular start of consensus T6."""
        if n > dim:
            raise InputError(f"at most dim orthonormal tokens exist: asked for {n} in dimension {dim}")
        return cls(torch.eye(dim, dtype=torch.float64)[:n], **options)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The points as an array, so that numpy functions take tokens."""
        return np.asarray(self.points.detach().cpu().numpy(), dtype=dtype)

    def _repr_html_(self) -> str:
        """A card for notebooks, with the first member drawn on its first two coordinates."""
        lengths = self.points.detach().norm(dim=-1)
        rows: dict[str, Any] = {"tokens": self.n, "dimension": self.dim}
        rows |= {"ensemble": " x ".join(map(str, self.batch_shape))} if self.batch_shape else {}
        rows |= {"norms": f"{float(lengths.min()):.4g} to {float(lengths.max()):.4g}"}
        rows |= {
            "masses": "1/n each" if self.masses is None else "given",
            "kept in": str(self.points.dtype).removeprefix("torch."),
        }
        first = self.points.detach().reshape(-1, self.n, self.dim)[0].cpu().numpy()
        return card("Tokens", rows, dots(first, f"{self.n} tokens on their first two coordinates"))

    def __repr__(self) -> str:
        shape = "x".join(str(size) for size in self.points.shape)
        masses = "" if self.masses is None else ", weighted"
        return f"Tokens({shape} {str(self.points.dtype).removeprefix('torch.')}{masses})"


def _check_row(values: Tensor, points: Tensor, name: str) -> None:
    shape, wanted = tuple(values.shape), tuple(points.shape[:-1])
    if not shape or shape[-1] != wanted[-1] or shape not in (wanted[-1:], wanted):
        shapes = f"{wanted[-1:]}" if len(wanted) == 1 else f"{wanted[-1:]} or {wanted}"
        raise InputError(f"{name} must have one entry a token, shape {shapes}, got {shape}")


def _normal(n: int, dim: int, seed: int, ensemble: int | Sequence[int]) -> Tensor:
    if n < 1 or dim < 1:
        raise InputError(f"there must be at least one token of at least one dimension, got n={n}, dim={dim}")
    axes = (ensemble,) if isinstance(ensemble, int) else tuple(ensemble)
    numbers = math.prod((*axes, n, dim))
    if numbers > LARGE:
        # the numbers, their lengths, the points and which of them are finite
        memory.check(26.0 * numbers, n, f"a start of {n:,} tokens of dimension {dim}")
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((*axes, n, dim)))
