"""Analytic gradients of the fused engine; the formulas stand in ``cpp/backward.h``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attractor.engines import blockwise
from attractor.engines.contract import Problem
from attractor.engines.fused import kernels
from attractor.engines.fused.layout import LOG2E, adjacent, column, operand, options, scaled_bias


class Attend(torch.autograd.Function):
    """``attend`` with analytic first derivatives; where second ones may follow, the gradient is that of ``blockwise``."""

    @staticmethod
    def forward(
        ctx: Any, problem: Problem, q: Tensor, k: Tensor, v: Tensor | None, key_bias: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        from attractor.engines.fused.engine import forward

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


def _gradients(
    problem: Problem,
    output: Tensor | None,
    logsumexp: Tensor | None,
    grad_output: Tensor | None,
    grad_logsumexp: Tensor | None,
    needed: tuple[bool, ...],
) -> list[Tensor | None]:
    batch = problem.batch
    problem = replace(
        problem, q=adjacent(problem.q), k=adjacent(problem.k), v=None if problem.v is None else adjacent(problem.v)
    )
    bias = scaled_bias(problem)
    unasked = grad_output is None
    if output is not None:
        grad_output = torch.zeros_like(output) if grad_output is None else adjacent(grad_output)
    level, term = _row_terms(problem, output, logsumexp, grad_output, grad_logsumexp)
    parts = (problem.q, problem.k, problem.v, problem.key_bias)
    gradients = [
        torch.empty((*batch, *part.shape[-(1 if part is problem.key_bias else 2) :]), dtype=problem.q.dtype)
        if need and part is not None
        else None
        for part, need in zip(parts, needed, strict=True)
    ]
    kernels.module().backward(
        *options(problem, batch),
        *(operand(part, batch) for part in parts[:3]),
        column(bias, batch),
        operand(problem.visible, batch),
        operand(grad_output, batch),
        column(level, batch),
        column(term, batch),
        *(operand(gradient, batch) for gradient in gradients[:2]),
        operand(None if unasked else gradients[2], batch),
        column(gradients[3], batch),
    )
    if unasked and gradients[2] is not None:
        gradients[2].zero_()  # weights that overflow would give 0 times infinity
    # an input that was broadcast over batch axes gets the sum over them
    return [
        None if gradient is None or part is None else gradient.sum_to_size(part.shape)
        for gradient, part in zip(gradients, parts, strict=True)
    ]


def _row_terms(
    problem: Problem,
    output: Tensor | None,
    logsumexp: Tensor | None,
    grad_output: Tensor | None,
    grad_logsumexp: Tensor | None,
) -> tuple[Tensor | None, Tensor | None]:
    """log2 of the normaliser, infinite for a row that sees nothing so that its weights are 0, and the term t of each row."""
    if logsumexp is None:
        return None, None
    blind = logsumexp == -torch.inf
    level = adjacent(torch.where(blind, torch.inf, logsumexp * LOG2E))
    term = torch.zeros_like(logsumexp) if grad_logsumexp is None else grad_logsumexp
    if problem.mode == "softmax" and output is not None and grad_output is not None:
        term = term - (grad_output * output).sum(-1)
    return level, adjacent(torch.where(blind, 0.0, term))
