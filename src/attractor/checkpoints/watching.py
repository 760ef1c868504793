"""A model at work, watched by hooks: the residual stream before every block and after the last, and what attention read and wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from attractor.attention import Norm
from attractor.checkpoints.checkpoint import Checkpoint
from attractor.checkpoints.family import Modules

_NORMS: WeakKeyDictionary[Checkpoint, dict[str, list[Norm | None]]] = WeakKeyDictionary()


@dataclass
class Passage:
    """One block as tokens pass it, each (n, d): the stream before, in the middle and after, and what attention read."""

    index: int
    before: Tensor
    reads: Tensor
    middle: Tensor
    after: Tensor


@dataclass
class _Seen:
    before: Tensor | None = None
    reads: Tensor | None = None
    writes: Tensor | None = None
    middle: Tensor | None = None
    handles: list[Any] = field(default_factory=list)


@contextmanager
def watched(
    model: nn.Module,
    checkpoint: Checkpoint,
    stack: str,
    see: Callable[[Passage], None],
    without: tuple[str, ...] = (),
) -> Iterator[None]:
    """Call ``see`` with every block that a run of the model passes; nothing is kept here once a block is done.

    ``without`` may hold "attention", whose output becomes zero, and "feedforward", which a block then ends before.
    """
    handles: list[Any] = []
    for index, layer in enumerate(norms_after(checkpoint, stack)):
        modules = checkpoint.family.modules(stack, index)
        handles += _block(model, modules, index, layer, see, without)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def norms_after(checkpoint: Checkpoint, stack: str) -> list[Norm | None]:
    """The norm that each layer's attention output passes before it is added, where there is one; read once for many texts."""
    known = _NORMS.setdefault(checkpoint, {})
    if stack not in known:
        known[stack] = _read_norms(checkpoint, stack)
    return known[stack]


def _read_norms(checkpoint: Checkpoint, stack: str) -> list[Norm | None]:
    count = checkpoint.family.stacks(checkpoint.config)[stack]
    first = next(i for i in range(len(checkpoint.layers)) if checkpoint.layers.place(i)[0] == stack)
    if checkpoint.layers[first].output_norm is None:
        return [None] * count
    return [checkpoint.layers[first + index].output_norm for index in range(count)]


def _block(
    model: nn.Module,
    modules: Modules,
    index: int,
    norm: Norm | None,
    see: Callable[[Passage], None],
    without: tuple[str, ...],
) -> list[Any]:
    seen, part = _Seen(), model.get_submodule

    def begin(_module: nn.Module, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        seen.before, seen.reads, seen.writes, seen.middle = _given(given, options), None, None, None

    def read(_module: nn.Module, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        seen.reads = _given(given, options)

    def write(_module: nn.Module, _given: Any, out: Any) -> Any:
        out = _replaced(out, torch.zeros_like(_first(out))) if "attention" in without else out
        seen.writes = _first(out)
        return out

    def middle(_module: nn.Module, _given: Any, out: Any) -> None:
        seen.middle = _first(out)

    def end(_module: nn.Module, _given: Any, out: Any) -> Any:
        assert seen.before is not None
        assert seen.reads is not None
        assert seen.writes is not None
        added = seen.writes if norm is None else norm(seen.writes)
        between = seen.before + added if seen.middle is None else seen.middle
        out = _replaced(out, between) if "feedforward" in without else out
        see(Passage(index, *(state[0].detach() for state in (seen.before, seen.reads, between, _first(out)))))
        seen.before = seen.reads = seen.writes = seen.middle = None
        return out

    handles = [
        part(modules.block).register_forward_pre_hook(begin, with_kwargs=True),
        part(modules.reads).register_forward_pre_hook(read, with_kwargs=True),
        part(modules.writes).register_forward_hook(write),
        part(modules.block).register_forward_hook(end),
    ]
    return handles if modules.middle is None else [*handles, part(modules.middle).register_forward_hook(middle)]


def _given(arguments: tuple[Any, ...], options: dict[str, Any]) -> Tensor:
    return arguments[0] if arguments else options["hidden_states"]


def _first(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output[0]


def _replaced(output: Any, stream: Tensor) -> Any:
    """The output of a module with another stream in it."""
    return stream if isinstance(output, Tensor) else (stream, *output[1:])
