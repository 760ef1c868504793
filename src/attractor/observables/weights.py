"""What the attention weights look like."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attractor.attention import Attention, Exponential, Law, Linear, Softmax
from attractor.errors import UnsupportedError
from attractor.observables.laws import Times, along, kernel_of, pairing_of, states
from attractor.observables.measure import average
from attractor.observables.registry import observable
from attractor.spaces import Space
from attractor.states import Tokens

ENTRIES = 1 << 24  # weights held at once


@observable
def attention_entropy(
    tokens: Tokens, law: Law | None = None, space: Space | None = None, *, time: Times = None
) -> Tensor:
    r"""Entropy of the rows of the weights in nats, averaged over tokens, for every head: shape (..., heads).

    :math:`-\sum_j p_{ij}\log p_{ij}` with :math:`p_{ij} = w_{ij}/\sum_l w_{il}`: between 0, one key takes all, and
    log n. Linear attention has weights of both signs and no entropy.
    """
    return along("attention_entropy", lambda state, attention: _by_state(_entropy, state, attention), tokens, law, time)


@observable
def self_weight(tokens: Tokens, law: Law | None = None, space: Space | None = None, *, time: Times = None) -> Tensor:
    """Weight that a token gives itself, averaged over tokens, for every head: shape (..., heads)."""
    return along("self_weight", lambda state, attention: _by_state(_diagonal, state, attention), tokens, law, time)


def _by_state(function: Callable[[Tokens, Attention], Tensor], tokens: Tokens, law: Attention) -> Tensor:
    """The function of all states at once, or one after the other where their weights would not fit."""
    entries = tokens.batch_shape.numel() * law.heads * tokens.n**2
    own_parameters = law.query.ndim - 3  # a law with one set of parameters a member keeps the axis of its members
    if entries <= ENTRIES or len(tokens.batch_shape) <= max(0, own_parameters):
        return function(tokens, law)
    return torch.stack([_by_state(function, state, law) for state in states(tokens)])


def _columns(tokens: Tokens, law: Attention) -> Iterator[tuple[slice, Tensor]]:
    """The weights (..., h, n, c) of some keys at a time."""
    n = tokens.n
    width = max(1, ENTRIES // (tokens.batch_shape.numel() * law.heads * n))
    if width >= n:
        yield slice(0, n), law.weights(tokens)
        return
    pairing = pairing_of(law, tokens)
    for start in range(0, n, width):
        keys = slice(start, min(start + width, n))
        # the attention of unit vectors is the weights themselves
        units = tokens.points.new_zeros(n, keys.stop - keys.start)
        units[keys].fill_diagonal_(1.0)
        yield keys, kernel_of(law).attend(pairing, units)


def _entropy(tokens: Tokens, law: Attention) -> Tensor:
    if isinstance(law.kernel, Linear):
        raise UnsupportedError("linear attention has weights of both signs, so its rows have no entropy")
    if isinstance(law.kernel, Exponential):
        law = replace(law, kernel=Softmax())  # the same rows once normalised, without overflow
    sums, logs = [], []
    for _, weights in _columns(tokens, law):
        sums.append(weights.sum(-1))
        logs.append((weights * torch.where(weights > 0, weights, 1.0).log()).sum(-1))
    total = torch.stack(sums).sum(0)
    empty = total <= 0  # every weight of the row underflows
    total = torch.where(empty, 1.0, total)
    rows = torch.where(empty, 0.0, total.log() - torch.stack(logs).sum(0) / total)
    return average(rows.clamp_min(0.0), _by_head(tokens))


def _diagonal(tokens: Tokens, law: Attention) -> Tensor:
    own = [weights[..., keys, :].diagonal(dim1=-2, dim2=-1) for keys, weights in _columns(tokens, law)]
    return average(torch.cat(own, dim=-1), _by_head(tokens))


def _by_head(tokens: Tokens) -> Tensor | None:
    return None if tokens.masses is None else tokens.masses.unsqueeze(-2)
