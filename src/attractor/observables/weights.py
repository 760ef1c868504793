"""Attention weights: entropy, self-weight and leaders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attractor.errors import UnsupportedError
from attractor.laws import Attention, Law, Total, exact_scores
from attractor.observables.energies import head_masses
from attractor.observables.geometry import average, has_mass
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


@observable
def leaders(
    tokens: Tokens, law: Law | None = None, space: Space | None = None, *, each: bool = False, time: Times = None
) -> Tensor:
    r"""Number of leaders for every head, shape (..., heads): points that see themselves with the largest score.

    Token i leads if :math:`s_{ii} > s_{ij}` for all visible keys of positive mass at other points. Under hardmax attention a
    leader is its own maximum and stays where it is; for scores :math:`\langle x_i, Px_j\rangle` with positive definite P the token of
    the largest norm :math:`\langle x, Px\rangle` always leads [alcalde2025clustering]. Tokens at one point count once; with
    ``exclude_self`` none leads. ``each=True`` gives True or False for every token instead, (..., heads, n).
    """
    if isinstance(law, Total):
        parts = [part for part in law.laws if isinstance(part, Attention)]
        law = parts[0] if len(parts) == 1 else law
    found = evaluate_at_times("leaders", _find_leaders, tokens, law, time)
    return found if each else _count_points(tokens, found)


def _find_leaders(tokens: Tokens, law: Attention) -> Tensor:
    if not law.kernel.bilinear:
        raise UnsupportedError(
            f"leaders have the largest scores, and the {law.kernel.name} kernel has distances instead"
        )
    pairing, taking_part = pairing_of(law, tokens), has_mass(tokens).unsqueeze(-2)
    found = []
    for rows, hidden in pairing.row_blocks(pairing.q, pairing.k, PAIRS):
        scores = exact_scores(pairing.scaled_query[..., rows, :], pairing.k)
        seen = taking_part.unsqueeze(-2) if hidden is None else ~hidden & taking_part.unsqueeze(-2)
        own = scores.diagonal(rows.start, -2, -1).unsqueeze(-1)
        rivals = (scores >= own) & seen & ~_coincide(tokens.points, rows).unsqueeze(-3)
        itself = seen.expand_as(scores).diagonal(rows.start, -2, -1)
        found.append(itself & ~rivals.any(-1))
    leads = torch.cat(found, dim=-1)
    return torch.zeros_like(leads) if getattr(law.kernel, "exclude_self", False) else leads


def _coincide(points: Tensor, rows: slice) -> Tensor:
    """Which tokens are at the point of some rows, (..., rows, n)."""
    equal = points[..., rows, None, 0] == points[..., None, :, 0]
    for c in range(1, points.shape[-1]):
        equal = equal & (points[..., rows, None, c] == points[..., None, :, c])
    return equal


def _count_points(tokens: Tokens, leads: Tensor) -> Tensor:
    """Number (..., h) of different points among the chosen tokens (..., h, n)."""
    height, n = max(1, PAIRS // max(1, leads.numel())), tokens.n
    counts = torch.zeros(leads.shape[:-1], dtype=torch.int64, device=leads.device)
    for start in range(0, n, height):
        rows = slice(start, min(start + height, n))
        before = torch.arange(n, device=leads.device) < torch.arange(n, device=leads.device)[rows, None]
        again = (_coincide(tokens.points, rows) & before).unsqueeze(-3) & leads.unsqueeze(-2)
        counts += (leads[..., rows] & ~again.any(-1)).sum(-1)
    return counts


def _by_head(tokens: Tokens) -> Tensor | None:
    return None if tokens.masses is None else tokens.masses.unsqueeze(-2)
