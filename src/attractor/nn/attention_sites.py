"""Where ``transformers`` models keep the projections of self-attention.

The layouts are shared by ``refine``, which finds the attention modules of a model in memory, and by ``attractor.models.families``, which
read the same projections from files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class ProjectionLayout:
    """Names of the projections of a self-attention module.

    Attributes
    ----------
    output : name of the output projection.
    query, key, value : names of the other projections, if they are separate.
    fused : name of the projection that holds query, key and value in one matrix.
    output_in_parent : whether ``output`` is a submodule of the parent of the attention module.
    transposed : whether matrices are stored as (in, out), as by ``Conv1D``.
    head_dim : name of the module's attribute with the dimension of a head.
    """

    output: str
    query: str = ""
    key: str = ""
    value: str = ""
    fused: str = ""
    output_in_parent: bool = False
    transposed: bool = False
    head_dim: str = "head_dim"

    @property
    def separate(self) -> tuple[str, str, str]:
        return self.query, self.key, self.value

    def find(self, module: Any, parent: Any) -> AttentionSite | None:
        """The projections of a module that has this layout, or None."""
        output: Any = parent if self.output_in_parent else module
        for name in self.output.split("."):
            output = getattr(output, name, None)
        size = getattr(module, self.head_dim, None)
        if output is None or not size:
            return None
        if self.fused:
            if not hasattr(module, self.fused) or not hasattr(module, "embed_dim"):
                return None
            return AttentionSite(output, module.num_heads, 1, size, module.embed_dim)
        parts = [getattr(module, name, None) for name in self.separate] + ([] if self.output_in_parent else [output])
        if not all(isinstance(part, nn.Linear) for part in parts):
            return None
        query, key = (getattr(module, name) for name in (self.query, self.key))
        heads, key_heads = query.out_features // size, key.out_features // size
        return AttentionSite(output, heads, heads // key_heads, size, query.in_features)


LLAMA_LAYOUT = ProjectionLayout(
    "o_proj", "q_proj", "k_proj", "v_proj"
)  # also Mistral, Qwen and others; grouped-query attention
BERT_LAYOUT = ProjectionLayout(
    "output.dense", "query", "key", "value", output_in_parent=True, head_dim="attention_head_size"
)
GPT2_LAYOUT = ProjectionLayout("c_proj", fused="c_attn", transposed=True)
REFINABLE = (LLAMA_LAYOUT, BERT_LAYOUT, GPT2_LAYOUT)


@dataclass
class AttentionSite:
    """One attention module of a model.

    Attributes
    ----------
    output : the output projection.
    heads : number of query heads.
    groups : number of query heads that share a key.
    head_dim, dim : dimensions of a head and of the tokens.
    pad, backend : options of ``refine``.
    handle : handle of the forward pre-hook.
    tokens : the input of the module, from its start until its scores are computed; None otherwise.
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
        """The output projection, (d, h r)."""
        weight = self.output.weight
        return weight if isinstance(self.output, nn.Linear) else weight.mT  # Conv1D stores (in, out)

    def is_refinable(self) -> bool:
        """Whether the output projection is a floating-point matrix of the expected shape."""
        weight = getattr(self.output, "weight", None)
        if not isinstance(weight, Tensor) or weight.ndim != 2 or not weight.is_floating_point():
            return False
        return tuple(self.output_weight().shape) == (self.dim, self.heads * self.head_dim)


def find_attention_sites(model: nn.Module) -> Iterator[tuple[str, nn.Module, AttentionSite]]:
    """Every self-attention module with a known layout: its name, the module and its projections."""
    for name, module in model.named_modules():
        if "Cross" in type(module).__name__ or getattr(module, "is_cross_attention", False):
            continue
        parent = model.get_submodule(name.rpartition(".")[0])
        site = next((site for layout in REFINABLE if (site := layout.find(module, parent)) is not None), None)
        if site is not None:
            yield name, module, site
