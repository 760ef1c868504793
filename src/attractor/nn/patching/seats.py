"""Where a refinement sits in a model: its attention modules, and what of them the scores' new term needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass
class Seat:
    """One attention module. ``output`` is its output projection, wherever the family keeps it; ``groups`` heads share a key.

    ``tokens`` holds what the module reads from its start until its scores are made, and nothing in between.
    """

    output: Any
    heads: int
    groups: int
    head_dim: int
    dim: int
    pad: bool | None = None
    backend: str | None = None
    handle: Any = None
    tokens: Tensor | None = None

    def output_weight(self) -> Tensor:
        """(d, h r)"""
        weight = self.output.weight
        return weight if isinstance(self.output, nn.Linear) else weight.mT  # GPT-2 keeps (in, out)

    def fits(self) -> bool:
        """Whether the output projection is a plain matrix of the size that the heads need."""
        weight = getattr(self.output, "weight", None)
        if not isinstance(weight, Tensor) or weight.ndim != 2 or not weight.is_floating_point():
            return False
        return tuple(self.output_weight().shape) == (self.dim, self.heads * self.head_dim)


def seats(model: nn.Module) -> Iterator[tuple[str, nn.Module, Seat]]:
    """Every self-attention module that a family knows, with its name."""
    for name, module in model.named_modules():
        if "Cross" in type(module).__name__ or getattr(module, "is_cross_attention", False):
            continue
        parent = model.get_submodule(name.rpartition(".")[0])
        for family in (_llama, _bert, _gpt2):
            seat = family(module, parent)
            if seat is not None:
                yield name, module, seat
                break


def _llama(module: Any, parent: Any) -> Seat | None:
    """Four projections side by side: Llama, Mistral, Qwen and their kin; several heads may share a key."""
    names = ("q_proj", "k_proj", "v_proj", "o_proj")
    if not all(isinstance(getattr(module, name, None), nn.Linear) for name in names):
        return None
    size = getattr(module, "head_dim", None)
    if not size:
        return None
    heads, kept = module.q_proj.out_features // size, module.k_proj.out_features // size
    return Seat(module.o_proj, heads, heads // kept, size, module.q_proj.in_features)


def _bert(module: Any, parent: Any) -> Seat | None:
    """Query, key and value in one module, the output projection in its neighbour: BERT and its kin."""
    if not all(isinstance(getattr(module, name, None), nn.Linear) for name in ("query", "key", "value")):
        return None
    output = getattr(getattr(parent, "output", None), "dense", None)
    size = getattr(module, "attention_head_size", None)
    if output is None or not size:
        return None
    return Seat(output, module.query.out_features // size, 1, size, module.query.in_features)


def _gpt2(module: Any, parent: Any) -> Seat | None:
    """One projection for query, key and value: GPT-2."""
    if not hasattr(module, "c_attn") or not hasattr(module, "c_proj") or not hasattr(module, "embed_dim"):
        return None
    return Seat(module.c_proj, module.num_heads, 1, module.head_dim, module.embed_dim)
