"""Conversion and validation of array-like input."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.errors import InputError


def to_float_tensor(value: Any, name: str, dtype: torch.dtype | None = None) -> Tensor:
    """Return a tensor in float32 or float64.

    Without ``dtype``, torch's float32 and float64 stay, its shorter types become float32 (which holds them exactly), and
    everything else becomes float64.
    """
    if isinstance(value, np.ndarray) and np.iscomplexobj(value):
        raise InputError(f"{name} must be real, got dtype {value.dtype}")
    if not isinstance(value, Tensor):
        try:
            value = torch.from_numpy(np.array(value, dtype=np.float64))
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{name} must be numbers in a rectangular array, got {type(value).__name__}: {error}"
            ) from None
    if value.is_complex():
        raise InputError(f"{name} must be real, got dtype {value.dtype}")
    if dtype is None:
        dtype = value.dtype if value.is_floating_point() else torch.float64
        dtype = torch.float32 if dtype.itemsize < 4 else dtype
    return value.to(dtype)


def check_finite(value: Tensor, name: str) -> Tensor:
    """Return the tensor; raise ``InputError`` if it contains NaN or infinity."""
    # a finite sum has finite terms, and needs no copy of a large tensor
    if bool(torch.isfinite(value.detach().sum())):
        return value
    bad = ~torch.isfinite(value.detach())
    if bool(bad.any()):
        where = tuple(int(index) for index in torch.nonzero(bad)[0])
        kind = "NaN" if bool(torch.isnan(value[where])) else "an infinite value"
        raise InputError(f"{name} holds {kind} at index {where}; every entry must be finite")
    return value


def convert_parameters(record: object, names: tuple[str, ...]) -> None:
    """Store the named parameters of a frozen record as finite tensors of one dtype, the widest that was given."""
    given = {name: getattr(record, name) for name in names if getattr(record, name) is not None}
    parts = {name: check_finite(to_float_tensor(value, f"the {name}"), f"the {name}") for name, value in given.items()}
    dtype = reduce(torch.promote_types, (part.dtype for part in parts.values()))
    for name, part in parts.items():
        object.__setattr__(record, name, part.to(dtype))


def tensor_version(tensor: Tensor) -> int:
    """Return a number that changes when a tensor is written to; -1 for inference tensors, which have none."""
    return -1 if tensor.is_inference() else tensor._version
