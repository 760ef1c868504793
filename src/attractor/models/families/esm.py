"""ESM-2: pre-norm encoder with LayerNorm, the projections of BERT, and half-split RoPE or absolute positions."""

from __future__ import annotations

from attractor.errors import UnsupportedError
from attractor.laws import LayerNorm, Rotary
from attractor.models.attention_layers import Layer, RotaryLayout, make_heads
from attractor.models.families.bert import Bert
from attractor.models.family import Config, Modules
from attractor.models.tensors import Reader


class Esm(Bert):
    name = "esm"
    title = "ESM-2"
    model_types = ("esm",)
    prefixes = ("esm.", "")
    renamed = True

    def modules(self, stack: str, slot: int) -> Modules:
        block = f"encoder.layer.{slot}"
        return Modules(block, f"{block}.attention.self", f"{block}.attention.output.dense")

    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        d, heads, kind = config.hidden_size, config.num_attention_heads, config.position_embedding_type
        if kind not in ("rotary", "absolute"):
            raise UnsupportedError(f"an ESM with positions of type {kind!r} is not known; they are rotary or absolute")
        path, k = self.path(stack, index), d // heads
        rotary = RotaryLayout(Rotary(1e4, k), k) if kind == "rotary" else None
        law = make_heads(self.projections(config, read, path), dtype=read.dtype, scale=k**-0.5, rotary=rotary)
        norm = LayerNorm(*self.affine(config, read, f"{path}attention.LayerNorm"), config.layer_norm_eps)
        return Layer(index, f"layer {index}", law, norm)
