"""Whether tokens lie in an open hemisphere, and by what margin."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attractor.attention import Law
from attractor.observables.geometry import isometric
from attractor.observables.hull import nearest
from attractor.observables.measure import present
from attractor.observables.registry import observable
from attractor.spaces import Space
from attractor.states import Tokens


@observable
def hemisphere_margin(tokens: Tokens, law: Law | None = None, space: Space | None = None) -> Tensor:
    r"""Distance from the origin to the convex hull of the tokens, in the norm of the space, shape (...).

    :math:`\rho = \operatorname{dist}(0, \operatorname{conv}\{x_i\}) = \max_{|e|=1}\min_i\langle e, x_i\rangle^+`.
    Tokens lie in an open hemisphere exactly when :math:`\rho > 0`; on the unit sphere
    :math:`\rho = 1` exactly at consensus. With V = I it never decreases [abella2024asymptotic] (consensus T2). The
    error is a few roundings of the longest token; the value is exactly 0 where the hull contains the origin. Its
    gradient is :math:`\partial\rho/\partial x_i = \lambda_i e` with the weights of the nearest point
    [wolfe1976finding].
    """
    points = isometric(tokens.points, space).double()
    flat = points.detach().reshape(-1, tokens.n, tokens.dim).cpu().numpy()
    parts = present(tokens).reshape(-1, tokens.n).cpu().numpy()
    weights, normals = np.zeros(flat.shape[:-1]), np.zeros((len(flat), tokens.dim))
    for state, part in enumerate(parts):
        weights[state, part], normals[state] = nearest(flat[state, part])
    heights = points @ torch.from_numpy(normals).to(points).reshape(*tokens.batch_shape, tokens.dim, 1)
    lifted = torch.from_numpy(weights).to(points).reshape(*tokens.batch_shape, tokens.n)
    return (lifted * heights.squeeze(-1)).sum(-1).clamp_min(0.0).to(tokens.points.dtype)
