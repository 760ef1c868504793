"""DeepSeek V2 and V3: pre-norm decoders with RMSNorm and multi-head latent attention: keys and values are linear in a normalised latent."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from attractor.laws import Causal, Feature, LatentAttention, RMSNorm
from attractor.models.attention_layers import Layer, RotaryLayout, read_rotary, split_columns, split_rows
from attractor.models.family import Config, Family, Modules
from attractor.models.tensors import Reader

EPS = 1e-6  # of the latent norms, a constant of the original code
REASON = "keys and values are read from a normalised latent vector, so scores are not bilinear and values not linear in the tokens"


class DeepSeek(Family):
    name = "deepseek"
    title = "DeepSeek V2, V3"
    model_types = ("deepseek_v2", "deepseek_v3")
    prefixes = ("model.", "")
    remark = "W and V are undefined: keys and values come from a normalised latent"

    def modules(self, stack: str, slot: int) -> Modules:
        return Modules(f"layers.{slot}", f"layers.{slot}.self_attn", f"layers.{slot}.self_attn")

    def small(self, config: Config, stack: str, index: int) -> dict[str, Any]:
        dense = {"first_k_dense_replace": 1, "mlp_layer_types": ["dense"], "moe_intermediate_size": 16}
        return {**super().small(config, stack, index), **dense}

    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        path, d, read = self.path(stack, index), config.hidden_size, read.wide()
        rotary = read_rotary(config, config.qk_rope_head_dim, half_split=not getattr(config, "rope_interleave", True))
        assert rotary is not None
        law = self.law(config, read, f"{path}self_attn.", rotary)
        norm = RMSNorm(read(f"{path}input_layernorm.weight", d), None, config.rms_norm_eps)
        undefined = {"interaction": REASON, "value_map": REASON}
        return Layer(index, f"layer {index}", law, norm, undefined=undefined)

    def law(self, config: Config, read: Reader, path: str, rotary: RotaryLayout) -> LatentAttention:
        d, heads, c = config.hidden_size, config.num_attention_heads, config.kv_lora_rank
        plain, rotated, r = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim
        features, query = self.queries(config, read, path)
        down = read(f"{path}kv_a_proj_with_mqa.weight", c + rotated, d)
        bias = read.maybe(f"{path}kv_a_proj_with_mqa.bias", c + rotated)
        biases = (None, None) if bias is None else bias.split([c, rotated])
        latent_norm = RMSNorm(read(f"{path}kv_a_layernorm.weight", c), None, EPS)
        features += [Feature(down[:c], biases[0], latent_norm), Feature(down[c:], biases[1])]
        up = split_rows(read(f"{path}kv_b_proj.weight", heads * (plain + r), c), heads)
        # rotated rows of a head come first, as in LatentAttention
        query = torch.cat((rotary.convert(query[:, plain:], 1), query[:, :plain]), dim=1)
        shared = rotary.convert(torch.eye(rotated, dtype=up.dtype, device=up.device).expand(heads, -1, -1), 1)
        before = features[0].matrix.shape[0]
        return LatentAttention(
            tuple(features),
            _pad_columns(query, 0, before + c + rotated),
            torch.cat(
                (
                    _pad_columns(shared, before + c, before + c + rotated),
                    _pad_columns(up[:, :plain], before, before + c + rotated),
                ),
                1,
            ),
            _pad_columns(up[:, plain:], before, before + c + rotated),
            split_columns(read(f"{path}o_proj.weight", d, heads * r), heads),
            read.maybe(f"{path}o_proj.bias", d),
            mask=Causal(),
            positions=rotary.positions,
            scale=_scale(config),
        )

    def queries(self, config: Config, read: Reader, path: str) -> tuple[list[Feature], Tensor]:
        """The features that queries are linear in, and the matrices (h, k, m)."""
        d, heads, rank = config.hidden_size, config.num_attention_heads, config.q_lora_rank
        k = config.qk_nope_head_dim + config.qk_rope_head_dim
        if rank is None:
            rows = read(f"{path}q_proj.weight", heads * k, d)
            return [Feature(torch.eye(d, dtype=rows.dtype, device=rows.device))], split_rows(rows, heads)
        bias = read.maybe(f"{path}q_a_proj.bias", rank)
        norm = RMSNorm(read(f"{path}q_a_layernorm.weight", rank), None, EPS)
        down = Feature(read(f"{path}q_a_proj.weight", rank, d), bias, norm)
        return [down], split_rows(read(f"{path}q_b_proj.weight", heads * k, rank), heads)


def _pad_columns(matrix: Tensor, start: int, width: int) -> Tensor:
    """Pad columns to the width of all features, starting at ``start``."""
    return torch.nn.functional.pad(matrix, (start, width - start - matrix.shape[-1]))


def _scale(config: Config) -> float:
    """1/sqrt(k), times the factor of YaRN for long contexts."""
    usual = (config.qk_nope_head_dim + config.qk_rope_head_dim) ** -0.5
    settings = config.rope_parameters
    share = settings.get("mscale_all_dim", 0)
    if settings.get("rope_type", "default") == "default" or not share or settings["factor"] <= 1:
        return usual
    return usual * (0.1 * share * math.log(settings["factor"]) + 1.0) ** 2
