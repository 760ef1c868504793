"""The prompts of an iteration: texts, token ids, or drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attractor.checkpoints.checkpoint import Checkpoint
from attractor.checkpoints.running import context_length, text_notes, token_ids, tokenizer_of
from attractor.errors import AttractorError, InputError, UnsupportedError


@dataclass(frozen=True)
class Prompts:
    """What the model is called with for every prompt, and a name for each."""

    inputs: tuple[dict[str, Tensor], ...]
    names: tuple[str, ...]
    tokenizer: Any = None
    notes: tuple[str, ...] = ()


def read_prompts(
    checkpoint: Checkpoint,
    given: Sequence[Any],
    random: int,
    tokens: int,
    seed: int,
    tokenizer: Any,
    most: int | None,
    words: bool,
) -> Prompts:
    """All prompts; ``words`` asks for a tokenizer even where none is needed to read them, and takes none for an answer."""
    if not given and random < 1:
        raise InputError("there is nothing to iterate: give a prompt, or ask for random_prompts=...")
    if isinstance(given, str):
        given = [given]
    if getattr(checkpoint.config, "image_size", None) is not None and any(not isinstance(one, dict) for one in given):
        raise InputError(f"{checkpoint.name} is a model of pictures and reads no text: ask for random_prompts=...")
    own = tokenizer is None
    if any(isinstance(text, str) for text in given) and tokenizer is None:
        tokenizer = tokenizer_of(checkpoint)
    elif words and tokenizer is None:
        try:
            tokenizer = tokenizer_of(checkpoint)
        except AttractorError:
            tokenizer = None  # token ids are shown instead
    inputs, names = [], []
    notes = text_notes(checkpoint) if own and tokenizer is not None else ()
    for number, text in enumerate(given, 1):
        if isinstance(text, dict):
            inputs.append(text)
            names.append("tensors")
            continue
        which = f"prompt {number}: " if len(given) > 1 else ""
        if isinstance(text, str) and not text.strip():
            raise InputError(f"{which}a prompt is empty; give at least two tokens")
        try:
            ids, _ = token_ids(checkpoint, text, tokenizer, most)
        except InputError as error:
            raise InputError(f"{which}{error}") from None
        inputs.append({"input_ids": ids.unsqueeze(0)})
        names.append(text if isinstance(text, str) else " ".join(str(int(index)) for index in ids))
    for index in range(random):
        inputs.append(_drawn(checkpoint, tokens, seed + index))
        names.append(f"random {index}")
    return Prompts(tuple(inputs), tuple(names), tokenizer, notes)


def _drawn(checkpoint: Checkpoint, tokens: int, seed: int) -> dict[str, Tensor]:
    """Uniform token ids; for a model of pictures, an image of noise."""
    draw, config = torch.Generator().manual_seed(seed), checkpoint.config
    size, words = getattr(config, "image_size", None), getattr(config, "vocab_size", None)
    if size is not None:
        sides = (size, size) if isinstance(size, int) else tuple(size)
        return {"pixel_values": torch.randn(1, config.num_channels, *sides, generator=draw, dtype=torch.float64)}
    if words is None:
        raise UnsupportedError(f"{checkpoint.name} reads neither words nor pictures; give its own inputs")
    longest = context_length(config)
    if tokens < 2 or (longest is not None and tokens > longest):
        raise InputError(f"prompt_tokens must lie between 2 and the model's context {longest}, got {tokens}")
    return {"input_ids": torch.randint(words, (1, tokens), generator=draw)}
