"""OLMo: Llama with a LayerNorm without gain and bias, and optional clipping of queries, keys and values."""

from __future__ import annotations

from typing import Any

from attractor.laws import LayerNorm, Norm
from attractor.models.family import Config, Decoder
from attractor.models.tensors import Reader


class Olmo(Decoder):
    name = "olmo"
    title = "OLMo"
    model_types = ("olmo",)
    remark = "where clip_qkv is set, the law leaves the clipping out and says so"

    def norm(self, config: Config, read: Reader, name: str) -> Norm:
        return LayerNorm(None, None, 1e-5)

    def extras(self, config: Config, read: Reader, path: str) -> dict[str, Any]:
        if config.clip_qkv is None:
            return {}
        reason = f"queries, keys and values are clipped at {config.clip_qkv:g}, which the law does not do"
        return {"undefined": {"velocity": f"{reason}: it is the model's only while no entry reaches that"}}
