"""Tokens drawn from a Gaussian, as they come or whitened."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from attractor.errors import InputError
from attractor.meanfield.measures import factor_of
from attractor.observables import covariance
from attractor.states import Gaussian, Tokens


def sample(
    gaussian: Gaussian, n: int, seed: int = 0, *, whitened: bool = False, ensemble: int | Sequence[int] = ()
) -> Tokens:
    """n independent tokens (..., n, d) of a Gaussian, the leading axes those of ``ensemble``.

    ``whitened`` moves and stretches each draw so that its mean and covariance (divisor n) are exactly those of the Gaussian:
    what differs later is the dynamics, not the start. It needs more tokens than dimensions.
    """
    if not isinstance(gaussian, Gaussian) or gaussian.batch_shape:
        raise InputError("sample draws tokens from one Gaussian(mean, covariance), without ensemble axes")
    if whitened and n <= gaussian.dim:
        raise InputError(f"whitened samples need more tokens than dimensions, got n = {n} in dimension {gaussian.dim}")
    tokens = Tokens.gaussian(n, gaussian.dim, seed, ensemble=ensemble)
    points = tokens.points
    if whitened:
        points = points - points.mean(-2, keepdim=True)
        root = factor_of(covariance(tokens))
        # x = L z with LL' the empirical covariance, so inv(L) x is white
        points = torch.linalg.solve(root, points.mT).mT
    return Tokens(points @ gaussian.factor.mT + gaussian.mean)
