"""How long tokens are."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from attractor.attention import Law
from attractor.errors import InputError
from attractor.observables.measure import average, present
from attractor.observables.registry import observable
from attractor.spaces import Euclidean, Space
from attractor.states import Tokens


@observable
def token_norm(
    tokens: Tokens,
    law: Law | None = None,
    space: Space | None = None,
    *,
    reduce: Literal["mean", "max", "min"] = "mean",
) -> Tensor:
    r"""Mean, largest or smallest length of the tokens in the norm of the space.

    ``reduce="mean"`` is :math:`\sum_i m_i |x_i| / \sum_i m_i`, shape (...).
    """
    space = Euclidean() if space is None else space
    space.check_dimension(tokens.dim)
    lengths = space.norm(tokens.points)
    if reduce == "mean":
        return average(lengths, tokens.masses)
    if reduce == "max":
        return torch.where(present(tokens), lengths, -torch.inf).amax(-1)
    if reduce == "min":
        return torch.where(present(tokens), lengths, torch.inf).amin(-1)
    raise InputError(f"reduce must be 'mean', 'max' or 'min', got {reduce!r}")
