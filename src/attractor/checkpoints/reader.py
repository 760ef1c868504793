"""Tensors as a family asks for them: by short name, checked."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from attractor.checkpoints.tensors import Tensors
from attractor.errors import CheckpointError, InputError, UnsupportedError

FEED_FORWARD = re.compile(r"\.(mlp|fc1|fc2|fc_in|fc_out|intermediate|experts|ffn|DenseReluDense|shared_experts)\.")


@dataclass(frozen=True)
class Reader:
    """Reads ``prefix + name``; a shape that contradicts the configuration and entries that are not finite are refused.

    Vectors come in ``dtype``, matrices as they are stored unless ``widened``: they are converted head by head, so that a layer
    takes no more memory than its file does.
    """

    tensors: Tensors
    prefix: str = ""
    dtype: torch.dtype = torch.float64
    names: frozenset[str] = field(default=frozenset(), repr=False)
    widened: bool = False

    def wide(self) -> Reader:
        """The same, with matrices in ``dtype`` too."""
        return replace(self, widened=True)

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.names

    def __call__(self, name: str, *shape: int) -> Tensor:
        """A tensor, which must have this shape if one is given."""
        if name not in self:
            raise CheckpointError(
                f"{self.tensors.describe()} has no tensor {self.prefix + name}, which its configuration calls for"
            )
        tensor = self.tensors.read(self.prefix + name)
        if shape and tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"the tensor {self.prefix + name} has shape {tuple(tensor.shape)}, the configuration calls for {shape}"
            )
        check_finite(self.prefix + name, tensor)
        check_range(self.prefix + name, tensor, self.dtype)
        return tensor.to(self.dtype) if self.widened or tensor.ndim < 2 else tensor

    def maybe(self, name: str, *shape: int) -> Tensor | None:
        """A tensor, or None where there is none."""
        return self(name, *shape) if name in self else None

    def first(self, *names: str) -> str:
        """The first of several names that exists: releases of transformers have renamed modules."""
        return next((name for name in names if name in self), names[0])

    def under(self, prefix: str) -> list[str]:
        """Short names that begin with ``prefix``, the feed-forward's left out."""
        start = self.prefix + prefix
        found = [name[len(self.prefix) :] for name in self.names if name.startswith(start)]
        return sorted(name for name in found if not FEED_FORWARD.search(name))


def check_finite(name: str, tensor: Tensor) -> None:
    """Refuse weights that are NaN or infinite, and those whose numbers mean nothing without scales beside them."""
    if tensor.is_floating_point() and tensor.element_size() < 2:
        raise UnsupportedError(
            f"the tensor {name} has the type {str(tensor.dtype).removeprefix('torch.')}, whose scales attractor does not read: "
            "convert the checkpoint to bfloat16 first"
        )
    # both propagate NaN, need no copy, and are much faster than looking at every entry
    if tensor.numel() == 0 or all(bool(torch.isfinite(end)) for end in torch.aminmax(tensor)):
        return
    count = int((~torch.isfinite(tensor)).sum())
    entries = "1 entry that is" if count == 1 else f"{count} entries that are"
    if tensor.dtype == torch.float16 and not bool(torch.isnan(tensor).any()):
        cast = "weights above 65504, where float16 ends, were cast to it, or the checkpoint is damaged"
        raise CheckpointError(f"the tensor {name} holds {entries} infinite: {cast}")
    raise CheckpointError(f"the tensor {name} holds {entries} NaN or infinite: the checkpoint is damaged")


def check_range(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    """Refuse weights that are finite as they are stored and too large for the type that they are to be brought to."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return
    most = torch.finfo(dtype).max
    if torch.finfo(tensor.dtype).max <= most:
        return
    largest = max(abs(float(end)) for end in torch.aminmax(tensor))
    if most < largest < float("inf"):
        kind = str(dtype).removeprefix("torch.")
        raise InputError(
            f"the tensor {name} has an entry of size {largest:.6g}, and {kind} ends at {most:.6g}: take bfloat16, float32 or float64"
        )


def reader(tensors: Tensors, prefixes: tuple[str, ...], probe: str, dtype: torch.dtype) -> Reader:
    """A reader with the first prefix under which the tensor ``probe`` exists."""
    names = frozenset(tensors.names())
    for prefix in prefixes:
        if any(name.startswith(prefix + probe) for name in names):
            return Reader(tensors, prefix, dtype, names)
    raise CheckpointError(
        f"{tensors.describe()} has no tensor whose name begins with {' or '.join(prefix + probe for prefix in prefixes)}, "
        "which its configuration calls for"
    )
