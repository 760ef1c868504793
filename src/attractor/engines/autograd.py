"""Autograd for engines with analytic gradients: one bridge for the kernels of ``fused`` and ``triton``.

An engine gives two functions without autograd: one computes output and logsumexp, the other the gradients of q, k, v and
the key bias. Double backward goes through the blockwise engine, which is differentiable itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attractor.engines import blockwise
from attractor.engines.problem import LOG2E, Problem, Results


@dataclass(frozen=True)
class OutputGradients:
    """What the backward kernels read of the outputs.

    Attributes
    ----------
    output : gradient of the output (..., n, c); None without values.
    log2sum : log2 of the normaliser (..., n), infinite for rows that see no key so that their weights are 0; None in modes
        without logsumexp.
    row_term : the term t_i of each row (..., n), see ``cpp/backward.h``; None in modes without logsumexp.
    """

    output: Tensor | None
    log2sum: Tensor | None
    row_term: Tensor | None


Forward = Callable[[Problem], Results]
# gradients (batch, ...) of q, k, v and the key bias, those that the flags mark
Backward = Callable[[Problem, OutputGradients, tuple[bool, ...]], list[Tensor | None]]


def run_differentiable(problem: Problem, forward: Forward, backward: Backward) -> Results:
    """Run ``forward``; where a gradient is needed, record ``backward`` for it."""
    if not problem.needs_gradient:
        return forward(problem)
    return _Attend.apply(forward, backward, problem, problem.q, problem.k, problem.v, problem.key_bias)  # type: ignore[return-value]


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        forward: Forward,
        backward: Backward,
        problem: Problem,
        q: Tensor,
        k: Tensor,
        v: Tensor | None,
        key_bias: Tensor | None,
    ) -> Results:
        output, logsumexp = forward(problem)
        ctx.save_for_backward(q, k, v, key_bias, problem.visible, output, logsumexp)
        ctx.set_materialize_grads(False)
        ctx.kernel = backward
        ctx.options = (problem.mode, problem.causal, problem.window, problem.skip_self, problem.offset)
        return output, logsumexp

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, key_bias, visible, output, logsumexp = ctx.saved_tensors
        mode, causal, window, skip_self, offset = ctx.options
        problem = Problem(q, k, v, key_bias, mode, causal, window, visible, skip_self, offset)
        if torch.is_grad_enabled():  # create_graph=True
            return None, None, None, *blockwise.gradients(problem, *grad_outputs)
        needed = ctx.needs_input_grad[3:]
        return None, None, None, *_gradients(problem, ctx.kernel, (output, logsumexp), grad_outputs, needed)


def _gradients(
    problem: Problem,
    kernel: Backward,
    results: Results,
    grad_outputs: tuple[Tensor | None, ...],
    needed: tuple[bool, ...],
) -> list[Tensor | None]:
    """Gradients in the shapes of the inputs; an input that was broadcast over batch axes receives the sum over them."""
    inputs = (problem.q, problem.k, problem.v, problem.key_bias)
    needed = tuple(need and part is not None for need, part in zip(needed, inputs, strict=True))
    computed = needed
    if grad_outputs[0] is None:  # an unused output: weights that overflow would give 0 times infinity for the values
        computed = (*needed[:2], False, needed[3])
    found: list[Tensor | None] = [None] * 4
    if any(computed) and problem.pairs:
        found = kernel(problem, _output_gradients(problem, *results, *grad_outputs), computed)
    return [
        None
        if not need or part is None
        else torch.zeros_like(part)
        if gradient is None
        else gradient.sum_to_size(part.shape)
        for part, gradient, need in zip(inputs, found, needed, strict=True)
    ]


def _output_gradients(
    problem: Problem,
    output: Tensor | None,
    logsumexp: Tensor | None,
    grad_output: Tensor | None,
    grad_logsumexp: Tensor | None,
) -> OutputGradients:
    if output is not None and grad_output is None:
        grad_output = torch.zeros_like(output)
    if logsumexp is None:
        return OutputGradients(grad_output, None, None)
    blind = logsumexp == -torch.inf
    term = torch.zeros_like(logsumexp) if grad_logsumexp is None else grad_logsumexp
    if problem.mode == "softmax" and output is not None and grad_output is not None:
        term = term - (grad_output * output).sum(-1)
    log2sum = torch.where(blind, torch.inf, logsumexp * LOG2E)
    return OutputGradients(grad_output, log2sum, torch.where(blind, 0.0, term))
