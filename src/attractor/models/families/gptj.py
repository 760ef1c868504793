"""GPT-J: rotary positions on neighbouring pairs of the first coordinates; attention and feed-forward in parallel."""

from __future__ import annotations

from typing import Any

from attractor.errors import UnsupportedError
from attractor.laws import Causal, LayerNorm, Rotary
from attractor.models.attention_layers import Layer, Projections, Turning, heads_from, split_columns, split_rows
from attractor.models.family import Config, Family, Modules
from attractor.models.tensors import Reader


class GPTJ(Family):
    name = "gptj"
    title = "GPT-J"
    model_types = ("gptj",)
    prefixes = ("transformer.", "")
    layers = "h"
    depth = "n_layer"
    width = "n_embd"

    def modules(self, stack: str, slot: int) -> Modules:
        return Modules(f"h.{slot}", f"h.{slot}.attn", f"h.{slot}.attn")

    def small(self, config: Config, stack: str, index: int) -> dict[str, Any]:
        return {**super().small(config, stack, index), "n_inner": 16}

    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        path, d, heads, turned = self.path(stack, index), config.n_embd, config.n_head, config.rotary_dim
        if turned is None:
            raise UnsupportedError("a GPT-J without rotary_dim turns queries and keys in a way that is not defined")
        names = ("q_proj", "k_proj", "v_proj")
        matrices = (split_rows(read(f"{path}attn.{name}.weight", d, d), heads) for name in names)
        parts = Projections.of(matrices, split_columns(read(f"{path}attn.out_proj.weight", d, d), heads))
        rotary = Turning(Rotary(1e4, turned), turned, halves=False)
        law = heads_from(parts, dtype=read.dtype, scale=(d // heads) ** -0.5, mask=Causal(), turning=rotary)
        gain, bias = read(f"{path}ln_1.weight", d), read(f"{path}ln_1.bias", d)
        norm = LayerNorm(gain, bias, config.layer_norm_epsilon)
        return Layer(index, f"layer {index}", law, norm, parallel=True)
