"""Models with random weights."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from attractor.errors import InputError, UnsupportedError
from attractor.models.attention_layers import use_float64
from attractor.models.checkpoints import silence_transformers, with_eager_experts
from attractor.models.family import find_family

INITS = ("family", "plain")
STD = 0.02
SMALL_VOCABULARY = 64  # entries of a model whose tokens are inserted before the first block


def make_config(kind: str, layers: int, dim: int, heads: int, groups: int | None = None) -> Any:
    """A configuration of transformers for a model type, with the given sizes; the feed-forward keeps its ratio to the width."""
    from transformers import AutoConfig

    find_family(kind, f"the configuration {kind!r}")
    if dim % heads or heads % (groups or heads):
        raise InputError(f"{dim} dimensions do not split into {heads} heads with {groups or heads} keys and values")
    usual = AutoConfig.for_model(kind)
    sizes: dict[str, Any] = {"hidden_size": dim, "num_hidden_layers": layers, "num_attention_heads": heads}
    absent = [name for name in sizes if getattr(usual, name, None) is None]
    if absent or kind in ("whisper", "deepseek_v2", "deepseek_v3"):
        raise UnsupportedError(f"a {kind} is not described by layers, dim and heads alone; build it with transformers")
    wide = getattr(usual, "intermediate_size", None)
    if isinstance(wide, int):
        sizes["intermediate_size"] = max(1, round(dim * wide / usual.hidden_size))
    if getattr(usual, "num_key_value_heads", None) is not None:
        sizes["num_key_value_heads"] = groups or heads
    elif groups not in (None, heads):
        raise InputError(f"a {kind} has a key and a value for every head; leave the number of keys out")
    if isinstance(getattr(usual, "head_dim", None), int) and not isinstance(
        getattr(type(usual), "head_dim", None), property
    ):
        sizes["head_dim"] = dim // heads
    if kind == "electra":
        sizes["embedding_size"] = dim
    if kind == "esm":  # the default configuration has no vocabulary; these are the values of ESM-2
        sizes |= {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32}
    if kind == "gpt_neo":
        sizes["attention_types"] = [[["global", "local"], layers // 2]] if layers % 2 == 0 else [[["global"], layers]]
    if kind == "gptj":
        sizes["rotary_dim"] = min(usual.rotary_dim, dim // heads)
    if kind == "t5":
        sizes["d_kv"] = dim // heads
    return AutoConfig.for_model(kind, **sizes)


def initialize(
    config: Any,
    seed: int,
    init: str = "family",
    dtype: torch.dtype = torch.float64,
    small_vocabulary: bool = False,
) -> Any:
    """Build a model with random weights.

    Parameters
    ----------
    config : a configuration of transformers, see ``make_config``.
    seed : seed of the weights; they do not depend on ``dtype``.
    init : "family" for the initialisation of the model's own code, "plain" for N(0, 0.02) everywhere.
    dtype : precision of the model.
    small_vocabulary : reduce the vocabulary to 64 entries.
    """
    from transformers import AutoModel

    if init not in INITS:
        raise InputError(f"init must be {' or '.join(map(repr, INITS))}, got {init!r}")
    if hasattr(config, "rebuild"):  # a run of attractor train
        if init != "family":
            raise InputError(
                "the random weights of a run of attractor train are those that it starts with: init is 'family'"
            )
        return config.rebuild(seed).to(dtype).eval()
    config = with_eager_experts(copy.deepcopy(config), dtype)
    if small_vocabulary and getattr(config, "vocab_size", None) is not None:
        config.vocab_size = min(SMALL_VOCABULARY, config.vocab_size)
        if (getattr(config, "pad_token_id", None) or 0) >= SMALL_VOCABULARY:
            config.pad_token_id = None
    # always in float64, so that a seed gives the same weights in every precision
    with _seeded(seed), silence_transformers(), torch.no_grad(), use_float64():
        model = AutoModel.from_config(config)
        if init == "plain":
            for name, parameter in model.named_parameters():
                if parameter.ndim > 1:
                    parameter.normal_(0.0, STD)
                else:
                    parameter.fill_(0.0 if name.endswith("bias") else 1.0)
        return model.to(dtype).eval()


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed torch's generator, and restore its state at the end."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
