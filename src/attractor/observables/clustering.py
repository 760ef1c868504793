"""Clusters: groups of tokens that hang together at a given radius."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attractor.attention import Law
from attractor.errors import InputError
from attractor.observables.geometry import about_mean
from attractor.observables.measure import present
from attractor.observables.neighbours import components
from attractor.observables.norm import token_norm
from attractor.observables.registry import observable
from attractor.spaces import Space
from attractor.states import Tokens

SHARE = 0.1  # the default radius, in lengths of the longest token


@observable
def clusters(
    tokens: Tokens, law: Law | None = None, space: Space | None = None, *, radius: float | None = None
) -> Tensor:
    """Number of clusters, shape (...), whole numbers.

    They are the connected components of the graph that joins two tokens when they are closer than ``radius``.
    Straight distance in the norm of the space; tokens at the same point are always together, tokens of mass 0 do not
    count. The default radius is a tenth of the length of the longest token of each state: 0.1 on the unit sphere, and
    indifferent to scale where tokens shrink to 0 or grow without bound.
    """
    roots = _roots(tokens, space, radius)
    own = np.arange(tokens.n)
    return torch.from_numpy((roots == own).sum(-1)).to(tokens.points.device).reshape(tokens.batch_shape)


@observable
def cluster_sizes(
    tokens: Tokens, law: Law | None = None, space: Space | None = None, *, radius: float | None = None
) -> Tensor:
    """Masses of the clusters, largest first, padded with zeros: shape (..., n). See ``clusters``."""
    roots = torch.from_numpy(_roots(tokens, space, radius)).to(tokens.points.device)
    weights = tokens.weights.expand(*tokens.batch_shape, tokens.n).reshape(-1, tokens.n)
    sizes = torch.zeros_like(weights).scatter_add(-1, roots.clamp_min(0), torch.where(roots >= 0, weights, 0.0))
    return sizes.sort(dim=-1, descending=True).values.reshape(*tokens.batch_shape, tokens.n)


def _roots(tokens: Tokens, space: Space | None, radius: float | None) -> np.ndarray:
    """The first token of every token's cluster, (states, n), states flattened."""
    if radius is not None and not 0 <= radius < float("inf"):
        raise InputError(f"the radius of clusters must be a number that is not negative, got {radius}")
    still = tokens.moved(tokens.points.detach())
    points = about_mean(still, space).double().reshape(-1, tokens.n, tokens.dim).cpu()
    if radius is None:
        reach = SHARE * token_norm(still, space=space, reduce="max").double().reshape(-1).cpu().numpy()
    else:
        reach = np.full(len(points), float(radius))
    return components(points, present(tokens).reshape(-1, tokens.n).cpu().numpy(), reach)
