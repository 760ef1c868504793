"""Rows of weights as a softmax, a few at a time: the logits that a kernel amounts to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from attractor.attention import L2, Attention, Exponential, Sigmoid, Sinkhorn, Softmax
from attractor.attention.kernels import Pairing
from attractor.engines import Problem
from attractor.observables.interaction import masses
from attractor.observables.laws import kernel_of, pairing_of
from attractor.states import Tokens

PAIRS = 1 << 20  # pairs held at once
Logits = tuple[Tensor, Tensor, Tensor, Callable[[Tensor], Tensor]]


def log_rows(tokens: Tokens, law: Attention) -> Iterator[Tensor]:
    """Logarithms (..., h, rows, n) of the weights with rows normalised; -inf where a key is hidden or has no mass."""
    pairing = pairing_of(law, tokens)
    known = _logits(law, pairing, masses(tokens, False).log())
    if known is None:  # a kernel that only its weights are known of
        yield law.weights(tokens).log().log_softmax(-1)
        return
    q, k, bias, function = known
    hide: dict[str, Any] = {"causal": False, "window": None, "visible": None, **pairing.hide}
    problem = Problem(q, k, None, bias, "softmax", skip_self=False, **hide)
    height = max(1, PAIRS // max(1, problem.batch.numel() * tokens.n))
    for start in range(0, tokens.n, height):
        rows = slice(start, min(start + height, tokens.n))
        logits = function(q[..., rows, :] @ k.mT) + bias.unsqueeze(-2)
        hidden = problem.hidden(rows, slice(0, tokens.n))
        logits = logits if hidden is None else logits.masked_fill(hidden, -torch.inf)
        yield logits.log_softmax(-1)


def _logits(law: Attention, pairing: Pairing, log_masses: Tensor) -> Logits | None:
    r"""q, k, b and :math:`\psi` with :math:`\log w_{ij} = \psi(\langle q_i, k_j\rangle) + b_j` up to a term of the row."""
    kernel, q, k = kernel_of(law), pairing.scaled_query, pairing.k
    if isinstance(kernel, (Softmax, Exponential)):
        return q, k, log_masses, _unchanged
    if isinstance(kernel, Sinkhorn):
        q = q / kernel.eps
        return q, k, log_masses + kernel.potential(pairing, q, log_masses), _unchanged
    if isinstance(kernel, Sigmoid):
        return q, k, log_masses, lambda scores: logsigmoid(scores + kernel.bias)
    if isinstance(kernel, L2):
        centre = k.mean(-2, keepdim=True)
        q, k = 2.0 * pairing.scale * (pairing.q - centre), k - centre
        return q, k, log_masses - pairing.scale * (k * k).sum(-1), _unchanged
    return None


def _unchanged(scores: Tensor) -> Tensor:
    return scores
