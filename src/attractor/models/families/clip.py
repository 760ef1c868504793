"""CLIP and SigLIP: pre-norm encoders of text and of image patches with LayerNorm and absolute positions at the input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch

from attractor.laws import Causal
from attractor.models.attention_layers import Layer, make_heads, read_layer_norm, read_projections
from attractor.models.family import Config, Family, Modules, draw_normal
from attractor.models.tensors import Reader
from attractor.nn import LLAMA_LAYOUT


class Clip(Family):
    """Both towers in one model, or one of them alone; the text of CLIP is causal, that of SigLIP is not."""

    name = "clip"
    title = "CLIP, SigLIP"
    model_types = (
        "clip", "clip_text_model", "clip_vision_model", "siglip", "siglip_text_model", "siglip_vision_model"
    )  # fmt: skip
    both: ClassVar[tuple[str, ...]] = ("clip", "siglip")
    layout = replace(LLAMA_LAYOUT, output="out_proj")
    remark = "the projections to the common space are left out"

    def stacks(self, config: Config) -> dict[str, int]:
        if config.model_type in self.both:
            towers = {"text": config.text_config, "vision": config.vision_config}
            return {stack: tower.num_hidden_layers for stack, tower in towers.items()}
        return {"": config.num_hidden_layers}

    def tower(self, config: Config, stack: str) -> Config:
        """The configuration of one tower."""
        return getattr(config, f"{stack}_config") if stack else config

    def dim(self, config: Config) -> int:
        return max(self.tower(config, stack).hidden_size for stack in self.stacks(config))

    def path(self, stack: str, index: int) -> str:
        return f"{stack}_model.encoder.layers.{index}." if stack else f"encoder.layers.{index}."

    @property
    def prefixes(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("", "text_model.", "vision_model.")

    @property
    def probes(self) -> tuple[str, ...]:
        return tuple(self.path(stack, 0) for stack in ("text", "vision", ""))

    def modules(self, stack: str, slot: int) -> Modules:
        block = self.path(stack, slot).removesuffix(".")
        return Modules(block, f"{block}.self_attn", f"{block}.self_attn")

    def small(self, config: Config, stack: str, index: int) -> dict[str, Any]:
        for name in self.stacks(config):
            tower = self.tower(config, name)
            tower.num_hidden_layers, tower.intermediate_size = 1, 16
            if hasattr(tower, "vocab_size"):
                tower.vocab_size, tower.max_position_embeddings = 64, 64
                tower.eos_token_id, tower.pad_token_id, tower.bos_token_id = 63, 0, 1
            if hasattr(tower, "image_size"):
                tower.image_size = 3 * tower.patch_size
            tower._attn_implementation = self.implementation
        return {}

    def feed(self, model: Any, config: Config, stack: str, draw: torch.Generator, n: int) -> None:
        tower = self.tower(config, stack)
        part = getattr(model, f"{stack}_model") if stack else model
        if hasattr(tower, "image_size"):
            part(draw_normal(1, tower.num_channels, tower.image_size, tower.image_size, generator=draw))
        else:
            part(torch.randint(2, 64, (1, n), generator=draw))

    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        tower, path = self.tower(config, stack), self.path(stack, index)
        d, heads = tower.hidden_size, tower.num_attention_heads
        parts = read_projections(read, self.layout, f"{path}self_attn.", d, heads)
        mask = Causal() if tower.model_type == "clip_text_model" else None
        law = make_heads(parts, dtype=read.dtype, scale=(d // heads) ** -0.5, mask=mask)
        norm = read_layer_norm(read, f"{path}layer_norm1", d, tower.layer_norm_eps)
        return Layer(index, f"{stack} layer {index}" if stack else f"layer {index}", law, norm)
