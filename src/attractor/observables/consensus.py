"""How far tokens are from being one."""

from __future__ import annotations

import torch
from torch import Tensor

from attractor.attention import Law
from attractor.observables.geometry import about_mean, directions
from attractor.observables.measure import average, present
from attractor.observables.registry import observable
from attractor.spaces import Space
from attractor.states import Tokens


@observable
def consensus_metric(tokens: Tokens, law: Law | None = None, space: Space | None = None) -> Tensor:
    r"""Consensus as the experiments of [abella2024asymptotic] measure it, shape (...): 0 at consensus.

    :math:`1 - \text{mean}_j |\cos(x_1, x_j)|`, j = 1 included.
    It is blind to signs: two antipodal clusters score 0, so report ``cosine_min`` beside it. The first token of
    positive mass is :math:`x_1`; the mean is weighted by mass; a token at the origin counts as orthogonal. Computed
    from :math:`1 - |\cos| = \min(|u_1 - u_j|^2, |u_1 + u_j|^2)/2`, so that it does not stop at the rounding of 1.
    """
    units = directions(tokens, space)
    first = present(tokens).to(torch.int8).argmax(-1)[..., None, None]
    reference = units.take_along_dim(first, -2)
    same, opposite = (((units - sign * reference) ** 2).sum(-1) for sign in (1.0, -1.0))
    pointing = (units != 0).any(-1) & (reference != 0).any(-1)
    return average(torch.where(pointing, torch.minimum(same, opposite) / 2.0, 1.0), tokens.masses)


@observable
def consensus_gap(tokens: Tokens, law: Law | None = None, space: Space | None = None) -> Tensor:
    r"""Largest distance of a token from the mean, shape (...).

    :math:`\max_i |x_i - \bar x|` in the norm of the space, :math:`\bar x` the mean of the measure.
    """
    lengths = torch.linalg.vector_norm(about_mean(tokens, space), dim=-1)
    return torch.where(present(tokens), lengths, 0.0).amax(-1)
