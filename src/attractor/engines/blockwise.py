"""Blockwise engine: blocks of queries against blocks of keys with online softmax, in linear memory."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attractor.engines.problem import Problem, Results

QUERIES = 256  # rows of a block
PAIRS = 1 << 20  # pairs of a block, over all batch axes


def priority(problem: Problem) -> float:
    """Below the reference, except where all pairs at once would need too much memory."""
    return 1.0


def run(problem: Problem) -> Results:
    lanes = max(1, problem.batch.numel())
    rows = max(1, min(problem.queries, QUERIES, PAIRS // lanes))
    columns = max(1, min(problem.keys, PAIRS // (lanes * rows)))
    outputs: list[Tensor] = []
    logsumexps: list[Tensor] = []
    for start in range(0, problem.queries, rows):
        output, logsumexp = _rows(problem, slice(start, min(start + rows, problem.queries)), columns)
        outputs += [] if output is None else [output]
        logsumexps += [] if logsumexp is None else [logsumexp]
    return (
        torch.cat(outputs, dim=-2) if outputs else None,
        torch.cat(logsumexps, dim=-1) if logsumexps else None,
    )


def _rows(problem: Problem, rows: slice, width: int) -> Results:
    q = problem.q[..., rows, :]
    peak = q.new_full((*problem.batch, q.shape[-2]), -torch.inf)
    total = torch.zeros_like(peak)
    output = None if problem.v is None else q.new_zeros((*problem.batch, q.shape[-2], problem.v.shape[-1]))
    for start in range(0, problem.keys, width):
        columns = slice(start, min(start + width, problem.keys))
        scores = _scores(problem, q, rows, columns)
        if not problem.has_logsumexp:
            output = _add(problem, output, _plain_weights(problem, scores, rows, columns), rows, columns)
            continue
        # the result does not depend on the peak, so no gradient goes through it
        new_peak = torch.maximum(peak, scores.detach().amax(dim=-1))
        shift = torch.where(new_peak == -torch.inf, 0.0, new_peak)
        weights = (scores - shift.unsqueeze(-1)).exp()
        keep = (peak - shift).exp()
        total = total * keep + weights.sum(dim=-1)
        if problem.mode == "exponential":
            # not shifted: a huge term that skip_self leaves out must not touch the others
            output = _add(problem, output, scores.exp(), rows, columns)
        elif output is not None:
            output = _add(problem, output * keep.unsqueeze(-1), weights, rows, columns)
        peak = new_peak
    if not problem.has_logsumexp:
        return output, None
    # a row that sees no key has total 0; dividing by 1 instead makes its output and gradient 0, not NaN
    total = torch.where(peak == -torch.inf, 1.0, total)
    logsumexp = peak + total.log()
    if output is not None and problem.mode == "softmax":
        output = output / total.unsqueeze(-1)
    return output, logsumexp


def _scores(problem: Problem, q: Tensor, rows: slice, columns: slice) -> Tensor:
    scores = q @ problem.k[..., columns, :].transpose(-1, -2)
    if problem.key_bias is not None:
        scores = scores + problem.key_bias[..., columns].unsqueeze(-2)
    if problem.has_logsumexp:
        hidden = problem.hidden_pairs(rows, columns)
        scores = scores if hidden is None else scores.masked_fill(hidden, -torch.inf)
    return scores


def _plain_weights(problem: Problem, scores: Tensor, rows: slice, columns: slice) -> Tensor:
    weights = torch.sigmoid(scores) if problem.mode == "sigmoid" else scores
    hidden = problem.hidden_pairs(rows, columns)
    return weights if hidden is None else weights.masked_fill(hidden, 0.0)


def _add(problem: Problem, output: Tensor | None, weights: Tensor, rows: slice, columns: slice) -> Tensor | None:
    if output is None or problem.v is None:
        return output
    if problem.skip_self:
        j = torch.arange(columns.start, columns.stop, device=weights.device)
        weights = weights.masked_fill(problem.positions(rows) == j, 0.0)
    return output + weights @ problem.v[..., columns, :]


def gradients(problem: Problem, *directions: Tensor | None) -> list[Tensor | None]:
    """Differentiable gradients of q, k, v and the bias along directions of (output, logsumexp)."""
    # views, so that a tensor in two roles (q is k) gets separate gradients
    parts = [
        None if part is None else part.view_as(part) for part in (problem.q, problem.k, problem.v, problem.key_bias)
    ]
    q, k, v, key_bias = parts
    results = run(replace(problem, q=q, k=k, v=v, key_bias=key_bias))  # type: ignore[arg-type]
    pairs = [(one, two) for one, two in zip(results, directions, strict=True) if one is not None and two is not None]
    wanted = [part for part in parts if part is not None and part.requires_grad]
    outputs, along = [one for one, _ in pairs], [two for _, two in pairs]
    found = iter(torch.autograd.grad(outputs, wanted, along, create_graph=True, materialize_grads=True))
    return [next(found) if part is not None and part.requires_grad else None for part in parts]
