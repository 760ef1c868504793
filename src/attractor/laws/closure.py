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
renormalised over it. That is what a Gaussian under a causal mask stands for here. The formulas are written once and serve tensors
and, where a solver wants speed and no gradients, numpy arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.errors import UnsupportedError
from attractor.laws.attention import Attention
from attractor.laws.blocks import MLP, Affine, Block
from attractor.laws.kernels.kernel import Kernel
from attractor.laws.kernels.sinkhorn import Sinkhorn
from attractor.laws.law import Law, Total
from attractor.laws.masks import Causal
from attractor.laws.schedules import Schedule, Stack
from attractor.states import Tokens

Moments = tuple[Any, Any]  # B (..., d, d) and the velocity of the mean (..., d), tensors or arrays
TINY = 1e-200  # square of a length that stands for none
OPEN = "its moments alone can be followed, and not exactly, by attractor.meanfield.moment_closure"


@dataclass(frozen=True, eq=False)
class Closure(Law):
    """The closed dynamics of a Gaussian, on rows (..., 1 + r, d): the mean, then the columns of the factor."""

    law: Law

    def __post_init__(self) -> None:
        for law in _moments_in_time(self.law):
            for part in parts(law):
                reason = obstacle(part)
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

    def member(self, index: Tensor) -> Closure:
        return Closure(self.law.member(index))

    def velocity(self, tokens: Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor:
        mean, factor = tokens.points[..., 0, :], tokens.points[..., 1:, :].mT
        at = getattr(self.law, "at", None)
        slope, drift = _summed([moments(part, mean, factor) for part in parts(self.law if at is None else at(time))])
        return torch.cat((drift.unsqueeze(-2), (slope @ factor).mT), dim=-2)


def parts(law: Law) -> tuple[Law, ...]:
    """The laws whose velocities add up to that of a law."""
    if isinstance(law, Total):
        return tuple(part for one in law.laws for part in parts(one))
    if isinstance(law, Block) and law.placement == "none":
        both = (law.attention,) if law.feedforward is None else (law.attention, law.feedforward)
        return tuple(part for one in both for part in parts(one))
    return (law,)


def _moments_in_time(law: Law) -> tuple[Law, ...]:
    """The laws that act, one after the other; of a schedule that is a function, the first."""
    if isinstance(law, Stack) or (isinstance(law, Schedule) and law.laws):
        return law.laws
    return (law.at(0.0),) if isinstance(law, Schedule) else (law,)


def obstacle(law: Law) -> str:
    """Why a Gaussian does not stay Gaussian under a law, or nothing."""
    if isinstance(law, Affine) or (isinstance(law, MLP) and law.activation == "identity" and law.gate is None):
        return ""
    if isinstance(law, Block):
        return f"a block with {law.placement} normalisation is not affine on Gaussian data"
    if not isinstance(law, Attention):
        return f"{type(law).__name__} is not affine on Gaussian data"
    assert isinstance(law.kernel, Kernel)
    name = law.kernel.name
    if name not in CLOSURES:
        more = f"; {OPEN}" if name in ("sigmoid", "exponential") else ""
        return f"the {name} kernel gives a field that is not affine{more}"
    if law.positions is not None:
        return "positions single out tokens, and a Gaussian has none"
    if law.mask is not None and not isinstance(law.mask, Causal):
        return (
            f"a {law.mask.name} mask sees single tokens, a share of a Gaussian that vanishes; a causal mask is closed for product "
            f"data"
        )
    if law.mask is not None and name == "linear":
        return "linear attention under a causal mask weighs a prefix by its mass, so the field depends on the position"
    if name == "l2" and float(law.scale) < 0:
        return "with a negative scale the weights of l2 grow at infinity and need not be integrable"
    if any(bias is not None for bias in (law.query_bias, law.key_bias, law.value_bias, law.output_bias)):
        return "biases are not part of the closure"
    return ""


def moments(law: Law, mean: Tensor, factor: Tensor) -> Moments:
    """B and the velocity of the mean that one law gives a Gaussian."""
    if isinstance(law, (Affine, MLP)):
        matrix, offset = (None if part is None else part.to(mean) for part in affine_map(law))
        assert matrix is not None
        velocity = (matrix @ mean.unsqueeze(-1)).squeeze(-1)
        return matrix.expand(*mean.shape[:-1], *matrix.shape), velocity if offset is None else velocity + offset
    assert isinstance(law, Attention)
    assert isinstance(law.kernel, Kernel)
    B, velocity = CLOSURES[law.kernel.name](_heads(law, mean), mean.unsqueeze(-2).unsqueeze(-1), factor.unsqueeze(-3))
    return B.sum(-3), velocity.squeeze(-1).sum(-2)


def affine_map(law: Affine | MLP) -> tuple[Tensor, Tensor | None]:
    """W and c of a law x -> W x + c."""
    if isinstance(law, Affine):
        return law.matrix, law.offset
    offset = None if law.b1 is None else law.w2 @ law.b1
    if law.b2 is not None:
        offset = law.b2 if offset is None else offset + law.b2
    return law.w2 @ law.w1, offset


def numeric(law: Law) -> Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """The same for one Gaussian in numpy: a function of the mean (d,) and a factor (d, r), many times faster for small d."""
    heads: list[tuple[Callable[..., Moments], Heads]] = []
    dim = law.dim or 1
    matrix, offset = np.zeros((dim, dim)), np.zeros(dim)
    for part in parts(law):
        if isinstance(part, (Affine, MLP)):
            W, c = affine_map(part)
            matrix = matrix + W.detach().cpu().double().numpy()
            offset = offset if c is None else offset + c.detach().cpu().double().numpy()
            continue
        assert isinstance(part, Attention)
        assert isinstance(part.kernel, Kernel)
        heads.append((CLOSURES[part.kernel.name], _heads(part, None)))

    def field(mean: np.ndarray, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        slope, drift = matrix, matrix @ mean + offset
        for closure, one in heads:
            B, velocity = closure(one, mean[:, None], factor)
            slope, drift = slope + B.sum(0), drift + velocity.sum(0)[:, 0]
        return slope, drift

    return field


def _summed(pairs: list[Moments]) -> Moments:
    slope, drift = pairs[0]
    for B, velocity in pairs[1:]:
        slope, drift = slope + B, drift + velocity
    return slope, drift


@dataclass(frozen=True)
class Heads:
    """Parameters of attention with a heads axis, as tensors or arrays: V, A = scale K'Q, sqrt(2 scale) K; ``library`` is torch or numpy."""

    value: Any
    interaction: Any
    sharp_key: Any
    eps: float
    library: Any


def _heads(law: Attention, like: Tensor | None) -> Heads:
    query, key, value = (part.unsqueeze(0) if part.ndim == 2 else part for part in (law.query, law.key, law.value_map))
    eps = law.kernel.eps if isinstance(law.kernel, Sinkhorn) else 1.0
    scale = law.scale
    if like is not None:
        query, key, value = query.to(like), key.to(like), value.to(like)
        return Heads(value, scale * (key.mT @ query), abs(2.0 * scale) ** 0.5 * key, eps, torch)
    # of an ensemble's law one member is left by now, with its axis
    query, key, value = (part.detach().cpu().double().reshape(part.shape[-3:]) for part in (query, key, value))
    arrays = value.numpy(), (scale * (key.mT @ query)).numpy(), (abs(2.0 * scale) ** 0.5 * key).numpy()
    return Heads(*arrays, eps, np)


def _softmax(heads: Heads, mean: Any, factor: Any) -> Moments:
    B = heads.value @ factor @ (factor.swapaxes(-1, -2) @ heads.interaction)
    return B, heads.value @ mean + B @ mean


def _l2(heads: Heads, mean: Any, factor: Any) -> Moments:
    r"""With :math:`P = (\Sigma^{-1} + 2K^\top K)^{-1} = U(D^{-2} + 2U^\top K^\top KU)^{-1}U^\top`, L = UD with unit columns, and the matrix
    inside R'R for the triangular R of the keys above the inverse of D: columns of very different length do no harm."""
    V, A, K = heads.value, heads.interaction, heads.sharp_key
    lengths = ((factor * factor).sum(-2) + TINY) ** 0.5
    unit = factor / lengths[..., None, :]
    keyed = K @ unit
    R = heads.library.linalg.qr(_above(keyed, lengths))[1]
    half = heads.library.linalg.solve(R.swapaxes(-1, -2), unit.swapaxes(-1, -2))
    posterior = half.swapaxes(-1, -2) @ half
    tilted = 2.0 * posterior @ A
    pulled = posterior @ (K.swapaxes(-1, -2) @ (K @ mean))
    return V @ tilted, V @ (mean - pulled + tilted @ mean)


def _above(keyed: Any, lengths: Any) -> Any:
    """The rows of sqrt(2 scale) K U above those of the inverse of D."""
    rank = keyed.shape[-1]
    if isinstance(keyed, np.ndarray):
        below = np.broadcast_to(np.eye(rank) / lengths[..., None, :], (*keyed.shape[:-2], rank, rank))
        return np.concatenate((keyed, below), axis=-2)
    eye = torch.eye(rank, dtype=keyed.dtype, device=keyed.device)
    return torch.cat((keyed, (eye / lengths[..., None, :]).expand(*keyed.shape[:-2], rank, rank)), dim=-2)


def _sinkhorn(heads: Heads, mean: Any, factor: Any) -> Moments:
    V, A = heads.value, heads.interaction / heads.eps
    left, right = factor.swapaxes(-1, -2), factor.swapaxes(-1, -2) @ A
    library = heads.library
    U, s, _ = library.linalg.svd(right @ factor)
    middle = U * (2.0 / (1.0 + library.hypot(library.ones_like(s), 2.0 * s)))[..., None, :]
    return V @ (left.swapaxes(-1, -2) @ (middle @ (U.swapaxes(-1, -2) @ right))), V @ mean


def _linear(heads: Heads, mean: Any, factor: Any) -> Moments:
    B = heads.value @ (factor @ factor.swapaxes(-1, -2) + mean @ mean.swapaxes(-1, -2)) @ heads.interaction
    return B, B @ mean


CLOSURES: dict[str, Callable[[Heads, Any, Any], Moments]] = {
    "softmax": _softmax,
    "l2": _l2,
    "sinkhorn": _sinkhorn,
    "linear": _linear,
}
