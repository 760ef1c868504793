"""BLOOM: pre-norm decoder with LayerNorm, ALiBi, and a fused projection interleaved by head (h, 3, k)."""

from __future__ import annotations

from attractor.laws import Alibi, Causal
from attractor.models.attention_layers import Layer, Projections, make_heads, read_layer_norm, split_columns
from attractor.models.family import Config, Family, Modules
from attractor.models.tensors import Reader


class Bloom(Family):
    name = "bloom"
    title = "BLOOM"
    model_types = ("bloom",)
    prefixes = ("transformer.", "")
    layers = "h"
    depth = "n_layer"

    def modules(self, stack: str, slot: int) -> Modules:
        # the attention module adds the residual stream itself, so the hook is on its last projection
        return Modules(f"h.{slot}", f"h.{slot}.self_attention", f"h.{slot}.self_attention.dense")

    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        path, d, heads = self.path(stack, index), config.hidden_size, config.n_head
        k = d // heads
        fused = read(f"{path}self_attention.query_key_value.weight", 3 * d, d).unflatten(0, (heads, 3, k))
        bias = read(f"{path}self_attention.query_key_value.bias", 3 * d).unflatten(0, (heads, 3, k))
        output = split_columns(read(f"{path}self_attention.dense.weight", d, d), heads)
        parts = Projections.of(fused.unbind(1), output, bias.unbind(1), read(f"{path}self_attention.dense.bias", d))
        law = make_heads(parts, dtype=read.dtype, scale=k**-0.5, mask=Causal(), positions=Alibi.usual(heads))
        norm = read_layer_norm(read, f"{path}input_layernorm", d, config.layer_norm_epsilon)
        return Layer(index, f"layer {index}", law, norm)
