"""Phi 3 and 4: Llama with query, key and value in one projection, one after the other."""

from __future__ import annotations

from attractor.laws import Causal, Mask, Window
from attractor.models.attention_layers import Projections, split_columns, split_rows
from attractor.models.family import Config, Decoder
from attractor.models.tensors import Reader


class Phi3(Decoder):
    name = "phi3"
    title = "Phi 3, Phi 4"
    model_types = ("phi3",)

    def mask(self, config: Config, index: int) -> Mask:
        window = getattr(config, "sliding_window", None)
        return Window(window) if window else Causal()

    def projections(self, config: Config, read: Reader, path: str) -> Projections:
        heads, groups, k, d = (
            config.num_attention_heads,
            config.num_key_value_heads,
            self.head_dim(config),
            config.hidden_size,
        )
        sizes = [heads * k, groups * k, groups * k]
        query, key, value = read(f"{path}qkv_proj.weight", sum(sizes), d).split(sizes)
        output = split_columns(read(f"{path}o_proj.weight", d, heads * k), heads)
        return Projections(split_rows(query, heads), split_rows(key, groups), split_rows(value, groups), output)
