"""Gemma 3: Gemma 2 with RMSNorm of queries and keys instead of capped scores; RoPE theta differs between local and global layers."""

from __future__ import annotations

from typing import Any

from attractor.laws import Norm, RMSNorm
from attractor.models.families.gemma2 import Gemma2
from attractor.models.family import Config
from attractor.models.tensors import Reader


class Gemma3(Gemma2):
    name = "gemma3"
    title = "Gemma 3 (text)"
    model_types = ("gemma3_text",)
    remark = "W is undefined: queries and keys are normalised"

    def kernel(self, config: Config) -> Any:
        return "softmax"

    def head_norms(self, config: Config, read: Reader, path: str) -> tuple[Norm | None, Norm | None]:
        k = self.head_dim(config)
        gains = (1.0 + read(f"{path}{name}.weight", k) for name in ("q_norm", "k_norm"))
        query, key = (RMSNorm(gain, None, config.rms_norm_eps) for gain in gains)
        return query, key
