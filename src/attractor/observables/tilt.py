"""How far the scores spread: whether averages over n tokens converge at the rate of independent samples."""

from __future__ import annotations

import torch
from torch import Tensor

from attractor.attention import Attention, Exponential, Law, Sinkhorn, Softmax
from attractor.observables.laws import Times, along, kernel_of
from attractor.observables.moments import covariance
from attractor.observables.registry import observable
from attractor.spaces import Space
from attractor.states import Gaussian, Tokens

LIMIT = 0.5  # above it, the plain variance of the weights of a Gaussian is infinite


@observable
def tilt(
    tokens: Tokens | Gaussian, law: Law | None = None, space: Space | None = None, *, time: Times = None
) -> Tensor:
    r"""Largest singular value of :math:`\Sigma^{1/2}A\Sigma^{1/2}` for every head, shape (..., heads), with
    :math:`A = \text{scale}\,K^\top Q` (over eps for sinkhorn) and :math:`\Sigma` the covariance of the measure.

    For independent x, y of a centred Gaussian, :math:`e^{y^\top Ax}` has a finite mean below 1 and a finite variance below
    1/2 (meanfield T2): past 1/2 the error of the softmax field on n tokens falls more slowly than :math:`n^{-1/2}`. The
    weights of l2, sigmoid and linear attention have all moments; for them the number measures scores and warns of nothing.
    """
    return along("tilt", _tilt, tokens, law, time)  # type: ignore[arg-type]


def heavy(law: Law) -> bool:
    """Whether the weights of a law are exponentials of scores without a bound, so that ``tilt`` above 1/2 is a warning."""
    return isinstance(law, Attention) and isinstance(kernel_of(law), (Exponential, Softmax))


def _tilt(state: Tokens | Gaussian, law: Attention) -> Tensor:
    shape = covariance(state) if isinstance(state, Tokens) else state.covariance
    values, vectors = torch.linalg.eigh(shape)
    factor = (vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2)).unsqueeze(-3)
    query, key = (part.unsqueeze(0) if part.ndim == 2 else part for part in (law.query, law.key))
    kernel = kernel_of(law)
    scale = law.scale / kernel.eps if isinstance(kernel, Sinkhorn) else law.scale
    spread = (key.to(factor) @ factor).mT @ (query.to(factor) @ factor)
    return abs(scale) * torch.linalg.matrix_norm(spread, ord=2)
