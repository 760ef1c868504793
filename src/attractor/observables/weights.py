"""What the attention weights look like."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attractor.attention import Attention, Law, Linear
from attractor.errors import UnsupportedError
from attractor.observables.laws import Times, along, kernel_of, pairing_of
from attractor.observables.logits import log_rows
from attractor.observables.measure import average
from attractor.observables.registry import observable
from attractor.spaces import Space
from attractor.states import Tokens


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
