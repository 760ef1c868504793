"""Llama, Mistral, SmolLM: pre-norm decoders with RMSNorm, half-split RoPE and grouped-query attention; sliding window in Mistral."""

from __future__ import annotations

from attractor.laws import Causal, Mask, Window
from attractor.models.family import Config, Decoder


class Llama(Decoder):
    name = "llama"
    title = "Llama, Mistral, SmolLM"
    model_types = ("llama", "mistral")

    def mask(self, config: Config, index: int) -> Mask:
        window = getattr(config, "sliding_window", None)
        return Window(window) if window else Causal()
