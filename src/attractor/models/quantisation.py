"""Error bars of quantised weights.

A weight that was rounded to a grid of step s differs from the stored value by at most s/2. Each quantity of an audit is computed again
for copies in which every weight is moved by an independent uniform error of its own step; ``ErrorBar.bar`` is the root mean square
change of the quantity and ``ErrorBar.shift`` the mean change. This estimates the distance to the unquantised model if rounding errors
are uniform and independent, which holds approximately unless the quantiser fitted them to data. The scales of blocks, which are rounded
to 16 bits or fewer, are treated as exact.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from attractor.weights import NAMES

if TYPE_CHECKING:
    from attractor.models.checkpoints import Checkpoint

# grid numbers within a ggml block: (first byte, number of bytes, byte value in which every grid number is one); other bytes hold scales
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
# formats of 4-bit indices into a table of unequal steps: start and number of their bytes within a block
TABLES: dict[str, tuple[int, int]] = {"IQ4_NL": (2, 16), "IQ4_XS": (8, 128)}
FLOATS = {"F16": 10, "BF16": 7, "F32": 23}  # bits of the mantissa
CACHED = 8  # tensors that are kept for the next perturbed copy of a layer


@dataclass(frozen=True)
class ErrorBar:
    """Root mean square (``bar``) and mean (``shift``) change of a quantity under rounding errors of the weights."""

    bar: float
    shift: float


@runtime_checkable
class Quantised(Protocol):
    """Tensors that are stored on uniform grids."""

    def step(self, name: str) -> Tensor | None:
        """The grid step of every entry of a tensor, in its shape; None where the format has no grid."""
        ...

    def without_grid(self) -> list[str]:
        """Formats of attention matrices whose steps are not known: there are no error bars if there is one."""
        ...


def steps(gguf: Any, data: np.ndarray, kind: Any) -> np.ndarray | None:
    """The grid step of every entry of a ggml tensor: the change when every grid number grows by one."""
    if kind.name in FLOATS:
        values = np.abs(gguf.dequantize(data, kind)).astype(np.float64)
        exponent = np.floor(np.log2(np.maximum(values, 1e-300)))
        return np.where(values > 0, 2.0 ** (exponent - FLOATS[kind.name]), 0.0)
    if kind.name in TABLES:
        return _table_steps(gguf, data, kind)
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


def _table_steps(gguf: Any, data: np.ndarray, kind: Any) -> np.ndarray:
    """Half the distance between the neighbours of every entry in its table; at the ends, the distance to the only neighbour."""
    _, size = gguf.GGML_QUANT_SIZES[kind]
    start, count = TABLES[kind.name]
    blocks = np.ascontiguousarray(data).reshape(-1, size)
    places = slice(start, start + count)
    low, high = blocks[:, places] & 0x0F, blocks[:, places] >> 4
    ends = []
    for change in (1, -1):
        changed = blocks.copy()
        moved = [np.clip(part.astype(np.int16) + change, 0, 15).astype(np.uint8) for part in (low, high)]
        changed[:, places] = moved[0] | (moved[1] << 4)
        ends.append(gguf.dequantize(changed.reshape(data.shape), kind).astype(np.float64))
    own = gguf.dequantize(np.ascontiguousarray(data), kind).astype(np.float64)
    one_sided = (ends[0] == own) | (ends[1] == own)
    return np.abs(ends[0] - ends[1]) * np.where(one_sided, 1.0, 0.5)


@dataclass(frozen=True, eq=False)
class PerturbedTensors:
    """The tensors of a quantised file with every entry moved by a uniform error of at most half its step.

    ``cache`` holds the last tensors with their steps and is shared by the copies of one checkpoint.
    """

    tensors: Any
    seed: int
    cache: dict[str, tuple[Tensor, Tensor | None]] = field(repr=False)

    def names(self) -> Collection[str]:
        return self.tensors.names()

    def read(self, name: str) -> Tensor:
        if name not in self.cache:
            while len(self.cache) >= CACHED:
                del self.cache[next(iter(self.cache))]
            self.cache[name] = self.tensors.read(name), self.tensors.step(name)
        values, step = self.cache[name]
        if step is None:
            return values
        draw = torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {name}".encode()))
        return values.double() + (torch.rand(values.shape, generator=draw, dtype=torch.float64) - 0.5) * step

    def describe(self) -> str:
        return self.tensors.describe()


def perturb(checkpoint: Checkpoint, seeds: Sequence[int]) -> list[Checkpoint]:
    """Copies of a checkpoint, one for each seed, with quantised weights moved within their steps."""
    cache: dict[str, tuple[Tensor, Tensor | None]] = {}
    return [replace(checkpoint, tensors=PerturbedTensors(checkpoint.tensors, seed, cache)) for seed in seeds]


def error_bars(
    stored: Mapping[str, Sequence[float]], perturbed: Sequence[Mapping[str, Sequence[float]]]
) -> list[dict[str, ErrorBar | None]]:
    """Error bars of every head and quantity, from its value as stored and in the perturbed copies; None where one is not finite."""
    rows = []
    for head in range(len(next(iter(stored.values())))):
        row: dict[str, ErrorBar | None] = {}
        for name in NAMES:
            changes = np.array([copy[name][head] - stored[name][head] for copy in perturbed], dtype=np.float64)
            bar = ErrorBar(float(np.sqrt((changes**2).mean())), float(changes.mean()))
            row[name] = bar if np.isfinite(changes).all() else None
        rows.append(row)
    return rows
