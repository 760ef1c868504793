"""Hybrids: decoders in which only some blocks have attention: Jamba, Nemotron-H, Granite 4 and Qwen3-Next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attractor.models.attention_layers import Projections, RotaryLayout, split_columns, split_rows
from attractor.models.families.llama import Granite
from attractor.models.family import Config, Decoder
from attractor.models.tensors import Reader


class Jamba(Decoder):
    """Attention has no positions."""

    name = "jamba"
    title = "Jamba"
    model_types = ("jamba",)
    remark = "Mamba blocks are named, not audited"

    def small(self, config: Config, stack: str, index: int) -> dict[str, Any]:
        sizes = {"attn_layer_period": 1, "attn_layer_offset": 0, "num_experts": 1, "expert_layer_period": 1}
        return {"num_hidden_layers": 1, "vocab_size": 64, "intermediate_size": 16, "expert_layer_offset": 0, **sizes}

    def rotary(self, config: Config, index: int) -> RotaryLayout | None:
        return None

    @property
    def probes(self) -> tuple[str, ...]:
        return ("layers.0.",)


class NemotronH(Jamba):
    """Every block is one of attention, Mamba, feed-forward or experts."""

    name = "nemotron_h"
    title = "Nemotron-H"
    model_types = ("nemotron_h",)
    prefixes = ("model.", "backbone.", "")
    attention = "mixer"
    norm_name = "norm"
    eps = "layer_norm_epsilon"
    remark = "Mamba and feed-forward blocks are named, not audited"

    def small(self, config: Config, stack: str, index: int) -> dict[str, Any]:
        return {"layers_block_type": ["full_attention"], "vocab_size": 64, "intermediate_size": 16}


class GraniteHybrid(Granite):
    name = "granite_hybrid"
    title = "Granite 4 (hybrid)"
    model_types = ("granitemoehybrid",)
    remark = "Mamba blocks are named, not audited"

    def small(self, config: Config, stack: str, index: int) -> dict[str, Any]:
        return {**super().small(config, stack, index), "num_local_experts": 0, "shared_intermediate_size": 16}

    def rotary(self, config: Config, index: int) -> RotaryLayout | None:
        return super().rotary(config, index) if config.position_embedding_type == "rope" else None


class Qwen3Next(Decoder):
    """Norms of queries and keys, partial RoPE, and a gate on every channel of the heads, whose rows follow those of each query."""

    name = "qwen3_next"
    title = "Qwen3-Next (attention blocks)"
    model_types = ("qwen3_next",)
    unit = True
    head_normed = True
    remark = "W and V are undefined: queries and keys are normalised, and outputs are gated; linear-attention blocks are named"

    def small(self, config: Config, stack: str, index: int) -> dict[str, Any]:
        return {**super().small(config, stack, index), "mlp_only_layers": [0]}

    def projections(self, config: Config, read: Reader, path: str) -> Projections:
        d, heads, groups = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
        k = self.head_dim(config)
        both = read(f"{path}q_proj.weight", heads * 2 * k, d).unflatten(0, (heads, 2, k))
        bias = read.maybe(f"{path}q_proj.bias", heads * 2 * k)
        biases = (None, None) if bias is None else bias.unflatten(0, (heads, 2, k)).unbind(1)
        rows = {name: read(f"{path}{name}_proj.weight", groups * k, d) for name in ("k", "v")}
        shifts = {name: read.maybe(f"{path}{name}_proj.bias", groups * k) for name in ("k", "v")}
        query_norm, key_norm = self.head_norms(config, read, path)
        parts = Projections.of(
            (both[:, 0], split_rows(rows["k"], groups), split_rows(rows["v"], groups)),
            split_columns(read(f"{path}o_proj.weight", d, heads * k), heads),
            (biases[0], *(None if shift is None else split_rows(shift, groups) for shift in shifts.values())),
            read.maybe(f"{path}o_proj.bias", d),
        )
        gate = {"gate": both[:, 1], "gate_bias": biases[1]}
        return replace(parts, query_norm=query_norm, key_norm=key_norm, **gate)
