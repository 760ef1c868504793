"""What decoders with separate query, key and value projections have in common."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from attractor.attention import Causal, Mask, Norm, RMSNorm, Window
from attractor.checkpoints.assembly import Projections, heads_from, split_columns, split_rows
from attractor.checkpoints.family import Config, Family, Modules
from attractor.checkpoints.layer import Layer
from attractor.checkpoints.reader import Reader
from attractor.checkpoints.rope import long_context, turning

NOT_BILINEAR = "queries and keys are normalised, so scores are not bilinear in the tokens and W does not exist"


class Decoder(Family):
    """A causal decoder whose attention reads a normalised copy of the stream; rotary positions."""

    prefixes: ClassVar[tuple[str, ...]] = ("model.", "")
    attention: ClassVar[str] = "self_attn"
    output: ClassVar[str] = "o_proj"
    norm_name: ClassVar[str] = "input_layernorm"
    parallel: ClassVar[bool] = False

    def modules(self, stack: str, slot: int) -> Modules:
        block = f"{self.layers}.{slot}"
        return Modules(block, f"{block}.{self.attention}", f"{block}.{self.attention}")

    def head_dim(self, config: Config) -> int:
        return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads

    def layer_type(self, config: Config, index: int) -> str | None:
        kinds = getattr(config, "layer_types", None)
        return kinds[index] if kinds else None

    def scale(self, config: Config) -> float:
        return self.head_dim(config) ** -0.5

    def mask(self, config: Config, index: int) -> Mask:
        sliding = self.layer_type(config, index) == "sliding_attention"
        return Window(config.sliding_window) if sliding else Causal()

    def norm(self, config: Config, read: Reader, name: str) -> Norm | None:
        return RMSNorm(read(f"{name}.weight", config.hidden_size), None, config.rms_norm_eps)

    def projections(self, config: Config, read: Reader, path: str) -> Projections:
        heads, groups, k = config.num_attention_heads, config.num_key_value_heads, self.head_dim(config)
        rows = {"q_proj": heads, "k_proj": groups, "v_proj": groups}
        matrices = {
            name: split_rows(read(f"{path}{name}.weight", count * k, config.hidden_size), count)
            for name, count in rows.items()
        }
        biases: dict[str, Tensor | None] = {}
        for name, count in rows.items():
            bias = read.maybe(f"{path}{name}.bias", count * k)
            biases[name] = None if bias is None else split_rows(bias, count)
        return Projections(
            matrices["q_proj"],
            matrices["k_proj"],
            matrices["v_proj"],
            split_columns(read(f"{path}{self.output}.weight", config.hidden_size, heads * k), heads),
            biases["q_proj"],
            biases["k_proj"],
            biases["v_proj"],
            read.maybe(f"{path}{self.output}.bias", config.hidden_size),
            *self.head_norms(config, read, path),
        )

    def head_norms(self, config: Config, read: Reader, path: str) -> tuple[Norm | None, Norm | None]:
        """Norms of queries and keys, where a model has them."""
        return None, None

    def kernel(self, config: Config) -> Any:
        return "softmax"

    def extras(self, config: Config, read: Reader, path: str) -> dict[str, Any]:
        """Further fields of the layer."""
        return {}

    joint: ClassVar[bool] = False

    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        path, kind = self.path(stack, index), self.layer_type(config, index)
        parts = self.projections(config, read, f"{path}{self.attention}.")
        law = heads_from(
            parts,
            dtype=read.dtype,
            scale=self.scale(config),
            mask=self.mask(config, index),
            turning=turning(config, self.head_dim(config), kind),
            kernel=self.kernel(config),
            joint=self.joint,
        )
        fields: dict[str, Any] = {
            "norm": self.norm(config, read, f"{path}{self.norm_name}"),
            "parallel": self.parallel,
            "undefined": {"interaction": NOT_BILINEAR} if parts.query_norm is not None else {},
            "notes": long_context(config, kind),
        }
        return Layer(index, f"layer {index}", law, **{**fields, **self.extras(config, read, path)})
