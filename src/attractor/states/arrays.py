"""Conversion and validation of array-like input."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.errors import InputError

SMALL = 4096  # numbers of a tensor that are compared at every use,
MANY = 1 << 18  # and of all parameters of a law that are compared once in a run


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
        wanted: torch.dtype = value.dtype if value.is_floating_point() else torch.float64
        dtype = torch.float32 if torch.finfo(wanted).bits < 32 else wanted
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


def vector_norm(x: Tensor, keepdim: bool = False) -> Tensor:
    """Euclidean length of vectors (..., d), also where their squares overflow or underflow (on the CPU)."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=keepdim)
    if is_in_range(length):
        return length
    unit, size = split_size(x)
    scaled = torch.linalg.vector_norm(unit, dim=-1, keepdim=keepdim) * (size if keepdim else size.squeeze(-1))
    return torch.where(in_range(length), length, scaled)


def split_size(x: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors x (..., d) as unit * size: the largest entry of a unit is 1 (but zero and infinite x are kept), size is (..., 1)."""
    size = x.detach().abs().amax(-1, keepdim=True)
    size = torch.where((size > 0) & (size < torch.inf), size, 1.0)
    return x / size, size


def split_scale(points: Tensor) -> tuple[Tensor, Tensor]:
    """Clouds of points (..., n, d) as unit * scale, with entries of a unit below 2; the scale (..., 1, 1) is a power of two, so
    that nothing is rounded."""
    largest = points.detach().abs().amax((-2, -1), keepdim=True)
    power = largest / (2.0 * torch.frexp(largest).mantissa)  # exact: the mantissa is the rest of the number
    scale = torch.where((largest > 0) & (largest < torch.inf), power, 1.0)
    return points / scale, scale


def in_range(root: Tensor) -> Tensor:
    """Where a square root is that of sums of squares without overflow or loss of digits by underflow."""
    return (root >= 32.0 * torch.finfo(root.dtype).tiny ** 0.5) & (root < torch.inf)


def is_in_range(root: Tensor) -> bool:
    """``in_range`` of all entries: False where that cannot be read, in a transformation or a compiled graph; True on a GPU.

    It decides whether to compute again with scaled vectors, which a normal evaluation does not need.
    """
    if root.device.type != "cpu" or root.numel() == 0:
        return True
    if torch.compiler.is_compiling() or torch._C._functorch.maybe_current_level() is not None:  # type: ignore[attr-defined]
        return False
    least, most = torch.aminmax(root.detach())
    return float(least) >= 32.0 * torch.finfo(root.dtype).tiny ** 0.5 and float(most) < float("inf")


def _are_finite_on_gpu(parts: list[Tensor]) -> bool:
    """Whether tensors on one GPU are finite, found out by waiting for it once; False for others."""
    if not parts or parts[0].device.type != "cuda" or any(part.device != parts[0].device for part in parts):
        return False
    return bool(torch.stack([torch.isfinite(part.detach()).all() for part in parts]).all())


def convert_parameters(record: object, names: tuple[str, ...]) -> None:
    """Store the named parameters of a frozen record as finite tensors of one dtype, the widest that was given."""
    given = {name: getattr(record, name) for name in names if getattr(record, name) is not None}
    parts = {name: to_float_tensor(value, f"the {name}") for name, value in given.items()}
    if not _are_finite_on_gpu([*parts.values()]):
        parts = {name: check_finite(part, f"the {name}") for name, part in parts.items()}
    dtype = reduce(torch.promote_types, (part.dtype for part in parts.values()))
    for name, part in parts.items():
        object.__setattr__(record, name, part.to(dtype))


def tensor_state(tensor: Tensor) -> tuple[int, bytes] | None:
    """Return what changes when a tensor is written to, None if nothing tells.

    It is the version that PyTorch counts and, of small tensors on the CPU, the contents: writing through ``.data`` or NumPy is not
    counted.
    """
    small = tensor.device.type == "cpu" and tensor.numel() <= SMALL
    if tensor.is_inference() and not small:
        return None
    version = 0 if tensor.is_inference() else tensor._version
    return version, tensor.detach().numpy().tobytes() if small else b""


def read_contents(parts: Sequence[Tensor]) -> bytes | None:
    """Return the contents of tensors as bytes, None if there are more than ``MANY`` numbers. On a GPU this waits for the device."""
    if sum(part.numel() for part in parts) > MANY:
        return None
    if all(part.device.type == "cpu" for part in parts):
        return b"".join(part.detach().numpy().tobytes() for part in parts)
    return torch.cat([part.detach().reshape(-1).double() for part in parts]).cpu().numpy().tobytes()
