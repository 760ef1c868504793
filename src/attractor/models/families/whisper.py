"""Whisper: pre-norm audio encoder and text decoder with LayerNorm and absolute positions at the input; cross-attention is left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from attractor.laws import Causal
from attractor.models.attention_layers import Layer, make_heads, read_layer_norm, read_projections
from attractor.models.family import Config, Family, Modules, draw_normal
from attractor.models.tensors import Reader
from attractor.nn import LLAMA_LAYOUT


class Whisper(Family):
    name = "whisper"
    title = "Whisper"
    model_types = ("whisper",)
    prefixes = ("model.", "")
    width = "d_model"
    layout = replace(LLAMA_LAYOUT, output="out_proj")
    remark = "encoder and decoder self-attention; cross-attention is left out"

    def stacks(self, config: Config) -> dict[str, int]:
        return {"encoder": config.encoder_layers, "decoder": config.decoder_layers}

    def path(self, stack: str, index: int) -> str:
        return f"{stack}.layers.{index}."

    @property
    def probes(self) -> tuple[str, ...]:
        return (self.path("encoder", 0), self.path("decoder", 0))

    def modules(self, stack: str, slot: int) -> Modules:
        block = f"{stack}.layers.{slot}"
        return Modules(block, f"{block}.self_attn", f"{block}.self_attn")

    def small(self, config: Config, stack: str, index: int) -> dict[str, Any]:
        sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
        return {**sizes, "vocab_size": 64, "max_source_positions": 12, "pad_token_id": 0}

    def feed(self, model: Any, config: Config, stack: str, draw: torch.Generator, n: int) -> None:
        if stack == "encoder":
            sound = (1, config.num_mel_bins, 2 * config.max_source_positions)
            model.encoder(draw_normal(*sound, generator=draw))
        else:
            text, sound = (draw_normal(1, n, config.d_model, generator=draw) for _ in range(2))
            model.decoder(inputs_embeds=text, encoder_hidden_states=sound)

    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        path, d, heads = self.path(stack, index), config.d_model, getattr(config, f"{stack}_attention_heads")
        required = ("q_proj", "v_proj", "out_proj")
        parts = read_projections(read, self.layout, f"{path}self_attn.", d, heads, required=required)
        law = make_heads(
            parts, dtype=read.dtype, scale=(d // heads) ** -0.5, mask=Causal() if stack == "decoder" else None
        )
        norm = read_layer_norm(read, f"{path}self_attn_layer_norm", d, 1e-5)
        return Layer(index, f"{stack} layer {index}", law, norm)
