"""Phi: decoders with LayerNorm, partial RoPE and parallel feed-forward (1, 1.5, 2), or Llama with fused projections (3, 4)."""

from __future__ import annotations

from dataclasses import replace

from attractor.laws import Clip, Norm
from attractor.models.attention_layers import Projections, read_layer_norm, split_columns, split_rows
from attractor.models.family import Config, Decoder
from attractor.models.tensors import Reader
from attractor.nn import LLAMA_LAYOUT


class Phi(Decoder):
    name = "phi"
    title = "Phi 1, 1.5, 2"
    model_types = ("phi",)
    layout = replace(LLAMA_LAYOUT, output="dense")
    parallel = True

    def norm(self, config: Config, read: Reader, name: str, size: int | None = None) -> Norm:
        return read_layer_norm(read, name, config.hidden_size if size is None else size, config.layer_norm_eps)

    def head_norms(self, config: Config, read: Reader, path: str) -> tuple[Norm | Clip | None, Norm | Clip | None]:
        if not config.qk_layernorm:
            return None, None
        k = self.head_dim(config)
        query, key = (self.norm(config, read, path + name, k) for name in ("q_layernorm", "k_layernorm"))
        return query, key


class Phi3(Decoder):
    """Query, key and value are in one projection, one after the other."""

    name = "phi3"
    title = "Phi 3, Phi 4"
    model_types = ("phi3",)
    window = True

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
