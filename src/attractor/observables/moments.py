"""Mean and covariance of the measure."""

from __future__ import annotations

from torch import Tensor

from attractor.attention import Law
from attractor.observables.geometry import about_mean
from attractor.observables.measure import barycentre
from attractor.observables.registry import observable
from attractor.spaces import Space
from attractor.states import Tokens


@observable
def mean(tokens: Tokens, law: Law | None = None, space: Space | None = None) -> Tensor:
    r"""Mean of the measure, :math:`\sum_i m_i x_i / \sum_i m_i`, shape (..., d), in the ambient coordinates."""
    return barycentre(tokens.points, tokens.masses)


@observable
def covariance(tokens: Tokens, law: Law | None = None, space: Space | None = None) -> Tensor:
    r"""Covariance of the measure, shape (..., d, d), in the ambient coordinates.

    :math:`\sum_i m_i (x_i - \bar x)(x_i - \bar x)^\top / \sum_i m_i`: with equal masses the divisor is n, not n - 1.
    """
    points = about_mean(tokens)
    weights = tokens.weights.unsqueeze(-1)
    return points.mT @ (weights * points) / weights.sum(-2, keepdim=True)
