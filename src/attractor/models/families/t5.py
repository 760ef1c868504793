"""T5: pre-norm encoder and decoder with RMSNorm, unscaled scores, and learned relative position biases, stored in the first layer."""

from __future__ import annotations

from typing import Any

import torch

from attractor.laws import Causal, Relative, RMSNorm
from attractor.models.attention_layers import Layer, make_heads, read_projections
from attractor.models.family import Config, Family, Modules, draw_normal
from attractor.models.tensors import Reader
from attractor.nn import ProjectionLayout


class T5(Family):
    name = "t5"
    title = "T5, mT5"
    model_types = ("t5", "mt5", "switch_transformers")
    depth = "num_layers"
    width = "d_model"
    layout = ProjectionLayout("o", "q", "k", "v")
    remark = "encoder and decoder self-attention; cross-attention is left out"

    def stacks(self, config: Config) -> dict[str, int]:
        return {"encoder": config.num_layers, "decoder": config.num_decoder_layers}

    def path(self, stack: str, index: int) -> str:
        return f"{stack}.block.{index}.layer.0."

    @property
    def probes(self) -> tuple[str, ...]:
        return (self.path("encoder", 0), self.path("decoder", 0))

    def modules(self, stack: str, slot: int) -> Modules:
        inside = f"{stack}.block.{slot}.layer.0.SelfAttention"
        return Modules(f"{stack}.block.{slot}", inside, inside)

    def small(self, config: Config, stack: str, index: int) -> dict[str, Any]:
        return {"num_layers": 1, "num_decoder_layers": 1, "d_ff": 16, "vocab_size": 64}

    def feed(self, model: Any, config: Config, stack: str, draw: torch.Generator, n: int) -> None:
        text, source = (draw_normal(1, n, config.d_model, generator=draw) for _ in range(2))
        if stack == "encoder":
            model.encoder(inputs_embeds=text)
        else:
            model.decoder(inputs_embeds=text, encoder_hidden_states=source)

    def shared(self, stack: str) -> tuple[str, ...]:
        return (self.table(stack, 0),)

    def table(self, stack: str, index: int) -> str:
        """The name of the relative position biases of a layer, which are stored in the first."""
        return f"{self.path(stack, 0)}SelfAttention.relative_attention_bias.weight"

    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        path, d, heads, k = self.path(stack, index), config.d_model, config.num_heads, config.d_kv
        parts = read_projections(read, self.layout, f"{path}SelfAttention.", d, heads, head_dim=k)
        table = read(self.table(stack, index), config.relative_attention_num_buckets, heads)
        positions = Relative(table, config.relative_attention_max_distance, both_sides=stack == "encoder")
        mask = Causal() if stack == "decoder" else None
        law = make_heads(parts, dtype=read.dtype, scale=1.0, mask=mask, positions=positions)
        norm = RMSNorm(read(f"{path}layer_norm.weight", d), None, config.layer_norm_epsilon)
        return Layer(index, f"{stack} layer {index}", law, norm)


class UMT5(T5):
    """Every layer has its own relative position biases."""

    name = "umt5"
    title = "umT5"
    model_types = ("umt5",)

    def shared(self, stack: str) -> tuple[str, ...]:
        return ()

    def table(self, stack: str, index: int) -> str:
        return f"{self.path(stack, index)}SelfAttention.relative_attention_bias.weight"
