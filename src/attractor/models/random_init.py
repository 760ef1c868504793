"""Models of a family with random weights."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from attractor.errors import InputError, UnsupportedError
from attractor.models.attention_layers import double
from attractor.models.checkpoints import quiet
from attractor.models.family import family_of

INITS = ("family", "plain")
STD = 0.02
FEW = 64  # words of a model that is fed tokens, not words


def configuration(kind: str, layers: int, dim: int, heads: int, groups: int | None = None) -> Any:
    """The configuration of a model type of transformers in these sizes; the feed-forward keeps its ratio to the width."""
    from transformers import AutoConfig

    family_of(kind, f"the configuration {kind!r}")
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
    if kind == "esm":  # its own configuration leaves the words out; these are ESM-2's
        sizes |= {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32}
    if kind == "gpt_neo":
        sizes["attention_types"] = [[["global", "local"], layers // 2]] if layers % 2 == 0 else [[["global"], layers]]
    if kind == "gptj":
        sizes["rotary_dim"] = min(usual.rotary_dim, dim // heads)
    if kind == "t5":
        sizes["d_kv"] = dim // heads
    return AutoConfig.for_model(kind, **sizes)


def drawn(config: Any, seed: int, init: str = "family", dtype: torch.dtype = torch.float64, few: bool = False) -> Any:
    """A model of a configuration with weights drawn from a seed; ``few`` leaves out most words, which only a first pass needs."""
    from transformers import AutoModel

    if init not in INITS:
        raise InputError(f"init must be {' or '.join(map(repr, INITS))}, got {init!r}")
    config = copy.deepcopy(config)
    if few and getattr(config, "vocab_size", None) is not None:
        config.vocab_size = min(FEW, config.vocab_size)
        if (getattr(config, "pad_token_id", None) or 0) >= FEW:
            config.pad_token_id = None
    # in double precision always, so that a seed gives the same weights whatever the precision of the run
    with _seeded(seed), quiet(), torch.no_grad(), double():
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
    """Random numbers of a seed, without touching those of the caller."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
