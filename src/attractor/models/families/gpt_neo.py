"""GPT-Neo: pre-norm decoder with LayerNorm, absolute positions, unscaled scores, and alternating full and sliding-window attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attractor.laws import Causal, Window
from attractor.models.attention_layers import Layer, make_heads, read_layer_norm, read_projections
from attractor.models.family import Config, Family, Modules
from attractor.models.tensors import Reader
from attractor.nn import LLAMA_LAYOUT


class GPTNeo(Family):
    name = "gpt_neo"
    title = "GPT-Neo"
    model_types = ("gpt_neo",)
    prefixes = ("transformer.", "")
    layers = "h"
    depth = "num_layers"
    layout = replace(LLAMA_LAYOUT, output="out_proj")

    def modules(self, stack: str, slot: int) -> Modules:
        return Modules(f"h.{slot}", f"h.{slot}.attn.attention", f"h.{slot}.attn.attention")

    def small(self, config: Config, stack: str, index: int) -> dict[str, Any]:
        kinds = {"attention_layers": [config.attention_layers[index]], "intermediate_size": 16}
        return {**super().small(config, stack, index), **kinds}

    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        path, d, heads = self.path(stack, index), config.hidden_size, config.num_heads
        parts = read_projections(read, self.layout, f"{path}attn.attention.", d, heads, required=("out_proj",))
        mask = Window(config.window_size) if config.attention_layers[index] == "local" else Causal()
        norm = read_layer_norm(read, f"{path}ln_1", d, config.layer_norm_epsilon)
        return Layer(index, f"layer {index}", make_heads(parts, dtype=read.dtype, scale=1.0, mask=mask), norm)
