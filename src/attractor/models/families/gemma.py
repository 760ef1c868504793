"""Gemma: Llama with RMSNorm gain 1 + weight and a head dimension that may exceed d / h."""

from __future__ import annotations

from attractor.laws import Norm, RMSNorm
from attractor.models.family import Config, Decoder
from attractor.models.tensors import Reader


class Gemma(Decoder):
    name = "gemma"
    title = "Gemma"
    model_types = ("gemma",)

    def norm(self, config: Config, read: Reader, name: str) -> Norm:
        return RMSNorm(1.0 + read(f"{name}.weight", config.hidden_size), None, config.rms_norm_eps)
