"""How fast tokens of the unit sphere come together: spreads and rates of approach."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


def spread(points: Tensor) -> Tensor:
    """Largest distance of a token from the first, (...)."""
    return (points - points[..., :1, :]).norm(dim=-1).amax(-1)


def apart(points: Tensor, target: Tensor) -> Tensor:
    """Largest distance of a token from a point, (...)."""
    return (points - target).norm(dim=-1).amax(-1)


def rate_within(times: Tensor, values: Tensor, low: float = 1e-9, high: float = 1e-4) -> float:
    """Rate r of values ~ e^{rt}, fitted where the values fall from one bound to the other; NaN where fewer than four do."""
    # once below, what an integrator does at rest may lift them again
    above = (values > low).to(torch.int64).cumprod(0).bool()
    inside = above & (values < high)
    if int(inside.sum()) < 4:
        return float("nan")
    return float(np.polyfit(times[inside].numpy(), values[inside].log().numpy(), 1)[0])


def odds(values: Tensor) -> Tensor:
    """v^2 / (1 - v^2), of numbers in [0, 1)."""
    square = values.clamp(0.0, 1.0).square()
    return square / (1.0 - square).clamp_min(torch.finfo(values.dtype).tiny)


def tangent_spectrum(field: Callable[[Tensor], Tensor], points: Tensor) -> Tensor:
    """Eigenvalues of the Jacobian of a map of tokens (n, d) on the unit sphere, in tangent directions, by automatic differentiation."""
    n, d = points.shape

    def flat(row: Tensor) -> Tensor:
        at = row.reshape(n, d)
        return field(at / at.norm(dim=-1, keepdim=True)).reshape(-1)

    jacobian = torch.autograd.functional.jacobian(flat, points.reshape(-1))
    assert isinstance(jacobian, Tensor)
    tangent = torch.block_diag(*(torch.linalg.svd(row[None]).Vh[1:] for row in points))
    return torch.linalg.eigvals(tangent @ jacobian @ tangent.mT)
