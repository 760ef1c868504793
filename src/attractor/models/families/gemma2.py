"""Gemma 2: peri-norm decoder with RMSNorm, tanh-capped scores, and alternating sliding-window and full attention."""

from __future__ import annotations

from typing import Any

from attractor.errors import UnsupportedError
from attractor.laws import Capped, Mask
from attractor.models.families.gemma import Gemma
from attractor.models.family import Config
from attractor.models.tensors import Reader


class Gemma2(Gemma):
    name = "gemma2"
    title = "Gemma 2"
    model_types = ("gemma2",)
    remark = "the kernel is softmax of capped scores"

    def scale(self, config: Config) -> float:
        return config.query_pre_attn_scalar**-0.5

    def mask(self, config: Config, index: int) -> Mask:
        if getattr(config, "use_bidirectional_attention", False):
            raise UnsupportedError("a Gemma with bidirectional attention is not supported")
        return super().mask(config, index)

    def kernel(self, config: Config) -> Any:
        cap = config.attn_logit_softcapping
        return "softmax" if cap is None else Capped(cap)

    def extras(self, config: Config, read: Reader, path: str) -> dict[str, Any]:
        return {"placement": "peri", "output_norm": self.norm(config, read, f"{path}post_attention_layernorm")}
