"""Phi 1, 1.5 and 2: pre-norm decoders with LayerNorm, biases, partial half-split RoPE, and parallel attention and feed-forward."""

from __future__ import annotations

from dataclasses import replace

from attractor.laws import Norm
from attractor.models.attention_layers import read_layer_norm
from attractor.models.family import Config, Decoder
from attractor.models.tensors import Reader
from attractor.nn import LLAMA_LAYOUT


class Phi(Decoder):
    name = "phi"
    title = "Phi 1, 1.5, 2"
    model_types = ("phi",)
    layout = replace(LLAMA_LAYOUT, output="dense")
    parallel = True

    def norm(self, config: Config, read: Reader, name: str) -> Norm:
        return read_layer_norm(read, name, config.hidden_size, config.layer_norm_eps)

    def head_norms(self, config: Config, read: Reader, path: str) -> tuple[Norm | None, Norm | None]:
        if not config.qk_layernorm:
            return None, None
        k = self.head_dim(config)
        names = ("q_layernorm", "k_layernorm")
        query, key = (read_layer_norm(read, path + name, k, config.layer_norm_eps) for name in names)
        return query, key
