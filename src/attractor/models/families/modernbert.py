"""ModernBERT: pre-norm encoder with LayerNorm, half-split RoPE, a fused projection (3, h, k), and mostly sliding-window attention."""

from __future__ import annotations

from typing import Any

from attractor.laws import LayerNorm, Window
from attractor.models.attention_layers import Layer, Projections, make_heads, read_rotary, split_columns, split_rows
from attractor.models.family import Config, Family, Modules
from attractor.models.tensors import Reader


class ModernBert(Family):
    name = "modernbert"
    title = "ModernBERT"
    model_types = ("modernbert",)
    prefixes = ("model.", "")

    def modules(self, stack: str, slot: int) -> Modules:
        return Modules(f"layers.{slot}", f"layers.{slot}.attn", f"layers.{slot}.attn")

    def slot(self, config: Config, index: int) -> int:
        return min(index, 1)  # the first layer has no norm of its own

    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        path, d, heads = self.path(stack, index), config.hidden_size, config.num_attention_heads
        rows = read(f"{path}attn.Wqkv.weight", 3 * d, d).unflatten(0, (3, d))
        bias = read.maybe(f"{path}attn.Wqkv.bias", 3 * d)
        biases: Any = (None,) * 3 if bias is None else [split_rows(part, heads) for part in bias.unflatten(0, (3, d))]
        output = split_columns(read(f"{path}attn.Wo.weight", d, d), heads)
        matrices = (split_rows(part, heads) for part in rows)
        parts = Projections.of(matrices, output, biases, read.maybe(f"{path}attn.Wo.bias", d))
        kind = config.layer_types[index]
        mask = Window(config.sliding_window + 1, causal=False) if kind == "sliding_attention" else None
        law = make_heads(
            parts, dtype=read.dtype, scale=(d // heads) ** -0.5, mask=mask, rotary=read_rotary(config, d // heads, kind)
        )
        if index == 0:
            note = "the first layer reads the normalised embeddings as they are"
            return Layer(index, "layer 0", law, None, placement="none", notes=(note,))
        gain, shift = read(f"{path}attn_norm.weight", d), read.maybe(f"{path}attn_norm.bias", d)
        return Layer(index, f"layer {index}", law, LayerNorm(gain, shift, config.norm_eps))
