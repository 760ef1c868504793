r"""Gradient-flow structure: which energy a law climbs or descends, in which metric, and whether a run obeys it (T11).

Write :math:`A = \text{scale}\,K^\top Q` and assume :math:`V = cA`, :math:`A = A^\top` in every head, c common to all. Then along the
flow :math:`\dot E = \frac1c\,|\dot\mu|^2`, so that E rises for c > 0 and falls for c < 0, where

================  ========================  ==============================  =============================================
metric            state and kernel          E                               :math:`|\dot\mu|^2`
================  ========================  ==============================  =============================================
wasserstein       tokens: exponential,      ``energy``                      :math:`\int|\Gamma|^2 d\mu`
                  sigmoid, linear, sinkhorn
twisted           tokens: softmax, 1 head   ``energy``                      :math:`\int G|\Gamma|^2 d\mu`, :math:`G = \int e^{s}d\mu`
bures             Gaussian: softmax, l2     ``gaussian_energy``             :math:`\int|\Gamma|^2 d\mu` (softmax: of the
                  (Q = K), sinkhorn,                                        covariance, :math:`\mathrm{tr}(B\Sigma B^\top)`)
                  linear
affine-invariant  Gaussian: softmax with    :math:`\mathrm{tr}(2S\Sigma)`,  :math:`\mathrm{tr}(\Sigma^{-1}\dot\Sigma\Sigma^{-1}\dot\Sigma)`
                  V = c I, any A            :math:`S = (A + A^\top)/2`      (on the range of :math:`\Sigma`)
================  ========================  ==============================  =============================================

For Gaussian softmax :math:`V = cA^\top` with :math:`A^\top = -A` is a gradient flow too, and no other :math:`V = cA^\top` is. L2
attention on tokens with Q = K and V = A has the field :math:`\nabla(\frac12x^\top Ax + \frac12\log G)`, a gradient, but no energy of the
measure is known whose gradient it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attractor.errors import InputError, UnsupportedError
from attractor.laws import Attention, Closure, Law, Symmetry
from attractor.meanfield.distances import Measure
from attractor.observables import energy, gaussian_energy, partition
from attractor.states import Gaussian, Tokens

ROUNDING = 1e-10  # relative size of what counts as zero in a hypothesis


@dataclass(frozen=True)
class GradientStructure:
    """A metric and an energy: along the flow dE/dt = ``speed`` / ``factor``."""

    metric: str
    factor: float
    law: Attention
    _energy: Callable[[Tensor], Tensor]
    _speed: Callable[[Tensor], Tensor]

    def energy(self, state: Measure) -> Tensor:
        """E (...) of a state."""
        return self._energy(_rows(state))

    def speed(self, state: Measure) -> Tensor:
        """Squared length (...) of the velocity of the measure in the metric."""
        return self._speed(_rows(state))

    def rate(self, state: Measure) -> Tensor:
        """dE/dt (...) along the law, from the gradient of E and the velocity: equal to speed / factor."""
        rows = _rows(state).detach().clone().requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(self._energy(rows).sum(), rows)
        return (gradient * _velocity(self.law, state)).sum((-2, -1))

    def defect(self, state: Measure) -> float:
        """Largest relative difference between dE/dt and speed / factor: rounding, where the structure holds."""
        rate, wanted = self.rate(state), self.speed(state) / self.factor
        return float(((rate - wanted).abs() / wanted.abs().clamp_min(1e-300)).max())


def _rows(state: Measure) -> Tensor:
    return state.points if isinstance(state, Tokens) else state.rows()


def _velocity(law: Law, state: Measure) -> Tensor:
    if isinstance(state, Tokens):
        return law.velocity(state).detach()
    return Closure(law).velocity(Tokens.unchecked(state.rows())).detach()


def gradient_structures(law: Law, state: Measure) -> tuple[GradientStructure, ...]:
    """Find every gradient-flow structure that a law has on tokens or on Gaussians.

    Parameters
    ----------
    law : one attention without mask, positions and biases.
    state : Tokens or a Gaussian.

    Returns
    -------
    tuple of GradientStructure

    Raises
    ------
    UnsupportedError
        If no structure is known, with the reason.
    """
    if not isinstance(state, (Tokens, Gaussian)):
        raise InputError(f"gradient flows move Tokens(...) or a Gaussian(...), got {type(state).__name__}")
    reason = _obstacle(law)
    if reason:
        raise UnsupportedError(f"this law is not known to be a gradient flow: {reason}")
    assert isinstance(law, Attention)
    found = _of_tokens(law, state) if isinstance(state, Tokens) else _of_gaussians(law)
    if isinstance(found, str):
        raise UnsupportedError(f"this law is not known to be a gradient flow: {found}")
    return found


def _obstacle(law: Law) -> str:
    if not isinstance(law, Attention):
        return f"the structure is that of one attention, not of {type(law).__name__}"
    if law.mask is not None:
        return "under a mask the interaction of two tokens is not mutual"
    if law.positions is not None:
        return "positions make tokens at the same point different"
    if any(part is not None for part in (law.query_bias, law.key_bias, law.value_bias, law.output_bias)):
        return "biases are not part of it"
    return "" if law.query.ndim < 4 else "it is asked for one law at a time, without ensemble parameters"


def _matrices(law: Attention) -> tuple[Tensor, Tensor]:
    """A and V of every head, (h, d, d)."""
    A, V = law.scale * (law.key.mT @ law.query), law.value_map
    return (A.unsqueeze(0), V.unsqueeze(0)) if A.ndim == 2 else (A, V)


def _near(first: Tensor, second: Tensor) -> bool:
    size = max(float(first.abs().max()), float(second.abs().max()), 1e-300)
    return float((first - second).abs().max()) <= ROUNDING * size


def common_multiple(V: Tensor, A: Tensor) -> float | None:
    """c with V = c A for every head, or None."""
    size = float((A * A).sum())
    c = float((V * A).sum()) / size if size > 0 else 0.0
    return c if c != 0 and _near(V, c * A) else None


def _of_tokens(law: Attention, tokens: Tokens) -> tuple[GradientStructure, ...] | str:
    A, V = _matrices(law)
    metric = law.kernel.token_metric
    if metric is None:
        return law.kernel.token_obstacle
    if not _near(A, A.mT):
        return "K'Q is not symmetric"
    c = common_multiple(V, A)
    if c is None:
        return "the value is not one multiple of K'Q in every head"
    twisted = metric == "twisted"
    if twisted and len(A) > 1:
        return f"each {law.kernel.name} head has a weight of its own, and their sum is no metric"

    def speed(points: Tensor) -> Tensor:
        state = tokens.with_points(points)
        squares = (law.velocity(state) ** 2).sum(-1)
        weight = partition(state, law).squeeze(-2) if twisted else torch.ones_like(squares)
        return (state.weights * weight * squares).sum(-1)

    return (GradientStructure(metric, c, law, lambda points: energy(tokens.with_points(points), law), speed),)


def _of_gaussians(law: Attention) -> tuple[GradientStructure, ...] | str:
    Closure(law)  # which says why a Gaussian may not stay one
    A, V = _matrices(law)
    kernel = law.kernel
    found = []
    c = common_multiple(V, A.mT)
    symmetry = Symmetry(_near(A, A.mT), all(_near(head, head.mT) or _near(head, -head.mT) for head in A))
    reason = kernel.gaussian_gradient_obstacle(law.query, law.key, float(law.scale), symmetry)
    if not reason and c is not None:
        found.append(
            GradientStructure("bures", c, law, _bures_energy(law), _bures_speed(law, kernel.covariance_gradient))
        )
    identity = torch.eye(A.shape[-1], dtype=V.dtype, device=V.device)
    scalars = V.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
    if kernel.covariance_gradient and _near(V, scalars * identity) and bool((scalars != 0).any()):
        found.append(GradientStructure("affine-invariant", 1.0, law, _linear_energy(scalars, A), _affine_speed(law)))
    if found:
        return tuple(found)
    if c is None:
        also = f" nor ({kernel.name}) a multiple of the identity" if kernel.covariance_gradient else ""
        return f"the value is neither one multiple of (K'Q)' in every head{also}"
    return reason


def _bures_energy(law: Attention) -> Callable[[Tensor], Tensor]:
    return lambda rows: gaussian_energy(rows[..., 0, :], rows[..., 1:, :].mT, law)


def _bures_speed(law: Attention, covariance_only: bool) -> Callable[[Tensor], Tensor]:
    """|mean'|^2 + tr(BLL'B'), the squares of all rows of the velocity, or the second term alone."""

    def speed(rows: Tensor) -> Tensor:
        velocity = Closure(law).velocity(Tokens.unchecked(rows))
        return (velocity[..., int(covariance_only) :, :] ** 2).sum((-2, -1))

    return speed


def _linear_energy(scalars: Tensor, A: Tensor) -> Callable[[Tensor], Tensor]:
    twice = (scalars * (A + A.mT)).sum(0)

    def value(rows: Tensor) -> Tensor:
        factor = rows[..., 1:, :].mT
        return (factor * (twice.to(factor) @ factor)).sum((-2, -1))

    return value


def _affine_speed(law: Attention) -> Callable[[Tensor], Tensor]:
    def speed(rows: Tensor) -> Tensor:
        factor = rows[..., 1:, :].mT
        drift = torch.linalg.pinv(factor, rtol=1e-12) @ Closure(law).velocity(Tokens.unchecked(rows))[..., 1:, :].mT
        # inv(L) (L'L^T + LL'^T) inv(L)^T = X + X^T with X = inv(L) L', on the range of Sigma
        return ((drift + drift.mT) ** 2).sum((-2, -1))

    return speed


def energy_and_rate(structure: GradientStructure, run: Any) -> tuple[Tensor, Tensor]:
    """E and speed / factor at the saved times of a run: the second is the derivative of the first."""
    states = [run.state(index) for index in range(len(run.times))]
    energies = torch.stack([structure.energy(state) for state in states])
    return energies, torch.stack([structure.speed(state) for state in states]) / structure.factor
