"""DeBERTa v2 and v3: BERT with disentangled attention: scores also contain products of queries and keys with vectors of the distance."""

from __future__ import annotations

import torch

from attractor.errors import UnsupportedError
from attractor.laws import Disentangled, LayerNorm, Positions
from attractor.models.attention_layers import split_rows
from attractor.models.families.bert import Bert
from attractor.models.family import Config
from attractor.models.tensors import Reader
from attractor.nn import ProjectionLayout


class DebertaV2(Bert):
    name = "deberta_v2"
    title = "DeBERTa v2, v3"
    model_types = ("deberta-v2",)
    signature = "encoder.layer.0.attention.self.query_proj.weight"
    prefixes = ("deberta.", "")
    layout = ProjectionLayout("output.dense", "query_proj", "key_proj", "value_proj")
    remark = "W is that of the content; the terms of the distance are added to scores"

    def shared(self, stack: str) -> tuple[str, ...]:
        return ("encoder.rel_embeddings.weight", "encoder.LayerNorm.weight", "encoder.LayerNorm.bias")

    def norm_below(self, config: Config, index: int) -> str | None:
        if index == 1 and getattr(config, "conv_kernel_size", 0) > 0:
            return "encoder.conv.LayerNorm"
        return "embeddings.LayerNorm" if index == 0 else super().norm_below(config, index)

    def kinds(self, config: Config) -> list[str]:
        return list(config.pos_att_type or [])

    def scale(self, config: Config) -> float:
        factor = 1 + ("c2p" in self.kinds(config)) + ("p2c" in self.kinds(config))
        size = config.hidden_size // config.num_attention_heads * factor
        return 1.0 / float(torch.tensor(size, dtype=torch.float32).sqrt())  # rounded as in the original code

    def positions(self, config: Config, read: Reader, index: int) -> Positions | None:
        kinds = self.kinds(config)
        if not getattr(config, "relative_attention", False) or not kinds:
            return None
        if getattr(config, "attention_head_size", None) not in (None, config.hidden_size // config.num_attention_heads):
            raise UnsupportedError("a DeBERTa whose heads do not make up the width is not supported")
        d, heads = config.hidden_size, config.num_attention_heads
        reach = config.max_relative_positions if config.max_relative_positions > 0 else config.max_position_embeddings
        buckets = max(0, getattr(config, "position_buckets", -1))
        span = buckets or reach
        vectors = read("encoder.rel_embeddings.weight", 2 * span, d).to(torch.float64)
        if "layer_norm" in (getattr(config, "norm_rel_ebd", None) or "none").lower():
            vectors = LayerNorm(*self.affine(config, read, "encoder.LayerNorm"), config.layer_norm_eps)(vectors)
        path = f"{self.path('', index)}attention.self."
        tables = {}
        for kind, name in (("c2p", "key"), ("p2c", "query")):
            if kind in kinds:
                place = f"{path}{name}_proj" if getattr(config, "share_att_key", False) else f"{path}pos_{name}_proj"
                rows, bias = read(f"{place}.weight", d, d), read.maybe(f"{place}.bias", d)
                mapped = vectors @ rows.to(vectors).mT
                mapped = mapped if bias is None else mapped + bias.to(vectors)
                tables[kind] = split_rows(mapped.mT, heads).mT.contiguous()  # (h, 2 span, k)
        return Disentangled(tables.get("c2p"), tables.get("p2c"), buckets, reach)
