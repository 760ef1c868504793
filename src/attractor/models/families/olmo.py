"""OLMo: Llama with a LayerNorm without gain and bias (1), or with RMSNorm after attention instead of before it (2, 3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attractor.errors import UnsupportedError
from attractor.laws import Clip, LayerNorm, Norm
from attractor.models.attention_layers import Projections
from attractor.models.family import Config, Decoder
from attractor.models.tensors import Reader


class ClippedDecoder(Decoder):
    """Queries, keys and values may be clipped at ``clip_qkv``."""

    def projections(self, config: Config, read: Reader, path: str) -> Projections:
        parts = super().projections(config, read, path)
        return replace(parts, value_norm=self.clip(config))

    def clip(self, config: Config) -> Clip | None:
        bound = getattr(config, "clip_qkv", None)
        return None if bound is None else Clip(float(bound))

    def extras(self, config: Config, read: Reader, path: str) -> dict[str, Any]:
        if self.clip(config) is None:
            return {}
        note = f"queries, keys and values are clipped at {config.clip_qkv:g}; spectra describe tokens for which no entry reaches that"
        return {"notes": (note,)}


class Olmo(ClippedDecoder):
    name = "olmo"
    title = "OLMo"
    model_types = ("olmo",)
    remark = "where clip_qkv is set, spectra are those of the matrices without clipping"

    def norm(self, config: Config, read: Reader, name: str, size: int | None = None) -> Norm:
        return LayerNorm(None, None, 1e-5)

    def head_norms(self, config: Config, read: Reader, path: str) -> tuple[Norm | Clip | None, Norm | Clip | None]:
        return self.clip(config), self.clip(config)


class Olmo2(Decoder):
    """RMSNorm of queries and keys over all heads together; sliding windows in OLMo 3."""

    name = "olmo2"
    title = "OLMo 2, OLMo 3"
    model_types = ("olmo2", "olmo3", "flex_olmo")
    norm_name = None
    output_norm_name = "post_attention_layernorm"
    head_normed = True
    joint = True
    remark = "W and single heads are undefined: queries and keys are normalised over all heads together"


class Olmoe(Decoder):
    """A mixture of experts with the norm before attention, and RMSNorm of queries and keys over all heads together."""

    name = "olmoe"
    title = "OLMoE"
    model_types = ("olmoe",)
    head_normed = True
    joint = True
    remark = Olmo2.remark

    def projections(self, config: Config, read: Reader, path: str) -> Projections:
        if config.clip_qkv is not None:
            raise UnsupportedError("an OLMoE whose queries and keys are normalised and clipped is not supported")
        return super().projections(config, read, path)
