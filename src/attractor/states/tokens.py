"""Tokens: weighted points, and the initial measures they are drawn from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor import memory
from attractor.errors import InputError
from attractor.html_repr import dots, html_card
from attractor.registry import find
from attractor.serialization import Record
from attractor.states.arrays import check_finite, to_float_tensor

LARGE = 1 << 20  # numbers in a random start above which the free memory is checked


@dataclass(frozen=True, eq=False)
class Tokens(Record):
    r"""The measure :math:`\mu = \sum_i m_i \delta_{x_i}`.

    Parameters
    ----------
    points : (..., n, d), any leading ensemble axes; kept in float64 unless ``dtype`` says otherwise.
    masses : (n,) or (..., n), non-negative; None means 1/n each.
    positions : (n,) or (..., n), index of each token in its sequence (for masks and rotary positions); None means
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
        points = to_float_tensor(self.points, "tokens", dtype)
        if points.ndim < 2:
            raise InputError(f"tokens must have shape (..., n, d), got {tuple(points.shape)}")
        if points.shape[-2] == 0 or points.shape[-1] == 0:
            raise InputError(
                f"there must be at least one token of at least one dimension, got shape {tuple(points.shape)}"
            )
        if points.numel() == 0:
            raise InputError(f"an ensemble axis is empty: tokens have shape {tuple(points.shape)}")
        object.__setattr__(self, "points", check_finite(points, "tokens"))
        object.__setattr__(self, "masses", self._checked_masses(points))
        object.__setattr__(self, "positions", self._checked_positions(points))
        object.__setattr__(self, "dtype", dtype)

    def _checked_masses(self, points: Tensor) -> Tensor | None:
        if self.masses is None:
            return None
        masses = check_finite(to_float_tensor(self.masses, "masses", points.dtype).to(points.device), "masses")
        _check_row(masses, points, "masses")
        if bool((masses < 0).any()):
            raise InputError(f"masses must not be negative, the smallest is {float(masses.min()):.6g}")
        if bool((masses.sum(-1) <= 0).any()):
            raise InputError("masses must not all be zero")
        return masses

    def _checked_positions(self, points: Tensor) -> Tensor | None:
        if self.positions is None:
            return None
        positions = check_finite(
            to_float_tensor(self.positions, "positions", points.dtype).to(points.device), "positions"
        )
        _check_row(positions, points, "positions")
        return positions

    @property
    def n(self) -> int:
        """Number of tokens."""
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
        """Return the tokens on another device, such as ``"cuda"``; ``flow`` moves the law to the same device."""
        try:
            points = self.points.to(device)
        except (RuntimeError, AssertionError) as error:
            why = str(error).splitlines()[0]
            raise InputError(f"tokens cannot be put on {device}: {why}") from None
        masses, positions = (None if part is None else part.to(device) for part in (self.masses, self.positions))
        return Tokens.unchecked(points, masses, positions)

    def with_points(self, points: Tensor) -> Tokens:
        """Return tokens with other points, without checks, for inner loops."""
        return Tokens.unchecked(points, self.masses, self.positions)

    @classmethod
    def unchecked(cls, points: Tensor, masses: Tensor | None = None, positions: Tensor | None = None) -> Tokens:
        """Return tokens without checks, for inner loops whose inputs were checked before."""
        tokens = object.__new__(cls)
        for name, value in (("points", points), ("masses", masses), ("positions", positions), ("dtype", points.dtype)):
            object.__setattr__(tokens, name, value)
        return tokens

    @classmethod
    def uniform(cls, n: int, dim: int, seed: int = 0, ensemble: int | Sequence[int] = (), **options: Any) -> Tokens:
        """Draw n independent tokens, uniform on the unit sphere of R^dim."""
        points = _normal(n, dim, seed, ensemble)
        return cls(points / points.norm(dim=-1, keepdim=True), **options)

    @classmethod
    def gaussian(
        cls, n: int, dim: int, seed: int = 0, scale: float = 1.0, ensemble: int | Sequence[int] = (), **options: Any
    ) -> Tokens:
        """Draw n independent tokens, normal with covariance scale^2 I."""
        return cls(scale * _normal(n, dim, seed, ensemble), **options)

    @classmethod
    def sample(
        cls,
        start: str,
        n: int,
        dim: int,
        seed: int = 0,
        scale: float = 1.0,
        ensemble: int | Sequence[int] = (),
        **options: Any,
    ) -> Tokens:
        """Sample n independent tokens (..., n, dim) from a named measure, times ``scale``.

        Measures are uniform, hemisphere, polygon (regular, in the first two coordinates), clusters:3,0.25 (on the unit sphere: their
        number and width), gaussian, ball, box, shell:0.8, ellipse:2,1, mixture:3, student:5 and laplace, with numbers after a colon
        where they have parameters; ``options`` as for Tokens.
        """
        if not (math.isfinite(scale) and scale > 0):
            raise InputError(f"the scale of a start must be positive, got {scale}")
        function, numbers = _parse_start(start)
        shape = _start_shape(n, dim, ensemble, 34.0)
        try:
            points = function(np.random.default_rng(seed), shape, *numbers)
        except TypeError:
            raise InputError(f"start {start!r} has {len(numbers)} numbers, which are too many") from None
        return cls(torch.from_numpy(scale * points), **options)

    @classmethod
    def hemisphere(cls, n: int, dim: int, seed: int = 0, ensemble: int | Sequence[int] = (), **options: Any) -> Tokens:
        """Draw n independent tokens, uniform on the open hemisphere whose last coordinate is positive."""
        points = cls.uniform(n, dim, seed, ensemble).points.clone()
        points[..., -1] = points[..., -1].abs()
        return cls(points, **options)

    @classmethod
    def orthonormal(cls, n: int, dim: int, **options: Any) -> Tokens:
        """Return the first n basis vectors of R^dim: the equiangular start of consensus T6."""
        if n > dim:
            raise InputError(f"at most dim orthonormal tokens exist: got {n} in dimension {dim}")
        return cls(torch.eye(dim, dtype=torch.float64)[:n], **options)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the points as an array, so that numpy functions accept tokens."""
        return np.asarray(self.points.detach().cpu().numpy(), dtype=dtype)

    def _repr_html_(self) -> str:
        """HTML for notebooks, with a plot of the first member in its first two coordinates."""
        lengths = self.points.detach().norm(dim=-1)
        rows: dict[str, Any] = {"tokens": self.n, "dimension": self.dim}
        rows |= {"ensemble": " x ".join(map(str, self.batch_shape))} if self.batch_shape else {}
        rows |= {"norms": f"{float(lengths.min()):.4g} to {float(lengths.max()):.4g}"}
        rows |= {
            "masses": "1/n each" if self.masses is None else "given",
            "kept in": str(self.points.dtype).removeprefix("torch."),
        }
        first = self.points.detach().reshape(-1, self.n, self.dim)[0].cpu().numpy()
        return html_card("Tokens", rows, dots(first, f"{self.n} tokens on their first two coordinates"))

    def __repr__(self) -> str:
        shape = "x".join(str(size) for size in self.points.shape)
        masses = "" if self.masses is None else ", weighted"
        return f"Tokens({shape} {str(self.points.dtype).removeprefix('torch.')}{masses})"


def _check_row(values: Tensor, points: Tensor, name: str) -> None:
    shape, wanted = tuple(values.shape), tuple(points.shape[:-1])
    if not shape or shape[-1] != wanted[-1] or shape not in (wanted[-1:], wanted):
        shapes = f"{wanted[-1:]}" if len(wanted) == 1 else f"{wanted[-1:]} or {wanted}"
        raise InputError(f"{name} must have one entry a token, shape {shapes}, got {shape}")


def _start_shape(n: int, dim: int, ensemble: int | Sequence[int], bytes_each: float) -> tuple[int, ...]:
    """The shape (..., n, dim) of a random start that needs ``bytes_each`` for each number; raise if it is empty or too large."""
    if n < 1 or dim < 1:
        raise InputError(f"there must be at least one token of at least one dimension, got n={n}, dim={dim}")
    shape = (*((ensemble,) if isinstance(ensemble, int) else ensemble), n, dim)
    if math.prod(shape) > LARGE:
        memory.check(bytes_each * math.prod(shape), n, f"a start of {n:,} tokens of dimension {dim}")
    return shape


def _normal(n: int, dim: int, seed: int, ensemble: int | Sequence[int]) -> Tensor:
    # memory: the numbers, their lengths, the points and which of them are finite
    shape = _start_shape(n, dim, ensemble, 26.0)
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


MAX_PARTS = 10**6  # of a mixture, and clusters
Draw = Callable[..., np.ndarray]  # (generator, shape (..., n, d), *numbers) -> points
_starts: dict[str, Draw] = {}
UNIT = ("uniform", "hemisphere", "polygon", "clusters")  # on the unit sphere


def register_start(function: Draw) -> Draw:
    """Register a start under the name of its function."""
    _starts[function.__name__.removesuffix("_")] = function
    return function


def list_starts() -> list[str]:
    """Return the names of all random starts, in order of registration."""
    return list(_starts)


def _parse_start(name: str) -> tuple[Draw, list[float]]:
    word, _, text = str(name).partition(":")
    function = find(word, _starts, "start")
    try:
        numbers = [float(part) for part in text.split(",")] if text else []
    except ValueError:
        raise InputError(f"start {name!r} must be a name, or a name and numbers such as student:5") from None
    if not all(math.isfinite(number) for number in numbers):
        raise InputError(f"start {name!r} must have finite numbers")
    return function, numbers


def _sphere(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    points = torch.from_numpy(generator.standard_normal(shape))
    return (points / points.norm(dim=-1, keepdim=True)).numpy()  # to the bit what Tokens.uniform gives


@register_start
def uniform(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return _sphere(generator, shape)


@register_start
def hemisphere(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    points = _sphere(generator, shape)
    points[..., -1] = np.abs(points[..., -1])
    return points


@register_start
def polygon(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    if shape[-1] < 2:
        raise InputError("a polygon lies in a plane: it needs at least 2 dimensions, got 1")
    angles = 2 * np.pi * np.arange(shape[-2]) / shape[-2]
    points = np.zeros(shape)
    points[..., 0], points[..., 1] = np.cos(angles), np.sin(angles)
    return points


@register_start
def clusters(
    generator: np.random.Generator, shape: tuple[int, ...], parts: float = 3, width: float = 0.25
) -> np.ndarray:
    if not (1 <= parts <= MAX_PARTS and parts == int(parts) and width >= 0):
        raise InputError(
            f"clusters has a whole number of parts up to {MAX_PARTS:,} and a width of at least 0, got {parts:g} and {width:g}"
        )
    centres = _sphere(generator, (int(parts), shape[-1]))
    around = centres[np.arange(shape[-2]) % int(parts)] + width * generator.standard_normal(shape)
    return around / np.linalg.norm(around, axis=-1, keepdims=True)


@register_start
def gaussian(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return generator.standard_normal(shape)


@register_start
def ball(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    directions = _sphere(generator, shape)
    return directions * generator.random((*shape[:-1], 1)) ** (1.0 / shape[-1])


@register_start
def box(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return generator.uniform(-1.0, 1.0, shape)


@register_start
def shell(generator: np.random.Generator, shape: tuple[int, ...], inner: float = 0.8) -> np.ndarray:
    if not 0 <= inner < 1:
        raise InputError(f"a shell has an inner radius from 0 to 1, got {inner:g}")
    directions, dim = _sphere(generator, shape), shape[-1]
    # the volume inside radius r grows like r^d
    return directions * generator.uniform(inner**dim, 1.0, (*shape[:-1], 1)) ** (1.0 / dim)


@register_start
def ellipse(generator: np.random.Generator, shape: tuple[int, ...], *axes: float) -> np.ndarray:
    axes = axes or tuple(1.0 / (i + 1) for i in range(shape[-1]))
    if len(axes) != shape[-1] or min(axes) <= 0:
        given = ", ".join(f"{axis:g}" for axis in axes)
        raise InputError(f"an ellipse in dimension {shape[-1]} has that many positive half axes, got {given}")
    return ball(generator, shape) * np.array(axes)


@register_start
def mixture(
    generator: np.random.Generator, shape: tuple[int, ...], parts: float = 2, spread: float = 0.3
) -> np.ndarray:
    if parts < 1 or parts != int(parts) or spread < 0:
        raise InputError(
            f"a mixture has a whole number of parts and a spread of at least 0, got {parts:g} and {spread:g}"
        )
    if parts > MAX_PARTS:
        raise InputError(f"a mixture has at most {MAX_PARTS:,} parts, got {parts:g}")
    centres = np.zeros((int(parts), shape[-1]))
    if shape[-1] == 1:
        centres[:, 0] = np.linspace(-1.0, 1.0, int(parts)) if parts > 1 else 0.0
    else:
        angles = 2 * np.pi * np.arange(int(parts)) / int(parts)
        centres[:, 0], centres[:, 1] = np.cos(angles), np.sin(angles)
    members = generator.integers(int(parts), size=shape[:-1])
    return centres[members] + spread * generator.standard_normal(shape)


@register_start
def student(generator: np.random.Generator, shape: tuple[int, ...], degrees: float = 5.0) -> np.ndarray:
    if not degrees > 0:
        raise InputError(f"student needs positive degrees of freedom, got {degrees:g}")
    points = generator.standard_normal(shape)
    return points / np.sqrt(generator.chisquare(degrees, (*shape[:-1], 1)) / degrees)


@register_start
def laplace(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return generator.laplace(size=shape)
