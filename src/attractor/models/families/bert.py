"""BERT, RoBERTa, ELECTRA: post-norm encoders with LayerNorm, learned absolute positions at the input, biases everywhere."""

from __future__ import annotations

from torch import Tensor

from attractor.laws import Causal, LayerNorm
from attractor.models.attention_layers import Layer, Projections, make_heads, read_projections
from attractor.models.family import Config, Family, Modules
from attractor.models.tensors import Reader
from attractor.nn import BERT_LAYOUT


class Bert(Family):
    name = "bert"
    title = "BERT, RoBERTa, MiniLM"
    model_types = ("bert", "roberta", "xlm-roberta", "camembert", "electra")
    signature = "encoder.layer.0.attention.self.query.weight"
    prefixes = ("bert.", "roberta.", "electra.", "")
    layers = "encoder.layer"
    layout = BERT_LAYOUT

    def modules(self, stack: str, slot: int) -> Modules:
        block = f"encoder.layer.{slot}"
        return Modules(block, f"{block}.attention.self", f"{block}.attention.output.dense", f"{block}.attention")

    def projections(self, config: Config, read: Reader, path: str) -> Projections:
        layout, d, heads = self.layout, config.hidden_size, config.num_attention_heads
        required = (*layout.separate, layout.output)
        inside, outside = f"{path}attention.self.", f"{path}attention."
        return read_projections(read, layout, inside, d, heads, required=required, output_path=outside)

    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        heads = config.num_attention_heads
        parts = self.projections(config, read, self.path(stack, index))
        law = make_heads(
            parts,
            dtype=read.dtype,
            scale=(config.hidden_size // heads) ** -0.5,
            mask=Causal() if config.is_decoder else None,
        )
        # the input of this layer is the output of the last norm of the layer below
        name = f"encoder.layer.{index - 1}.output.LayerNorm" if index else "embeddings.LayerNorm"
        projected = not index and getattr(config, "embedding_size", config.hidden_size) != config.hidden_size
        # small ELECTRA projects its embeddings to the width of the stream after their norm, so the first layer has no norm before it
        norm = None if projected else LayerNorm(*self.affine(config, read, name), config.layer_norm_eps)
        return Layer(index, f"layer {index}", law, norm, placement="post")

    def affine(self, config: Config, read: Reader, name: str) -> tuple[Tensor, Tensor]:
        """Gain and bias of a norm, called gamma and beta in old files."""
        gain, bias = read.first(f"{name}.weight", f"{name}.gamma"), read.first(f"{name}.bias", f"{name}.beta")
        return read(gain, config.hidden_size), read(bias, config.hidden_size)
