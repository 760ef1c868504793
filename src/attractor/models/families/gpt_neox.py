"""GPT-NeoX and Pythia: pre-norm decoder with LayerNorm, parallel attention and feed-forward, partial half-split RoPE, and a fused
projection interleaved by head (h, 3, k)."""

from __future__ import annotations

from attractor.laws import Causal
from attractor.models.attention_layers import (
    Layer,
    context_notes,
    make_heads,
    read_fused,
    read_layer_norm,
    read_rotary,
)
from attractor.models.family import Config, Family, Modules
from attractor.models.tensors import Reader


class GPTNeoX(Family):
    name = "gpt_neox"
    title = "GPT-NeoX, Pythia"
    model_types = ("gpt_neox",)
    prefixes = ("gpt_neox.", "")

    def modules(self, stack: str, slot: int) -> Modules:
        own = f"layers.{slot}.attention"
        return Modules(f"layers.{slot}", own, own, projection=(f"{own}.dense",))

    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        path, d, heads = self.path(stack, index), config.hidden_size, config.num_attention_heads
        k = d // heads
        split = lambda rows: rows.unflatten(0, (heads, 3, k)).unbind(1)  # noqa: E731
        parts = read_fused(read, f"{path}attention.query_key_value", f"{path}attention.dense", d, heads, split)
        law = make_heads(parts, dtype=read.dtype, scale=k**-0.5, mask=Causal(), rotary=read_rotary(config, k))
        norm, parallel = (
            read_layer_norm(read, f"{path}input_layernorm", d, config.layer_norm_eps),
            config.use_parallel_residual,
        )
        notes = context_notes(config)
        return Layer(index, f"layer {index}", law, norm, parallel=parallel, notes=notes)
