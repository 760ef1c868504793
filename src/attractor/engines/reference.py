"""Reference engine: all pairs at once, differentiable, on any device. The other engines are tested against it."""

from __future__ import annotations

import torch
from torch import Tensor

from attractor import memory
from attractor.engines.problem import Problem, Results

ARRAYS = 4  # of the size of all pairs that are held at once
LARGEST = 1 << 22  # pairs held at once before the blockwise engine is the better choice


def priority(problem: Problem) -> float:
    """Preferred where all pairs fit in cache-friendly memory, or where a gradient is needed."""
    return 2.0 if problem.pairs <= LARGEST or problem.needs_gradient else 0.0


def run(problem: Problem) -> Results:
    if problem.pairs > LARGEST:
        needed = ARRAYS * problem.pairs * problem.q.element_size()
        what = f"the {problem.queries:,} x {problem.keys:,} pairs that the reference engine holds at once"
        memory.check(
            needed, problem.queries, what, power=2, device=problem.q.device, advice=", and other engines need less"
        )
    scores = problem.q @ problem.k.transpose(-1, -2)
    if problem.key_bias is not None:
        scores = scores + problem.key_bias.unsqueeze(-2)
    hidden = problem.hidden_pairs(slice(0, problem.queries), slice(0, problem.keys))
    if problem.has_logsumexp:
        return _exponential(problem, scores, hidden)
    weights = torch.sigmoid(scores) if problem.mode == "sigmoid" else scores
    if hidden is not None:
        weights = weights.masked_fill(hidden, 0.0)
    return (None if problem.v is None else _without_self(problem, weights) @ problem.v), None


def _exponential(problem: Problem, scores: Tensor, hidden: Tensor | None) -> tuple[Tensor | None, Tensor]:
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    # the result does not depend on the peak, so no gradient goes through it
    peak = scores.detach().amax(dim=-1)
    # a row that sees no key has peak -inf; shifting it by 0 and dividing by 1 makes output and gradient 0, not NaN
    blind = peak == -torch.inf
    shifted = (scores - torch.where(blind, 0.0, peak).unsqueeze(-1)).exp()
    total = torch.where(blind, 1.0, shifted.sum(dim=-1))
    logsumexp = (peak + total.log()).expand(*problem.batch, problem.queries)
    if problem.v is None:
        return None, logsumexp
    weights = scores.exp() if problem.mode == "exponential" else shifted / total.unsqueeze(-1)
    return _without_self(problem, weights) @ problem.v, logsumexp


def _without_self(problem: Problem, weights: Tensor) -> Tensor:
    if not problem.skip_self:
        return weights
    own = problem.positions(slice(0, problem.queries)) == torch.arange(problem.keys, device=weights.device)
    return weights.masked_fill(own, 0.0)
