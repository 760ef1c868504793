"""Decoders built like Llama with a LayerNorm: StarCoder 2, StableLM, Nemotron, Command R (Cohere); and GLM, with RoPE of neighbours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attractor.errors import UnsupportedError
from attractor.laws import Clip, LayerNorm, Norm
from attractor.models.attention_layers import Projections, RotaryLayout
from attractor.models.family import Config, Decoder
from attractor.models.tensors import Reader


class StarCoder2(Decoder):
    """All projections have biases."""

    name = "starcoder2"
    title = "StarCoder 2"
    model_types = ("starcoder2",)
    eps = "norm_epsilon"
    window = True

    def norm(self, config: Config, read: Reader, name: str, size: int | None = None) -> Norm:
        count = config.hidden_size if size is None else size
        gain = read(f"{name}.weight", count)
        return LayerNorm(
            1.0 + gain if self.unit else gain, read.maybe(f"{name}.bias", count), getattr(config, self.eps)
        )


class StableLM(StarCoder2):
    """RoPE turns a part of each head; attention and feed-forward are parallel in some models."""

    name = "stablelm"
    title = "StableLM"
    model_types = ("stablelm",)
    eps = "layer_norm_eps"

    def head_norms(self, config: Config, read: Reader, path: str) -> tuple[Norm | Clip | None, Norm | Clip | None]:
        if config.qk_layernorm:
            raise UnsupportedError("a StableLM with a norm for each head of queries and keys is not supported")
        return None, None

    def extras(self, config: Config, read: Reader, path: str) -> dict[str, Any]:
        return {"parallel": config.use_parallel_residual}


class Nemotron(StarCoder2):
    """The gain of norms is 1 + weight, and RoPE turns a part of each head."""

    name = "nemotron"
    title = "Nemotron, Minitron"
    model_types = ("nemotron",)
    eps = "norm_eps"
    unit = True


class Cohere(StarCoder2):
    """Attention and feed-forward are parallel; RoPE pairs neighbours; Command R+ normalises queries and keys of every head."""

    name = "cohere"
    title = "Command R"
    model_types = ("cohere",)
    eps = "layer_norm_eps"
    parallel = True
    half_split = False
    remark = "W is undefined in Command R+, which normalises queries and keys"

    def projections(self, config: Config, read: Reader, path: str) -> Projections:
        parts = super().projections(config, read, path)
        if not getattr(config, "use_qk_norm", False):
            return parts
        k, bare = self.head_dim(config), LayerNorm(None, None, config.layer_norm_eps)
        query = read(f"{path}q_norm.weight", config.num_attention_heads, k).to(read.dtype)
        key = read(f"{path}k_norm.weight", config.num_key_value_heads, k).to(read.dtype)
        return replace(parts, query_norm=bare, key_norm=bare, query_gain=query, key_gain=key)


class Cohere2(Cohere):
    """Layers with full attention have no positions."""

    name = "cohere2"
    title = "Command R7B, Command A"
    model_types = ("cohere2",)
    remark = ""

    def rotary(self, config: Config, index: int) -> RotaryLayout | None:
        return super().rotary(config, index) if self.layer_type(config, index) == "sliding_attention" else None


class Glm(Decoder):
    name = "glm"
    title = "GLM-4 (9B), Ernie 4.5, Helium"
    model_types = ("glm", "ernie4_5", "ernie4_5_moe", "helium")
    half_split = False


class Glm4(Glm):
    """A norm after attention."""

    name = "glm4"
    title = "GLM-4 (0414)"
    model_types = ("glm4",)
    output_norm_name = "post_self_attn_layernorm"
