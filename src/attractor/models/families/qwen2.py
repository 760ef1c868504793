"""Qwen 2 and 2.5: Llama with biases on queries, keys and values; some layers may see a window only."""

from __future__ import annotations

from attractor.models.family import Decoder


class Qwen2(Decoder):
    name = "qwen2"
    title = "Qwen 2, Qwen 2.5"
    model_types = ("qwen2",)
