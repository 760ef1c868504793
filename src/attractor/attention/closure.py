r"""Gaussian closures: under these laws a Gaussian measure stays Gaussian.

The field of a Gaussian :math:`N(\alpha, \Sigma)` is affine, :math:`\Gamma(x) = Bx + b`, so
:math:`\dot\alpha = B\alpha + b` and a factor L of the covariance obeys :math:`\dot L = BL`: the covariance stays positive
semi-definite, of constant rank, by construction [castin2025unified]. With :math:`A = \text{scale}\,K^\top Q` and heads summed:

========  =========================================================  =======================================================
kernel    B                                                          :math:`\dot\alpha`
========  =========================================================  =======================================================
softmax   :math:`V\Sigma A`                                          :math:`V(I + \Sigma A)\alpha`
l2        :math:`2V(I + 2\Sigma K^\top K)^{-1}\Sigma A`              :math:`V(I + 2\Sigma K^\top K)^{-1}(I + 2\Sigma A)\alpha`
sinkhorn  :math:`2VL[I + (I + 4aa^\top)^{1/2}]^{-1}L^\top A/\epsilon`   :math:`V\alpha`, with :math:`a = L^\top A L/\epsilon`
linear    :math:`V(\Sigma + \alpha\alpha^\top)A`                     :math:`B\alpha`
affine    W                                                          :math:`W\alpha + c`
========  =========================================================  =======================================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attractor.attention.attention import Attention
from attractor.attention.feedforward import Affine
from attractor.attention.kernels import Kernel
from attractor.attention.kernels.sinkhorn import Sinkhorn
from attractor.attention.law import Law, Total
from attractor.errors import UnsupportedError
from attractor.states import Tokens

Moments = tuple[Tensor, Tensor]  # B (..., d, d) and the velocity of the mean (..., d)


@dataclass(frozen=True, eq=False)
class Closure(Law):
    """The closed dynamics of a Gaussian, on rows (..., 1 + r, d): the mean, then the columns of the factor."""

    law: Law

    def __post_init__(self) -> None:
        for part in _parts(self.law):
            reason = obstacle(part)
            if reason:
                raise UnsupportedError(f"a Gaussian does not stay Gaussian under this law: {reason}")

    @property
    def autonomous(self) -> bool:  # type: ignore[override]
        return self.law.autonomous

    @property
    def dim(self) -> int | None:
        return self.law.dim

    def member(self, index: Tensor) -> Closure:
        return Closure(self.law.member(index))

    def velocity(self, tokens: Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor:
        mean, factor = tokens.points[..., 0, :], tokens.points[..., 1:, :].mT
        slope: Tensor | None = None
        drift: Tensor | None = None
        for part in _parts(self.law):
            B, velocity = moments(part, mean, factor)
            slope, drift = (B, velocity) if slope is None or drift is None else (slope + B, drift + velocity)
        assert slope is not None
        assert drift is not None
        return torch.cat((drift.unsqueeze(-2), (slope @ factor).mT), dim=-2)


def _parts(law: Law) -> tuple[Law, ...]:
    return law.laws if isinstance(law, Total) else (law,)


def obstacle(law: Law) -> str:
    """Why a Gaussian does not stay Gaussian under a law, or nothing."""
    if isinstance(law, Affine):
        return ""
    if not isinstance(law, Attention):
        return f"{type(law).__name__} is not affine on Gaussian data"
    assert isinstance(law.kernel, Kernel)
    if law.kernel.name not in CLOSURES:
        return f"the {law.kernel.name} kernel gives a field that is not affine"
    if law.mask is not None or law.positions is not None:
        return "masks and positions single out tokens, and a Gaussian has none"
    if any(bias is not None for bias in (law.query_bias, law.key_bias, law.value_bias, law.output_bias)):
        return "biases are not part of the closure"
    return ""


def moments(law: Law, mean: Tensor, factor: Tensor) -> Moments:
    """B and the velocity of the mean that one law gives a Gaussian."""
    if isinstance(law, Affine):
        matrix = law.matrix.to(mean)
        velocity = (matrix @ mean.unsqueeze(-1)).squeeze(-1)
        return matrix.expand(
            *mean.shape[:-1], *matrix.shape
        ), velocity if law.offset is None else velocity + law.offset.to(mean)
    assert isinstance(law, Attention)
    assert isinstance(law.kernel, Kernel)
    B, velocity = CLOSURES[law.kernel.name](law, mean.unsqueeze(-2).unsqueeze(-1), factor.unsqueeze(-3))
    return B.sum(-3), velocity.squeeze(-1).sum(-2)


def _heads(law: Attention, like: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Q, K, V and A = scale K'Q, each (h, ., .)."""
    query, key, value = (part.unsqueeze(0) if part.ndim == 2 else part for part in (law.query, law.key, law.value_map))
    query, key, value = query.to(like), key.to(like), value.to(like)
    return query, key, value, law.scale * (key.mT @ query)


def _softmax(law: Attention, mean: Tensor, factor: Tensor) -> Moments:
    _, _, V, A = _heads(law, mean)
    B = V @ (factor @ factor.mT) @ A
    return B, V @ mean + B @ mean


def _l2(law: Attention, mean: Tensor, factor: Tensor) -> Moments:
    _, key, V, A = _heads(law, mean)
    covariance = factor @ factor.mT
    identity = torch.eye(law.dim, dtype=mean.dtype, device=mean.device)
    posterior = identity + 2.0 * law.scale * covariance @ (key.mT @ key)
    tilted = torch.linalg.solve(posterior, covariance @ A)
    return 2.0 * V @ tilted, V @ (
        torch.linalg.solve(posterior, mean.expand(*posterior.shape[:-1], 1)) + 2.0 * tilted @ mean
    )


def _sinkhorn(law: Attention, mean: Tensor, factor: Tensor) -> Moments:
    assert isinstance(law.kernel, Sinkhorn)
    _, _, V, A = _heads(law, mean)
    a = factor.mT @ (A / law.kernel.eps) @ factor
    values, vectors = torch.linalg.eigh(a @ a.mT)
    middle = (vectors / (1.0 + (1.0 + 4.0 * values.clamp_min(0.0)).sqrt()).unsqueeze(-2)) @ vectors.mT
    return 2.0 * V @ factor @ middle @ factor.mT @ (A / law.kernel.eps), V @ mean


def _linear(law: Attention, mean: Tensor, factor: Tensor) -> Moments:
    _, _, V, A = _heads(law, mean)
    B = V @ (factor @ factor.mT + mean @ mean.mT) @ A
    return B, B @ mean


CLOSURES: dict[str, Callable[[Attention, Tensor, Tensor], Moments]] = {
    "softmax": _softmax,
    "l2": _l2,
    "sinkhorn": _sinkhorn,
    "linear": _linear,
}
