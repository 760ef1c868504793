"""Lengths and angles: those of the space where one is given, Euclidean otherwise."""

from __future__ import annotations

import torch
from torch import Tensor

from attractor.observables.measure import barycentre
from attractor.spaces import Ellipsoid, Space
from attractor.states import Tokens


def isometric(vectors: Tensor, space: Space | None) -> Tensor:
    """Vectors (..., d) in coordinates whose Euclidean length is their length in the space."""
    if space is None:
        return vectors
    space.check_dimension(vectors.shape[-1])
    return space.to_sphere(vectors) if isinstance(space, Ellipsoid) else vectors


def about_mean(tokens: Tokens, space: Space | None = None) -> Tensor:
    """Tokens less their mean, in isometric coordinates.

    Centred twice: the first mean is rounded like the tokens are, the second removes what that left, so that a cloud
    far from the origin keeps the digits of its shape.
    """
    points = tokens.points
    for _ in range(2):
        points = points - barycentre(points, tokens.masses).unsqueeze(-2)
    return isometric(points, space)


def directions(tokens: Tokens, space: Space | None = None) -> Tensor:
    """Tokens divided by their lengths, in isometric coordinates; a token at the origin stays there."""
    points = isometric(tokens.points, space)
    # squares of very short or very long tokens leave the range of floats before the tokens do
    size = points.detach().abs().amax(-1, keepdim=True)
    points = points / torch.where(size > 0, size, 1.0)
    length = torch.linalg.vector_norm(points, dim=-1, keepdim=True)
    return points / torch.where(length > 0, length, 1.0)
