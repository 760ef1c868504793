"""Whisper: an encoder of sound and a decoder of text; the decoder's cross-attention moves no tokens by themselves and is left out."""

from __future__ import annotations

from typing import Any

import torch

from attractor.laws import Causal, LayerNorm
from attractor.models.attention_layers import Layer, Projections, heads_from, split_columns, split_rows
from attractor.models.family import Config, Family, Modules
from attractor.models.tensors import Reader


class Whisper(Family):
    name = "whisper"
    title = "Whisper"
    model_types = ("whisper",)
    prefixes = ("model.", "")
    width = "d_model"
    remark = "encoder and decoder self-attention; cross-attention is left out"

    def stacks(self, config: Config) -> dict[str, int]:
        return {"encoder": config.encoder_layers, "decoder": config.decoder_layers}

    def path(self, stack: str, index: int) -> str:
        return f"{stack}.layers.{index}."

    def probed(self) -> tuple[str, ...]:
        return ("encoder",)

    def modules(self, stack: str, slot: int) -> Modules:
        block = f"{stack}.layers.{slot}"
        return Modules(block, f"{block}.self_attn", f"{block}.self_attn")

    def small(self, config: Config, stack: str, index: int) -> dict[str, Any]:
        sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
        return {**sizes, "vocab_size": 64, "max_source_positions": 12, "pad_token_id": 0}

    def feed(self, model: Any, config: Config, stack: str, draw: torch.Generator, n: int) -> None:
        if stack == "encoder":
            sound = (1, config.num_mel_bins, 2 * config.max_source_positions)
            model.encoder(torch.randn(*sound, generator=draw, dtype=torch.float64))
        else:
            text, sound = (torch.randn(1, n, config.d_model, generator=draw, dtype=torch.float64) for _ in range(2))
            model.decoder(inputs_embeds=text, encoder_hidden_states=sound)

    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        path, d, heads = self.path(stack, index), config.d_model, getattr(config, f"{stack}_attention_heads")
        inside = f"{path}self_attn."
        query_bias, value_bias = (split_rows(read(f"{inside}{name}.bias", d), heads) for name in ("q_proj", "v_proj"))
        parts = Projections.of(
            (split_rows(read(f"{inside}{name}.weight", d, d), heads) for name in ("q_proj", "k_proj", "v_proj")),
            split_columns(read(f"{inside}out_proj.weight", d, d), heads),
            (query_bias, None, value_bias),
            read(f"{inside}out_proj.bias", d),
        )
        law = heads_from(
            parts, dtype=read.dtype, scale=(d // heads) ** -0.5, mask=Causal() if stack == "decoder" else None
        )
        gain, bias = (read(f"{path}self_attn_layer_norm.{part}", d) for part in ("weight", "bias"))
        return Layer(index, f"{stack} layer {index}", law, LayerNorm(gain, bias, 1e-5))
