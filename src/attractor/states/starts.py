r"""Initial measures: compact supports, mixtures and heavy tails, from which tokens are drawn.

A start is named ``name`` or ``name:numbers``, as in ``student:5`` or ``ellipse:2,1``; adding one is adding a function.

=====================  ==============================================================================================
uniform                the unit sphere
hemisphere             its half with a positive last coordinate
gaussian               :math:`N(0, I)`
ball                   uniform in the unit ball
box                    uniform in :math:`[-1, 1]^d`
shell:a                uniform in :math:`a < |x| < 1` (a = 0.8)
ellipse:a,b,...        uniform in the ellipsoid with these half axes (1, 1/2, 1/3, ...)
mixture:k,s            k equal Gaussians of standard deviation s around points of the unit sphere (k = 2, s = 0.3): equispaced
                       on a circle of the first two coordinates, on a line at equal steps from -1 to 1
student:nu             multivariate Student t with nu degrees of freedom (nu = 5): moments of order nu and above are infinite
laplace                independent coordinates with density :math:`\frac12 e^{-|x|}`
=====================  ==============================================================================================
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from attractor import memory
from attractor.errors import InputError
from attractor.states.tokens import LARGE, Tokens

Draw = Callable[..., np.ndarray]  # (generator, shape (..., n, d), *numbers) -> points
_starts: dict[str, Draw] = {}
UNIT = ("uniform", "hemisphere")  # on the unit sphere, whatever the scale


def start(function: Draw) -> Draw:
    """Make a start known under the name of its function."""
    _starts[function.__name__.removesuffix("_")] = function
    return function


def starts() -> list[str]:
    """Names of all random starts, in the order of the table."""
    return list(_starts)


def drawn(
    name: str,
    n: int,
    dim: int,
    seed: int = 0,
    scale: float = 1.0,
    ensemble: int | Sequence[int] = (),
    **options: Any,
) -> Tokens:
    """n independent tokens (..., n, dim) of a named start, multiplied by ``scale``; ``options`` as for Tokens."""
    if n < 1 or dim < 1:
        raise InputError(f"there must be at least one token of at least one dimension, got n={n}, dim={dim}")
    if not (math.isfinite(scale) and scale > 0):
        raise InputError(f"the scale of a start must be positive, got {scale}")
    function, numbers = _parsed(name)
    axes = (ensemble,) if isinstance(ensemble, int) else tuple(ensemble)
    shape = (*axes, n, dim)
    if math.prod(shape) > LARGE:
        memory.check(34.0 * math.prod(shape), n, f"a start of {n:,} tokens of dimension {dim}")
    try:
        points = function(np.random.default_rng(seed), shape, *numbers)
    except TypeError:
        raise InputError(f"start {name!r} has {len(numbers)} numbers, which are too many") from None
    return Tokens(torch.from_numpy(scale * points), **options)


def _parsed(name: str) -> tuple[Draw, list[float]]:
    word, _, text = str(name).partition(":")
    if word not in _starts:
        close = difflib.get_close_matches(word, _starts, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the starts are {', '.join(_starts)}"
        raise InputError(f"start {name!r} is not known; {hint}")
    try:
        numbers = [float(part) for part in text.split(",")] if text else []
    except ValueError:
        raise InputError(f"start {name!r} must be a name, or a name and numbers such as student:5") from None
    if not all(math.isfinite(number) for number in numbers):
        raise InputError(f"start {name!r} must have finite numbers")
    return _starts[word], numbers


def _sphere(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    points = torch.from_numpy(generator.standard_normal(shape))
    return (points / points.norm(dim=-1, keepdim=True)).numpy()  # to the bit what Tokens.uniform gives


@start
def uniform(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return _sphere(generator, shape)


@start
def hemisphere(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    points = _sphere(generator, shape)
    points[..., -1] = np.abs(points[..., -1])
    return points


@start
def gaussian(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return generator.standard_normal(shape)


@start
def ball(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    directions = _sphere(generator, shape)
    return directions * generator.random((*shape[:-1], 1)) ** (1.0 / shape[-1])


@start
def box(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return generator.uniform(-1.0, 1.0, shape)


@start
def shell(generator: np.random.Generator, shape: tuple[int, ...], inner: float = 0.8) -> np.ndarray:
    if not 0 <= inner < 1:
        raise InputError(f"a shell has an inner radius from 0 to 1, got {inner:g}")
    directions, dim = _sphere(generator, shape), shape[-1]
    # the volume inside radius r grows like r^d
    return directions * generator.uniform(inner**dim, 1.0, (*shape[:-1], 1)) ** (1.0 / dim)


@start
def ellipse(generator: np.random.Generator, shape: tuple[int, ...], *axes: float) -> np.ndarray:
    axes = axes or tuple(1.0 / (i + 1) for i in range(shape[-1]))
    if len(axes) != shape[-1] or min(axes) <= 0:
        given = ", ".join(f"{axis:g}" for axis in axes)
        raise InputError(f"an ellipse in dimension {shape[-1]} has that many positive half axes, got {given}")
    return ball(generator, shape) * np.array(axes)


@start
def mixture(
    generator: np.random.Generator, shape: tuple[int, ...], parts: float = 2, spread: float = 0.3
) -> np.ndarray:
    if parts < 1 or parts != int(parts) or spread < 0:
        raise InputError(
            f"a mixture has a whole number of parts and a spread of at least 0, got {parts:g} and {spread:g}"
        )
    centres = np.zeros((int(parts), shape[-1]))
    if shape[-1] == 1:
        centres[:, 0] = np.linspace(-1.0, 1.0, int(parts)) if parts > 1 else 0.0
    else:
        angles = 2 * np.pi * np.arange(int(parts)) / int(parts)
        centres[:, 0], centres[:, 1] = np.cos(angles), np.sin(angles)
    members = generator.integers(int(parts), size=shape[:-1])
    return centres[members] + spread * generator.standard_normal(shape)


@start
def student(generator: np.random.Generator, shape: tuple[int, ...], degrees: float = 5.0) -> np.ndarray:
    if not degrees > 0:
        raise InputError(f"student needs positive degrees of freedom, got {degrees:g}")
    points = generator.standard_normal(shape)
    return points / np.sqrt(generator.chisquare(degrees, (*shape[:-1], 1)) / degrees)


@start
def laplace(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return generator.laplace(size=shape)
