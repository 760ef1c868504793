"""The interface of a family, the registry, and decoders built like Llama."""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from attractor.errors import UnsupportedError
from attractor.laws import Causal, Mask, Norm, RMSNorm, Window
from attractor.models.attention_layers import (
    Layer,
    Projections,
    context_notes,
    make_heads,
    read_projections,
    read_rotary,
)
from attractor.models.tensors import Reader
from attractor.nn import LLAMA_LAYOUT, ProjectionLayout
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
    """One family of models: how its files store attention, and where its own code computes it.

    Attributes
    ----------
    name, title : identifier, and name for people.
    model_types : values of ``model_type`` in configurations.
    prefixes : possible prefixes of all tensor names.
    layers : name of the list of layers, in files and in the model.
    depth, width : names of the configuration's number of layers and width.
    layout : names of the projections within the attention module.
    implementation : attention implementation of the original model that verification uses.
    renamed : whether transformers' module names differ from the tensor names in files.
    signature : a tensor name that identifies the family in files without ``model_type``.
    remark : what is undefined or left out, for the table of families.
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    model_types: ClassVar[tuple[str, ...]] = ()
    prefixes: ClassVar[tuple[str, ...]] = ("",)
    layers: ClassVar[str] = "layers"
    depth: ClassVar[str] = "num_hidden_layers"
    width: ClassVar[str] = "hidden_size"
    layout: ClassVar[ProjectionLayout] = LLAMA_LAYOUT
    implementation: ClassVar[str] = "eager"
    renamed: ClassVar[bool] = False
    signature: ClassVar[str] = ""
    remark: ClassVar[str] = ""

    def stacks(self, config: Config) -> dict[str, int]:
        """The number of layers of each stack; most models have one, without a name."""
        return {"": getattr(config, self.depth)}

    def path(self, stack: str, index: int) -> str:
        """The prefix of the names of a layer's tensors."""
        return f"{self.layers}.{index}."

    @property
    def probe(self) -> str:
        """The beginning of a tensor name that every model of the family has, by which the prefix is determined."""
        return self.path("", 0)

    @abstractmethod
    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        """Read the attention of one layer."""

    # ---- verification: the original code on one layer

    @abstractmethod
    def modules(self, stack: str, slot: int) -> Modules:
        """Modules of layer ``slot`` of the original model."""

    def slot(self, config: Config, index: int) -> int:
        """The layer of the small model that takes the weights of layer ``index``: the first, unless its index matters."""
        return 0

    def small(self, config: Config, stack: str, index: int) -> dict[str, Any]:
        """Changes of the configuration for a small model that contains this layer."""
        count = self.slot(config, index) + 1
        settings: dict[str, Any] = {self.depth: count, "vocab_size": 64}
        if getattr(config, "layer_types", None):
            settings["layer_types"] = [config.layer_types[index]] * count
        if getattr(config, "intermediate_size", None):
            settings["intermediate_size"] = 16
        return settings

    def feed(self, model: torch.nn.Module, config: Config, stack: str, draw: torch.Generator, n: int) -> None:
        """Run the small model on n random tokens."""
        model(inputs_embeds=draw_normal(1, n, getattr(config, self.width), generator=draw))

    def shared(self, stack: str) -> tuple[str, ...]:
        """Names of tensors of other layers that this layer needs."""
        return ()


def draw_normal(*shape: int, generator: torch.Generator) -> Tensor:
    """Normal random numbers in float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@cache
def list_families() -> tuple[Family, ...]:
    """All families, sorted by name."""
    package = importlib.import_module("attractor.models.families")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return tuple(sorted((kind() for kind in _leaves(Family)), key=lambda family: family.name))


def _leaves(kind: type[Family]) -> list[type[Family]]:
    """Subclasses that name model types."""
    found = [kind] if "model_types" in vars(kind) and kind.model_types else []
    return found + [leaf for child in kind.__subclasses__() for leaf in _leaves(child)]


def find_family(model_type: str | None, where: str) -> Family:
    """The family of a model type; ``where`` names the model in the error message."""
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
    """A causal pre-norm decoder with RMSNorm, half-split RoPE, grouped-query attention and separate projections."""

    prefixes: ClassVar[tuple[str, ...]] = ("model.", "")
    attention: ClassVar[str] = "self_attn"
    norm_name: ClassVar[str] = "input_layernorm"
    parallel: ClassVar[bool] = False
    joint: ClassVar[bool] = False  # whether queries and keys are normalised over all heads together

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
        sizes = config.hidden_size, config.num_attention_heads, config.num_key_value_heads, self.head_dim(config)
        parts = read_projections(read, self.layout, path, *sizes)
        query_norm, key_norm = self.head_norms(config, read, path)
        return replace(parts, query_norm=query_norm, key_norm=key_norm)

    def head_norms(self, config: Config, read: Reader, path: str) -> tuple[Norm | None, Norm | None]:
        """Norms of queries and keys, if the model has them."""
        return None, None

    def kernel(self, config: Config) -> Any:
        return "softmax"

    def extras(self, config: Config, read: Reader, path: str) -> dict[str, Any]:
        """Further fields of ``Layer``."""
        return {}

    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        path, kind = self.path(stack, index), self.layer_type(config, index)
        parts = self.projections(config, read, f"{path}{self.attention}.")
        law = make_heads(
            parts,
            dtype=read.dtype,
            scale=self.scale(config),
            mask=self.mask(config, index),
            rotary=read_rotary(config, self.head_dim(config), kind),
            kernel=self.kernel(config),
            joint=self.joint,
        )
        fields: dict[str, Any] = {
            "norm": self.norm(config, read, f"{path}{self.norm_name}"),
            "parallel": self.parallel,
            "undefined": {"interaction": NOT_BILINEAR} if parts.query_norm is not None else {},
            "notes": context_notes(config, kind),
        }
        return Layer(index, f"layer {index}", law, **{**fields, **self.extras(config, read, path)})
