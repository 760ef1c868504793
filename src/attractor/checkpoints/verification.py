"""Our attention against the model's own, layer by layer.

For each layer a model with that layer alone is built by transformers from the configuration, its attention tensors are loaded
by transformers' own loader, and it is run on random tokens with its own masks and positions, in float64 throughout. What its
attention module reads is given to our law; what it writes is compared.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from logging import CRITICAL
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attractor.checkpoints.precision import double
from attractor.errors import UnsupportedError
from attractor.flow import velocity
from attractor.states import Tokens

if TYPE_CHECKING:
    from attractor.checkpoints.checkpoint import Checkpoint
    from attractor.checkpoints.layer import Layer


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
    with double(), torch.no_grad(), quiet():
        model = _single(checkpoint, stack, within, state)
        modules = family.modules(stack, family.slot(config, within))
        at = model.get_submodule
        at(modules.block).register_forward_pre_hook(lambda *call: _keep(seen, "stream", *call[1:]), with_kwargs=True)
        at(modules.reads).register_forward_pre_hook(lambda *call: _keep(seen, "reads", *call[1:]), with_kwargs=True)
        at(modules.writes).register_forward_hook(lambda _m, _a, out: seen.__setitem__("writes", _first(out).clone()))
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


def _keep(seen: dict[str, Tensor], name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    given = arguments[0] if arguments else options["hidden_states"]
    seen.setdefault(name, given.clone())


def _first(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output[0]


class quiet:
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
