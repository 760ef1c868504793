"""Llama and its relatives: pre-norm decoders with RMSNorm, half-split RoPE and grouped-query attention."""

from __future__ import annotations

from attractor.models.attention_layers import RotaryLayout
from attractor.models.family import Config, Decoder


class Llama(Decoder):
    name = "llama"
    title = "Llama, Mistral, Mixtral, SmolLM"
    model_types = ("llama", "mistral", "mixtral", "ministral", "seed_oss", "arcee", "cwm")
    window = True


class SmolLM3(Decoder):
    """Some layers have no positions."""

    name = "smollm3"
    title = "SmolLM 3"
    model_types = ("smollm3",)

    def slot(self, config: Config, index: int) -> int:
        return index if config.no_rope_layers else 0

    def rotary(self, config: Config, index: int) -> RotaryLayout | None:
        return super().rotary(config, index) if config.no_rope_layers[index] else None


class Granite(Decoder):
    """Scores and the output of attention have multipliers."""

    name = "granite"
    title = "Granite 3"
    model_types = ("granite", "granitemoe", "granitemoeshared")

    def scale(self, config: Config) -> float:
        return config.attention_multiplier

    def output_factor(self, config: Config) -> float:
        return config.residual_multiplier
