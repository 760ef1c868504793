"""Random matrices and laws for samplers: definite, symmetric or not, of chosen inertia."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.attention import Attention
from attractor.states import Tokens

Draw = np.random.Generator
SIZES = ((2, 3), (3, 4), (5, 3), (6, 4))  # (n, d): few, so that cases of one shape run as one ensemble


def sizes(draw: Draw, choices: Sequence[tuple[int, int]] = SIZES) -> tuple[int, int]:
    """A number of tokens and a dimension."""
    n, d = choices[int(draw.integers(len(choices)))]
    return n, d


def orthogonal(draw: Draw, d: int) -> Tensor:
    """An orthogonal matrix, uniformly distributed."""
    q, r = np.linalg.qr(draw.standard_normal((d, d)))
    return torch.from_numpy(q * np.sign(np.diag(r)))


def spectral(draw: Draw, values: Sequence[float] | np.ndarray) -> Tensor:
    """A symmetric matrix with these eigenvalues, in a random basis."""
    basis = orthogonal(draw, len(values))
    matrix = basis @ torch.diag(torch.as_tensor(np.asarray(values, dtype=np.float64))) @ basis.mT
    return (matrix + matrix.mT) / 2


def definite(draw: Draw, d: int, sign: float = 1.0, low: float = 0.4, high: float = 1.5) -> Tensor:
    """A symmetric matrix whose eigenvalues have one sign."""
    return sign * spectral(draw, draw.uniform(low, high, d))


def indefinite(draw: Draw, d: int, positive: int | None = None, low: float = 0.4, high: float = 1.5) -> Tensor:
    """A symmetric matrix with some eigenvalues of either sign."""
    count = int(draw.integers(1, d)) if positive is None else positive
    return spectral(draw, draw.uniform(low, high, d) * np.where(np.arange(d) < count, 1.0, -1.0))


def skew(draw: Draw, d: int, size: float = 0.5) -> Tensor:
    """A skew matrix with entries of this standard deviation."""
    matrix = torch.from_numpy(size * draw.standard_normal((d, d)))
    return (matrix - matrix.mT) / 2**0.5


def law_of(draw: Draw, interaction: Tensor, value: Tensor, **options: Any) -> Attention:
    """An attention law with these W and V; query and key split W by a random orthogonal query."""
    query = orthogonal(draw, interaction.shape[-1])
    return Attention(query, query @ interaction, value, **options)


def metric_law(draw: Draw, metric: Tensor, interaction: Tensor, **options: Any) -> Attention:
    """The law whose metric and interaction are given: V = inv(A) W."""
    return law_of(draw, interaction, torch.linalg.solve(metric, interaction), **options)


def shared_metric_law(draw: Draw, metric: Tensor, heads: int, sign: float = 1.0, **options: Any) -> Attention:
    """Several heads of full rank that share a metric; every W has a definite symmetric part of the sign."""
    d = metric.shape[0]
    interactions = [definite(draw, d, sign) / heads + skew(draw, d, 0.3) / heads for _ in range(heads)]
    parts = [metric_law(draw, metric, interaction) for interaction in interactions]
    query, key, value = (torch.stack([getattr(part, name) for part in parts]) for name in ("query", "key", "value"))
    return Attention(query, key, value, **options)


def cloud(draw: Draw, n: int, d: int, size: float = 1.0) -> Tokens:
    """Independent normal tokens."""
    return Tokens(torch.from_numpy(size * draw.standard_normal((n, d))))
