"""Forward hooks: the residual stream at every block, and ablations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from attractor.errors import InputError, UnsupportedError
from attractor.laws import Norm
from attractor.models.checkpoints import Checkpoint
from attractor.models.family import Modules

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


EMBEDDINGS = ("wpe", "position_embeddings", "embed_positions", "relative_attention_bias")
ABLATIONS = ("feedforward", "attention", "positions", "norms")


def check_ablations(without: tuple[str, ...]) -> None:
    """Refuse what cannot be taken away."""
    for name in without:
        if name not in ABLATIONS:
            raise InputError(f"{name!r} cannot be taken away; what can is {', '.join(ABLATIONS)}")


@contextmanager
def without_positions(model: nn.Module) -> Iterator[None]:
    """Rotary angles are zero, and so are learned position vectors and biases of distances."""
    named = [(name.split(".")[-1], part) for name, part in model.named_modules()]
    rotary = [part for _, part in named if type(part).__name__.endswith("RotaryEmbedding")]
    learned = [part for name, part in named if isinstance(part, nn.Embedding) and name in EMBEDDINGS]
    stored = {part: found for _, part in named if (found := _stored(part))}
    falls_off = getattr(
        getattr(model, "config", None), "alibi", False
    )  # such a model may have angles that it does not use
    if falls_off or not (rotary or learned or stored):
        raise UnsupportedError(
            f"a {type(model).__name__} keeps its positions where they cannot be taken away by a hook"
        )
    with ExitStack() as hooks:
        for part in rotary:
            hooks.enter_context(_hook(part, _unturned))
        for part in learned:
            hooks.enter_context(_hook(part, lambda _m, _a, out: torch.zeros_like(out)))
        for part, (name, values) in stored.items():
            hooks.enter_context(_exchanged(part, name, values))
        yield


def _stored(module: nn.Module) -> tuple[str, Tensor] | None:
    """Positions that a module keeps as a tensor: its name, and what it is without them. ViT adds vectors to its patches, GPT-J
    has a table of sines, then cosines."""
    vectors, table = (getattr(module, name, None) for name in ("position_embeddings", "embed_positions"))
    if isinstance(vectors, nn.Parameter):
        return "position_embeddings", torch.zeros_like(vectors)
    if isinstance(table, Tensor):
        half = table.shape[-1] // 2
        return "embed_positions", torch.cat((torch.zeros_like(table[:, :half]), torch.ones_like(table[:, half:])), -1)
    return None


@contextmanager
def _exchanged(module: nn.Module, name: str, values: Tensor) -> Iterator[None]:
    tensor = getattr(module, name)
    own, tensor.data = tensor.data, values.data
    try:
        yield
    finally:
        tensor.data = own


@contextmanager
def frozen_norms(model: nn.Module, plain_run: Callable[[], Any]) -> Iterator[None]:
    """Every norm divides by the length that its input had in the plain run, token by token: an affine map."""
    norms = [part for part in model.modules() if "Norm" in type(part).__name__ and not list(part.children())]
    lengths: dict[nn.Module, list[Tensor]] = {norm: [] for norm in norms}
    with ExitStack() as hooks:
        for norm in norms:
            hooks.enter_context(_hook(norm, lambda part, given, _out: lengths[part].append(_length(part, given[0]))))
        plain_run()
    calls = dict.fromkeys(norms, 0)

    def held(part: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> Tensor:
        then = lengths[part][calls[part]]
        calls[part] += 1
        bias = getattr(part, "bias", None)
        shift = bias if isinstance(bias, Tensor) else 0.0
        return (out - shift) * (_length(part, given[0]) / then) + shift

    with ExitStack() as hooks:
        for norm in norms:
            hooks.enter_context(_hook(norm, held))
        yield


def _unturned(rotary: nn.Module, _given: Any, out: Any) -> Any:
    """Cosines and sines of angle zero; some models keep them as one complex number."""
    factor = getattr(rotary, "attention_scaling", 1.0)
    factor = factor if isinstance(factor, float) else 1.0
    if isinstance(out, Tensor):
        return factor * torch.ones_like(out)
    return factor * torch.ones_like(out[0]), torch.zeros_like(out[1])


def _length(norm: nn.Module, x: Tensor) -> Tensor:
    """What a norm divides by. OLMo's has no parameters, and its epsilon is in its code."""
    bare = type(norm).__name__ == "OlmoLayerNorm"
    eps = next((value for name in ("eps", "variance_epsilon") if (value := getattr(norm, name, None)) is not None), 0.0)
    eps = 1e-5 if bare else eps
    centred = x - x.mean(-1, keepdim=True) if bare or isinstance(norm, nn.LayerNorm) else x
    return (centred.pow(2).mean(-1, keepdim=True) + eps).sqrt()


@contextmanager
def _hook(module: nn.Module, function: Callable[..., Any]) -> Iterator[None]:
    handle = module.register_forward_hook(function)
    try:
        yield
    finally:
        handle.remove()
