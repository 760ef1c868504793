r"""Gaussian closures: under these laws a Gaussian measure stays Gaussian.

The field of a Gaussian :math:`N(\alpha, \Sigma)` is affine, :math:`\Gamma(x) = Bx + b`, so
:math:`\dot\alpha = B\alpha + b` and a factor L of the covariance obeys :math:`\dot L = BL`: the covariance stays positive
semi-definite, of constant rank, by construction [castin2025unified]. With :math:`A = \text{scale}\,K^\top Q`, heads summed and
:math:`\Sigma = LL^\top`:

========  =========================================================  =======================================================
kernel    B                                                          :math:`\dot\alpha`
========  =========================================================  =======================================================
softmax   :math:`V\Sigma A`                                          :math:`V(I + \Sigma A)\alpha`
l2        :math:`2V(I + 2\Sigma K^\top K)^{-1}\Sigma A`              :math:`V(I + 2\Sigma K^\top K)^{-1}(I + 2\Sigma A)\alpha`
sinkhorn  :math:`2VL[I + (I + 4aa^\top)^{1/2}]^{-1}L^\top A/\epsilon`   :math:`V\alpha`, with :math:`a = L^\top A L/\epsilon`
linear    :math:`V(\Sigma + \alpha\alpha^\top)A`                     :math:`B\alpha`
affine    W                                                          :math:`W\alpha + c`
========  =========================================================  =======================================================

A causal mask changes nothing for product data, positions independent of tokens: every prefix then has the same law, and rows are
renormalised over it. A Gaussian under a causal mask represents such data. The formulas accept tensors and, for solvers that
need speed and no gradients, numpy arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attractor.errors import UnsupportedError
from attractor.laws.attention import Attention
from attractor.laws.blocks import MLP, Affine, Block
from attractor.laws.kernels.kernel import HeadMatrices, Kernel, Moments
from attractor.laws.law import Law, Total
from attractor.laws.schedules import Schedule, Stack
from attractor.states import Tokens

OPEN = "its moments alone can be followed, and not exactly, by attractor.meanfield.moment_closure"


@dataclass(frozen=True, eq=False)
class Closure(Law):
    """The closed dynamics of a Gaussian, on rows (..., 1 + r, d): the mean, then the columns of the factor."""

    law: Law

    def __post_init__(self) -> None:
        for law in _moments_in_time(self.law):
            for part in summands(law):
                reason = closure_obstacle(part)
                if reason:
                    raise UnsupportedError(f"a Gaussian does not stay Gaussian under this law: {reason}")

    @property
    def autonomous(self) -> bool:  # type: ignore[override]
        return self.law.autonomous

    @property
    def dim(self) -> int | None:
        return self.law.dim

    def breaks(self, start: float, end: float) -> list[float]:
        return self.law.breaks(start, end)

    def between(self, start: float, end: float) -> Law:
        return self if self.autonomous else Closure(self.law.between(start, end))

    def merge_obstacle(self) -> str | None:
        return "a Gaussian has no tokens"

    def member(self, index: Tensor) -> Closure:
        return Closure(self.law.member(index))

    def velocity(self, tokens: Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor:
        mean, factor = tokens.points[..., 0, :], tokens.points[..., 1:, :].mT
        slope, drift = self.rates(mean, factor, time)
        return torch.cat((drift.unsqueeze(-2), (slope @ factor).mT), dim=-2)

    def rates(self, mean: Tensor, factor: Tensor, time: float) -> Moments:
        """B (..., d, d) and the velocity of the mean (..., d), for a mean and a factor of the covariance."""
        at = getattr(self.law, "at", None)
        return _summed([moment_rates(part, mean, factor) for part in summands(self.law if at is None else at(time))])


def summands(law: Law) -> tuple[Law, ...]:
    """The laws whose velocities add up to that of a law."""
    if isinstance(law, Total) or (isinstance(law, Block) and law.placement == "none"):
        return tuple(part for one in law.components for part in summands(one))
    return (law,)


def _moments_in_time(law: Law) -> tuple[Law, ...]:
    """The laws that act, one after the other; of a schedule that is a function, the first."""
    if isinstance(law, Stack) or (isinstance(law, Schedule) and law.laws):
        return law.laws
    return (law.at(0.0),) if isinstance(law, Schedule) else (law,)


def closure_obstacle(law: Law) -> str:
    """Why a Gaussian does not stay Gaussian under a law, or nothing."""
    if isinstance(law, Affine) or (isinstance(law, MLP) and law.activation == "identity" and law.gate is None):
        return ""
    if isinstance(law, Block):
        return f"a block with {law.placement} normalisation is not affine on Gaussian data"
    if not isinstance(law, Attention):
        return f"{type(law).__name__} is not affine on Gaussian data"
    scale, masked = float(law.scale), law.mask is not None
    if not law.kernel.has_closure:
        more = f"; {OPEN}" if law.kernel.has_moment_closure else ""
        return f"{law.kernel.closure_obstacle(scale, masked)}{more}"
    if law.positions is not None:
        return "positions single out tokens, and a Gaussian has none"
    if law.mask is not None and not law.mask.sees_prefix:
        return (
            f"a {law.mask.name} mask sees single tokens, a share of a Gaussian that vanishes; a causal mask is closed for product "
            f"data"
        )
    reason = law.kernel.closure_obstacle(scale, masked)
    if reason:
        return reason
    if any(bias is not None for bias in (law.query_bias, law.key_bias, law.value_bias, law.output_bias)):
        return "biases are not part of the closure"
    return ""


def moment_rates(law: Law, mean: Tensor, factor: Tensor) -> Moments:
    """B and the velocity of the mean that one law gives a Gaussian."""
    if isinstance(law, (Affine, MLP)):
        matrix, offset = (None if part is None else part.to(mean) for part in affine_map(law))
        assert matrix is not None
        velocity = (matrix @ mean.unsqueeze(-1)).squeeze(-1)
        return matrix.expand(*mean.shape[:-1], *matrix.shape), velocity if offset is None else velocity + offset
    assert isinstance(law, Attention)
    column, columns = mean.unsqueeze(-2).unsqueeze(-1), factor.unsqueeze(-3)
    B, velocity = law.kernel.gaussian_moments(_heads(law, mean), column, columns)
    return B.sum(-3), velocity.squeeze(-1).sum(-2)


def affine_map(law: Affine | MLP) -> tuple[Tensor, Tensor | None]:
    """W and c of a law x -> W x + c."""
    if isinstance(law, Affine):
        return law.matrix, law.offset
    offset = None if law.b1 is None else law.w2 @ law.b1
    if law.b2 is not None:
        offset = law.b2 if offset is None else offset + law.b2
    return law.w2 @ law.w1, offset


def closure_field(law: Law) -> Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """The same for one Gaussian in numpy: a function of the mean (d,) and a factor (d, r), many times faster for small d."""
    heads: list[tuple[Kernel, HeadMatrices]] = []
    dim = law.dim or 1
    matrix, offset = np.zeros((dim, dim)), np.zeros(dim)
    for part in summands(law):
        if isinstance(part, (Affine, MLP)):
            W, c = affine_map(part)
            matrix = matrix + W.detach().cpu().double().numpy()
            offset = offset if c is None else offset + c.detach().cpu().double().numpy()
            continue
        assert isinstance(part, Attention)
        heads.append((part.kernel, _heads(part, None)))

    def field(mean: np.ndarray, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        slope, drift = matrix, matrix @ mean + offset
        for kernel, one in heads:
            B, velocity = kernel.gaussian_moments(one, mean[:, None], factor)
            slope, drift = slope + B.sum(0), drift + velocity.sum(0)[:, 0]
        return slope, drift

    return field


def _summed(pairs: list[Moments]) -> Moments:
    slope, drift = pairs[0]
    for B, velocity in pairs[1:]:
        slope, drift = slope + B, drift + velocity
    return slope, drift


def _heads(law: Attention, like: Tensor | None) -> HeadMatrices:
    query, key, value = (part.unsqueeze(0) if part.ndim == 2 else part for part in (law.query, law.key, law.value_map))
    scale = law.scale
    if like is not None:
        query, key, value = query.to(like), key.to(like), value.to(like)
        return HeadMatrices(value, scale * (key.mT @ query), abs(2.0 * scale) ** 0.5 * key, torch)
    # of an ensemble's law one member is left by now, with its axis
    query, key, value = (part.detach().cpu().double().reshape(part.shape[-3:]) for part in (query, key, value))
    arrays = value.numpy(), (scale * (key.mT @ query)).numpy(), (abs(2.0 * scale) ** 0.5 * key).numpy()
    return HeadMatrices(*arrays, np)
