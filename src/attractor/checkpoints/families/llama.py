"""Llama and those built like it: RMSNorm, rotary positions paired across halves, grouped keys and values."""

from __future__ import annotations

from attractor.attention import Causal, Mask, Window
from attractor.checkpoints.decoder import Decoder
from attractor.checkpoints.family import Config


class Llama(Decoder):
    name = "llama"
    title = "Llama, Mistral, SmolLM"
    model_types = ("llama", "mistral")

    def mask(self, config: Config, index: int) -> Mask:
        window = getattr(config, "sliding_window", None)
        return Window(window) if window else Causal()
