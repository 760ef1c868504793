"""BART, Marian, mBART, Pegasus and relatives: encoders and decoders with LayerNorm, biases and absolute positions at the input; OPT."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch

from attractor.laws import Causal, LayerNorm
from attractor.models.attention_layers import Layer, make_heads, read_projections
from attractor.models.family import Config, Family, Modules, draw_normal
from attractor.models.tensors import Reader
from attractor.nn import LLAMA_LAYOUT


class LayerNormStacks(Family):
    """Blocks with the modules self_attn, self_attn_layer_norm and final_layer_norm, pre-norm or post-norm."""

    prefixes = ("model.", "")
    layout = replace(LLAMA_LAYOUT, output="out_proj")

    def is_post(self, config: Config) -> bool:
        """Whether norms act on the stream after attention and after the feed-forward."""
        raise NotImplementedError

    def first_norm(self, config: Config, read: Reader, stack: str) -> str | None:
        """In post-norm models, the name of the norm whose output the first layer reads."""
        return None

    def count_heads(self, config: Config, stack: str) -> int:
        return config.num_attention_heads

    def path(self, stack: str, index: int) -> str:
        return f"{stack or 'decoder'}.layers.{index}."

    def modules(self, stack: str, slot: int) -> Modules:
        block = self.path(stack, slot).removesuffix(".")
        return Modules(block, f"{block}.self_attn", f"{block}.self_attn")

    def hooked(self, config: Config, stack: str, index: int) -> Modules:
        found = self.modules(stack, index)
        return replace(found, middle=f"{found.block}.self_attn_layer_norm") if self.is_post(config) else found

    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        path, d, heads = self.path(stack, index), self.dim(config), self.count_heads(config, stack)
        parts = read_projections(read, self.layout, f"{path}self_attn.", d, heads)
        mask = None if stack == "encoder" else Causal()
        law = make_heads(parts, dtype=read.dtype, scale=(d // heads) ** -0.5, mask=mask)
        title = f"{stack} layer {index}" if stack else f"layer {index}"
        if not self.is_post(config):
            return Layer(index, title, law, self._norm(read, f"{path}self_attn_layer_norm", d))
        below = f"{self.path(stack, index - 1)}final_layer_norm" if index else self.first_norm(config, read, stack)
        return Layer(index, title, law, None if below is None else self._norm(read, below, d), placement="post")

    def _norm(self, read: Reader, name: str, d: int) -> LayerNorm:
        return LayerNorm(read.maybe(f"{name}.weight", d), read.maybe(f"{name}.bias", d), 1e-5)


class Bart(LayerNormStacks):
    name = "bart"
    title = "BART, Marian, mBART, Pegasus, M2M-100, Blenderbot"
    model_types = (
        "bart",
        "marian",
        "plbart",
        "blenderbot-small",
        "mbart",
        "pegasus",
        "m2m_100",
        "blenderbot",
        "nllb-moe",
    )
    post: ClassVar[tuple[str, ...]] = ("bart", "marian", "plbart", "blenderbot-small")
    width = "d_model"
    remark = "encoder and decoder self-attention; cross-attention is left out"

    def stacks(self, config: Config) -> dict[str, int]:
        return {"encoder": config.encoder_layers, "decoder": config.decoder_layers}

    @property
    def probes(self) -> tuple[str, ...]:
        return (self.path("encoder", 0), self.path("decoder", 0))

    def is_post(self, config: Config) -> bool:
        return config.model_type in self.post

    def first_norm(self, config: Config, read: Reader, stack: str) -> str | None:
        name = f"{stack}.layernorm_embedding"
        return name if f"{name}.weight" in read else None

    def count_heads(self, config: Config, stack: str) -> int:
        return getattr(config, f"{stack}_attention_heads")

    def small(self, config: Config, stack: str, index: int) -> dict[str, Any]:
        sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
        return {**sizes, "vocab_size": 64, "pad_token_id": 0, "max_position_embeddings": 64}

    def feed(self, model: Any, config: Config, stack: str, draw: torch.Generator, n: int) -> None:
        text, source = (draw_normal(1, n, config.d_model, generator=draw) for _ in range(2))
        if stack == "encoder":
            model.encoder(inputs_embeds=text)
        else:
            model.decoder(inputs_embeds=text, encoder_hidden_states=source)


class OPT(LayerNormStacks):
    """Decoders, pre-norm but for the smallest (350M)."""

    name = "opt"
    title = "OPT"
    model_types = ("opt",)

    def is_post(self, config: Config) -> bool:
        return not config.do_layer_norm_before

    def small(self, config: Config, stack: str, index: int) -> dict[str, Any]:
        sizes = {"ffn_dim": 16, "word_embed_proj_dim": config.hidden_size, "max_position_embeddings": 64}
        return {**super().small(config, stack, index), **sizes}
