"""Random laws and tokens for theorem samplers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.laws import Attention, Schedule
from attractor.spaces import Ellipsoid, Space, Sphere
from attractor.states import Tokens

Draw = np.random.Generator
SIZES = ((2, 3), (3, 4), (5, 3), (6, 4))  # (n, d): few, so that cases of one shape run as one ensemble


def sizes(draw: Draw, choices: Sequence[tuple[int, int]] = SIZES) -> tuple[int, int]:
    """A number of tokens and a dimension."""
    n, d = choices[int(draw.integers(len(choices)))]
    return n, d


def orthogonal(draw: Draw, d: int) -> Tensor:
    """An orthogonal matrix, uniformly distributed."""
    q, r = np.linalg.qr(draw.standard_normal((d, d)))
    return torch.from_numpy(q * np.sign(np.diag(r)))


def spectral(draw: Draw, values: Sequence[float] | np.ndarray) -> Tensor:
    """A symmetric matrix with these eigenvalues, in a random basis."""
    basis = orthogonal(draw, len(values))
    matrix = basis @ torch.diag(torch.as_tensor(np.asarray(values, dtype=np.float64))) @ basis.mT
    return (matrix + matrix.mT) / 2


def definite(draw: Draw, d: int, sign: float = 1.0, low: float = 0.4, high: float = 1.5) -> Tensor:
    """A symmetric matrix whose eigenvalues have one sign."""
    return sign * spectral(draw, draw.uniform(low, high, d))


def indefinite(draw: Draw, d: int, positive: int | None = None, low: float = 0.4, high: float = 1.5) -> Tensor:
    """A symmetric matrix with some eigenvalues of either sign."""
    count = int(draw.integers(1, d)) if positive is None else positive
    return spectral(draw, draw.uniform(low, high, d) * np.where(np.arange(d) < count, 1.0, -1.0))


def skew(draw: Draw, d: int, size: float = 0.5) -> Tensor:
    """A skew matrix with entries of this standard deviation."""
    matrix = torch.from_numpy(size * draw.standard_normal((d, d)))
    return (matrix - matrix.mT) / 2**0.5


def law_of(draw: Draw, interaction: Tensor, value: Tensor, **options: Any) -> Attention:
    """An attention law with these W and V; query and key split W by a random orthogonal query."""
    query = orthogonal(draw, interaction.shape[-1])
    return Attention(query, query @ interaction, value, **options)


def metric_law(draw: Draw, metric: Tensor, interaction: Tensor, **options: Any) -> Attention:
    """The law whose metric and interaction are given: V = inv(A) W."""
    return law_of(draw, interaction, torch.linalg.solve(metric, interaction), **options)


def shared_metric_law(draw: Draw, metric: Tensor, heads: int, sign: float = 1.0, **options: Any) -> Attention:
    """Several heads of full rank that share a metric; every W has a definite symmetric part of the sign."""
    d = metric.shape[0]
    interactions = [definite(draw, d, sign) / heads + skew(draw, d, 0.3) / heads for _ in range(heads)]
    parts = [metric_law(draw, metric, interaction) for interaction in interactions]
    query, key, value = (torch.stack([getattr(part, name) for part in parts]) for name in ("query", "key", "value"))
    return Attention(query, key, value, **options)


def cloud(draw: Draw, n: int, d: int, size: float = 1.0) -> Tokens:
    """Independent normal tokens."""
    return Tokens(torch.from_numpy(size * draw.standard_normal((n, d))))


SPHERE_SIZES = ((3, 3), (5, 3), (6, 4))  # (n, d): few, so that cases of one shape run as one ensemble
UNIT = Sphere()
# objects, not recipes: cases on the same ellipsoid run as one ensemble
ELLIPSOIDS = {
    3: Ellipsoid(torch.tensor([[1.4, 0.3, 0.0], [0.3, 0.8, 0.2], [0.0, 0.2, 0.6]], dtype=torch.float64)),
    4: Ellipsoid(torch.diag(torch.tensor([0.5, 0.8, 1.2, 2.0], dtype=torch.float64))),
}


def place(draw: Draw, d: int, share: float = 0.3) -> Space:
    """The unit sphere, or sometimes an ellipsoid."""
    return ELLIPSOIDS[d] if d in ELLIPSOIDS and draw.random() < share else UNIT


def onto(space: Space, points: Tensor, **options: Any) -> Tokens:
    """Points of the unit sphere as tokens on the space."""
    return Tokens(space.from_sphere(points) if isinstance(space, Ellipsoid) else points, **options)


def unit(draw: Draw, n: int, d: int) -> Tensor:
    """Independent uniform points of the unit sphere."""
    points = torch.from_numpy(draw.standard_normal((n, d)))
    return points / points.norm(dim=-1, keepdim=True)


def halved(draw: Draw, n: int, d: int, pole: Tensor | None = None, least: float = 0.05) -> Tensor:
    """Uniform points of the hemisphere about a pole, none closer to its edge than ``least``."""
    axis = unit(draw, 1, d)[0] if pole is None else pole
    points = unit(draw, n, d)
    heights = points @ axis
    points = points * torch.where(heights < 0, -1.0, 1.0)[:, None] + least * axis
    return points / points.norm(dim=-1, keepdim=True)


def carried(space: Space, value: Tensor, interaction: Tensor) -> tuple[Tensor, Tensor]:
    """Value and interaction on the space whose pictures on the unit sphere are the given ones."""
    if not isinstance(space, Ellipsoid):
        return value, interaction
    root, inverse = space.root(), space.root(-0.5)
    return inverse @ value @ root, root @ interaction @ root


def gaussian(draw: Draw, d: int, size: float = 1.0) -> Tensor:
    """An interaction without any symmetry: independent normal entries, of spectral norm about 2 size."""
    return torch.from_numpy(size * draw.standard_normal((d, d)) / d**0.5)


def sphere_law(
    draw: Draw,
    space: Space,
    value: Tensor,
    interactions: Sequence[Tensor],
    shares: Sequence[float] = (1.0,),
    **options: Any,
) -> Attention:
    """Heads with these interactions and the values share_h U, all given on the unit sphere."""
    parts = [
        carried(space, share * value, interaction) for share, interaction in zip(shares, interactions, strict=True)
    ]
    turns = [orthogonal(draw, value.shape[0]) for _ in parts]
    query, value = torch.stack(turns), torch.stack([part[0] for part in parts])
    key = torch.stack([turn @ interaction for turn, (_, interaction) in zip(turns, parts, strict=True)])
    if len(parts) == 1:
        query, key, value = query[0], key[0], value[0]
    return Attention(query, key, value, **options)


def plural(draw: Draw, space: Space, value: Tensor, size: float = 1.0, **options: Any) -> Attention:
    """One head, or two that share the value, with interactions without symmetry."""
    d = value.shape[0]
    if draw.random() < 0.6:
        return sphere_law(draw, space, value, [gaussian(draw, d, size)], **options)
    return sphere_law(draw, space, value, [gaussian(draw, d, size), gaussian(draw, d, size)], (0.4, 0.6), **options)


def wandering(draw: Draw, space: Space, value: Tensor, horizon: float, size: float = 1.0, **options: Any) -> Schedule:
    """An interaction that changes with time between four random ones."""
    laws = [sphere_law(draw, space, value, [gaussian(draw, value.shape[0], size)], **options) for _ in range(4)]
    times = np.linspace(0.0, horizon, 4)
    return Schedule.interpolate(tuple(times.tolist()), laws)
