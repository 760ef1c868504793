"""GPT-2: one fused projection, stored transposed (Conv1D); absolute positions added at the input."""

from __future__ import annotations

from typing import Any

from attractor.laws import Causal, LayerNorm
from attractor.models.attention_layers import Layer, Projections, heads_from, split_columns, split_rows
from attractor.models.family import Config, Family, Modules
from attractor.models.tensors import Reader


class GPT2(Family):
    name = "gpt2"
    title = "GPT-2"
    model_types = ("gpt2",)
    prefixes = ("transformer.", "")
    layers = "h"
    depth = "n_layer"
    width = "n_embd"

    def modules(self, stack: str, slot: int) -> Modules:
        return Modules(f"h.{slot}", f"h.{slot}.attn", f"h.{slot}.attn")

    def slot(self, config: Config, index: int) -> int:
        # there is an option that divides scores by the number of the layer
        return index if config.scale_attn_by_inverse_layer_idx else 0

    def small(self, config: Config, stack: str, index: int) -> dict[str, Any]:
        return {**super().small(config, stack, index), "n_inner": 16, "reorder_and_upcast_attn": False}

    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        path, d, heads = self.path(stack, index), config.n_embd, config.n_head
        fused = read(f"{path}attn.c_attn.weight", d, 3 * d).mT.unflatten(0, (3, d))
        bias = read(f"{path}attn.c_attn.bias", 3 * d).unflatten(0, (3, d))
        parts = Projections.of(
            (split_rows(matrix, heads) for matrix in fused),
            split_columns(read(f"{path}attn.c_proj.weight", d, d).mT, heads),
            (split_rows(row, heads) for row in bias),
            read(f"{path}attn.c_proj.bias", d),
        )
        scale = (d // heads) ** -0.5 if config.scale_attn_weights else 1.0
        scale = scale / (index + 1) if config.scale_attn_by_inverse_layer_idx else scale
        gain, shift = read(f"{path}ln_1.weight", d), read(f"{path}ln_1.bias", d)
        norm = LayerNorm(gain, shift, config.layer_norm_epsilon)
        return Layer(index, f"layer {index}", heads_from(parts, dtype=read.dtype, scale=scale, mask=Causal()), norm)
