"""GPT-J: pre-norm decoder with LayerNorm, parallel attention and feed-forward, and partial RoPE on neighbouring pairs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attractor.errors import UnsupportedError
from attractor.laws import Causal, Rotary
from attractor.models.attention_layers import Layer, RotaryLayout, make_heads, read_layer_norm, read_projections
from attractor.models.family import Config, Family, Modules
from attractor.models.tensors import Reader
from attractor.nn import LLAMA_LAYOUT


class GPTJ(Family):
    name = "gptj"
    title = "GPT-J"
    model_types = ("gptj",)
    prefixes = ("transformer.", "")
    layers = "h"
    depth = "n_layer"
    width = "n_embd"
    layout = replace(LLAMA_LAYOUT, output="out_proj")

    def modules(self, stack: str, slot: int) -> Modules:
        return Modules(f"h.{slot}", f"h.{slot}.attn", f"h.{slot}.attn")

    def small(self, config: Config, stack: str, index: int) -> dict[str, Any]:
        return {**super().small(config, stack, index), "n_inner": 16}

    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        path, d, heads, rotated = self.path(stack, index), config.n_embd, config.n_head, config.rotary_dim
        if rotated is None:
            raise UnsupportedError("a GPT-J without rotary_dim has no defined rotary embedding")
        parts = read_projections(read, self.layout, f"{path}attn.", d, heads)
        rotary = RotaryLayout(Rotary(1e4, rotated), rotated, half_split=False)
        law = make_heads(parts, dtype=read.dtype, scale=(d // heads) ** -0.5, mask=Causal(), rotary=rotary)
        norm = read_layer_norm(read, f"{path}ln_1", d, config.layer_norm_epsilon)
        return Layer(index, f"layer {index}", law, norm, parallel=True)
