"""A model as a map from embedded tokens to final tokens, and its readout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from attractor.errors import UnsupportedError
from attractor.models.checkpoints import Checkpoint
from attractor.models.hooks import Passage, watched

Step = Callable[[Tensor, dict[str, Tensor]], tuple[Tensor, Tensor]]


class _Seen(Exception):
    """Ends a run once the first block has been reached."""


def embedded(model: Any, checkpoint: Checkpoint, stack: str, inputs: dict[str, Tensor]) -> Tensor:
    """The stream before the first block, (n, d)."""
    found: list[Tensor] = []

    def see(_module: Any, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        found.append(given[0] if given else options["hidden_states"])
        raise _Seen

    block = model.get_submodule(checkpoint.family.modules(stack, 0).block)
    handle = block.register_forward_pre_hook(see, with_kwargs=True)
    try:
        with torch.no_grad():
            call(model, stack, inputs)
    except _Seen:
        return found[0][0].detach()
    finally:
        handle.remove()
    raise AssertionError("the model did not come to its first block")


@contextmanager
def step_blocks(
    model: Any, checkpoint: Checkpoint, stack: str, feedforward: bool, see: Callable[[Passage], None]
) -> Iterator[Step]:
    """``step(x, inputs)``: x (n, d) through all blocks; the stream after the last, and the same after the final norm.

    ``see`` is called with every block that is passed.
    """
    here: dict[str, Tensor] = {}

    def put(_module: Any, given: tuple[Any, ...], options: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        x = here["x"].unsqueeze(0)
        return ((x, *given[1:]), options) if given else (given, {**options, "hidden_states": x})

    def keep(passage: Passage) -> None:
        here["last"] = passage.after
        see(passage)

    def step(x: Tensor, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        here["x"] = x
        with torch.no_grad():
            normed = call(model, stack, inputs)[0][0]
        return here["last"], normed

    with ExitStack() as hooks:
        block = model.get_submodule(checkpoint.family.modules(stack, 0).block)
        handle = block.register_forward_pre_hook(put, with_kwargs=True)  # before those that watch
        hooks.callback(handle.remove)
        hooks.enter_context(watched(model, checkpoint, stack, keep, () if feedforward else ("feedforward",)))
        yield step


def call(model: Any, stack: str, inputs: dict[str, Tensor]) -> Any:
    """The model, or the stack of it that is followed, at work."""
    part = getattr(model, stack, model) if stack == "encoder" else model
    return part(**inputs)


HEADS = ("lm_head.weight", "embed_out.weight", "cls.predictions.decoder.weight")


def unembedding(checkpoint: Checkpoint, model: Any, random: bool) -> tuple[Tensor, str]:
    """The matrix (words, d) that turns tokens after the final norm into scores of words, and what it is."""
    if not random:
        names = checkpoint.tensors.names()
        for name in HEADS:
            if name in names:
                return checkpoint.tensors.read(name), "the model's own head"
    embedding = model.get_input_embeddings()
    if not isinstance(embedding, torch.nn.Embedding):
        raise UnsupportedError(f"a {type(model).__name__} reads no words, so its tokens cannot be decoded")
    tied = getattr(checkpoint.config, "tie_word_embeddings", False) and "bert" not in checkpoint.family.name
    return embedding.weight.detach(), "its embedding, transposed" if tied else "its embedding, for want of a head"


def decoded(tokens: Tensor, matrix: Tensor, tokenizer: Any) -> str:
    """The word of the highest score at every place."""
    ids = (tokens @ matrix.to(tokens).mT).argmax(-1).tolist()
    return " ".join(map(str, ids)) if tokenizer is None else tokenizer.decode(ids)
