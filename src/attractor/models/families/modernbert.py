"""ModernBERT: pre-norm encoder with LayerNorm, half-split RoPE, a fused projection (3, h, k), and mostly sliding-window attention."""

from __future__ import annotations

from attractor.laws import LayerNorm, Window
from attractor.models.attention_layers import Layer, make_heads, read_fused, read_rotary, split_rows
from attractor.models.family import Config, Family, Modules
from attractor.models.tensors import Reader


class ModernBert(Family):
    name = "modernbert"
    title = "ModernBERT"
    model_types = ("modernbert",)
    prefixes = ("model.", "")

    def modules(self, stack: str, slot: int) -> Modules:
        own = f"layers.{slot}.attn"
        return Modules(f"layers.{slot}", own, own, projection=(f"{own}.Wo",))

    def slot(self, config: Config, index: int) -> int:
        return min(index, 1)  # the first layer has no norm of its own

    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        path, d, heads = self.path(stack, index), config.hidden_size, config.num_attention_heads
        split = lambda rows: [split_rows(part, heads) for part in rows.unflatten(0, (3, d))]  # noqa: E731
        parts = read_fused(read, f"{path}attn.Wqkv", f"{path}attn.Wo", d, heads, split)
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
