"""Gemma: Llama with RMSNorm gain 1 + weight and wide heads; peri-norm and windows since Gemma 2, norms of queries and keys since 3."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attractor.errors import UnsupportedError
from attractor.laws import Capped, Mask, RMSNorm, Window
from attractor.models.attention_layers import Projections
from attractor.models.family import Config, Decoder, Modules
from attractor.models.tensors import Reader


class Gemma(Decoder):
    """The head dimension may exceed d / h."""

    name = "gemma"
    title = "Gemma"
    model_types = ("gemma",)
    unit = True

    def mask(self, config: Config, index: int) -> Mask | None:
        if getattr(config, "use_bidirectional_attention", False):
            raise UnsupportedError(
                "a Gemma 1 or 2 that reads its prompt in both directions (PaliGemma) is not supported"
            )
        return super().mask(config, index)


class Gemma2(Gemma):
    """Tanh-capped scores, and alternating sliding-window and full attention."""

    name = "gemma2"
    title = "Gemma 2"
    model_types = ("gemma2",)
    output_norm_name = "post_attention_layernorm"
    remark = "the kernel is softmax of capped scores"

    def scale(self, config: Config) -> float:
        return config.query_pre_attn_scalar**-0.5

    def kernel(self, config: Config) -> Any:
        cap = config.attn_logit_softcapping
        return "softmax" if cap is None else Capped(cap)


class Gemma3(Gemma2):
    """RMSNorm of queries and keys instead of capped scores; RoPE theta differs between local and global layers."""

    name = "gemma3"
    title = "Gemma 3 (text)"
    model_types = ("gemma3_text",)
    head_normed = True
    remark = "W is undefined: queries and keys are normalised"

    def mask(self, config: Config, index: int) -> Mask | None:
        if not getattr(config, "use_bidirectional_attention", False):
            return super().mask(config, index)
        kind = self.layer_type(config, index)
        return Window(config.sliding_window, causal=False) if kind == "sliding_attention" else None

    def kernel(self, config: Config) -> Any:
        return "softmax"


class Gemma3n(Decoder):
    """Values are normalised too, the last layers read keys and values of an earlier one, and the stream is the active one of AltUp."""

    name = "gemma3n"
    title = "Gemma 3n (text)"
    model_types = ("gemma3n_text",)
    output_norm_name = "post_attention_layernorm"
    head_normed = True
    remark = "W and V are undefined: queries, keys and values are normalised"

    def modules(self, stack: str, slot: int) -> Modules:
        return replace(super().modules(stack, slot), stream=f"layers.{slot}.{self.norm_name}")

    def small(self, config: Config, stack: str, index: int) -> dict[str, Any]:
        sizes = {"num_kv_shared_layers": 0, "vocab_size_per_layer_input": 64, "activation_sparsity_pattern": [0.0]}
        return {**super().small(config, stack, index), **sizes, "intermediate_size": [16]}

    def no_attention(self, config: Config, stack: str, index: int) -> str | None:
        first = config.num_hidden_layers - config.num_kv_shared_layers
        if index < first:
            return None
        kind = config.layer_types[index]
        source = max(place for place in range(first) if config.layer_types[place] == kind)
        return f"its attention reads the keys and values of layer {source}, so it is no function of its own tokens"

    def scale(self, config: Config) -> float:
        return 1.0

    def projections(self, config: Config, read: Reader, path: str) -> Projections:
        return replace(super().projections(config, read, path), value_norm=RMSNorm(None, None, config.rms_norm_eps))
