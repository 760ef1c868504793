"""Tokens on the sphere, the truth about one evaluation, and arrays of every library as tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ROWS = 256  # of an evaluation, checked against the reference in float64


def uniform(n: int, dim: int, seed: int, dtype: str = "float64", ensemble: int | tuple[int, ...] = ()) -> Tensor:
    """Points (..., n, d), uniform on the unit sphere."""
    from attractor.states import Tokens

    return Tokens.uniform(n, dim, seed, ensemble).points.to(getattr(torch, dtype))


def array(result: Any) -> Tensor:
    """A result as a tensor, whichever library made it."""
    if isinstance(result, Tensor):
        return result
    import numpy as np

    return torch.from_numpy(np.array(result))


def evaluated(x: Tensor, rows: Tensor, beta: float = 1.0) -> Tensor:
    """Rows of softmax(beta x x') x in float64, by the reference engine."""
    from attractor.engines import attend

    points = x.double()
    output, _ = attend(beta * points[rows], points, points, engine="reference")
    assert output is not None
    return output


def some_rows(n: int, seed: int) -> Tensor:
    """Tokens that are checked: the same for every contender."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:ROWS]


def sampled_error(result: Tensor, x: Tensor, seed: int, beta: float = 1.0) -> float:
    """The largest error of a coordinate over some rows."""
    if tuple(result.shape) != tuple(x.shape):
        return float("inf")
    rows = some_rows(len(x), seed).to(x.device)
    return float((result.to(x.device)[rows].double() - evaluated(x, rows, beta)).abs().max())
