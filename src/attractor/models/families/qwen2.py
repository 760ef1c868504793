"""Qwen 2 and 2.5: Llama with biases of query, key and value, and sliding-window attention in some layers."""

from __future__ import annotations

from attractor.models.family import Decoder


class Qwen2(Decoder):
    name = "qwen2"
    title = "Qwen 2, Qwen 2.5"
    model_types = ("qwen2",)
