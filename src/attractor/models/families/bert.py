"""Post-norm encoders with LayerNorm and biases everywhere: BERT, RoBERTa, ELECTRA; ALBERT with shared layers; DistilBERT; MPNet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from attractor.laws import Causal, LayerNorm, Mask, Positions, Relative
from attractor.models.attention_layers import Layer, Projections, make_heads, read_projections
from attractor.models.family import Config, Family, Modules
from attractor.models.tensors import Reader
from attractor.nn import BERT_LAYOUT, ProjectionLayout


class Bert(Family):
    name = "bert"
    title = "BERT, RoBERTa, MiniLM"
    model_types: ClassVar[tuple[str, ...]] = (
        "bert", "roberta", "xlm-roberta", "camembert", "electra", "bert-generation", "data2vec-text", "ernie", "layoutlm", "markuplm",
        "roc_bert", "splinter",
    )  # fmt: skip
    signature = "encoder.layer.0.attention.self.query.weight"
    prefixes = (
        "bert.", "roberta.", "electra.", "data2vec_text.", "ernie.", "layoutlm.", "markuplm.", "roc_bert.", "splinter.", ""
    )  # fmt: skip
    layers = "encoder.layer"
    layout = BERT_LAYOUT
    inside: ClassVar[str] = "attention.self."  # of queries, keys and values
    outside: ClassVar[str] = "attention."  # of the output
    last_norm: ClassVar[str] = "output.LayerNorm"

    def modules(self, stack: str, slot: int) -> Modules:
        block = self.path(stack, slot).removesuffix(".")
        return Modules(block, f"{block}.attention.self", f"{block}.attention.output.dense", f"{block}.attention")

    def small(self, config: Config, stack: str, index: int) -> dict[str, Any]:
        narrow = {"embedding_size": config.hidden_size} if hasattr(config, "embedding_size") else {}
        return {**super().small(config, stack, index), **narrow}

    def projections(self, config: Config, read: Reader, path: str) -> Projections:
        layout, d, heads = self.layout, config.hidden_size, config.num_attention_heads
        required = (*layout.separate, layout.output)
        inside, outside = path + self.inside, path + self.outside
        return read_projections(read, layout, inside, d, heads, required=required, output_path=outside)

    def mask(self, config: Config) -> Mask | None:
        return Causal() if getattr(config, "is_decoder", False) else None

    def positions(self, config: Config, read: Reader, index: int) -> Positions | None:
        """Positions in the scores."""
        return None

    def scale(self, config: Config) -> float:
        return (config.hidden_size // config.num_attention_heads) ** -0.5

    def norm_below(self, config: Config, index: int) -> str | None:
        """The name of the norm whose output is the input of this layer: the last one of the layer below."""
        if index:
            return self.stored(config, "", index - 1) + self.last_norm
        # small ELECTRA projects its embeddings to the width of the stream after their norm
        projected = getattr(config, "embedding_size", config.hidden_size) != config.hidden_size
        return None if projected else "embeddings.LayerNorm"

    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        law = make_heads(
            self.projections(config, read, self.stored(config, stack, index)),
            dtype=read.dtype,
            scale=self.scale(config),
            mask=self.mask(config),
            positions=self.positions(config, read, index),
        )
        name = self.norm_below(config, index)
        norm = None if name is None else LayerNorm(*self.affine(config, read, name), self.eps(config))
        return Layer(index, f"layer {index}", law, norm, placement="post")

    def eps(self, config: Config) -> float:
        return config.layer_norm_eps

    def affine(self, config: Config, read: Reader, name: str) -> tuple[Tensor, Tensor]:
        """Gain and bias of a norm, called gamma and beta in old files."""
        gain, bias = read.first(f"{name}.weight", f"{name}.gamma"), read.first(f"{name}.bias", f"{name}.beta")
        return read(gain, config.hidden_size), read(bias, config.hidden_size)


class Albert(Bert):
    """All layers of a group share their tensors."""

    name = "albert"
    title = "ALBERT"
    model_types = ("albert",)
    signature = "encoder.albert_layer_groups.0.albert_layers.0.attention.query.weight"
    prefixes = ("albert.", "")
    layout = replace(BERT_LAYOUT, output="dense")
    inside = "attention."
    last_norm = "full_layer_layer_norm"
    remark = "layers of a group share their weights, and so their rows"

    def stacks(self, config: Config) -> dict[str, int]:
        return {"": config.num_hidden_layers * config.inner_group_num}

    def path(self, stack: str, index: int) -> str:
        return "encoder.albert_layer_groups.0.albert_layers.0."

    def stored(self, config: Config, stack: str, index: int) -> str:
        outer, inner = divmod(index, config.inner_group_num)
        group = outer * config.num_hidden_groups // config.num_hidden_layers
        return f"encoder.albert_layer_groups.{group}.albert_layers.{inner}."

    def modules(self, stack: str, slot: int) -> Modules:
        return self._modules(self.path(stack, slot))

    def hooked(self, config: Config, stack: str, index: int) -> Modules:
        return self._modules(self.stored(config, stack, index))

    def _modules(self, path: str) -> Modules:
        block = path.removesuffix(".")
        return Modules(block, f"{block}.attention", f"{block}.attention.dense", f"{block}.attention")

    def small(self, config: Config, stack: str, index: int) -> dict[str, Any]:
        sizes = {"num_hidden_groups": 1, "inner_group_num": 1, "embedding_size": config.hidden_size}
        return {**super().small(config, stack, index), **sizes}

    def norm_below(self, config: Config, index: int) -> str | None:
        # the first layer reads a linear map of the normalised embeddings
        return super().norm_below(config, index) if index else None


class DistilBert(Bert):
    name = "distilbert"
    title = "DistilBERT"
    model_types = ("distilbert",)
    signature = "transformer.layer.0.attention.q_lin.weight"
    prefixes = ("distilbert.", "")
    layers = "transformer.layer"
    layout = ProjectionLayout("out_lin", "q_lin", "k_lin", "v_lin")
    inside = "attention."
    last_norm = "output_layer_norm"

    def modules(self, stack: str, slot: int) -> Modules:
        block = self.path(stack, slot).removesuffix(".")
        return Modules(block, f"{block}.attention", f"{block}.attention", f"{block}.sa_layer_norm")

    def small(self, config: Config, stack: str, index: int) -> dict[str, Any]:
        return {"n_layers": 1, "vocab_size": 64, "hidden_dim": 16}

    def eps(self, config: Config) -> float:
        return 1e-12


class MPNet(Bert):
    """Learned biases of relative positions, shared by all layers."""

    name = "mpnet"
    title = "MPNet"
    model_types = ("mpnet",)
    signature = "encoder.layer.0.attention.attn.q.weight"
    prefixes = ("mpnet.", "")
    layout = ProjectionLayout("o", "q", "k", "v")
    inside = outside = "attention.attn."

    def modules(self, stack: str, slot: int) -> Modules:
        block = self.path(stack, slot).removesuffix(".")
        return Modules(block, f"{block}.attention.attn", f"{block}.attention.attn.o", f"{block}.attention")

    def shared(self, stack: str) -> tuple[str, ...]:
        return ("encoder.relative_attention_bias.weight",)

    def positions(self, config: Config, read: Reader, index: int) -> Positions:
        table = read(self.shared("")[0], config.relative_attention_num_buckets, config.num_attention_heads)
        return Relative(table[:32], 128, both_sides=True)  # constants of the original code
