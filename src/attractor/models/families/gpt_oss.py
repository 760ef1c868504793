"""GPT-OSS: Llama with biases, alternating windows, and a learned sink in the softmax of every head."""

from __future__ import annotations

from dataclasses import replace

from attractor.models.attention_layers import Projections
from attractor.models.family import Config, Decoder
from attractor.models.tensors import Reader


class GptOss(Decoder):
    name = "gpt_oss"
    title = "GPT-OSS"
    model_types = ("gpt_oss",)
    remark = "weights sum to less than one because of the sinks, so no theorem gives labels"

    def projections(self, config: Config, read: Reader, path: str) -> Projections:
        sinks = read(f"{path}sinks", config.num_attention_heads)
        return replace(super().projections(config, read, path), sinks=sinks)
