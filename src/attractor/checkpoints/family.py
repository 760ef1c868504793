"""What a family of models must say, and how a family is found.

A family knows where its attention tensors are and what they mean, and how its own code is run on one layer, so that the
reading can be verified. Adding a family is adding one file to ``families``.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from attractor.checkpoints.layer import Layer
from attractor.checkpoints.reader import Reader
from attractor.errors import UnsupportedError

Config = Any  # a configuration of transformers


@dataclass(frozen=True)
class Modules:
    """Where, in the family's own model, a block begins, attention reads its tokens and writes its result.

    ``middle`` is the module whose output is the stream between attention and feed-forward, where that is not the sum of the
    stream and what attention wrote.
    """

    block: str
    reads: str
    writes: str
    middle: str | None = None


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
def families() -> tuple[Family, ...]:
    """Every family, by name."""
    package = importlib.import_module("attractor.checkpoints.families")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return tuple(sorted((kind() for kind in _leaves(Family)), key=lambda family: family.name))


def _leaves(kind: type[Family]) -> list[type[Family]]:
    """Classes that stand for a family: those that name model types."""
    found = [kind] if "model_types" in vars(kind) and kind.model_types else []
    return found + [leaf for child in kind.__subclasses__() for leaf in _leaves(child)]


def family_of(model_type: str | None, where: str) -> Family:
    """The family of a configuration."""
    known = {name: family for family in families() for name in family.model_types}
    if model_type in known:
        return known[model_type]
    near = difflib.get_close_matches(str(model_type), known, n=1, cutoff=0.75)
    hint = f"; the nearest is {near[0]!r}" if near else ""
    raise UnsupportedError(
        f"{where} is a model of type {model_type!r}, which attractor has no family for{hint}. The families are "
        f"{', '.join(sorted(known))}; to add one, write one file in attractor/checkpoints/families that says what its attention "
        "tensors are called (see 'Adding a family' in the documentation)"
    )
