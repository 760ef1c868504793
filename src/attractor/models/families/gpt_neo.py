"""GPT-Neo: scores are not scaled, and every other layer sees a window only."""

from __future__ import annotations

from typing import Any

from attractor.laws import Causal, LayerNorm, Window
from attractor.models.attention_layers import Layer, Projections, heads_from, split_columns, split_rows
from attractor.models.family import Config, Family, Modules
from attractor.models.tensors import Reader


class GPTNeo(Family):
    name = "gpt_neo"
    title = "GPT-Neo"
    model_types = ("gpt_neo",)
    prefixes = ("transformer.", "")
    layers = "h"
    depth = "num_layers"

    def modules(self, stack: str, slot: int) -> Modules:
        return Modules(f"h.{slot}", f"h.{slot}.attn.attention", f"h.{slot}.attn.attention")

    def small(self, config: Config, stack: str, index: int) -> dict[str, Any]:
        kinds = {"attention_layers": [config.attention_layers[index]], "intermediate_size": 16}
        return {**super().small(config, stack, index), **kinds}

    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        path, d, heads = self.path(stack, index), config.hidden_size, config.num_heads
        inside = f"{path}attn.attention."
        matrices = (split_rows(read(f"{inside}{name}.weight", d, d), heads) for name in ("q_proj", "k_proj", "v_proj"))
        output = split_columns(read(f"{inside}out_proj.weight", d, d), heads)
        parts = Projections.of(matrices, output, output_bias=read(f"{inside}out_proj.bias", d))
        mask = Window(config.window_size) if config.attention_layers[index] == "local" else Causal()
        gain, bias = read(f"{path}ln_1.weight", d), read(f"{path}ln_1.bias", d)
        norm = LayerNorm(gain, bias, config.layer_norm_epsilon)
        return Layer(index, f"layer {index}", heads_from(parts, dtype=read.dtype, scale=1.0, mask=mask), norm)
