"""GPT-2: pre-norm decoder with LayerNorm, learned absolute positions at the input, and a fused projection stored as Conv1D (in, out)."""

from __future__ import annotations

from typing import Any

from attractor.laws import Causal
from attractor.models.attention_layers import Layer, Projections, make_heads, read_layer_norm, split_columns, split_rows
from attractor.models.family import Config, Family, Modules
from attractor.models.tensors import Reader
from attractor.nn import GPT2_LAYOUT


class GPT2(Family):
    name = "gpt2"
    title = "GPT-2"
    model_types = ("gpt2", "gpt-sw3")
    prefixes = ("transformer.", "")
    layers = "h"
    depth = "n_layer"
    width = "n_embd"
    layout = GPT2_LAYOUT

    def modules(self, stack: str, slot: int) -> Modules:
        return Modules(f"h.{slot}", f"h.{slot}.attn", f"h.{slot}.attn")

    def slot(self, config: Config, index: int) -> int:
        # the index matters where scores are divided by it
        return index if config.scale_attn_by_inverse_layer_idx else 0

    def small(self, config: Config, stack: str, index: int) -> dict[str, Any]:
        return {**super().small(config, stack, index), "n_inner": 16, "reorder_and_upcast_attn": False}

    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        path, d, heads = self.path(stack, index), config.n_embd, config.n_head
        fused, output = f"{path}attn.{self.layout.fused}", f"{path}attn.{self.layout.output}"
        matrices = read(f"{fused}.weight", d, 3 * d).mT.unflatten(0, (3, d))
        biases = read(f"{fused}.bias", 3 * d).unflatten(0, (3, d))
        parts = Projections.of(
            (split_rows(matrix, heads) for matrix in matrices),
            split_columns(read(f"{output}.weight", d, d).mT, heads),
            (split_rows(bias, heads) for bias in biases),
            read(f"{output}.bias", d),
        )
        scale = (d // heads) ** -0.5 if config.scale_attn_weights else 1.0
        scale = scale / (index + 1) if config.scale_attn_by_inverse_layer_idx else scale
        norm = read_layer_norm(read, f"{path}ln_1", d, config.layer_norm_epsilon)
        return Layer(index, f"layer {index}", make_heads(parts, dtype=read.dtype, scale=scale, mask=Causal()), norm)
