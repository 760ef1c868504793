"""Qwen: Llama with biases of query, key and value (2), or RMSNorm of queries and keys in every head (3), and mixtures of experts."""

from __future__ import annotations

from typing import Any

from attractor.models.family import Config, Decoder


class Qwen2(Decoder):
    name = "qwen2"
    title = "Qwen 2, Qwen 2.5"
    model_types = ("qwen2", "qwen2_moe", "qwen2_vl_text", "qwen2_5_vl_text")
    remark = "of Qwen-VL the text part, on text alone, where its three positions of a token agree"


class Qwen3(Decoder):
    name = "qwen3"
    title = "Qwen 3"
    model_types = ("qwen3", "qwen3_moe", "qwen3_vl_text", "qwen3_vl_moe_text")
    head_normed = True
    remark = "W is undefined: queries and keys are normalised"

    def small(self, config: Config, stack: str, index: int) -> dict[str, Any]:
        return {
            **super().small(config, stack, index),
            **({"decoder_sparse_step": 1} if hasattr(config, "num_experts") else {}),
        }
