"""What quantisation leaves unknown: the step of every stored weight, and how far numbers move within it.

A weight that was rounded to a grid of step s lies within s/2 of what the file holds. Each number of an audit is measured again with
every weight moved by an independent uniform error of its own step; ``bar`` is the root mean square of its change, ``shift`` the mean.
By symmetry that is how far the number of the unquantised model is to be expected from the one that is printed, if rounding errors are
uniform and independent, as they nearly are unless the quantiser adapted them to data. The scales of blocks, themselves rounded to
16 bits or fewer, are taken as exact.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from attractor.weights import NAMES

if TYPE_CHECKING:
    from attractor.models.checkpoints import Checkpoint

# where the grid numbers lie in a block of ggml: (first byte, bytes, the byte that makes every number in it one); the others are scales
LAYOUTS: dict[str, tuple[tuple[int, int, int], ...]] = {
    "Q4_0": ((2, 16, 0x11),),
    "Q4_1": ((4, 16, 0x11),),
    "Q5_0": ((2, 4, 0x00), (6, 16, 0x11)),
    "Q5_1": ((4, 4, 0x00), (8, 16, 0x11)),
    "Q8_0": ((2, 32, 0x01),),
    "Q2_K": ((16, 64, 0x55),),
    "Q3_K": ((0, 32, 0x00), (32, 64, 0x55)),
    "Q4_K": ((16, 128, 0x11),),
    "Q5_K": ((16, 32, 0x00), (48, 128, 0x11)),
    "Q6_K": ((0, 128, 0x11), (128, 64, 0x00)),
}
FLOATS = {"F16": 10, "BF16": 7, "F32": 23}  # binary digits after the first


@runtime_checkable
class Quantised(Protocol):
    """Tensors that were rounded to grids."""

    def step(self, name: str) -> Tensor | None:
        """The step of every entry of a tensor, in its shape; None where the format has no uniform grid."""
        ...


def steps(gguf: Any, data: np.ndarray, kind: Any) -> np.ndarray | None:
    """The steps of a ggml tensor: the difference that one more in every grid number makes."""
    if kind.name in FLOATS:
        values = np.abs(gguf.dequantize(data, kind)).astype(np.float64)
        exponent = np.floor(np.log2(np.maximum(values, 1e-300)))
        return np.where(values > 0, 2.0 ** (exponent - FLOATS[kind.name]), 0.0)
    if kind.name not in LAYOUTS:
        return None
    _, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.ascontiguousarray(data).reshape(-1, size)
    ends = []
    for one in (False, True):
        changed = blocks.copy()
        for start, count, byte in LAYOUTS[kind.name]:
            changed[:, start : start + count] = byte if one else 0
        ends.append(gguf.dequantize(changed.reshape(data.shape), kind).astype(np.float64))
    return np.abs(ends[1] - ends[0])


class Kept:
    """The last few tensors of a quantised file with their steps: several copies of one layer are made of them."""

    COUNT = 8

    def __init__(self, tensors: Any) -> None:
        self.tensors = tensors
        self._found: dict[str, tuple[Tensor, Tensor | None]] = {}

    def both(self, name: str) -> tuple[Tensor, Tensor | None]:
        if name not in self._found:
            while len(self._found) >= self.COUNT:
                del self._found[next(iter(self._found))]
            self._found[name] = self.tensors.read(name), self.tensors.step(name)
        return self._found[name]


@dataclass(frozen=True, eq=False)
class Perturbed:
    """The tensors of a quantised file, each entry moved by a uniform error of at most half its step."""

    kept: Kept
    seed: int

    def names(self) -> Collection[str]:
        return self.kept.tensors.names()

    def read(self, name: str) -> Tensor:
        values, step = self.kept.both(name)
        if step is None:
            return values
        draw = torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {name}".encode()))
        return values.double() + (torch.rand(values.shape, generator=draw, dtype=torch.float64) - 0.5) * step

    def describe(self) -> str:
        return self.kept.tensors.describe()


def perturbed(checkpoint: Checkpoint, seeds: Sequence[int]) -> list[Checkpoint]:
    """Copies of the checkpoint with their quantised weights moved within their steps."""
    kept = Kept(checkpoint.tensors)
    return [replace(checkpoint, tensors=Perturbed(kept, seed)) for seed in seeds]


def error_bars(
    stored: Mapping[str, Sequence[float]], moved: Sequence[Mapping[str, Sequence[float]]]
) -> list[dict[str, dict[str, float] | None]]:
    """For every head and quantity ``bar`` and ``shift``, from its number as stored and in several perturbed copies."""
    rows = []
    for head in range(len(next(iter(stored.values())))):
        changes = {
            name: np.array([copy[name][head] - stored[name][head] for copy in moved], dtype=np.float64)
            for name in NAMES
        }
        rows.append(
            {
                name: {"bar": float(np.sqrt((change**2).mean())), "shift": float(change.mean())}
                if np.isfinite(change).all()
                else None
                for name, change in changes.items()
            }
        )
    return rows
