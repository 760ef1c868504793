"""What tokens say: the nearest words of the model's own vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attractor.checkpoints.checkpoint import Checkpoint
from attractor.errors import UnsupportedError

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
