"""Run a model's own code in double precision throughout.

Models compute rotary angles, softmax and norms in float32 whatever the dtype of their weights, which would hide errors of
size 1e-7. Inside ``Double`` every call of torch that asks for float32 is given float64 instead; the model's code is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class Double(TorchFunctionMode):
    """Float64 wherever float32 is asked for."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        args = tuple(_wide(argument) for argument in args)
        return func(*args, **{name: _wide(argument) for name, argument in (kwargs or {}).items()})


def _wide(argument: Any) -> Any:
    return torch.float64 if argument is torch.float32 else argument


@contextmanager
def double() -> Iterator[None]:
    """Float64 wherever float32 is asked for, and by default."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Double():
            yield
    finally:
        torch.set_default_dtype(usual)
