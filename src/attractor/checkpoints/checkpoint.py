"""A real model, opened lazily, that yields laws layer by layer and head by head."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import torch

from attractor.checkpoints.family import Family
from attractor.checkpoints.layer import Layer
from attractor.checkpoints.reader import Reader, reader
from attractor.checkpoints.tensors import Tensors
from attractor.checkpoints.verification import Verification, verify
from attractor.errors import InputError


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model's attention, read when asked for and not kept.

    ``layers`` is a sequence of ``Layer``; each access reads that layer's attention tensors from the files anew, so that no more
    than one layer need be in memory. ``dtype`` is what tensors are converted to.
    """

    name: str
    family: Family
    config: Any
    tensors: Tensors
    dtype: torch.dtype = torch.float64
    model: Any = None
    notes: tuple[str, ...] = ()

    @cached_property
    def reader(self) -> Reader:
        return reader(self.tensors, self.family.prefixes, self.family.probe, self.dtype)

    @cached_property
    def layers(self) -> Layers:
        return Layers(self)

    @property
    def dim(self) -> int:
        return getattr(self.config, self.family.width)

    def verify(self, layers: Sequence[int] | None = None, tokens: int = 12, seed: int = 0) -> Verification:
        """Compare our laws with the model's own attention on random tokens, layer by layer."""
        return verify(self, None if layers is None else list(layers), tokens, seed)

    def __repr__(self) -> str:
        return f"Checkpoint({self.name!r}, family={self.family.name!r}, layers={len(self.layers)}, dim={self.dim})"


class Layers(Sequence[Layer]):
    """The layers of a checkpoint, read one at a time; encoders and decoders follow each other."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        stacks = checkpoint.family.stacks(checkpoint.config)
        self._places = [(stack, index) for stack, count in stacks.items() for index in range(count)]

    def __len__(self) -> int:
        return len(self._places)

    def place(self, index: int) -> tuple[str, int]:
        """The stack of a layer and its number there."""
        if not -len(self) <= index < len(self):
            raise InputError(f"{self._checkpoint.name} has layers 0 to {len(self) - 1}, not {index}")
        return self._places[index]

    @overload
    def __getitem__(self, index: int) -> Layer: ...
    @overload
    def __getitem__(self, index: slice) -> list[Layer]: ...
    def __getitem__(self, index: int | slice) -> Layer | list[Layer]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        stack, within = self.place(index)
        checkpoint = self._checkpoint
        return checkpoint.family.layer(checkpoint.config, checkpoint.reader, stack, within)

    def __iter__(self):  # Sequence's own would end on IndexError
        return (self[index] for index in range(len(self)))

    def ahead(self, indices: Iterable[int]) -> Iterator[Layer]:
        """Layers one after the other, the next being read while the present one is looked at: two are in memory, as stored."""
        with ThreadPoolExecutor(1, "attractor-layers") as reading:
            coming = None
            for index in indices:
                present, coming = coming, reading.submit(self.__getitem__, index)
                if present is not None:
                    yield present.result()
            if coming is not None:
                yield coming.result()
