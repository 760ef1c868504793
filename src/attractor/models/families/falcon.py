"""Falcon: pre-norm decoder with LayerNorm, a fused projection in three layouts (multi-head, multi-query, grouped), and RoPE or ALiBi."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attractor.laws import Alibi, Causal
from attractor.models.attention_layers import (
    Layer,
    Projections,
    context_notes,
    make_heads,
    read_layer_norm,
    read_rotary,
    split_columns,
)
from attractor.models.family import Config, Family, Modules
from attractor.models.tensors import Reader


class Falcon(Family):
    name = "falcon"
    title = "Falcon"
    model_types = ("falcon",)
    prefixes = ("transformer.", "")
    layers = "h"
    implementation = "sdpa"  # the eager one of transformers 5.22 adds ALiBi twice, in the mask and to the scores
    remark = "ALiBi is exact here, and rounded to bfloat16 in the model's own code"

    def modules(self, stack: str, slot: int) -> Modules:
        own = f"h.{slot}.self_attention"
        return Modules(f"h.{slot}", own, own, projection=(f"{own}.dense",))

    def small(self, config: Config, stack: str, index: int) -> dict[str, Any]:
        return {**super().small(config, stack, index), "ffn_hidden_size": 16}

    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        path, d, heads = self.path(stack, index), config.hidden_size, config.num_attention_heads
        k = d // heads
        rows = {"heads": heads, "groups": _groups(config), "k": k}
        count = (heads + 2 * rows["groups"]) * k
        matrices = _split_fused(config, read(f"{path}self_attention.query_key_value.weight", count, d), **rows)
        bias = read.maybe(f"{path}self_attention.query_key_value.bias", count)
        biases = (None,) * 3 if bias is None else _split_fused(config, bias, **rows)
        output = split_columns(read(f"{path}self_attention.dense.weight", d, d), heads)
        parts = Projections.of(matrices, output, biases, read.maybe(f"{path}self_attention.dense.bias", d))
        # this model adds the ALiBi bias before it scales the scores
        alibi = Alibi(Alibi.usual(heads).slopes * k**-0.5) if config.alibi else None
        rotary = None if config.alibi else read_rotary(config, k)
        law = make_heads(parts, dtype=read.dtype, scale=k**-0.5, mask=Causal(), rotary=rotary, positions=alibi)
        name = read.first(f"{path}ln_attn.weight", f"{path}input_layernorm.weight").removesuffix(".weight")
        norm = read_layer_norm(read, name, d, config.layer_norm_epsilon)
        parallel = config.new_decoder_architecture or config.parallel_attn
        notes = context_notes(config)
        return Layer(index, f"layer {index}", law, norm, parallel=parallel, notes=notes)


def _groups(config: Config) -> int:
    if config.new_decoder_architecture:
        return config.num_kv_heads
    return 1 if config.multi_query else config.num_attention_heads


def _split_fused(config: Config, fused: Tensor, heads: int, groups: int, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value rows, (h or g, k, ...). Keys and values follow the queries of their group, or all queries."""
    if config.new_decoder_architecture:
        parts = fused.unflatten(0, (groups, heads // groups + 2, k))
        return parts[:, :-2].flatten(0, 1), parts[:, -2], parts[:, -1]
    if config.multi_query:
        parts = fused.unflatten(0, (heads + 2, k))
        return parts[:-2], parts[-2:-1], parts[-1:]
    parts = fused.unflatten(0, (heads, 3, k))
    return parts[:, 0], parts[:, 1], parts[:, 2]
