"""DINOv2 and DINOv3: ViT with LayerScale after attention, which is folded into the output projection; RoPE in two directions in v3."""

from __future__ import annotations

import dataclasses

from attractor.laws import GridRotary
from attractor.models.attention_layers import (
    Layer,
    Projections,
    RotaryLayout,
    make_heads,
    read_layer_norm,
    read_projections,
)
from attractor.models.families.vit import ViT
from attractor.models.family import Config, Modules
from attractor.models.tensors import Reader
from attractor.nn import LLAMA_LAYOUT


class Dinov2(ViT):
    name = "dinov2"
    title = "DINOv2"
    model_types = ("dinov2", "dinov2_with_registers")
    prefixes = ("dinov2.", "dinov2_with_registers.", "")
    norm_name = "norm1"

    def modules(self, stack: str, slot: int) -> Modules:
        return self.modules_of(f"encoder.layer.{slot}")

    def modules_of(self, block: str) -> Modules:
        """Modules of the block of this name."""
        own, scale = f"{block}.attention", f"{block}.layer_scale1"
        return Modules(block, own, scale, projection=(f"{own}.o_proj", scale))

    def projections(self, config: Config, read: Reader, path: str) -> Projections:
        return self.scaled(config, read, path, super().projections(config, read, path))

    def scaled(self, config: Config, read: Reader, path: str, parts: Projections) -> Projections:
        """Projections with LayerScale folded into the output."""
        scale = read(f"{path}layer_scale1.lambda1", config.hidden_size)
        bias = None if parts.output_bias is None else parts.output_bias * scale
        return dataclasses.replace(parts, output=parts.output * scale[:, None], output_bias=bias)


class Dinov3(Dinov2):
    name = "dinov3"
    title = "DINOv3 (ViT)"
    model_types = ("dinov3_vit",)
    prefixes = ("dinov3_vit.", "")
    layers = "layer"
    layout = LLAMA_LAYOUT
    remark = "W is that of tokens at the same place; RoPE turns it in two directions"

    def modules(self, stack: str, slot: int) -> Modules:
        return self.modules_of(f"model.layer.{slot}")

    def projections(self, config: Config, read: Reader, path: str) -> Projections:
        d, heads = config.hidden_size, config.num_attention_heads
        return self.scaled(config, read, path, read_projections(read, self.layout, f"{path}attention.", d, heads))

    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        path, d, heads = self.path(stack, index), config.hidden_size, config.num_attention_heads
        k = d // heads
        grid = GridRotary(float(config.rope_theta), 1 + config.num_register_tokens)
        parts, rotary = self.projections(config, read, path), RotaryLayout(grid, k)
        law = make_heads(parts, dtype=read.dtype, scale=k**-0.5, rotary=rotary)
        norm = read_layer_norm(read, f"{path}{self.norm_name}", d, config.layer_norm_eps)
        return Layer(index, f"layer {index}", law, norm)
