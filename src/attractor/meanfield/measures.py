"""Two measures made ready to be compared: one dimension, total mass one, no ensemble left over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.observables import covariance, mean
from attractor.states import Gaussian, Tokens

Measure = Tokens | Gaussian


@dataclass(frozen=True)
class Cloud:
    """Points (..., n, d) in float64 and weights (..., n) that sum to one; None: 1/n each."""

    points: Tensor
    weights: Tensor | None

    @property
    def n(self) -> int:
        return self.points.shape[-2]

    @property
    def explicit(self) -> Tensor:
        """Weights (..., n), also where they are all equal."""
        if self.weights is None:
            return self.points.new_full(self.points.shape[:-1], 1.0 / self.n)
        return self.weights.expand(self.points.shape[:-1])

    @property
    def line(self) -> Tensor:
        """Points (..., n) of a cloud in one dimension."""
        return self.points.squeeze(-1)


def cloud(tokens: Tokens) -> Cloud:
    """Tokens as a probability measure: masses are divided by their sum, those of no mass stay with weight zero."""
    weights = None if tokens.masses is None else tokens.masses.detach().double()
    points = tokens.points.detach().double()
    return Cloud(points, None if weights is None else weights / weights.sum(-1, keepdim=True))


def check_pair(first: Any, second: Any, name: str) -> None:
    """Refuse what is no measure, and measures that cannot be compared."""
    for measure in (first, second):
        if not isinstance(measure, (Tokens, Gaussian)):
            raise InputError(f"{name} compares Tokens(...) or Gaussian(...), got {type(measure).__name__}")
    if first.dim != second.dim:
        raise InputError(f"{name} compares measures of one dimension, got {first.dim} and {second.dim}")
    if first.batch_shape != second.batch_shape:
        raise InputError(
            f"{name} compares measures with the same ensemble axes, got {tuple(first.batch_shape)} and {tuple(second.batch_shape)}"
        )


def check_order(p: float, name: str) -> float:
    if not 1.0 <= p < float("inf"):
        raise InputError(f"{name} needs an order p of at least 1 and finite, got {p}")
    return float(p)


def moments_of(measure: Measure) -> tuple[Tensor, Tensor]:
    """Mean (..., d) and covariance (..., d, d); the covariance of tokens divides by n, not by n - 1."""
    if isinstance(measure, Gaussian):
        return measure.mean, measure.covariance
    return mean(measure).double(), covariance(measure).double()


def factor_of(matrix: Tensor) -> Tensor:
    r"""L (..., d, d) with :math:`LL^\top` the matrix, positive semi-definite up to rounding."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2)
