r"""Measures of tokens with positions, under a mask: transport may not change the position.

.. math:: d_p(\mu,\nu)^p = \int W_p(\mu^s,\nu^s)^p\,d\theta(s)

where :math:`\theta` is the position marginal that both share and :math:`\mu^s` the law of the tokens at position s; it is
infinite where the marginals differ. :math:`W_p \le d_p`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attractor.errors import UnsupportedError
from attractor.meanfield.distances import wasserstein
from attractor.meanfield.measures import Cloud, check_order, check_pair, cloud
from attractor.states import Tokens

SAME = 1e-9  # masses of one position that differ by less than this share are the same


def conditional_wasserstein(first: Tokens, second: Tokens, p: float = 2.0) -> Tensor:
    """d_p (...): exact transport at each position, +inf where the masses at some position differ.

    Tokens without positions stand at 0, 1, ..., n-1: then d_p pairs token i with token i.
    """
    check_pair(first, second, "conditional_wasserstein")
    p = check_order(p, "conditional_wasserstein")
    if not isinstance(first, Tokens) or not isinstance(second, Tokens):
        raise UnsupportedError("conditional_wasserstein compares tokens with positions; a Gaussian has none")
    here, there = cloud(first), cloud(second)
    if first.positions is None and second.positions is None and first.n == second.n:
        return _one_by_one(here, there, p)
    members = range(max(1, first.batch_shape.numel()))
    values = [_member(_take(first, here, k), _take(second, there, k), p) for k in members]
    return torch.tensor(values, dtype=torch.float64).reshape(first.batch_shape)


def _one_by_one(here: Cloud, there: Cloud, p: float) -> Tensor:
    weights = here.explicit
    differ = ((weights - there.explicit).abs() > SAME * weights.clamp_min(1e-300)).any(-1)
    lengths = (here.points - there.points).norm(dim=-1)
    return torch.where(differ, torch.inf, (weights * lengths**p).sum(-1) ** (1.0 / p))


Placed = tuple[Tensor, Tensor, Tensor]  # points (n, d), weights (n,), positions (n,)


def _take(tokens: Tokens, side: Cloud, member: int) -> Placed:
    positions = tokens.positions
    if positions is None:
        positions = torch.arange(tokens.n, dtype=side.points.dtype)
    positions = positions.expand(side.points.shape[:-1]).reshape(-1, tokens.n)[member].double()
    points = side.points.reshape(-1, *side.points.shape[-2:])[member]
    weights = side.explicit.reshape(-1, tokens.n)[member]
    carrying = weights > 0
    return points[carrying], weights[carrying], positions[carrying]


def _member(first: Placed, second: Placed, p: float) -> float:
    places = torch.unique(first[2])
    if not torch.equal(places, torch.unique(second[2])):
        return float("inf")
    total = 0.0
    for place in places:
        (x, a), (y, b) = ((side[0][side[2] == place], side[1][side[2] == place]) for side in (first, second))
        mass, other = float(a.sum()), float(b.sum())
        if abs(mass - other) > SAME * mass:
            return float("inf")
        total += mass * float(wasserstein(Tokens.trusted(x, _unequal(a)), Tokens.trusted(y, _unequal(b)), p)) ** p
    return total ** (1.0 / p)


def _unequal(weights: Tensor) -> Tensor | None:
    """Masses, or None where all are the same: assignments are solved faster than transport."""
    return None if bool((weights == weights[0]).all()) else weights
