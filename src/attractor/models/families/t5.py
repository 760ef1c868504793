"""T5: no scaling of scores, and a learned bias for every head and distance, kept in the first layer for all of them."""

from __future__ import annotations

from typing import Any

import torch

from attractor.laws import Causal, Relative, RMSNorm
from attractor.models.attention_layers import Layer, Projections, heads_from, split_columns, split_rows
from attractor.models.family import Config, Family, Modules
from attractor.models.tensors import Reader


class T5(Family):
    name = "t5"
    title = "T5"
    model_types = ("t5",)
    depth = "num_layers"
    width = "d_model"
    remark = "encoder and decoder self-attention; cross-attention is left out"

    def stacks(self, config: Config) -> dict[str, int]:
        return {"encoder": config.num_layers, "decoder": config.num_decoder_layers}

    def path(self, stack: str, index: int) -> str:
        return f"{stack}.block.{index}.layer.0."

    def probed(self) -> tuple[str, ...]:
        return ("encoder",)

    def modules(self, stack: str, slot: int) -> Modules:
        inside = f"{stack}.block.{slot}.layer.0.SelfAttention"
        return Modules(f"{stack}.block.{slot}", inside, inside)

    def small(self, config: Config, stack: str, index: int) -> dict[str, Any]:
        return {"num_layers": 1, "num_decoder_layers": 1, "d_ff": 16, "vocab_size": 64}

    def feed(self, model: Any, config: Config, stack: str, draw: torch.Generator, n: int) -> None:
        text, source = (torch.randn(1, n, config.d_model, generator=draw, dtype=torch.float64) for _ in range(2))
        if stack == "encoder":
            model.encoder(inputs_embeds=text)
        else:
            model.decoder(inputs_embeds=text, encoder_hidden_states=source)

    def shared(self, stack: str) -> tuple[str, ...]:
        return (f"{self.path(stack, 0)}SelfAttention.relative_attention_bias.weight",)

    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        path, d, heads, k = self.path(stack, index), config.d_model, config.num_heads, config.d_kv
        inside = f"{path}SelfAttention."
        matrices = (split_rows(read(f"{inside}{name}.weight", heads * k, d), heads) for name in ("q", "k", "v"))
        parts = Projections.of(matrices, split_columns(read(f"{inside}o.weight", d, heads * k), heads))
        table = read(self.shared(stack)[0], config.relative_attention_num_buckets, heads)
        positions = Relative(table, config.relative_attention_max_distance, both_sides=stack == "encoder")
        mask = Causal() if stack == "decoder" else None
        law = heads_from(parts, dtype=read.dtype, scale=1.0, mask=mask, positions=positions)
        norm = RMSNorm(read(f"{path}layer_norm.weight", d), None, config.layer_norm_epsilon)
        return Layer(index, f"{stack} layer {index}", law, norm)
