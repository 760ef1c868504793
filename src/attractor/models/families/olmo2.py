"""OLMo 2: RMSNorm after attention instead of before it; RMSNorm of queries and keys over all heads together; half-split RoPE."""

from __future__ import annotations

from typing import Any

from attractor.laws import Norm, RMSNorm
from attractor.models.family import Config, Decoder
from attractor.models.tensors import Reader


class Olmo2(Decoder):
    name = "olmo2"
    title = "OLMo 2"
    model_types = ("olmo2",)
    joint = True
    remark = "W and single heads are undefined: queries and keys are normalised over all heads together"

    def norm(self, config: Config, read: Reader, name: str) -> Norm | None:
        return None

    def head_norms(self, config: Config, read: Reader, path: str) -> tuple[Norm | None, Norm | None]:
        k = self.head_dim(config)
        sizes = {"q_norm": config.num_attention_heads * k, "k_norm": config.num_key_value_heads * k}
        gains = (read(f"{path}{name}.weight", size) for name, size in sizes.items())
        query, key = (RMSNorm(gain, None, config.rms_norm_eps) for gain in gains)
        return query, key

    def extras(self, config: Config, read: Reader, path: str) -> dict[str, Any]:
        gain = read(f"{path}post_attention_layernorm.weight", config.hidden_size)
        return {"placement": "peri", "output_norm": RMSNorm(gain, None, config.rms_norm_eps)}
