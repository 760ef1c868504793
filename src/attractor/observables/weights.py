"""Attention weights: entropy and self-weight."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from attractor.engines import Problem
from attractor.errors import UnsupportedError
from attractor.laws import L2, Attention, Exponential, Law, Linear, Pairing, Sigmoid, Sinkhorn, Softmax
from attractor.observables.energies import masses
from attractor.observables.geometry import average
from attractor.observables.registry import Times, along, kernel_of, observable, pairing_of
from attractor.spaces import Space
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
        hidden = problem.hidden_pairs(rows, slice(0, tokens.n))
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


@observable
def attention_entropy(
    tokens: Tokens, law: Law | None = None, space: Space | None = None, *, time: Times = None
) -> Tensor:
    r"""Entropy of the rows of the weights in nats, averaged over tokens, for every head: shape (..., heads).

    :math:`-\sum_j p_{ij}\log p_{ij}` with :math:`p_{ij} = w_{ij}/\sum_l w_{il}`: between 0, one key takes all, and
    log n. Linear attention has weights of both signs and no entropy.
    """
    return along("attention_entropy", _entropy, tokens, law, time)


@observable
def self_weight(tokens: Tokens, law: Law | None = None, space: Space | None = None, *, time: Times = None) -> Tensor:
    r"""Weight :math:`w_{ii}` that a token gives itself, averaged over tokens, for every head: shape (..., heads).

    The sum of a row less that of the other keys, in linear memory; the error is a rounding of the row's sum.
    """
    return along("self_weight", _diagonal, tokens, law, time)


def _entropy(tokens: Tokens, law: Attention) -> Tensor:
    if isinstance(law.kernel, Linear):
        raise UnsupportedError("linear attention has weights of both signs, so its rows have no entropy")
    entropies = []
    for logs in log_rows(tokens, law):
        seen = torch.where(logs == -torch.inf, 0.0, logs)
        entropies.append(-(logs.exp() * seen).sum(-1))
    return average(torch.cat(entropies, dim=-1), _by_head(tokens))


def _diagonal(tokens: Tokens, law: Attention) -> Tensor:
    pairing, kernel = pairing_of(law, tokens), kernel_of(law)
    ones = tokens.points.new_ones(tokens.n, 1)
    own = kernel.attend(pairing, ones) - kernel.attend(replace(pairing, skip_self=True), ones)
    return average(own.squeeze(-1), _by_head(tokens))


def _by_head(tokens: Tokens) -> Tensor | None:
    return None if tokens.masses is None else tokens.masses.unsqueeze(-2)
