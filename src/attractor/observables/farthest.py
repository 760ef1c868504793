"""The two tokens farthest apart, without the n x n table."""

from __future__ import annotations

import torch
from torch import Tensor

from attractor.attention import Law
from attractor.observables.geometry import about_mean
from attractor.observables.measure import present
from attractor.observables.registry import observable
from attractor.spaces import Euclidean, Space
from attractor.states import Tokens

PAIRS = 1 << 18  # pairs held at once: they stay in the cache
SMALL = 1 << 10  # tokens up to which all pairs of a state are compared at once


@observable
def diameter(tokens: Tokens, law: Law | None = None, space: Space | None = None, *, geodesic: bool = False) -> Tensor:
    r"""Largest distance between two tokens, :math:`\max_{ij}|x_i - x_j|`, shape (...); exact.

    Straight distance in the norm of the space; ``geodesic=True`` gives the distance along the space between the same
    two tokens, which on a sphere or an ellipsoid are also the two that are farthest apart along it. It is no Lyapunov
    function: it can grow while it exceeds a right angle (consensus T2).
    """
    first, second = farthest_pair(about_mean(tokens.moved(tokens.points.detach()), space), present(tokens))
    space = Euclidean() if space is None else space
    x, y = (tokens.points.take_along_dim(index[..., None, None], -2).squeeze(-2) for index in (first, second))
    return space.distance(x, y) if geodesic else space.norm(x - y)


def farthest_pair(points: Tensor, taking_part: Tensor) -> tuple[Tensor, Tensor]:
    """Indices (...) of the two points (..., n, d) at the largest distance; they should be centred (``_squares``)."""
    batch, (n, d) = points.shape[:-2], points.shape[-2:]
    states, taking_part = points.reshape(-1, n, d), taking_part.reshape(-1, n)
    if n <= SMALL:
        step = max(1, PAIRS // (n * n))
        found = [
            _all_pairs(states[start : start + step], taking_part[start : start + step])
            for start in range(0, len(states), step)
        ]
        pairs = torch.cat(found)
    else:
        pairs = torch.stack([_pruned(state, part) for state, part in zip(states, taking_part, strict=True)])
    return pairs[:, 0].reshape(batch), pairs[:, 1].reshape(batch)


def _squares(x: Tensor, y: Tensor) -> Tensor:
    """Squared distances (..., a, b). For centred points the error is a few roundings of the largest of them."""
    lengths = (x * x).sum(-1).unsqueeze(-1) + (y * y).sum(-1).unsqueeze(-2)
    return lengths - 2.0 * (x @ y.mT)


def _all_pairs(states: Tensor, taking_part: Tensor) -> Tensor:
    n = states.shape[-2]
    both = taking_part.unsqueeze(-1) & taking_part.unsqueeze(-2)
    # a token and itself: the answer where there is only one, never ahead of two others
    squares = torch.where(both, _squares(states, states), -torch.inf)
    squares.diagonal(dim1=-2, dim2=-1).clamp_(max=0.0)
    best = squares.flatten(-2).argmax(-1)
    return torch.stack((best // n, best % n), dim=-1)


def _pruned(state: Tensor, taking_part: Tensor) -> Tensor:
    """Tokens by falling distance from the centre: a pair can only win while the radii of both reach the best so far."""
    radii = torch.where(taking_part, torch.linalg.vector_norm(state, dim=-1), -torch.inf)
    radii, order = radii.sort(descending=True)
    count = int(taking_part.sum())
    radii, order = radii[:count], order[:count]
    points = state[order]
    best, pair = _sweep(points)
    start = 0
    while start < count and radii[start] + radii[0] > best:
        reach = int((radii > best - radii[start]).sum())
        stop = min(count, start + max(1, PAIRS // max(1, reach)))
        columns = min(stop, reach)
        squares = _squares(points[start:stop], points[:columns])
        largest, index = squares.flatten().max(-1)
        if largest.clamp_min(0.0).sqrt() > best:
            best, pair = largest.sqrt(), (start + int(index) // columns, int(index) % columns)
        start = stop
    return order[list(pair)]


def _sweep(points: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """A long pair to start from: the farthest point of the farthest point, a few times."""
    here, best, pair = 0, points.new_zeros(()), (0, 0)
    for _ in range(4):
        distance, there = torch.linalg.vector_norm(points - points[here], dim=-1).max(-1)
        if distance <= best:
            break
        best, pair, here = distance, (here, int(there)), int(there)
    return best, pair
