"""Llama 4 (text): RoPE of neighbouring pairs within chunks, and layers without positions whose scores grow with the position."""

from __future__ import annotations

from typing import Any

from attractor.laws import Chunked, Clip, Mask, Norm, Positions, RMSNorm, Temperature
from attractor.models.attention_layers import RotaryLayout
from attractor.models.family import Config, Decoder
from attractor.models.tensors import Reader


class Llama4(Decoder):
    name = "llama4"
    title = "Llama 4 (text)"
    model_types = ("llama4_text",)
    half_split = False
    remark = "W is undefined in layers with RoPE where queries and keys are normalised"

    def slot(self, config: Config, index: int) -> int:
        return index

    def small(self, config: Config, stack: str, index: int) -> dict[str, Any]:
        sizes = {"intermediate_size_mlp": 16, "moe_layers": [], "layer_types": config.layer_types[: index + 1]}
        return {**super().small(config, stack, index), **sizes}

    def mask(self, config: Config, index: int) -> Mask | None:
        chunked = self.layer_type(config, index) == "chunked_attention"
        return Chunked(config.attention_chunk_size) if chunked else super().mask(config, index)

    def rotary(self, config: Config, index: int) -> RotaryLayout | None:
        return super().rotary(config, index) if config.no_rope_layers[index] else None

    def positions(self, config: Config, index: int) -> Positions | None:
        if config.no_rope_layers[index] or not config.attn_temperature_tuning:
            return None
        return Temperature(float(config.floor_scale), float(config.attn_scale))

    def head_norms(self, config: Config, read: Reader, path: str) -> tuple[Norm | Clip | None, Norm | Clip | None]:
        index = int(path.split(".")[-3])
        if not (config.use_qk_norm and config.no_rope_layers[index]):
            return None, None
        return RMSNorm(None, None, config.rms_norm_eps), RMSNorm(None, None, config.rms_norm_eps)
