"""Mean squared distance between tokens, from sums: never the n x n table."""

from __future__ import annotations

from torch import Tensor

from attractor.attention import Law
from attractor.observables.geometry import about_mean, isometric
from attractor.observables.measure import average, pair_mass, quotient
from attractor.observables.registry import observable
from attractor.spaces import Space
from attractor.states import Tokens


@observable
def pairwise_distance(
    tokens: Tokens, law: Law | None = None, space: Space | None = None, *, root: bool = False
) -> Tensor:
    r"""Mean squared distance of two different tokens, shape (...).

    :math:`\sum_{i\ne j} m_i m_j |x_i - x_j|^2 / \sum_{i\ne j} m_i m_j`.
    With equal masses this is :math:`2(n\sum|x|^2 - |\sum x|^2)/(n(n-1))`; it is computed from centred tokens, where
    nothing cancels. ``root=True`` gives its square root. A single token has distance 0. Straight distances in the
    norm of the space.
    """
    points = about_mean(tokens, space)
    weights = tokens.weights
    # with centred tokens, sum_ij m_i m_j |x_i - x_j|^2 = 2 M sum_i m_i |x_i|^2
    squares = 2.0 * weights.sum(-1) * (weights * (points * points).sum(-1)).sum(-1)
    mean_square = quotient(squares, pair_mass(tokens), 0.0)
    return mean_square.sqrt() if root else mean_square


@observable
def sharpness(tokens: Tokens, law: Law | None = None, space: Space | None = None) -> Tensor:
    r"""How much of the tokens' size is spread: ``pairwise_distance`` over twice the mean squared length, shape (...).

    With equal masses :math:`(2n\sum|x|^2 - 2|\sum x|^2) / (2(n-1)\sum|x|^2)`, the layer metric of
    [pham2025dynamical]: 0 at consensus, n/(n-1) for tokens of mean zero. Zero for a single token and for tokens that
    all vanish.
    """
    points = isometric(tokens.points, space)
    squares = average((points * points).sum(-1), tokens.masses)
    return quotient(pairwise_distance(tokens, law, space), 2.0 * squares, 0.0)
