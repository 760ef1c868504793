"""Attention weights: entropy and self-weight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attractor.errors import UnsupportedError
from attractor.laws import Attention, Law
from attractor.observables.energies import head_masses
from attractor.observables.geometry import average
from attractor.observables.registry import Times, evaluate_at_times, observable, pairing_of
from attractor.spaces import Space
from attractor.states import Tokens

PAIRS = 1 << 20  # pairs held at once


def log_rows(tokens: Tokens, law: Attention) -> Iterator[Tensor]:
    """Logarithms (..., h, rows, n) of the weights with rows normalised; -inf where a key is hidden or has no mass."""
    pairing = pairing_of(law, tokens)
    logits = law.kernel.logits(pairing, head_masses(tokens, False).log())
    if logits is None:
        yield law.weights(tokens).log().log_softmax(-1)
        return
    for rows, hidden in pairing.row_blocks(logits.q, logits.k, PAIRS):
        logs = logits.function(logits.q[..., rows, :] @ logits.k.mT) + logits.bias.unsqueeze(-2)
        logs = logs if hidden is None else logs.masked_fill(hidden, -torch.inf)
        yield logs.log_softmax(-1)


@observable
def attention_entropy(
    tokens: Tokens, law: Law | None = None, space: Space | None = None, *, time: Times = None
) -> Tensor:
    r"""Entropy of the rows of the weights in nats, averaged over tokens, for every head: shape (..., heads).

    :math:`-\sum_j p_{ij}\log p_{ij}` with :math:`p_{ij} = w_{ij}/\sum_l w_{il}`: between 0, one key takes all, and
    log n. Linear attention has weights of both signs and no entropy.
    """
    return evaluate_at_times("attention_entropy", _entropy, tokens, law, time)


@observable
def self_weight(tokens: Tokens, law: Law | None = None, space: Space | None = None, *, time: Times = None) -> Tensor:
    r"""Weight :math:`w_{ii}` that a token gives itself, averaged over tokens, for every head: shape (..., heads).

    The sum of a row less that of the other keys, in linear memory; the error is a rounding of the row's sum.
    """
    return evaluate_at_times("self_weight", _diagonal, tokens, law, time)


def _entropy(tokens: Tokens, law: Attention) -> Tensor:
    kernel = law.kernel
    if kernel.signed:
        raise UnsupportedError(f"{kernel.name} attention has weights of both signs, so its rows have no entropy")
    entropies = []
    for logs in log_rows(tokens, law):
        seen = torch.where(logs == -torch.inf, 0.0, logs)
        entropies.append(-(logs.exp() * seen).sum(-1))
    return average(torch.cat(entropies, dim=-1), _by_head(tokens))


def _diagonal(tokens: Tokens, law: Attention) -> Tensor:
    pairing, kernel = pairing_of(law, tokens), law.kernel
    ones = tokens.points.new_ones(tokens.n, 1)
    own = kernel.attend(pairing, ones) - kernel.attend(replace(pairing, skip_self=True), ones)
    return average(own.squeeze(-1), _by_head(tokens))


def _by_head(tokens: Tokens) -> Tensor | None:
    return None if tokens.masses is None else tokens.masses.unsqueeze(-2)
