"""Family interface, and decoders with separate projections."""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from attractor.errors import UnsupportedError
from attractor.laws import Causal, Mask, Norm, RMSNorm, Window
from attractor.models.attention_layers import (
    Layer,
    Projections,
    heads_from,
    long_context,
    split_columns,
    split_rows,
    turning,
)
from attractor.models.tensors import Reader
from attractor.registry import closest

Config = Any  # a configuration of transformers


@dataclass(frozen=True)
class Modules:
    """Names of the modules of the original model to which hooks are attached.

    Attributes
    ----------
    block : the Transformer block; its input and output are the residual stream.
    reads : the module whose input attention reads.
    writes : the module whose output is added to the stream.
    middle : the module whose output is the stream between attention and feed-forward, where that is not the sum of the stream and
        the output of ``writes``.
    """

    block: str
    reads: str
    writes: str
    middle: str | None = None


def get_hidden_states(arguments: tuple[Any, ...], options: dict[str, Any]) -> Tensor:
    """The hidden states among the arguments of a module."""
    return arguments[0] if arguments else options["hidden_states"]


def get_output(output: Any) -> Tensor:
    """The hidden states in the output of a module, which may be a tuple."""
    return output if isinstance(output, Tensor) else output[0]


class Family(ABC):
    """One family of models."""

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    model_types: ClassVar[tuple[str, ...]] = ()
    prefixes: ClassVar[tuple[str, ...]] = ("",)
    layers: ClassVar[str] = "layers"  # the list of layers, in files and in the model
    depth: ClassVar[str] = "num_hidden_layers"
    width: ClassVar[str] = "hidden_size"
    implementation: ClassVar[str] = "eager"  # of the model's own attention, for verification
    renamed: ClassVar[bool] = False  # whether transformers names its modules otherwise than the files do
    telltale: ClassVar[str] = ""  # a tensor that only this family had when configurations did not name their model type
    remark: ClassVar[str] = ""  # what is undefined or left out, for the table of families

    def stacks(self, config: Config) -> dict[str, int]:
        """The stacks of layers and how many each has; most models have one, without a name."""
        return {"": getattr(config, self.depth)}

    def path(self, stack: str, index: int) -> str:
        """What the names of a layer's tensors begin with."""
        return f"{self.layers}.{index}."

    @property
    def probe(self) -> str:
        """The beginning of some tensor's name, by which the prefix of all names is found."""
        return self.path(next(iter(self.probed())), 0)

    def probed(self) -> tuple[str, ...]:
        return ("",)

    @abstractmethod
    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        """The laws of one layer."""

    # ---- verification: the model's own code on one layer

    @abstractmethod
    def modules(self, stack: str, slot: int) -> Modules:
        """Where to look in the model that verification builds."""

    def slot(self, config: Config, index: int) -> int:
        """Which layer of the small model plays this one: the first, unless its place matters."""
        return 0

    def small(self, config: Config, stack: str, index: int) -> dict[str, Any]:
        """Settings of a model that has only this layer."""
        count = self.slot(config, index) + 1
        settings: dict[str, Any] = {self.depth: count, "vocab_size": 64}
        if getattr(config, "layer_types", None):
            settings["layer_types"] = [config.layer_types[index]] * count
        if getattr(config, "intermediate_size", None):
            settings["intermediate_size"] = 16
        return settings

    def feed(self, model: torch.nn.Module, config: Config, stack: str, draw: torch.Generator, n: int) -> None:
        """Run the small model on random tokens."""
        model(inputs_embeds=_normal(1, n, getattr(config, self.width), draw=draw))

    def shared(self, stack: str) -> tuple[str, ...]:
        """Names of tensors that this layer needs although they lie in another."""
        return ()


def _normal(*shape: int, draw: torch.Generator) -> Tensor:
    return torch.randn(*shape, generator=draw, dtype=torch.float64)


@cache
def list_families() -> tuple[Family, ...]:
    """Every family, by name."""
    package = importlib.import_module("attractor.models.families")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return tuple(sorted((kind() for kind in _leaves(Family)), key=lambda family: family.name))


def _leaves(kind: type[Family]) -> list[type[Family]]:
    """Classes that stand for a family: those that name model types."""
    found = [kind] if "model_types" in vars(kind) and kind.model_types else []
    return found + [leaf for child in kind.__subclasses__() for leaf in _leaves(child)]


def find_family(model_type: str | None, where: str) -> Family:
    """The family of a configuration."""
    known = {name: family for family in list_families() for name in family.model_types}
    if model_type in known:
        return known[model_type]
    near = closest(str(model_type), known, cutoff=0.75)
    hint = f"; the nearest is {near!r}" if near else ""
    raise UnsupportedError(
        f"{where} is a model of type {model_type!r}, which attractor has no family for{hint}. The families are "
        f"{', '.join(sorted(known))}; to add one, write one file in attractor/models/families that says what its attention "
        "tensors are called (see 'Adding a family' in the documentation)"
    )


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
