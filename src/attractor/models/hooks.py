"""Forward hooks: the residual stream at every block, and ablations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from attractor.errors import InputError, UnsupportedError
from attractor.models.attention_layers import Layer
from attractor.models.checkpoints import Checkpoint
from attractor.models.family import Modules, get_hidden_states, get_output

EMBEDDINGS = ("wpe", "position_embeddings", "embed_positions", "relative_attention_bias")
ABLATIONS = ("feedforward", "attention", "positions", "norms")
_MAPS: WeakKeyDictionary[Checkpoint, dict[str, list[Callable[[Tensor], Tensor]]]] = WeakKeyDictionary()


@dataclass
class BlockStates:
    """Tokens at one block.

    Attributes
    ----------
    index : number of the block.
    before, after : residual stream before and after the block, (n, d).
    attention_input, middle : input of attention, and the stream between attention and feed-forward, (n, d); None for a model
        without a family.
    weights : attention weights (h, n, n) that the model returned, where it has no family.
    """

    index: int
    before: Tensor
    after: Tensor
    attention_input: Tensor | None = None
    middle: Tensor | None = None
    weights: Tensor | None = None


@contextmanager
def record_blocks(
    model: nn.Module,
    checkpoint: Checkpoint,
    stack: str,
    receive: Callable[[BlockStates], None],
    without: tuple[str, ...] = (),
) -> Iterator[None]:
    """Call ``receive`` with the states of every block while the model runs; nothing is kept after a block.

    ``without`` may contain "attention", whose output is then replaced by zero, and "feedforward", which is then skipped.
    """
    handles: list[Any] = []
    shared: dict[Modules, list[Added]] = {}
    family, config = checkpoint.family, checkpoint.config
    for index, added in enumerate(output_maps(checkpoint, stack)):
        shared.setdefault(family.hooked(config, stack, index), []).append(added)
    calls = BlockOrder(sum(map(len, shared.values())))
    for modules, maps in shared.items():
        handles += _hook_block(model, modules, calls, maps[0], receive, without)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


Added = Callable[[Tensor], Tensor]


class BlockOrder:
    """Counts the blocks of a forward pass: layers that share their tensors are one module that runs several times."""

    def __init__(self, count: int) -> None:
        self._count, self._next = count, 0

    def advance(self) -> int:
        """The index of the block that begins."""
        index, self._next = self._next, (self._next + 1) % self._count
        return index


def output_maps(checkpoint: Checkpoint, stack: str) -> list[Added]:
    """For each layer, the map from the output of attention to what is added to the stream; cached for the next text."""
    cached = _MAPS.setdefault(checkpoint, {})
    if stack not in cached:
        layers, count = checkpoint.layers, checkpoint.stacks[stack]
        first = next(index for index in range(len(layers)) if layers.place(index)[0] == stack)
        own = [index for index in range(first, first + count) if index in checkpoint.attention_layers]
        changed = bool(own) and _changes_output(layers[own[0]])
        cached[stack] = [
            layers[index].added if changed and index in own else _keep for index in range(first, first + count)
        ]
    return cached[stack]


def _changes_output(layer: Layer) -> bool:
    return layer.output_norm is not None or layer.output_factor != 1.0


def _keep(output: Tensor) -> Tensor:
    return output


def _hook_block(
    model: nn.Module,
    modules: Modules,
    calls: BlockOrder,
    added_by: Added,
    receive: Callable[[BlockStates], None],
    without: tuple[str, ...],
) -> list[Any]:
    seen: dict[str, Tensor] = {}
    place: list[int] = []
    part = model.get_submodule

    def begin(_module: nn.Module, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        seen.clear()
        place[:] = [calls.advance()]
        seen["before"] = get_hidden_states(given, options)

    def read(_module: nn.Module, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        seen["reads"] = get_hidden_states(given, options)

    def write(_module: nn.Module, _given: Any, out: Any) -> Any:
        out = _replace_output(out, torch.zeros_like(get_output(out))) if "attention" in without else out
        seen["writes"] = get_output(out)
        return out

    def middle(_module: nn.Module, _given: Any, out: Any) -> None:
        seen["middle"] = get_output(out)

    def end(_module: nn.Module, _given: Any, out: Any) -> Any:
        before = seen["before"]
        # a block of a hybrid model may have no attention
        reads, added = seen.get("reads", before), seen.get("writes")
        added = torch.zeros_like(before) if added is None else added_by(added)
        between = seen["middle"] if "middle" in seen else before + added
        out = _replace_output(out, between) if "feedforward" in without else out
        states = (_first(state).detach() for state in (before, get_output(out), reads, between))
        receive(BlockStates(place[0], *states))
        seen.clear()
        return out

    handles = [
        part(modules.block).register_forward_pre_hook(begin, with_kwargs=True),
        part(modules.block).register_forward_hook(end),
    ]
    if _has_module(model, modules.reads):
        handles.append(part(modules.reads).register_forward_pre_hook(read, with_kwargs=True))
        handles.append(part(modules.writes).register_forward_hook(write))
    return handles if modules.middle is None else [*handles, part(modules.middle).register_forward_hook(middle)]


def _has_module(model: nn.Module, name: str) -> bool:
    try:
        return model.get_submodule(name) is not None
    except AttributeError:
        return False


def _first(state: Tensor) -> Tensor:
    """The states of the first text, and of the first stream where a model has several (AltUp)."""
    return state[0] if state.ndim == 3 else state[0][0]


def _replace_output(output: Any, hidden_states: Tensor) -> Any:
    """The output of a module with other hidden states."""
    return hidden_states if isinstance(output, Tensor) else (hidden_states, *output[1:])


def check_ablations(without: tuple[str, ...]) -> None:
    """Raise if a name is not an ablation."""
    for name in without:
        if name not in ABLATIONS:
            raise InputError(f"{name!r} cannot be taken away; what can is {', '.join(ABLATIONS)}")


@contextmanager
def remove_positions(model: nn.Module) -> Iterator[None]:
    """Set rotary angles, learned position embeddings and relative position biases to zero."""
    named = [(name.split(".")[-1], part) for name, part in model.named_modules()]
    rotary = [part for _, part in named if type(part).__name__.endswith("RotaryEmbedding")]
    learned = [part for name, part in named if isinstance(part, nn.Embedding) and name in EMBEDDINGS]
    stored = {part: found for _, part in named if (found := _neutral_table(part))}
    alibi = getattr(getattr(model, "config", None), "alibi", False)  # such a model may have unused rotary angles
    if alibi or not (rotary or learned or stored):
        raise UnsupportedError(
            f"a {type(model).__name__} keeps its positions where they cannot be taken away by a hook"
        )
    with ExitStack() as hooks:
        for part in rotary:
            hooks.enter_context(_hook(part, _zero_angles))
        for part in learned:
            hooks.enter_context(_hook(part, lambda _m, _a, out: torch.zeros_like(out)))
        for part, (name, values) in stored.items():
            hooks.enter_context(_swap_data(getattr(part, name), values))
        yield


def _neutral_table(module: nn.Module) -> tuple[str, Tensor] | None:
    """The name of a tensor of positions in a module, and its value without positions.

    ViT adds embeddings to its patches; GPT-J has a table of sines followed by cosines.
    """
    vectors, table = (getattr(module, name, None) for name in ("position_embeddings", "embed_positions"))
    if isinstance(vectors, nn.Parameter):
        return "position_embeddings", torch.zeros_like(vectors)
    if isinstance(table, Tensor):
        half = table.shape[-1] // 2
        return "embed_positions", torch.cat((torch.zeros_like(table[:, :half]), torch.ones_like(table[:, half:])), -1)
    return None


@contextmanager
def _swap_data(tensor: Tensor, values: Tensor) -> Iterator[None]:
    own, tensor.data = tensor.data, values.data
    try:
        yield
    finally:
        tensor.data = own


def _zero_angles(rotary: nn.Module, _given: Any, out: Any) -> Any:
    """Cosines and sines of angle zero; some models store them as one complex number."""
    factor = getattr(rotary, "attention_scaling", 1.0)
    factor = factor if isinstance(factor, float) else 1.0
    if isinstance(out, Tensor):
        return factor * torch.ones_like(out)
    return factor * torch.ones_like(out[0]), torch.zeros_like(out[1])


@contextmanager
def freeze_norms(model: nn.Module, run_unchanged: Callable[[], Any]) -> Iterator[None]:
    """Make every norm affine: it divides each token by the length that its input had in the unchanged run."""
    norms = [part for part in model.modules() if "Norm" in type(part).__name__ and not list(part.children())]
    lengths: dict[nn.Module, list[Tensor]] = {norm: [] for norm in norms}
    with ExitStack() as hooks:
        for norm in norms:
            hooks.enter_context(_hook(norm, lambda part, given, _out: lengths[part].append(_divisor(part, given[0]))))
        run_unchanged()
    calls = dict.fromkeys(norms, 0)

    def rescale(part: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> Tensor:
        recorded = lengths[part][calls[part]]
        calls[part] += 1
        bias = getattr(part, "bias", None)
        shift = bias if isinstance(bias, Tensor) else 0.0
        return (out - shift) * (_divisor(part, given[0]) / recorded) + shift

    with ExitStack() as hooks:
        for norm in norms:
            hooks.enter_context(_hook(norm, rescale))
        yield


def _divisor(norm: nn.Module, x: Tensor) -> Tensor:
    """What a norm divides x by. OLMo's LayerNorm has no parameters, and its epsilon is a constant of its code."""
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
