"""DINOv2: a ViT with LayerScale after attention, which is folded into the output projection."""

from __future__ import annotations

import dataclasses

from attractor.models.attention_layers import Projections
from attractor.models.families.vit import ViT
from attractor.models.family import Config, Modules
from attractor.models.tensors import Reader


class Dinov2(ViT):
    name = "dinov2"
    title = "DINOv2"
    model_types = ("dinov2", "dinov2_with_registers")
    prefixes = ("dinov2.", "dinov2_with_registers.", "")
    norm_name = "norm1"

    def modules(self, stack: str, slot: int) -> Modules:
        block = f"encoder.layer.{slot}"
        return Modules(block, f"{block}.attention", f"{block}.layer_scale1")

    def projections(self, config: Config, read: Reader, path: str) -> Projections:
        parts = super().projections(config, read, path)
        scale = read(f"{path}layer_scale1.lambda1", config.hidden_size)
        bias = None if parts.output_bias is None else parts.output_bias * scale
        return dataclasses.replace(parts, output=parts.output * scale[:, None], output_bias=bias)
