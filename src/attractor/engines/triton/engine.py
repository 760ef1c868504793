"""Requirements of the Triton engine and its entry point."""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor
from torch.autograd import forward_ad

from attractor.engines.autograd import run_differentiable
from attractor.engines.problem import INTERPRETED, NARROW, Problem, Results

TYPES = (torch.float32, torch.float64)
WIDEST = 128  # columns of keys and values that fit in the shared memory of a multiprocessor
SMALLEST = 1 << 14  # pairs below which a few library calls are faster than preparing the kernels' operands


def _reason() -> str:
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if INTERPRETED:
        return ""
    if not torch.cuda.is_available():
        return "it needs an NVIDIA GPU, and PyTorch sees none"
    if torch.version.cuda is None or torch.cuda.get_device_capability()[0] < 8:
        return "it needs an NVIDIA GPU of compute capability 8.0 or newer"
    return ""


reason = _reason()


def obstacle(problem: Problem) -> str:
    """Why the engine cannot run a problem; empty if it can."""
    parts = [part for part in (problem.q, problem.k, problem.v, problem.key_bias) if part is not None]
    device = problem.q.device
    if problem.q.dtype not in TYPES or any(part.dtype != problem.q.dtype for part in parts):
        return f"it computes in float32 and float64, and the tensors are {problem.q.dtype}"
    if device.type != ("cpu" if INTERPRETED else "cuda"):
        return f"the tensors are on the {device.type}, not on a GPU"
    if any(part.device != device for part in parts) or (
        problem.visible is not None and problem.visible.device != device
    ):
        return "the tensors are not all on one device"
    columns = max(part.shape[-1] for part in (problem.q, problem.v) if part is not None)
    if columns > WIDEST:
        return f"keys and values may have at most {WIDEST} columns"
    if (
        problem.visible is not None
        and problem.q.dtype == torch.float64
        and (columns > NARROW or problem.needs_gradient)
    ):
        # Triton 3.6 cannot bring what it loads into the layout of float64 matrix products
        return f"a boolean mask goes with float64 only up to {NARROW} columns, without gradients"
    if problem.window is not None and problem.window <= 0:
        return "the window is empty"
    if any(type(part) not in (Tensor, torch.nn.Parameter) or part.layout != torch.strided for part in parts):
        return "only plain dense tensors have addresses that a kernel can use"
    if (
        torch.compiler.is_compiling()
        or torch._C._functorch.maybe_current_level() is not None  # type: ignore[attr-defined]
        or forward_ad._current_level >= 0
    ):
        return "it does not run inside torch.compile, torch.func or forward-mode differentiation"
    return ""


def accepts(problem: Problem) -> bool:
    return not obstacle(problem)


def priority(problem: Problem) -> float:
    """Above all others, except for problems that take less time than a kernel launch."""
    return 4.0 if problem.pairs >= SMALLEST else 1.5


def run(problem: Problem) -> Results:
    from attractor.engines.triton.launch import backward, forward

    return run_differentiable(problem, forward, backward)
