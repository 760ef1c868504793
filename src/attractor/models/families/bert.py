"""BERT and those built like it: no mask, absolute positions at the input, the stream itself is normalised (post)."""

from __future__ import annotations

from torch import Tensor

from attractor.laws import Causal, LayerNorm
from attractor.models.attention_layers import Layer, Projections, heads_from, split_columns, split_rows
from attractor.models.family import Config, Family, Modules
from attractor.models.tensors import Reader


class Bert(Family):
    name = "bert"
    title = "BERT, RoBERTa, MiniLM"
    model_types = ("bert", "roberta", "xlm-roberta", "camembert", "electra")
    telltale = "encoder.layer.0.attention.self.query.weight"
    prefixes = ("bert.", "roberta.", "electra.", "")
    layers = "encoder.layer"

    def modules(self, stack: str, slot: int) -> Modules:
        block = f"encoder.layer.{slot}"
        return Modules(block, f"{block}.attention.self", f"{block}.attention.output.dense", f"{block}.attention")

    def projections(self, config: Config, read: Reader, path: str) -> Projections:
        d, heads = config.hidden_size, config.num_attention_heads
        names = ("query", "key", "value")
        matrices = (split_rows(read(f"{path}attention.self.{name}.weight", d, d), heads) for name in names)
        biases = (split_rows(read(f"{path}attention.self.{name}.bias", d), heads) for name in names)
        output = split_columns(read(f"{path}attention.output.dense.weight", d, d), heads)
        return Projections.of(matrices, output, biases, read(f"{path}attention.output.dense.bias", d))

    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        heads = config.num_attention_heads
        parts = self.projections(config, read, self.path(stack, index))
        law = heads_from(
            parts,
            dtype=read.dtype,
            scale=(config.hidden_size // heads) ** -0.5,
            mask=Causal() if config.is_decoder else None,
        )
        # this layer's tokens leave the last norm of the one below
        name = f"encoder.layer.{index - 1}.output.LayerNorm" if index else "embeddings.LayerNorm"
        projected = not index and getattr(config, "embedding_size", config.hidden_size) != config.hidden_size
        # small ELECTRA widens its embeddings after their norm: no norm of the stream's width comes before the first layer
        norm = None if projected else LayerNorm(*self.affine(config, read, name), config.layer_norm_eps)
        return Layer(index, f"layer {index}", law, norm, placement="post")

    def affine(self, config: Config, read: Reader, name: str) -> tuple[Tensor, Tensor]:
        """Gain and bias, which old files call gamma and beta."""
        gain, bias = read.first(f"{name}.weight", f"{name}.gamma"), read.first(f"{name}.bias", f"{name}.beta")
        return read(gain, config.hidden_size), read(bias, config.hidden_size)
