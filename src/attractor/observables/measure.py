r"""Tokens as the measure :math:`\mu = \sum_i m_i \delta_{x_i}`: averages, pairs, and who takes part.

Every observable is a function of the measure: averages are weighted by the masses and divided by the total mass,
extremes run over the tokens of positive mass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attractor.states import Tokens


def average(values: Tensor, masses: Tensor | None) -> Tensor:
    r""":math:`\sum_i m_i v_i / \sum_i m_i` of values (..., n); masses of None are all equal."""
    if masses is None:
        return values.mean(-1)
    return (masses * values).sum(-1) / masses.sum(-1)


def barycentre(points: Tensor, masses: Tensor | None) -> Tensor:
    r""":math:`\sum_i m_i y_i / \sum_i m_i` of points (..., n, c)."""
    if masses is None:
        return points.mean(-2)
    return (masses.unsqueeze(-1) * points).sum(-2) / masses.sum(-1, keepdim=True)


def present(tokens: Tokens) -> Tensor:
    """True (..., n) for the tokens that carry mass."""
    return (tokens.weights > 0).expand(*tokens.batch_shape, tokens.n)


def off_diagonal(vectors: Tensor) -> Tensor:
    r""":math:`\sum_{i\ne j}\langle a_i, a_j\rangle` of vectors (..., n, c), linear in n.

    The square of the sum less the sum of the squares, with the longest vector taken out first: where one mass
    outweighs all others, that difference would lose the pairs in rounding.
    """
    longest = (vectors * vectors).sum(-1).argmax(-1)[..., None, None]
    heavy = vectors.gather(-2, longest.expand(*longest.shape[:-1], vectors.shape[-1]))
    others = vectors.scatter(-2, longest.expand_as(heavy), 0.0)
    rest = others.sum(-2)
    among_others = (rest * rest).sum(-1) - (others * others).sum((-2, -1))
    return 2.0 * (heavy.squeeze(-2) * rest).sum(-1) + among_others


def pair_mass(tokens: Tokens) -> Tensor:
    r""":math:`\sum_{i\ne j} m_i m_j`: zero when a single token carries all mass."""
    return off_diagonal(tokens.weights.unsqueeze(-1))


def quotient(numerator: Tensor, denominator: Tensor, otherwise: float) -> Tensor:
    """numerator / denominator, and ``otherwise`` where the denominator is not positive, without NaN in the gradient."""
    defined = denominator > 0
    return torch.where(defined, numerator / torch.where(defined, denominator, 1.0), otherwise)
