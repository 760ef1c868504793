"""How fast tokens of the unit sphere come together: spreads and rates of approach."""

from __future__ import annotations

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
    """Rate r of values ~ e^{rt}, fitted where the values lie between the bounds; NaN where fewer than four do."""
    inside = (values > low) & (values < high)
    if int(inside.sum()) < 4:
        return float("nan")
    return float(np.polyfit(times[inside].numpy(), values[inside].log().numpy(), 1)[0])


def odds(values: Tensor) -> Tensor:
    """v^2 / (1 - v^2), of numbers in [0, 1)."""
    square = values.clamp(0.0, 1.0).square()
    return square / (1.0 - square).clamp_min(torch.finfo(values.dtype).tiny)
