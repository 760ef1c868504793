"""ViT and DeiT: pre-norm encoders of image patches with LayerNorm and learned absolute positions at the input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from attractor.models.attention_layers import Layer, Projections, make_heads, read_layer_norm, read_projections
from attractor.models.family import Config, Family, Modules, draw_normal
from attractor.models.tensors import Reader
from attractor.nn import BERT_LAYOUT


class ViT(Family):
    name = "vit"
    title = "ViT, DeiT, I-JEPA"
    model_types = ("vit", "deit", "vit_msn", "ijepa")
    prefixes = ("vit.", "deit.", "ijepa.", "")
    layers = "encoder.layer"
    layout = replace(BERT_LAYOUT, output="attention.output.dense")
    renamed = True
    norm_name = "layernorm_before"

    def modules(self, stack: str, slot: int) -> Modules:
        block = f"layers.{slot}"
        return Modules(block, f"{block}.attention", f"{block}.attention", projection=(f"{block}.attention.o_proj",))

    def small(self, config: Config, stack: str, index: int) -> dict[str, Any]:
        patch = config.patch_size if isinstance(config.patch_size, int) else config.patch_size[0]
        return {**super().small(config, stack, index), "image_size": 3 * patch}

    def feed(self, model: torch.nn.Module, config: Config, stack: str, draw: torch.Generator, n: int) -> None:
        shape = (1, config.num_channels, config.image_size, config.image_size)
        model(draw_normal(*shape, generator=draw))

    def projections(self, config: Config, read: Reader, path: str) -> Projections:
        d, heads, output = config.hidden_size, config.num_attention_heads, self.layout.output
        inside = f"{path}attention.attention."
        k = self.head_dim(config)
        return read_projections(read, self.layout, inside, d, heads, head_dim=k, required=(output,), output_path=path)

    def head_dim(self, config: Config) -> int:
        return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads

    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        path, d = self.path(stack, index), config.hidden_size
        scale = self.head_dim(config) ** -0.5
        law = make_heads(self.projections(config, read, path), dtype=read.dtype, scale=scale)
        norm = read_layer_norm(read, f"{path}{self.norm_name}", d, config.layer_norm_eps)
        return Layer(index, f"layer {index}", law, norm)
