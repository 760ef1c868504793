"""Qwen 3: Llama with RMSNorm of queries and keys in every head, before RoPE."""

from __future__ import annotations

from attractor.laws import Norm, RMSNorm
from attractor.models.family import Config, Decoder
from attractor.models.tensors import Reader


class Qwen3(Decoder):
    name = "qwen3"
    title = "Qwen 3"
    model_types = ("qwen3",)
    remark = "W is undefined: queries and keys are normalised"

    def head_norms(self, config: Config, read: Reader, path: str) -> tuple[Norm | None, Norm | None]:
        k = self.head_dim(config)
        gains = (read(f"{path}{name}.weight", k) for name in ("q_norm", "k_norm"))
        query, key = (RMSNorm(gain, None, config.rms_norm_eps) for gain in gains)
        return query, key
