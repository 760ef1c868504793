"""Angles between tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from attractor.attention import Law
from attractor.observables.farthest import farthest_pair
from attractor.observables.geometry import directions
from attractor.observables.measure import off_diagonal, pair_mass, present, quotient
from attractor.observables.registry import observable
from attractor.spaces import Space
from attractor.states import Tokens


@observable
def cosine(tokens: Tokens, law: Law | None = None, space: Space | None = None) -> Tensor:
    r"""Mean cosine of two different tokens, shape (...).

    :math:`\sum_{i\ne j} m_i m_j \cos(x_i, x_j) / \sum_{i\ne j} m_i m_j`.
    From :math:`|\sum_i m_i u_i|^2` with :math:`u_i = x_i/|x_i|`, linear in n. A token at the origin has cosine 0 with
    every other; a single token has cosine 1.
    """
    pairs = off_diagonal(tokens.weights.unsqueeze(-1) * directions(tokens, space))
    return quotient(pairs, pair_mass(tokens), 1.0).clamp(-1.0, 1.0)


@observable
def cosine_min(tokens: Tokens, law: Law | None = None, space: Space | None = None) -> Tensor:
    r"""Smallest cosine of two tokens with its sign, shape (...): -1 for an antipodal pair, 1 at consensus.

    It is :math:`1 - |u_i - u_j|^2/2` for the two unit vectors farthest apart. A token at the origin has cosine 0 with
    every other; a single token has cosine 1.
    """
    units = directions(tokens, space)
    taking_part = present(tokens)
    pointing = taking_part & (units != 0).any(-1)
    first, second = farthest_pair(_about_their_mean(units.detach(), pointing), pointing)
    x, y = (units.take_along_dim(index[..., None, None], -2).squeeze(-2) for index in (first, second))
    smallest = 1.0 - ((x - y) ** 2).sum(-1) / 2.0
    at_origin = (taking_part & ~pointing).any(-1) & (taking_part.sum(-1) > 1)
    smallest = torch.where(pointing.any(-1), smallest, 1.0)
    return torch.where(at_origin, smallest.clamp(max=0.0), smallest).clamp(min=-1.0)


def _about_their_mean(units: Tensor, pointing: Tensor) -> Tensor:
    """Unit vectors less their mean, so that the distances of nearly parallel ones keep their digits."""
    count = pointing.sum(-1, keepdim=True).clamp_min(1).unsqueeze(-1)
    centre = torch.where(pointing.unsqueeze(-1), units, 0.0).sum(-2, keepdim=True) / count
    return units - centre
