"""A model as a map from embedded tokens to final tokens, and its unembedding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from attractor.errors import UnsupportedError
from attractor.models.checkpoints import Checkpoint
from attractor.models.family import get_hidden_states
from attractor.models.hooks import BlockStates, record_blocks

ForwardMap = Callable[[Tensor, dict[str, Tensor]], tuple[Tensor, Tensor]]
UNEMBEDDINGS = ("lm_head.weight", "embed_out.weight", "cls.predictions.decoder.weight")


class _FirstBlock(Exception):
    """Ends a forward pass at the first block."""


def embed(model: Any, checkpoint: Checkpoint, stack: str, inputs: dict[str, Tensor]) -> Tensor:
    """The residual stream before the first block, (n, d)."""
    found: list[Tensor] = []

    def stop(_module: Any, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        found.append(get_hidden_states(given, options))
        raise _FirstBlock

    block = model.get_submodule(checkpoint.family.hooked(checkpoint.config, stack, 0).block)
    handle = block.register_forward_pre_hook(stop, with_kwargs=True)
    try:
        with torch.no_grad():
            checkpoint.family.run(model, stack, inputs)
    except _FirstBlock:
        if found[0].ndim != 3:
            raise UnsupportedError(
                f"a {type(model).__name__} has several residual streams, so its map is not one of tokens"
            ) from None
        return found[0][0].detach()
    finally:
        handle.remove()
    raise AssertionError("the forward pass did not reach the first block")


@contextmanager
def open_forward_map(
    model: Any, checkpoint: Checkpoint, stack: str, feedforward: bool, receive: Callable[[BlockStates], None]
) -> Iterator[ForwardMap]:
    """A function ``apply(x, inputs)`` that passes tokens x (n, d) through all blocks.

    It returns the residual stream after the last block, (n, d), and the same after the final norm. ``receive`` is called with the
    states of every block; ``feedforward=False`` skips the feed-forward parts.
    """
    tokens: dict[str, Tensor] = {}
    family = checkpoint.family

    def put(_module: Any, given: tuple[Any, ...], options: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if "first" not in tokens:  # a later layer that shares the tensors of the first
            return given, options
        x = tokens.pop("first").unsqueeze(0)
        return ((x, *given[1:]), options) if given else (given, {**options, "hidden_states": x})

    def keep(states: BlockStates) -> None:
        tokens["last"] = states.after
        receive(states)

    def apply(x: Tensor, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        tokens["first"] = x
        with torch.no_grad():
            normed = family.last_state(model, family.run(model, stack, inputs))
        return tokens["last"], normed

    with ExitStack() as hooks:
        block = model.get_submodule(family.hooked(checkpoint.config, stack, 0).block)
        handle = block.register_forward_pre_hook(put, with_kwargs=True)  # runs before the hooks that record
        hooks.callback(handle.remove)
        hooks.enter_context(record_blocks(model, checkpoint, stack, keep, () if feedforward else ("feedforward",)))
        yield apply


def read_unembedding(checkpoint: Checkpoint, model: Any, random: bool) -> tuple[Tensor, str]:
    """The matrix (vocabulary, d) from tokens after the final norm to logits, and a description of it."""
    if not random:
        names = checkpoint.tensors.names()
        for name in UNEMBEDDINGS:
            if name in names:
                return checkpoint.tensors.read(name), "the model's own head"
    own = hasattr(model, "get_input_embeddings")
    embedding = model.get_input_embeddings() if own else getattr(model, "embedding", None)
    if not isinstance(embedding, torch.nn.Embedding):
        raise UnsupportedError(f"a {type(model).__name__} reads no words, so its tokens cannot be decoded")
    tied = getattr(checkpoint.config, "tie_word_embeddings", False) and "bert" not in checkpoint.family.name
    return embedding.weight.detach(), "its embedding, transposed" if tied else "its embedding, since it has no head"


def decode(tokens: Tensor, unembedding: Tensor, tokenizer: Any) -> str:
    """The text of the largest logit at every position; token ids where there is no tokenizer."""
    ids = (tokens @ unembedding.to(tokens).mT).argmax(-1).tolist()
    return " ".join(map(str, ids)) if tokenizer is None else tokenizer.decode(ids)
