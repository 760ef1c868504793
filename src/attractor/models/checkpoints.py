"""Checkpoints: opened lazily, one law per layer and head, verified against the original model."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from logging import CRITICAL
from typing import Any, overload

import torch
from torch import Tensor

from attractor.errors import InputError, UnsupportedError
from attractor.models.attention_layers import Layer, use_float64
from attractor.models.family import Family, get_hidden_states, get_output
from attractor.models.tensors import Reader, Tensors, reader
from attractor.solvers import velocity
from attractor.states import Tokens


@dataclass(frozen=True)
class LayerCheck:
    """The largest difference divided by the largest entry: of attention's output, and of what the norm before it gives."""

    name: str
    attention: float
    norm: float | None

    @property
    def error(self) -> float:
        return max(self.attention, self.norm or 0.0)


@dataclass(frozen=True)
class Verification:
    """What was compared, layer by layer."""

    family: str
    layers: tuple[LayerCheck, ...]
    tokens: int
    seconds: float

    @property
    def error(self) -> float:
        """The largest error of all layers."""
        return max(check.error for check in self.layers)

    def __bool__(self) -> bool:
        """Whether the laws are the model's attention, to rounding."""
        return self.error < 1e-9


def verify(checkpoint: Checkpoint, layers: list[int] | None = None, tokens: int = 12, seed: int = 0) -> Verification:
    """Compare the laws of some layers (all of them by default) with the model's own attention on random tokens."""
    start = time.perf_counter()
    indices = range(len(checkpoint.layers)) if layers is None else layers
    checks = tuple(_checked(checkpoint, index, tokens, seed) for index in indices)
    return Verification(checkpoint.family.name, checks, tokens, time.perf_counter() - start)


def _checked(checkpoint: Checkpoint, index: int, tokens: int, seed: int) -> LayerCheck:
    layer = checkpoint.layers[index]
    stream, reads, writes = _own(checkpoint, index, tokens, seed)
    ours = velocity(layer.attention, Tokens(reads))
    return LayerCheck(layer.name, _difference(ours, writes), _norm_error(layer, stream, reads))


def _norm_error(layer: Layer, stream: Tensor, reads: Tensor) -> float | None:
    """The norm before attention; in a post-norm model it lies outside the layer."""
    if layer.placement not in ("pre", "peri") or layer.norm is None:
        return None
    return _difference(layer.norm(stream), reads)


def _difference(ours: Tensor, own: Tensor) -> float:
    return float((ours - own).abs().max() / own.abs().max())


def _own(checkpoint: Checkpoint, index: int, tokens: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """The stream before the block, what attention reads and what it writes, each (n, d)."""
    family, config = checkpoint.family, checkpoint.config
    stack, within = checkpoint.layers.place(index)
    seen: dict[str, Tensor] = {}
    state = _state(checkpoint, stack, within)  # read outside of the double world, which files do not belong to
    with use_float64(), torch.no_grad(), silence_transformers():
        model = _single(checkpoint, stack, within, state)
        modules = family.modules(stack, family.slot(config, within))
        at = model.get_submodule
        at(modules.block).register_forward_pre_hook(_keep(seen, "stream"), with_kwargs=True)
        at(modules.reads).register_forward_pre_hook(_keep(seen, "reads"), with_kwargs=True)
        at(modules.writes).register_forward_hook(
            lambda _m, _a, out: seen.__setitem__("writes", get_output(out).clone())
        )
        family.feed(model, model.config, stack, torch.Generator().manual_seed(seed), tokens)
    return tuple(seen[name][0] for name in ("stream", "reads", "writes"))  # type: ignore[return-value]


def _state(checkpoint: Checkpoint, stack: str, index: int) -> dict[str, Tensor]:
    """Every tensor of the layer but the feed-forward's, under the names of the small model."""
    family, read = checkpoint.family, checkpoint.reader
    old, new = family.path(stack, index), family.path(stack, family.slot(checkpoint.config, index))
    state = {new + name.removeprefix(old): read(name).double() for name in read.under(old)}
    return state | {name: read(name).double() for name in family.shared(stack) if name in read}


def _single(checkpoint: Checkpoint, stack: str, index: int, state: dict[str, Tensor]) -> torch.nn.Module:
    """A model of the family's own code that has this layer alone."""
    from transformers import AutoModel

    family, config = checkpoint.family, copy.deepcopy(checkpoint.config)
    for name, value in family.small(config, stack, index).items():
        setattr(config, name, value)
    if (getattr(config, "pad_token_id", None) or 0) >= 64:
        config.pad_token_id = None
    config._attn_implementation = family.implementation
    kinds = AutoModel._model_mapping
    if type(config) not in kinds:
        raise UnsupportedError(f"transformers has no model for a {type(config).__name__}")
    kind: Any = kinds[type(config)]
    model = kind.from_pretrained(
        None, config=config, state_dict=state, dtype=torch.float64, ignore_mismatched_sizes=True
    )
    return model.eval()


def _keep(seen: dict[str, Tensor], name: str) -> Callable[..., None]:
    """A forward pre-hook that stores the first hidden states that a module receives."""

    def keep(_module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        seen.setdefault(name, get_hidden_states(arguments, options).clone())

    return keep


class silence_transformers:
    """No reports of transformers about tensors that the small model does not have."""

    def __enter__(self) -> None:
        from transformers.utils import logging

        self._logging, self._level = logging, logging.get_verbosity()
        self._bar = logging.is_progress_bar_enabled()
        logging.set_verbosity(CRITICAL)
        logging.disable_progress_bar()

    def __exit__(self, *_: object) -> None:
        self._logging.set_verbosity(self._level)
        if self._bar:
            self._logging.enable_progress_bar()


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
        """The width d of the residual stream."""
        return getattr(self.config, self.family.width)

    def choose_stack(self, stack: str | None) -> str:
        """The name of a stack of layers, the first one by default; raises if the model has no such stack."""
        stacks = list(self.family.stacks(self.config))
        if stack is not None and stack not in stacks:
            raise InputError(f"{self.name} has no stack {stack!r}; it has {', '.join(map(repr, stacks))}")
        return stacks[0] if stack is None else stack

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

    def prefetch(self, indices: Iterable[int]) -> Iterator[Layer]:
        """Layers one after the other, the next being read while the present one is looked at: two are in memory, as stored."""
        with ThreadPoolExecutor(1, "attractor-layers") as reading:
            coming = None
            for index in indices:
                present, coming = coming, reading.submit(self.__getitem__, index)
                if present is not None:
                    yield present.result()
            if coming is not None:
                yield coming.result()
