"""The attention layer that a configuration asks for, and the block around it."""

from __future__ import annotations

from dataclasses import fields
from inspect import signature
from typing import Any

import numpy as np

from attractor.attention import Rotary
from attractor.errors import InputError
from attractor.experiments.training.config import Config
from attractor.nn import AttentionLayer, DefiniteAttention, PlainAttention, TransformerBlock, spectral
from attractor.nn.refinements import refinement_named


def block(config: Config, index: int) -> TransformerBlock:
    """The block number ``index`` of a model; the share of dropped paths grows linearly along depth."""
    placement: Any = config.placement
    norm: Any = config.norm
    return TransformerBlock(
        attention_layer(config, index),
        hidden_width(config),
        placement=placement,
        norm=norm,
        dropout=config.dropout,
        drop_path=config.drop_path * index / max(1, config.layers - 1),
    )


def attention_layer(config: Config, index: int) -> AttentionLayer:
    """The attention of block number ``index``: plain or of a regime, causal for text."""
    refinement = None
    if config.refinement != "none":
        sign: Any = config.sign
        refinement = refinement_named(config.refinement, config.dim, config.heads, sign, config.strength)
    shared: dict[str, Any] = {
        "kernel": config.kernel,
        "causal": config.task == "text",
        "positions": Rotary(dim=config.turned) if config.positions == "rotary" else None,
        "refinement": refinement,
        "dropout": config.dropout,
    }
    if config.attention == "plain":
        own = {"temperature": config.temperature, "gain": config.gain, "bias": config.bias}
        plain = PlainAttention(config.dim, config.heads, **{**shared, **own, **_options(config, PlainAttention)})
        return spectral(plain) if config.spectral else plain
    regime: Any = config.attention
    own = {"relaxed": config.relaxed, "orientation": config.orientation, "metric": config.metric}
    own |= permuted_signs(config, index)
    return DefiniteAttention(
        config.dim, config.heads, regime, **{**shared, **own, **_options(config, DefiniteAttention)}
    )


def _options(config: Config, kind: type[AttentionLayer]) -> dict[str, Any]:
    """The further options of a layer; those that it does not take, or that an entry of the configuration has, are refused."""
    taken = {name for each in (kind, AttentionLayer) for name in signature(each).parameters}
    taken -= {field.name for field in fields(Config)} | {"options", "regime", "causal"}
    unknown = sorted(config.options.keys() - taken)
    if unknown:
        raise InputError(
            f"options has {', '.join(unknown)}, which {config.attention} attention does not take there; "
            f"it takes {', '.join(sorted(taken))}"
        )
    return config.options


def permuted_signs(config: Config, index: int) -> dict[str, Any]:
    """Where the signs of a layer stand, other for every layer and seed; nothing where they stand in order."""
    if config.signs == "ordered":
        return {}
    dim, head_dim = config.dim, config.options.get("head_dim", config.dim // config.heads)
    negative = dim if config.attention == "convergent" else int(config.options.get("negative", 0.5) * dim)
    inner = config.heads * head_dim if config.signs == "scattered" else 0
    signs = np.ones(dim + inner, dtype=np.int64)
    signs[:negative] = -1
    signs = np.random.default_rng((config.seed, index)).permutation(signs)
    if not inner:
        return {"signs": signs.tolist()}
    return {"signs": signs[:dim].tolist(), "interaction": signs[dim:].reshape(config.heads, head_dim).tolist()}


def hidden_width(config: Config) -> int:
    """The width of the feed-forward part, wider by what the attention has fewer parameters where that is asked for."""
    hidden = 4 * config.dim if config.hidden is None else config.hidden
    if not config.equal or not hidden:
        return hidden
    own = sum(parameter.numel() for parameter in attention_layer(config, 0).parameters())
    plain = 4 * config.dim * config.dim
    return hidden + round((plain - own) / (2 * config.dim + 1))
