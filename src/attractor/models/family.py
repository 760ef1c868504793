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
from attractor.laws import Causal, Clip, Mask, Norm, Positions, RMSNorm, Window
from attractor.models.attention_layers import (
    Layer,
    Projections,
    RotaryLayout,
    context_notes,
    make_heads,
    read_projections,
    read_rotary,
)
from attractor.models.tensors import Reader
from attractor.nn import LLAMA_LAYOUT, ProjectionLayout
from attractor.registry import closest

Config = Any  # a configuration of transformers


# sizes of feed-forward parts in the small models of verification, which do not depend on them
SMALL = {
    "intermediate_size": 16,
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 8,
    "num_experts": 2,
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
}
# layer types of hybrid models that are not attention, and what they are
OTHER_BLOCKS = {
    "linear_attention": "a linear-attention or state-space block (Gated DeltaNet, Mamba) has no softmax attention",
    "mamba": "a Mamba block has no attention",
    "mamba2": "a Mamba block has no attention",
    "conv": "a convolutional block has no attention",
    "mlp": "a feed-forward block has no attention",
    "moe": "a block of experts has no attention",
}


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
    stream : the module whose input is the residual stream, where that is not the block.
    projection : the output projection of attention and the modules between it and the stream, where that is neither ``writes`` nor
        ``reads`` followed by the name in the family's layout.
    """

    block: str
    reads: str
    writes: str
    middle: str | None = None
    stream: str | None = None
    projection: tuple[str, ...] = ()


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
    stores_refinements : whether refinements are tensors of the layers, as ``at.nn.refine`` stores them.
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
    stores_refinements: ClassVar[bool] = True

    def stacks(self, config: Config) -> dict[str, int]:
        """The number of layers of each stack; most models have one, without a name."""
        return {"": getattr(config, self.depth)}

    def path(self, stack: str, index: int) -> str:
        """The prefix of the names of a layer's tensors."""
        return f"{self.layers}.{index}."

    def stored(self, config: Config, stack: str, index: int) -> str:
        """The prefix of the names of a layer's tensors in files, where layers share tensors."""
        return self.path(stack, index)

    def dim(self, config: Config) -> int:
        """The width d of the residual stream, the largest one of a model with several."""
        return getattr(config, self.width)

    def no_attention(self, config: Config, stack: str, index: int) -> str | None:
        """The reason why a block of a hybrid model has no attention; None if it has."""
        kinds = getattr(config, "layer_types", None)
        kind = kinds[index] if kinds else None
        return OTHER_BLOCKS.get(kind) if isinstance(kind, str) else None

    @property
    def probes(self) -> tuple[str, ...]:
        """Beginnings of tensor names of which every model of the family has one, by which the prefix is determined."""
        return (self.path("", 0),)

    @abstractmethod
    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        """Read the attention of one layer."""

    # ---- the whole model

    def run(self, model: Any, stack: str, inputs: dict[str, Tensor]) -> Any:
        """Run a model, or only its encoder or one of its towers if that is the stack of interest."""
        name = {"encoder": "encoder", "text": "text_model", "vision": "vision_model"}.get(stack, "")
        return getattr(model, name, model)(**inputs)

    def last_state(self, model: Any, output: Any) -> Tensor:
        """The last state of the first text, (n, d), in what ``run`` returns."""
        return output[0][0]

    def load(self, config: Config, dtype: torch.dtype) -> Any:
        """The whole model, for families whose configuration holds it; None otherwise."""
        return None

    # ---- verification: the original code on one layer

    def original(self, config: Config, index: int) -> tuple[torch.nn.Module, Modules] | None:
        """The code of one layer and its modules, for families whose configuration holds the model; None otherwise."""
        return None

    @abstractmethod
    def modules(self, stack: str, slot: int) -> Modules:
        """Modules of layer ``slot`` of the original model."""

    def hooked(self, config: Config, stack: str, index: int) -> Modules:
        """Modules of layer ``index`` of the whole model."""
        return self.modules(stack, index)

    def slot(self, config: Config, index: int) -> int:
        """The layer of the small model that takes the weights of layer ``index``: the first, unless its index matters."""
        return 0

    def small(self, config: Config, stack: str, index: int) -> dict[str, Any]:
        """Changes of the configuration for a small model that contains this layer."""
        count = self.slot(config, index) + 1
        settings: dict[str, Any] = {self.depth: count, "vocab_size": 64}
        if getattr(config, "layer_types", None):
            settings["layer_types"] = [config.layer_types[index]] * count
        sizes = {name: size for name, size in SMALL.items() if isinstance(getattr(config, name, None), int)}
        return settings | {name: min(size, getattr(config, name)) for name, size in sizes.items()}

    def feed(self, model: torch.nn.Module, config: Config, stack: str, draw: torch.Generator, n: int) -> None:
        """Run the small model on n random tokens."""
        model(inputs_embeds=draw_normal(1, n, getattr(config, self.width), generator=draw))

    def rename(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of a layer under the names that the small model loads, which are those of files."""
        return state

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
NOT_LINEAR = "values are normalised, so they are not linear in the tokens and V does not exist"
GATED = "every channel of the output is multiplied by a gate that depends on the token, so V does not exist"


def list_undefined(parts: Projections) -> dict[str, str]:
    """The quantities that do not exist with these projections, each with the reason."""
    found = {}
    if isinstance(parts.query_norm, Norm):
        found["interaction"] = NOT_BILINEAR
    if isinstance(parts.value_norm, Norm) or parts.gate is not None:
        found["value_map"] = GATED if parts.gate is not None else NOT_LINEAR
    return found


class Decoder(Family):
    """A causal pre-norm decoder with RMSNorm, half-split RoPE, grouped-query attention and separate projections.

    Attributes
    ----------
    attention, norm_name : names of the attention module and of the norm before it within a block.
    output_norm_name : name of the norm of the output of attention, if there is one; the block is then peri-norm.
    eps : name of the epsilon of norms in the configuration.
    unit : whether the gain of norms is 1 + weight.
    window : whether all layers use a window where the configuration has one; otherwise those of type sliding_attention.
    half_split : whether rotary positions pair coordinates i and i + k/2, or neighbours.
    parallel : whether attention and feed-forward read the same tokens.
    head_normed : whether queries and keys are normalised by the tensors q_norm and k_norm, over all heads together if ``joint``.
    """

    prefixes: ClassVar[tuple[str, ...]] = ("model.", "model.language_model.", "language_model.model.", "")
    attention: ClassVar[str] = "self_attn"
    norm_name: ClassVar[str | None] = "input_layernorm"
    output_norm_name: ClassVar[str | None] = None
    eps: ClassVar[str] = "rms_norm_eps"
    unit: ClassVar[bool] = False
    window: ClassVar[bool] = False
    half_split: ClassVar[bool] = True
    parallel: ClassVar[bool] = False
    head_normed: ClassVar[bool] = False
    joint: ClassVar[bool] = False

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

    def mask(self, config: Config, index: int) -> Mask | None:
        width = getattr(config, "sliding_window", None)
        kind = self.layer_type(config, index)
        sliding = kind == "sliding_attention" or (self.window and kind != "full_attention")
        return Window(width) if sliding and width else Causal()

    def norm(self, config: Config, read: Reader, name: str, size: int | None = None) -> Norm | None:
        """The norm of this name; ``size`` is the number of its entries, d by default."""
        gain = read(f"{name}.weight", config.hidden_size if size is None else size)
        return RMSNorm(1.0 + gain if self.unit else gain, None, getattr(config, self.eps))

    def projections(self, config: Config, read: Reader, path: str) -> Projections:
        sizes = config.hidden_size, config.num_attention_heads, config.num_key_value_heads, self.head_dim(config)
        parts = read_projections(read, self.layout, path, *sizes)
        query_norm, key_norm = self.head_norms(config, read, path)
        return replace(parts, query_norm=query_norm, key_norm=key_norm)

    def head_norms(self, config: Config, read: Reader, path: str) -> tuple[Norm | Clip | None, Norm | Clip | None]:
        """Norms of queries and keys, if the model has them."""
        if not self.head_normed:
            return None, None
        k = self.head_dim(config)
        counts = (config.num_attention_heads, config.num_key_value_heads) if self.joint else (1, 1)
        query, key = (
            self.norm(config, read, path + name, count * k)
            for name, count in zip(("q_norm", "k_norm"), counts, strict=True)
        )
        return query, key

    def rotary(self, config: Config, index: int) -> RotaryLayout | None:
        """The rotary positions of a layer, or None if it has none."""
        return read_rotary(config, self.head_dim(config), self.layer_type(config, index), self.half_split)

    def positions(self, config: Config, index: int) -> Positions | None:
        """Positions other than rotary ones."""
        return None

    def kernel(self, config: Config) -> Any:
        return "softmax"

    def output_factor(self, config: Config) -> float:
        """The factor of the output of attention before it is added to the stream."""
        return 1.0

    def extras(self, config: Config, read: Reader, path: str) -> dict[str, Any]:
        """Further fields of ``Layer``."""
        return {}

    def layer(self, config: Config, read: Reader, stack: str, index: int) -> Layer:
        path, kind = self.path(stack, index), self.layer_type(config, index)
        parts = self.projections(config, read, f"{path}{self.attention}.")
        factor = self.output_factor(config)
        if factor != 1.0:
            bias = None if parts.output_bias is None else factor * parts.output_bias
            parts = replace(parts, output=factor * parts.output.to(read.dtype), output_bias=bias)
        law = make_heads(
            parts,
            dtype=read.dtype,
            scale=self.scale(config),
            mask=self.mask(config, index),
            rotary=self.rotary(config, index),
            positions=self.positions(config, index),
            kernel=self.kernel(config),
            joint=self.joint,
        )
        after = self.output_norm_name
        fields: dict[str, Any] = {
            "norm": None if self.norm_name is None else self.norm(config, read, f"{path}{self.norm_name}"),
            "placement": "pre" if after is None else "peri",
            "output_norm": None if after is None else self.norm(config, read, f"{path}{after}"),
            "output_factor": factor,
            "parallel": self.parallel,
            "undefined": list_undefined(parts),
            "notes": context_notes(config, kind),
        }
        return Layer(index, f"layer {index}", law, **{**fields, **self.extras(config, read, path)})
