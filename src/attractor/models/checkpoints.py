"""Checkpoints: opened lazily, one law per layer and head, verified against the original model."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from logging import CRITICAL
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from attractor.errors import CheckpointError, InputError, StoreError, UnsupportedError
from attractor.models.attention_layers import Heads, Layer, NoAttention, refine_heads, use_float64
from attractor.models.family import Family, Modules, get_hidden_states, get_output
from attractor.models.tensors import CPU, Reader, Tensors, make_reader
from attractor.nn import RECORD, REFINEMENT, Refinement, Shift, Slice, refine, restore_refinement
from attractor.solvers import velocity
from attractor.states import Tokens


@dataclass(frozen=True)
class LayerCheck:
    """Errors of one layer, the largest difference over the largest entry: of the output of attention, of the norm before it, and of
    the outputs of single heads (None where a head alone is undefined)."""

    name: str
    attention: float
    norm: float | None
    heads: float | None = None

    @property
    def error(self) -> float:
        """The largest of them; NaN if one is NaN."""
        return float(np.max([error for error in (self.attention, self.norm, self.heads) if error is not None]))


@dataclass(frozen=True)
class Verification:
    """Comparison of our attention with that of the original model; true if the error is below ``tolerance``."""

    family: str
    layers: tuple[LayerCheck, ...]
    tokens: int
    seconds: float
    tolerance: float = 1e-9

    @property
    def error(self) -> float:
        """The largest error of all layers."""
        return max((check.error for check in self.layers), default=0.0)

    def __bool__(self) -> bool:
        """Whether our attention equals the model's up to rounding."""
        return self.error < self.tolerance


def verify(checkpoint: Checkpoint, layers: list[int] | None = None, tokens: int = 12, seed: int = 0) -> Verification:
    """Compare the laws of some layers, all by default, with the original attention on random tokens; blocks without attention are left
    out."""
    start, checkpoint = time.perf_counter(), replace(checkpoint, device=CPU)
    indices = [index for index in checkpoint.attention_layers if layers is None or index in layers]
    checks = tuple(_check_layer(checkpoint, index, tokens, seed) for index in indices)
    tolerance = max(1e-9, 1e3 * torch.finfo(checkpoint.dtype).eps)
    return Verification(checkpoint.family.name, checks, tokens, time.perf_counter() - start, tolerance)


def _check_layer(checkpoint: Checkpoint, index: int, tokens: int, seed: int) -> LayerCheck:
    layer = checkpoint.layers[index]
    run = _run_original(checkpoint, index, layer.heads, tokens, seed)
    ours = velocity(layer.attention, Tokens(run.reads))
    attention, norm = _difference(ours, layer.added(run.writes)), _norm_error(layer, run.stream, run.reads)
    return LayerCheck(layer.name, attention, norm, _head_error(layer, run))


@dataclass(frozen=True)
class OriginalRun:
    """What the original code computes for one layer: the stream before the block, input and output of attention, (n, d) each, and the
    output of every head after the output projection, without its bias, (h, n, d), where it has a module."""

    stream: Tensor
    reads: Tensor
    writes: Tensor
    heads: Tensor | None


def _head_error(layer: Layer, run: OriginalRun) -> float | None:
    """The largest error of a single head; None where a head alone is undefined."""
    if run.heads is None or (isinstance(layer.source, Heads) and layer.source.joint):
        return None
    ours = torch.stack([velocity(layer.head(index), Tokens(run.reads)) for index in range(layer.heads)])
    return _difference(ours, layer.output_factor * run.heads)


def _norm_error(layer: Layer, stream: Tensor, reads: Tensor) -> float | None:
    """Error of the norm before attention; None in a post-norm model, where it belongs to another layer."""
    if layer.placement not in ("pre", "peri") or layer.norm is None:
        return None
    return _difference(layer.norm(stream), reads)


def _difference(ours: Tensor, own: Tensor) -> float:
    return float((ours - own).abs().max() / own.abs().max())


def _run_original(checkpoint: Checkpoint, index: int, heads: int, tokens: int, seed: int) -> OriginalRun:
    """Run the original code on one layer with this number of heads."""
    family, config = checkpoint.family, checkpoint.config
    stack, within = checkpoint.layers.place(index)
    seen: dict[str, Tensor] = {}
    own = family.original(config, within)
    # read before the switch to float64, which must not apply to files
    state = _read_state(checkpoint, stack, within) if own is None else {}
    refinement = checkpoint.find_refinement(stack, within, checkpoint.dim, heads) if own is None else None
    with use_float64(), torch.no_grad(), silence_transformers(), torch.random.fork_rng(devices=[]):
        model = _build_small(checkpoint, stack, within, state) if own is None else own[0]
        modules = family.modules(stack, family.slot(config, within)) if own is None else own[1]
        if refinement is not None:
            _refine_small(model, modules.reads, refinement)
        at, projection = model.get_submodule, None
        if own is None:
            path = modules.projection or _find_projection(model, modules, family.layout.output)
            projection = torch.nn.Sequential(*map(at, path))
            projection[0].register_forward_pre_hook(_keep(seen, "mixed"), with_kwargs=True)
        at(modules.stream or modules.block).register_forward_pre_hook(_keep(seen, "stream"), with_kwargs=True)
        at(modules.reads).register_forward_pre_hook(_keep(seen, "reads"), with_kwargs=True)
        at(modules.writes).register_forward_hook(
            lambda _m, _a, out: seen.__setitem__("writes", get_output(out).clone())
        )
        family.feed(model, getattr(model, "config", config), stack, torch.Generator().manual_seed(seed), tokens)
        stream, reads, writes = (seen[name][0] for name in ("stream", "reads", "writes"))
        alone = None if projection is None else _project_heads(projection, seen["mixed"][0], heads)
        return OriginalRun(stream, reads, writes, alone)


def _find_projection(model: torch.nn.Module, modules: Modules, name: str) -> tuple[str, ...]:
    """The name of the output projection of attention, ``writes`` itself where that is a matrix."""
    weight = getattr(model.get_submodule(modules.writes), "weight", None)
    return (modules.writes if isinstance(weight, Tensor) and weight.ndim == 2 else f"{modules.reads}.{name}",)


def _project_heads(projection: torch.nn.Module, mixed: Tensor, heads: int) -> Tensor:
    """The outputs (h, n, d) of all heads by the original output projection, from its input (n, h r), without its bias."""
    parts = mixed.unflatten(-1, (heads, -1))
    alone = torch.zeros(heads, *parts.shape, dtype=mixed.dtype)
    for index in range(heads):
        alone[index, :, index] = parts[:, index]
    return projection(alone.flatten(-2)) - projection(torch.zeros_like(mixed[:1]))


def _read_state(checkpoint: Checkpoint, stack: str, index: int) -> dict[str, Tensor]:
    """The tensors of the layer without the feed-forward, under the names of the small model."""
    family, read = checkpoint.family, checkpoint.reader
    config = checkpoint.config
    old, new = family.stored(config, stack, index), family.stored(config, stack, family.slot(config, index))
    own = [name for name in read.under(old) if f".{REFINEMENT}." not in name]
    state = {new + name.removeprefix(old): read(name).double() for name in own}
    state |= {name: read(name).double() for name in family.shared(stack) if name in read}
    return family.rename(state)


def _build_small(checkpoint: Checkpoint, stack: str, index: int, state: dict[str, Tensor]) -> torch.nn.Module:
    """A model of transformers that has only this layer."""
    from transformers import AutoModel

    family, config = checkpoint.family, copy.deepcopy(checkpoint.config)
    for name, value in family.small(config, stack, index).items():
        setattr(config, name, value)
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        given = getattr(config, name, None)
        if isinstance(given, int) and given >= 64:
            setattr(config, name, 0 if name == "decoder_start_token_id" else None)
    config._attn_implementation = family.implementation
    config = with_eager_experts(config, torch.float64)
    kinds = AutoModel._model_mapping
    if type(config) not in kinds:
        raise UnsupportedError(f"transformers has no model for a {type(config).__name__}")
    kind: Any = kinds[type(config)]
    model = kind.from_pretrained(
        None, config=config, state_dict=state, dtype=torch.float64, ignore_mismatched_sizes=True
    )
    return model.eval()


STRENGTH, LETTERS = f".{REFINEMENT}.theta", f".{REFINEMENT}.form_letters"


def _add_refinement(layer: Layer, refinement: Refinement | None) -> Layer:
    """A layer whose scores have the term of a refinement."""
    if refinement is None:
        return layer
    if not isinstance(layer.source, Heads):
        raise UnsupportedError(f"{layer.name} has a refinement of a kind of attention that has none")
    note = f"the refinement ({refinement.form}) is contained in the interactions"
    return replace(layer, source=refine_heads(layer.source, refinement), notes=(*layer.notes, note))


def _refine_small(model: Any, attention: str, found: Refinement) -> None:
    """Refine a small model; the module ``attention`` gets these strengths."""
    assert isinstance(found, (Shift, Slice))
    channels = found.channels if isinstance(found, Slice) else None
    refine(model, found.name, sign=found.sign, channels=channels)  # type: ignore[arg-type]
    at: Any = model.get_submodule(attention)
    at.refinement.theta.copy_(found.theta)


def with_eager_experts(config: Any, dtype: torch.dtype) -> Any:
    """A configuration whose experts run in this precision: the grouped products of transformers have no float64."""
    if dtype != torch.float64 or not any(hasattr(config, name) for name in EXPERTS):
        return config
    config = copy.deepcopy(config)
    config._experts_implementation = "eager"
    return config


# names of the number of layers in configurations
DEPTHS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "encoder_layers",
    "decoder_layers",
    "num_decoder_layers",
)
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def _keep(seen: dict[str, Tensor], name: str) -> Callable[..., None]:
    """A forward pre-hook that stores the first hidden states that a module receives."""

    def keep(_module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        seen.setdefault(name, get_hidden_states(arguments, options).clone())

    return keep


class silence_transformers:
    """Context manager that suppresses the log messages, deprecation warnings and progress bars of transformers."""

    def __enter__(self) -> None:
        from transformers.utils import logging

        self._logging, self._level = logging, logging.get_verbosity()
        self._bar = logging.is_progress_bar_enabled()
        logging.set_verbosity(CRITICAL)
        logging.disable_progress_bar()
        self._warnings = warnings.catch_warnings()
        self._warnings.__enter__()
        warnings.simplefilter("ignore", DeprecationWarning)  # raised by modules of transformers when they are imported

    def __exit__(self, *_: object) -> None:
        self._warnings.__exit__(None, None, None)
        self._logging.set_verbosity(self._level)
        if self._bar:
            self._logging.enable_progress_bar()


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The attention of a model, read on demand and not cached.

    Attributes
    ----------
    name : path or name of the model.
    family, config : its family and its configuration of transformers.
    tensors : its stored tensors.
    dtype, device : precision and device of the laws.
    model : the model itself, if it was given in memory.
    notes : remarks.
    layers : sequence of ``Layer``; each access reads that layer from the files, so that one layer at a time is in memory.
    """

    name: str
    family: Family
    config: Any
    tensors: Tensors
    dtype: torch.dtype = torch.float64
    model: Any = None
    notes: tuple[str, ...] = ()
    device: torch.device = CPU

    @cached_property
    def reader(self) -> Reader:
        return make_reader(self.tensors, self.family.prefixes, self.family.probes, self.dtype, self.device)

    @cached_property
    def layers(self) -> Layers:
        return Layers(self)

    @property
    def dim(self) -> int:
        """The width d of the residual stream."""
        return self.family.dim(self.config)

    @cached_property
    def attention_layers(self) -> tuple[int, ...]:
        """The layers that have attention: all but some blocks of hybrid models."""
        places = (self.layers.place(index) for index in range(len(self.layers)))
        reasons = [self.family.no_attention(self.config, *place) for place in places]
        return tuple(index for index, reason in enumerate(reasons) if reason is None)

    @property
    def first(self) -> Layer:
        """The first layer that has attention."""
        if not self.attention_layers:
            raise UnsupportedError(f"{self.name} has no layer with attention")
        return self.layers[self.attention_layers[0]]

    @cached_property
    def stacks(self) -> dict[str, int]:
        """The number of layers of each stack; a stack whose tensors are absent, as the decoder of a T5EncoderModel, is left out."""
        found = self.family.stacks(self.config)
        if len(found) == 1:
            return found
        present = {stack: count for stack, count in found.items() if self.reader.under(self.family.path(stack, 0))}
        return present or found

    def find_refinement(self, stack: str, index: int, dim: int, heads: int) -> Refinement | None:
        """The refinement of a layer, as ``at.nn.refine`` stores it; None if it has none."""
        if not self.family.stores_refinements:
            return None
        read, path = self.reader, self.family.stored(self.config, stack, index)
        names = [name for name in read.under(path) if name.endswith(STRENGTH)]
        if not names:
            return None
        if len(names) > 1:
            raise CheckpointError(f"{self.name} has several refinements in one layer: {', '.join(names)}")
        forms = names[0].removesuffix(STRENGTH) + LETTERS
        letters = self.tensors.read(read.prefix + forms) if forms in read else None
        try:
            return restore_refinement(read(names[0]), letters, getattr(self.config, RECORD, None), dim, heads)
        except StoreError as error:
            raise CheckpointError(f"{self.name}: {error}") from None

    def choose_stack(self, stack: str | None) -> str:
        """The name of a stack of layers, the first one by default; raises if the model has no such stack."""
        stacks = list(self.stacks)
        if stack is not None and stack not in stacks:
            raise InputError(f"{self.name} has no stack {stack!r}; it has {', '.join(map(repr, stacks))}")
        return stacks[0] if stack is None else stack

    def verify(self, layers: Sequence[int] | None = None, tokens: int = 12, seed: int = 0) -> Verification:
        """Compare our laws with the original attention on random tokens, layer by layer."""
        return verify(self, None if layers is None else list(layers), tokens, seed)

    def __repr__(self) -> str:
        return f"Checkpoint({self.name!r}, family={self.family.name!r}, layers={len(self.layers)}, dim={self.dim})"


class Layers(Sequence[Layer]):
    """The layers of a checkpoint, read one at a time; decoder layers follow encoder layers."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._places = [(stack, index) for stack, count in checkpoint.stacks.items() for index in range(count)]

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
        family, config = checkpoint.family, checkpoint.config
        reason = family.no_attention(config, stack, within)
        if reason is None:
            layer = family.layer(config, checkpoint.reader, stack, within)
            return _add_refinement(layer, checkpoint.find_refinement(stack, within, layer.dim, layer.heads))
        undefined = {"interaction": reason, "value_map": reason}
        source = NoAttention(checkpoint.dim, reason)
        return Layer(within, f"layer {within}", source, None, placement="none", undefined=undefined)

    def __iter__(self):  # that of Sequence would end on IndexError
        return (self[index] for index in range(len(self)))

    def prefetch(self, indices: Iterable[int]) -> Iterator[Layer]:
        """Iterate over layers while the next one is read in a thread; two are in memory, as stored."""
        with ThreadPoolExecutor(1, "attractor-layers") as reading:
            coming = None
            for index in indices:
                present, coming = coming, reading.submit(self.__getitem__, index)
                if present is not None:
                    yield present.result()
            if coming is not None:
                yield coming.result()
