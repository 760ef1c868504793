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
from attractor.laws import Norm
from attractor.models.checkpoints import Checkpoint
from attractor.models.family import Modules, get_hidden_states, get_output

EMBEDDINGS = ("wpe", "position_embeddings", "embed_positions", "relative_attention_bias")
ABLATIONS = ("feedforward", "attention", "positions", "norms")
_NORMS: WeakKeyDictionary[Checkpoint, dict[str, list[Norm | None]]] = WeakKeyDictionary()


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


def run_stack(model: Any, stack: str, inputs: dict[str, Tensor]) -> Any:
    """Run a model, or only its encoder if that is the stack of interest."""
    part = getattr(model, stack, model) if stack == "encoder" else model
    return part(**inputs)


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
    for index, norm in enumerate(output_norms(checkpoint, stack)):
        handles += _hook_block(model, checkpoint.family.modules(stack, index), index, norm, receive, without)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def output_norms(checkpoint: Checkpoint, stack: str) -> list[Norm | None]:
    """The norm of each layer that the output of attention passes before it is added, if any; cached for the next text."""
    cached = _NORMS.setdefault(checkpoint, {})
    if stack not in cached:
        layers, count = checkpoint.layers, checkpoint.family.stacks(checkpoint.config)[stack]
        first = next(index for index in range(len(layers)) if layers.place(index)[0] == stack)
        none = layers[first].output_norm is None
        cached[stack] = [None if none else layers[first + index].output_norm for index in range(count)]
    return cached[stack]


def _hook_block(
    model: nn.Module,
    modules: Modules,
    index: int,
    norm: Norm | None,
    receive: Callable[[BlockStates], None],
    without: tuple[str, ...],
) -> list[Any]:
    seen: dict[str, Tensor] = {}
    part = model.get_submodule

    def begin(_module: nn.Module, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        seen.clear()
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
        before, reads, added = seen["before"], seen["reads"], seen["writes"]
        added = added if norm is None else norm(added)
        between = seen["middle"] if "middle" in seen else before + added
        out = _replace_output(out, between) if "feedforward" in without else out
        receive(BlockStates(index, *(state[0].detach() for state in (before, get_output(out), reads, between))))
        seen.clear()
        return out

    handles = [
        part(modules.block).register_forward_pre_hook(begin, with_kwargs=True),
        part(modules.reads).register_forward_pre_hook(read, with_kwargs=True),
        part(modules.writes).register_forward_hook(write),
        part(modules.block).register_forward_hook(end),
    ]
    return handles if modules.middle is None else [*handles, part(modules.middle).register_forward_hook(middle)]


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
