"""Sums over all pairs of tokens, by head, in linear memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attractor.attention import Sinkhorn
from attractor.attention.kernels import Pairing
from attractor.engines import Problem, attend
from attractor.errors import UnsupportedError
from attractor.observables.measure import present
from attractor.states import Tokens

PAIRS = 1 << 22  # pairs held at once


def masses(tokens: Tokens, total: bool) -> Tensor:
    """Masses (..., 1, n) with room for heads; one for every token of positive mass if ``total``."""
    chosen = present(tokens).to(tokens.points.dtype) if total else tokens.weights
    return chosen.unsqueeze(-2)


def log_partition(pairing: Pairing, weights: Tensor) -> Tensor:
    r""":math:`\log\sum_j m_j e^{s_{ij}}` over the visible keys, (..., h, n)."""
    hide: dict[str, Any] = pairing.hide
    _, values = attend(pairing.scaled_query, pairing.k, None, weights.log(), "softmax", **hide)
    assert values is not None
    return values


def transport(pairing: Pairing, kernel: Sinkhorn, weights: Tensor) -> Tensor:
    r""":math:`\max_\pi \int s\,d\pi - \varepsilon\,\mathrm{KL}(\pi|\mu\otimes\mu)` over couplings, heads summed, (...).

    This is :math:`-\varepsilon\sum_i m_i (f_i + g_i)`. The potential f is the exact answer to g, so an error of g
    enters squared and the gradient at fixed g is the gradient (envelope theorem).
    """
    if pairing.hide:
        raise UnsupportedError("the sinkhorn energy belongs to the full coupling; under a mask it has no meaning")
    q, log_weights = pairing.scaled_query / kernel.eps, weights.log()
    with torch.no_grad():
        g = kernel.potential(pairing, q, log_weights)
    _, values = attend(q, pairing.k, None, g + log_weights, "softmax")
    assert values is not None
    return kernel.eps * (weights * (values - g)).sum((-2, -1))


def squared_scores(pairing: Pairing, weights: Tensor) -> Tensor:
    r""":math:`\sum_{hij} m_i m_j s_{ij}^2`, (...): from second moments of queries and keys where no pair is hidden."""
    if pairing.hide:
        return pair_sum(pairing, torch.square, weights)
    q, k, column = pairing.scaled_query, pairing.k, weights.unsqueeze(-1)
    return ((q.mT @ (column * q)) * (k.mT @ (column * k))).sum((-3, -2, -1))


def pair_sum(pairing: Pairing, function: Callable[[Tensor], Tensor], weights: Tensor) -> Tensor:
    r""":math:`\sum_{hij} m_i m_j \varphi(s_{ij})` over the visible pairs, (...), in blocks of rows."""
    hide: dict[str, Any] = {"causal": False, "window": None, "visible": None, **pairing.hide}
    problem = Problem(pairing.scaled_query, pairing.k, None, None, "linear", skip_self=False, **hide)
    n = problem.queries
    height = max(1, PAIRS // max(1, problem.batch.numel() * n))
    sums = []
    for start in range(0, n, height):
        rows = slice(start, min(start + height, n))
        values = function(problem.q[..., rows, :] @ problem.k.mT)
        hidden = problem.hidden(rows, slice(0, n))
        values = values if hidden is None else values.masked_fill(hidden, 0.0)
        sums.append((weights[..., rows] * (values * weights.unsqueeze(-2)).sum(-1)).sum((-2, -1)))
    return torch.stack(sums).sum(0)
