"""How many directions tokens use."""

from __future__ import annotations

import torch
from torch import Tensor

from attractor.attention import Law
from attractor.observables.geometry import about_mean, isometric
from attractor.observables.registry import observable
from attractor.spaces import Space
from attractor.states import Tokens


@observable
def effective_rank(
    tokens: Tokens, law: Law | None = None, space: Space | None = None, *, centred: bool = False
) -> Tensor:
    r"""Effective rank of the tokens, shape (...) [roy2007effective].

    :math:`\exp(-\sum_k p_k \log p_k)` with :math:`p_k = \sigma_k / \sum_l \sigma_l`.
    The singular values are those of the tokens as rows :math:`\sqrt{m_i}\,x_i`, so their squares are the eigenvalues
    of the second moment. ``centred=True`` subtracts the mean first (then they belong to the covariance). Between 1
    and min(n, d); 0 where all tokens vanish.
    """
    points = about_mean(tokens, space) if centred else isometric(tokens.points, space)
    if tokens.masses is not None:
        points = tokens.masses.sqrt().unsqueeze(-1) * points
    singular = torch.linalg.svdvals(points)
    total = singular.sum(-1, keepdim=True)
    shares = singular / torch.where(total > 0, total, 1.0)
    # p log p tends to 0 with p, its derivative does not: zero shares are kept out of the gradient
    entropy = -(shares * torch.where(shares > 0, shares, 1.0).log()).sum(-1)
    return torch.where(total.squeeze(-1) > 0, entropy.exp(), 0.0)
