"""ViT and DeiT: image patches under attention without a mask."""

from __future__ import annotations

from typing import Any

import torch

from attractor.laws import LayerNorm
from attractor.models.attention_layers import Layer, Projections, heads_from, split_columns, split_rows
from attractor.models.family import Config, Family, Modules
from attractor.models.tensors import Reader


class ViT(Family):
    name = "vit"
    title = "ViT, DeiT"
    model_types = ("vit", "deit")
    prefixes = ("vit.", "deit.", "")
    layers = "encoder.layer"
    renamed = True
    norm_name = "layernorm_before"

    def modules(self, stack: str, slot: int) -> Modules:
        return Modules(f"layers.{slot}", f"layers.{slot}.attention", f"layers.{slot}.attention")

    def small(self, config: Config, stack: str, index: int) -> dict[str, Any]:
        patch = config.patch_size if isinstance(config.patch_size, int) else config.patch_size[0]
        return {**super().small(config, stack, index), "image_size": 3 * patch}

    def feed(self, model: torch.nn.Module, config: Config, stack: str, draw: torch.Generator, n: int) -> None:
        shape = (1, config.num_channels, config.image_size, config.image_size)
        model(torch.randn(*shape, generator=draw, dtype=torch.float64))

    def projections(self, config: Config, read: Reader, path: str) -> Projections:
        d, heads = config.hidden_size, config.num_attention_heads
        names = ("query", "key", "value")
        matrices = [split_rows(read(f"{path}attention.attention.{name}.weight", d, d), heads) for name in names]
        rows = [read.maybe(f"{path}attention.attention.{name}.bias", d) for name in names]
        biases = [None if row is None else split_rows(row, heads) for row in rows]
        output = split_columns(read(f"{path}attention.output.dense.weight", d, d), heads)
        return Projections.of(matrices, output, biases, read(f"{path}attention.output.dense.bias", d))

    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        path, d, heads = self.path(stack, index), config.hidden_size, config.num_attention_heads
        law = heads_from(self.projections(config, read, path), dtype=read.dtype, scale=(d // heads) ** -0.5)
        gain, shift = (read(f"{path}{self.norm_name}.{part}", d) for part in ("weight", "bias"))
        return Layer(index, f"layer {index}", law, LayerNorm(gain, shift, config.layer_norm_eps))
