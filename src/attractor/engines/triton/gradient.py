"""Analytic gradients of the Triton engine; the formulas stand in ``backward.py``."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from attractor.engines import blockwise
from attractor.engines.contract import MODES, Problem
from attractor.engines.triton.backward import over_keys, over_queries
from attractor.engines.triton.forward import forward, launch, masks, size_class
from attractor.engines.triton.layout import LOG2E, bias_of, columns, flat, padded, visible_of


class Attend(torch.autograd.Function):
    """``attend`` with analytic first derivatives; where second ones may follow, the gradient is that of ``blockwise``."""

    @staticmethod
    def forward(
        ctx: Any, problem: Problem, q: Tensor, k: Tensor, v: Tensor | None, key_bias: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        output, logsumexp = forward(problem)
        ctx.save_for_backward(q, k, v, key_bias, problem.visible, output, logsumexp)
        ctx.set_materialize_grads(False)
        ctx.options = (problem.mode, problem.causal, problem.window, problem.skip_self, problem.offset)
        return output, logsumexp

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        grad_output, grad_logsumexp = grad_outputs
        q, k, v, key_bias, visible, output, logsumexp = ctx.saved_tensors
        mode, causal, window, skip_self, offset = ctx.options
        problem = Problem(q, k, v, key_bias, mode, causal, window, visible, skip_self, offset)
        if torch.is_grad_enabled():  # create_graph=True
            return None, *blockwise.gradients(problem, grad_output, grad_logsumexp)
        return None, *_gradients(problem, output, logsumexp, grad_output, grad_logsumexp, ctx.needs_input_grad[1:])


def _row_terms(
    problem: Problem,
    output: Tensor | None,
    logsumexp: Tensor | None,
    grad_output: Tensor | None,
    grad_logsumexp: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """log2 of the normaliser, infinite for a row that sees nothing so that its weights are 0, and the term t of each row."""
    if logsumexp is None:
        nothing = problem.q.new_zeros((*problem.batch, problem.queries))
        return nothing, nothing
    blind = logsumexp == -torch.inf
    term = torch.zeros_like(logsumexp) if grad_logsumexp is None else grad_logsumexp
    if problem.mode == "softmax" and output is not None and grad_output is not None:
        term = term - (grad_output * output).sum(-1)
    return torch.where(blind, torch.inf, logsumexp * LOG2E), torch.where(blind, 0.0, term)


def _gradients(
    problem: Problem,
    output: Tensor | None,
    logsumexp: Tensor | None,
    grad_output: Tensor | None,
    grad_logsumexp: Tensor | None,
    needed: tuple[bool, ...],
) -> list[Tensor | None]:
    batch, n, m = problem.batch, problem.queries, problem.keys
    entries = batch.numel()
    inputs = (problem.q, problem.k, problem.v, problem.key_bias)
    if not entries or not n or not m:
        return [
            torch.zeros_like(part) if need and part is not None else None
            for part, need in zip(inputs, needed, strict=True)
        ]
    unasked = grad_output is None
    if output is not None and grad_output is None:
        grad_output = torch.zeros_like(output)
    level, term = (flat(row, batch, 1) for row in _row_terms(problem, output, logsumexp, grad_output, grad_logsumexp))
    width = columns(problem.q.shape[-1])
    q, k = (padded(flat(part, batch), width) for part in (problem.q, problem.k))
    breadth = 1 if problem.v is None else columns(problem.v.shape[-1])
    v = q if problem.v is None else padded(flat(problem.v, batch), breadth)
    g = q if grad_output is None else padded(flat(grad_output, batch), breadth)
    bias, (visible, stride) = bias_of(problem), visible_of(problem)
    grad_q, grad_k, grad_v = torch.empty_like(q), torch.empty_like(k), q.new_empty((entries, m, breadth))
    grad_bias = q.new_empty((entries, m))
    shared = (q, k, v, q if bias is None else bias, g, level, term, q if visible is None else visible)
    numbers = (n, m, problem.offset, stride, problem.window or 0, size_class(problem, entries))
    options: dict[str, Any] = {
        "E": width,
        "C": breadth,
        "MODE": MODES.index(problem.mode),
        "BIAS": bias is not None,
        **masks(problem),
    }
    if needed[0]:
        launch(
            over_keys,
            problem,
            lambda chosen: (triton.cdiv(n, chosen["BM"]), entries),
            *shared,
            grad_q,
            *numbers,
            **options,
        )
    if any(needed[1:]):
        launch(
            over_queries,
            problem,
            lambda chosen: (triton.cdiv(m, chosen["BN"]), entries),
            *shared,
            grad_k,
            grad_v,
            grad_bias,
            *numbers,
            **options,
        )
    if unasked:
        grad_v.zero_()  # weights that overflow would give 0 times infinity
    found = (grad_q, grad_k, grad_v, grad_bias.unsqueeze(-1))
    return [_shaped(one, part, batch, index == 3) if need and part is not None else None
            for index, (one, part, need) in enumerate(zip(found, inputs, needed, strict=True))]  # fmt: skip


def _shaped(gradient: Tensor, part: Tensor, batch: torch.Size, column: bool) -> Tensor:
    """A gradient without padding; an input that was broadcast over batch axes gets the sum over them."""
    if column:
        return gradient.reshape(*batch, part.shape[-1]).sum_to_size(part.shape)
    return gradient[..., : part.shape[-1]].reshape(*batch, *part.shape[-2:]).sum_to_size(part.shape)
