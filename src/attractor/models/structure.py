"""Models without a family: their blocks, found by structure, and the wrappers around models."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, cast

import torch
from torch import Tensor, nn

from attractor.errors import InputError, UnsupportedError
from attractor.models.family import Family
from attractor.models.hooks import BlockStates
from attractor.nn import is_refined, register

TEXT_PARTS = ("language_model", "text_model", "model.language_model", "model.text_model", "thinker.model")
IMAGE_PARTS = (
    "vision_model",
    "vision_tower",
    "visual",
    "image_encoder",
    "model.vision_model",
    "model.vision_tower",
    "model.visual",
)
ROW_SUM = 2e-2  # largest deviation of a row of attention weights from 1; rows in bfloat16 reach 1e-2
RESIDUAL = 0.5  # cosine of input and output of a block that contains its residual connection
BRIDGED = "_original_component"  # name of a module inside one of TransformerLens
UNWRAPPED = 8  # nested wrappers


class StructuralFamily(Family):
    """Stands for the family of a model that has none: such a model can be traced, but its weights cannot be read as laws."""

    name = "by structure"
    title = "any model of repeated blocks"

    def __init__(self, model_type: str | None) -> None:
        self.model_type = model_type

    def stacks(self, config: Any) -> dict[str, int]:
        raise self._error()

    def layer(self, config: Any, read: Any, stack: str, index: int) -> Any:
        raise self._error()

    def modules(self, stack: str, slot: int) -> Any:
        raise self._error()

    def _error(self) -> UnsupportedError:
        kind = f"of type {self.model_type!r}" if self.model_type else "that are not of transformers"
        return UnsupportedError(f"models {kind} have no family, so their attention cannot be read as laws; trace works")


@dataclass(frozen=True)
class BlockChain:
    """Blocks that ran one after the other, each from hidden states (1, n, d) to the same shape.

    Attributes
    ----------
    path : name of the container of the blocks, such as "model.layers".
    calls : module names in the order of execution; a block that is shared between layers occurs several times.
    dim : width d of the hidden states.
    breaks : numbers k such that block k does not start from the output of block k - 1.
    tokens : number of tokens n of the hidden states.
    residual : median over the blocks of the cosine between their input and their output.
    """

    path: str
    calls: tuple[str, ...]
    dim: int
    breaks: tuple[int, ...] = ()
    tokens: int = 0
    residual: float = 1.0

    @property
    def is_stream(self) -> bool:
        """Whether the states of the blocks are the residual stream: some block starts from the output of the one before, or blocks
        change their input little. Otherwise the stream passes by the blocks, as by the feed-forward parts of XLM."""
        return len(self.breaks) < len(self.calls) - 1 or self.residual > RESIDUAL

    def notes(self, prefix: str, others: list[BlockChain]) -> tuple[str, ...]:
        """What a reader of the trace has to know about the choice of blocks; ``prefix`` is the name of the model's part."""
        found = [
            f"blocks were found by structure: {len(self.calls)} calls of {prefix}{self.path}, hidden states of width {self.dim}"
        ]
        if self.breaks:
            places = ", ".join(map(str, self.breaks[:8])) + (", ..." if len(self.breaks) > 8 else "")
            found.append(
                f"the model changes the stream between blocks, before block {places}; displacements are those of blocks alone"
            )
        if others:
            names = ", ".join(f"{one.path} ({len(one.calls)})" for one in others)
            found.append(f"the model has other blocks too, chosen by stack=...: {names}")
        return tuple(found)


def unwrap(model: Any) -> Any:
    """The model inside wrappers: torch.compile, (distributed) data parallel, PEFT, nnsight and TransformerLens bridges.

    A wrapper of fully sharded data parallelism is kept, because the model inside has only a part of its weights.
    """
    for _ in range(UNWRAPPED):
        inner = _unwrap_once(model)
        if inner is model:
            break
        model = inner
    check_not_folded(model)
    return model


def is_changed(model: nn.Module) -> bool:
    """Whether the weights of a model are divided between processes (FSDP, fully_shard), or its modules are inside others
    (TransformerLens)."""
    sharded = any(kind.__name__ in ("FSDPModule", "FullyShardedDataParallel") for kind in type(model).__mro__)
    return sharded or any(f".{BRIDGED}" in name for name, _ in model.named_parameters())


def _unwrap_once(model: Any) -> Any:
    package, kind = type(model).__module__.split(".")[0], type(model).__name__
    if kind == "OptimizedModule" and hasattr(model, "_orig_mod"):
        return model._orig_mod
    if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        return model.module
    if package == "peft" or kind.startswith("PeftModel"):
        prompts = [
            name for name, one in getattr(model, "peft_config", {}).items() if getattr(one, "is_prompt_learning", False)
        ]
        if prompts:
            raise UnsupportedError(
                f"the adapter {prompts[0]!r} adds learned tokens to every text, so the tokens of this model are not those of the "
                "text; give the model without it"
            )
        return model.get_base_model()
    if package == "nnsight":
        return next(
            (one for name in ("_module", "_model") if isinstance(one := vars(model).get(name), nn.Module)), model
        )
    if kind == "TransformerBridge" and getattr(model, "compatibility_mode", False):
        raise UnsupportedError(
            "this TransformerBridge is in compatibility mode, in which norms are folded into weights, so its residual stream is not that "
            "of the model; boot it again without enable_compatibility_mode()"
        )
    if kind == "TransformerBridge" and isinstance(getattr(model, "original_model", None), nn.Module):
        return model.original_model
    return model


def check_not_folded(model: Any) -> None:
    """Raise for a HookedTransformer whose weights were folded: its residual stream is not the model's."""
    norm = getattr(getattr(model, "cfg", None), "normalization_type", None)
    if any(kind.__name__ == "HookedTransformer" for kind in type(model).__mro__) and str(norm).endswith("Pre"):
        raise UnsupportedError(
            f"this HookedTransformer has folded norms (normalization_type {norm!r}), so its residual stream and weights are not "
            "those of the model; load it with HookedTransformer.from_pretrained_no_processing"
        )


def choose_part(model: nn.Module, inputs: dict[str, Tensor], stack: str | None) -> tuple[nn.Module, str]:
    """The part of a model that reads the inputs, with its name: the text or image tower of a multimodal model, the encoder of a
    model with a decoder that is given no decoder inputs, else the whole model with the name ""."""
    names = dict(model.named_modules())
    if (
        stack is not None
        and stack in names
        and stack
        and not _is_container(names[stack])
        and _reads_inputs(names[stack], inputs)
    ):
        return names[stack], stack
    config = getattr(model, "config", None)
    if getattr(config, "vision_config", None) is not None and not {"input_ids", "pixel_values"} <= inputs.keys():
        for name in IMAGE_PARTS if "pixel_values" in inputs else TEXT_PARTS:
            if name in names:
                return names[name], name
    decodes = any(name.startswith("decoder_") for name in inputs)
    if getattr(config, "is_encoder_decoder", False) and not decodes and hasattr(model, "get_encoder"):
        encoder = cast(Callable[[], nn.Module], model.get_encoder)()
        if _reads_inputs(encoder, inputs):
            return encoder, next((name for name, part in names.items() if part is encoder), "encoder")
    return model, ""


def _is_container(module: nn.Module) -> bool:
    return isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.Sequential))


def _reads_inputs(module: nn.Module, inputs: dict[str, Tensor]) -> bool:
    named = inspect.signature(module.forward).parameters
    return all(name in named for name in inputs)


def call_model(model: nn.Module, inputs: dict[str, Tensor]) -> Any:
    """Run a model; token ids are given by position where its code has another name for them."""
    named = inspect.signature(model.forward).parameters
    options: dict[str, Any] = {"use_cache": False} if "use_cache" in named else {}
    if "output_attentions" in named:
        options["output_attentions"] = True
    any_name = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in named.values())
    if len(inputs) == 1 and not any_name and not set(inputs) <= named.keys():
        return model(*inputs.values(), **options)
    return model(**inputs, **options)


@dataclass
class _Running:
    """A chain while the model runs."""

    calls: list[str] = field(default_factory=list)
    breaks: list[int] = field(default_factory=list)
    cosines: list[float] = field(default_factory=list)
    shape: tuple[int, int] | None = None
    last: Tensor | None = None
    changes_shape: bool = False


def find_chains(model: nn.Module, run: Callable[[], Any]) -> list[BlockChain]:
    """Find the chains of blocks that ``run`` executes, the longest first.

    A block is a child of a ModuleList, ModuleDict or Sequential that has submodules and maps hidden states (1, n, d) to the same
    shape. Containers within a block are left out.
    """
    running: dict[str, _Running] = {}
    with ExitStack() as hooks, torch.no_grad():
        for path, container in model.named_modules():
            if _is_container(container):
                for child, block in container.named_children():
                    if any(True for _ in block.children()):
                        _follow(hooks, running.setdefault(path, _Running()), f"{path}.{child}".lstrip("."), block)
        run()
    chains = [
        BlockChain(path, tuple(one.calls), one.shape[1], tuple(one.breaks), one.shape[0], median(one.cosines))
        for path, one in running.items()
        if one.shape is not None and not one.changes_shape
    ]
    outer = [one for one in chains if not any(_contains(other, one) for other in chains)]
    return sorted(outer, key=lambda one: -len(one.calls))


def _follow(hooks: ExitStack, chain: _Running, name: str, block: nn.Module) -> None:
    """Add every call of a block to its chain."""
    pending: list[Any] = []

    def begin(_module: Any, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        pending.append(find_hidden_states(given, options))

    def end(_module: Any, _given: Any, out: Any) -> None:
        before, after = pending.pop(), find_output(out)
        if before is None or after is None or before.shape != after.shape:
            chain.changes_shape = True
            return
        if chain.shape not in (None, _token_shape(before)):
            chain.changes_shape = True
        last, shape = chain.last, _token_shape(before)
        if last is not None and last is not before and not (last.shape == before.shape and torch.equal(last, before)):
            chain.breaks.append(len(chain.calls))
        chain.calls.append(name)
        chain.cosines.append(float(torch.cosine_similarity(before.flatten(), after.flatten(), dim=0)))
        chain.shape, chain.last = shape, after

    hooks.callback(block.register_forward_pre_hook(begin, with_kwargs=True).remove)
    hooks.callback(block.register_forward_hook(end).remove)


def _contains(outer: BlockChain, inner: BlockChain) -> bool:
    """Whether a chain runs within the blocks of another one that has several calls, or as many."""
    within = any(inner.path.startswith(name + ".") for name in outer.calls)
    return within and (len(outer.calls) >= len(inner.calls) or len(outer.calls) > 1)


def choose_chain(chains: list[BlockChain], stack: str | None, name: str) -> BlockChain:
    """The longest chain, or the one whose path contains ``stack``."""
    if not chains:
        raise UnsupportedError(
            f"{name} has no blocks that map hidden states (1, n, d) to the same shape one after the other, so it cannot be traced; "
            "give hidden states with states=..."
        )
    chains = [one for one in chains if one.is_stream]
    if not chains:
        raise UnsupportedError(
            f"no block of {name} starts from the output of the one before, and its blocks replace their input, so their states are not "
            "the residual stream; give hidden states with states=..."
        )
    if stack is None:
        return chains[0]
    found = [one for one in chains if one.path == stack] or [one for one in chains if stack in one.path.split(".")]
    if len(found) != 1:
        names = ", ".join(repr(one.path) for one in chains)
        raise InputError(f"stack={stack!r} names {len(found) or 'none'} of the blocks that ran; they are {names}")
    return found[0]


def count_padded(model: nn.Module, inputs: dict[str, Tensor], chain: BlockChain) -> int | None:
    """The number of tokens of a text that the model pads to whole windows of attention; None if it does not."""
    config, ids = getattr(model, "config", None), inputs.get("input_ids")
    windows = any(getattr(config, name, None) is not None for name in ("attention_window", "block_size"))
    return ids.shape[-1] if windows and ids is not None and chain.tokens > ids.shape[-1] else None


def find_hidden_states(given: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The hidden states (1, n, d) or (n, 1, d) among the arguments of a module; None if there are none."""
    candidates = [options["hidden_states"]] if "hidden_states" in options else [*given, *options.values()]
    return next((one for one in candidates if _is_hidden(one)), None)


def find_output(out: Any) -> Any:
    """The hidden states in the output of a module; None if there are none."""
    if isinstance(out, dict):
        out = tuple(out.values())
    first = out[0] if isinstance(out, (tuple, list)) and out else out
    return first if _is_hidden(first) else None


def _is_hidden(one: Any) -> bool:
    return isinstance(one, Tensor) and one.ndim == 3 and one.is_floating_point() and 1 in one.shape[:2]


def _token_shape(hidden: Tensor) -> tuple[int, int]:
    return hidden.shape[0] * hidden.shape[1], hidden.shape[2]


def as_tokens(hidden: Tensor) -> Tensor:
    """Tokens (n, d) of hidden states (1, n, d) or (n, 1, d)."""
    return hidden.detach().reshape(_token_shape(hidden))


@contextmanager
def record_chain(
    model: nn.Module,
    chain: BlockChain,
    receive: Callable[[BlockStates], None],
    attention: bool,
    tokens: int | None = None,
) -> Iterator[None]:
    """Call ``receive`` with the states of every block of a chain while the model runs; nothing is kept after a block.

    ``tokens`` is the number of tokens of the text where the model pads it at the end.
    """
    inside: list[BlockStates] = []  # the block that runs now
    count = 0

    def begin(_module: Any, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        inside.append(BlockStates(count, before := as_tokens(find_hidden_states(given, options))[:tokens], before))

    def end(_module: Any, _given: Any, out: Any) -> None:
        nonlocal count
        states = inside.pop()
        count += 1
        receive(replace(states, index=count - 1, after=as_tokens(find_output(out))[:tokens]))

    def look(_module: Any, _given: Any, out: Any) -> None:
        if inside and inside[-1].weights is None:
            inside[-1].weights = _find_weights(out, len(inside[-1].before))

    with ExitStack() as hooks:
        for name in dict.fromkeys(chain.calls):
            block = model.get_submodule(name)
            hooks.callback(block.register_forward_pre_hook(begin, with_kwargs=True).remove)
            hooks.callback(block.register_forward_hook(end).remove)
            for part in block.modules() if attention else ():
                if part is not block:
                    hooks.callback(part.register_forward_hook(look).remove)
        if attention:
            hooks.enter_context(use_eager_attention(model))
        yield


def _find_weights(out: Any, n: int) -> Tensor | None:
    """Attention weights (h, n, n) in the output of a module: rows of non-negative numbers with the sum 1."""
    for one in out if isinstance(out, (tuple, list)) else (out,):
        if isinstance(one, Tensor) and one.ndim == 4 and one.shape[0] == 1 and one.shape[-2:] == (n, n):
            weights = one[0].detach().double()
            if bool((weights >= 0).all()) and float((weights.sum(-1) - 1).abs().max()) <= ROW_SUM:
                return weights
    return None


@contextmanager
def use_eager_attention(model: nn.Module) -> Iterator[None]:
    """Let a model of transformers compute attention by its own code, which returns weights, and restore its choice afterwards."""
    name = "_attn_implementation_internal"
    eager = register("eager") if is_refined(model) else "eager"
    configs = {id(config): config for part in model.modules() if hasattr(config := getattr(part, "config", None), name)}
    previous = [(config, getattr(config, name)) for config in configs.values()]
    try:
        for config, _ in previous:
            setattr(config, name, eager)
        yield
    finally:
        for config, value in previous:
            setattr(config, name, value)
