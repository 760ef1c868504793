r"""Queries and keys with the further coordinates of a refinement, on an NVIDIA GPU: each element is moved once.

``torch.cat`` of views of a larger projection is much slower there than memory allows, its derivative leaves gradients that are
views as well, which makes the next kernels slow, and a dozen small operations a layer keep the processor busy. Here a refinement is one
node of autograd (``nodes.py``) around two kernels (``copies.py``).
"""

from __future__ import annotations

import torch
from torch import Tensor


def fast(*parts: Tensor) -> bool:
    """Whether the kernels can have tensors (batch, h, n, c) of one precision; compiled graphs fuse such copies themselves."""
    first = parts[0]
    if not first.is_cuda or first.dtype not in (torch.float16, torch.bfloat16, torch.float32) or not first.numel():
        return False
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:  # pyright: ignore[reportAttributeAccessIssue]
        return False
    alike = all(x.ndim == 4 and x.dtype == first.dtype and x.shape[2] == first.shape[2] for x in parts)
    return alike and all(x.stride(-1) == 1 for x in parts) and _triton()


def _triton() -> bool:
    global _present
    if _present is None:
        from torch.utils._triton import has_triton

        _present = torch.version.hip is None and has_triton()
    return _present


_present: bool | None = None


__all__ = ["fast"]
