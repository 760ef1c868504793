r"""What can be said of a stream in time linear in its tokens, so that a model at work is hardly slowed.

The mean squared distance of two of n tokens is :math:`\frac{2}{n-1}\sum|x_i - \bar x|^2`, which does not cancel where tokens are close, and
their mean cosine :math:`(|\sum x_i/|x_i||^2 - n)/(n(n-1))`.
"""

from __future__ import annotations

import torch
from torch import Tensor

LINEAR = ("token_norm", "pairwise_distance", "cosine", "sharpness")
REST = "_without_first"


def linear(points: Tensor) -> dict[str, Tensor]:
    """Measurements of the tokens (n, d) and, with ``_without_first``, of all but the first; and how long that one is beside the others."""
    x = points.double()
    lengths = torch.linalg.vector_norm(x, dim=-1)
    share = torch.where(lengths > 0, 1.0 / lengths, 0.0)
    way = share @ x  # the sum of unit vectors, none of which is formed
    found = _of(x, lengths, way)
    rest = _of(x[1:], lengths[1:], way - share[0] * x[0])
    found |= {name + REST: value for name, value in rest.items()}
    found["first_norm"] = lengths[0] / rest["token_norm"]
    return found


def _of(x: Tensor, lengths: Tensor, way: Tensor) -> dict[str, Tensor]:
    n, norm = len(x), lengths.mean()
    if n < 2:
        return {name: torch.full_like(norm, torch.nan) for name in LINEAR} | {"token_norm": norm}
    distance = torch.linalg.vector_norm(x - x.mean(0)).square() * (2.0 / (n - 1))
    cosine = (way @ way - (lengths > 0).sum()) / (n * (n - 1))
    sharpness = distance * n / (2.0 * (lengths @ lengths))
    return {
        "token_norm": norm,
        "pairwise_distance": distance,
        "cosine": cosine.clamp(-1.0, 1.0),
        "sharpness": sharpness,
    }


def moved(before: Tensor, after: Tensor) -> Tensor:
    """The root mean square over tokens of how far they went."""
    return torch.linalg.vector_norm(after - before, dtype=torch.float64) / len(before) ** 0.5
