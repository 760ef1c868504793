"""Where ``transformers`` models keep the projections of self-attention.

The layouts are shared by ``refine``, which finds the attention modules of a model in memory, and by ``attractor.models.families``, which
read the same projections from files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from attractor.errors import UnsupportedError
from attractor.nn.parameters import Weights, split_heads, split_output


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
    kinds : names of the classes of modules that have this layout; any class if empty.
    scaled : name of the module's attribute with the factor by which its code multiplies queries before their scores, if there is one.
    by_head : whether a fused projection has query, key and value of the first head first, and not all queries first.
    """

    output: str
    query: str = ""
    key: str = ""
    value: str = ""
    fused: str = ""
    output_in_parent: bool = False
    transposed: bool = False
    head_dim: str = "head_dim"
    kinds: tuple[str, ...] = ()
    scaled: str = ""
    by_head: bool = False

    @property
    def separate(self) -> tuple[str, str, str]:
        return self.query, self.key, self.value

    def find(self, module: Any, parent: Any) -> AttentionSite | None:
        """The projections of a module that has this layout, or None."""
        if self.kinds and type(module).__name__ not in self.kinds:
            return None
        owner: Any = parent if self.output_in_parent else module
        *above, last = self.output.split(".")
        for name in above:
            owner = getattr(owner, name, None)
        size = getattr(module, self.head_dim, None)
        output = getattr(owner, last, None)
        if output is None or not size:
            return None
        scale = getattr(module, self.scaled) if self.scaled else 1.0
        if self.fused:
            fused = getattr(module, self.fused, None)
            dim = None if fused is None else _input_dim(fused)
            inner = _input_dim(output)
            if dim is None or inner is None:
                return None
            return AttentionSite(
                self, owner, last, inner // size, getattr(module, "num_key_value_groups", 1), size, dim, scale
            )
        parts = [getattr(module, name, None) for name in self.separate] + ([] if self.output_in_parent else [output])
        if not all(_is_linear(part) for part in parts):
            return None
        query, key = (getattr(module, name) for name in (self.query, self.key))
        heads, key_heads = query.out_features // size, key.out_features // size
        return AttentionSite(self, owner, last, heads, heads // key_heads, size, query.in_features, scale)


def _is_linear(part: Any) -> bool:
    """Whether a module is a linear map, alone or with an adapter of PEFT."""
    return isinstance(getattr(part, "base_layer", part), nn.Linear)


def _input_dim(part: Any) -> int | None:
    """The width of the input of a linear map or Conv1D, alone or with an adapter of PEFT."""
    base = getattr(part, "base_layer", part)
    if isinstance(base, nn.Linear):
        return base.in_features
    weight = getattr(base, "weight", None)  # of Conv1D: (in, out)
    return weight.shape[0] if isinstance(weight, Tensor) and weight.ndim == 2 else None


LLAMA_LAYOUT = ProjectionLayout(
    "o_proj", "q_proj", "k_proj", "v_proj"
)  # also Mistral, Qwen, ViT and others; grouped-query attention
BERT_LAYOUT = ProjectionLayout(
    "output.dense", "query", "key", "value", output_in_parent=True, head_dim="attention_head_size"
)
GPT2_LAYOUT = ProjectionLayout(
    "c_proj", fused="c_attn", transposed=True, kinds=("GPT2Attention", "GPTBigCodeAttention")
)
OPT_LAYOUT = ProjectionLayout("out_proj", "q_proj", "k_proj", "v_proj", kinds=("OPTAttention",), scaled="scaling")
CLIP_LAYOUT = ProjectionLayout(
    "out_proj", "q_proj", "k_proj", "v_proj", kinds=("CLIPAttention", "SiglipAttention", "Siglip2Attention")
)
NEOX_LAYOUT = ProjectionLayout(
    "dense", fused="query_key_value", head_dim="head_size", kinds=("GPTNeoXAttention",), by_head=True
)
PHI3_LAYOUT = ProjectionLayout("o_proj", fused="qkv_proj", kinds=("Phi3Attention",))
MODERNBERT_LAYOUT = ProjectionLayout("Wo", fused="Wqkv", kinds=("ModernBertAttention",))
T5_LAYOUT = ProjectionLayout("o", "q", "k", "v", head_dim="key_value_proj_dim", kinds=("T5Attention", "MT5Attention"))
REFINABLE = (
    LLAMA_LAYOUT,
    BERT_LAYOUT,
    GPT2_LAYOUT,
    OPT_LAYOUT,
    CLIP_LAYOUT,
    NEOX_LAYOUT,
    PHI3_LAYOUT,
    MODERNBERT_LAYOUT,
    T5_LAYOUT,
)


@dataclass
class AttentionSite:
    """One attention module of a model.

    Attributes
    ----------
    layout : names of the projections.
    owner, name : the module that has the output projection, and its name there.
    heads : number of query heads.
    groups : number of query heads that share a key.
    head_dim, dim : dimensions of a head and of the tokens.
    scale : factor of queries that the module applies before their scores.
    pad, backend : options of ``refine``.
    handle : handle of the forward pre-hook.
    tokens : the input of the module, from its start until its scores are computed; None otherwise.
    """

    layout: ProjectionLayout
    owner: Any
    name: str
    heads: int
    groups: int
    head_dim: int
    dim: int
    scale: float = 1.0
    pad: bool | None = None
    backend: str | None = None
    handle: Any = None
    tokens: Tensor | None = None

    @property
    def output(self) -> Any:
        """The output projection, looked up so that an adapter that was added or removed later is seen."""
        return getattr(self.owner, self.name)

    def output_weight(self) -> Tensor:
        """The output projection, (d, h r), with the active low-rank adapters of PEFT."""
        return _effective_weight(self.output)

    def weights(self, module: Any) -> Weights:
        """Query, key, value and output of every head; keys and values that heads share are repeated."""
        heads, groups, size = self.heads, self.groups, self.head_dim
        keys = heads // groups
        if not self.layout.fused:
            parts = [_effective_weight(getattr(module, name)) for name in self.layout.separate]
            query, key, value = (split_heads(one, count) for one, count in zip(parts, (heads, keys, keys), strict=True))
        elif self.layout.by_head or (type(module).__name__ == "GPTBigCodeAttention" and groups == 1):
            whole = _effective_weight(getattr(module, self.layout.fused))
            query, key, value = split_heads(whole, heads).split(size, dim=1)
        else:
            whole = _effective_weight(getattr(module, self.layout.fused))
            parts = whole.split([heads * size, keys * size, keys * size])
            query, key, value = (split_heads(one, count) for one, count in zip(parts, (heads, keys, keys), strict=True))
        key, value = (one.repeat_interleave(groups, 0) if groups > 1 else one for one in (key, value))
        return Weights(query, key, value, split_output(self.output_weight(), heads))

    def is_refinable(self) -> bool:
        """Whether the output projection is a floating-point matrix of the expected shape."""
        weight = getattr(getattr(self.output, "base_layer", self.output), "weight", None)
        if not isinstance(weight, Tensor) or weight.ndim != 2 or not weight.is_floating_point():
            return False
        return tuple(self.output_weight().shape) == (self.dim, self.heads * self.head_dim)


def _effective_weight(layer: Any) -> Tensor:
    """The weight (out, in) of a linear map or Conv1D, with the active low-rank adapters of PEFT."""
    base = getattr(layer, "base_layer", layer)
    weight = base.weight if layer is base else base.weight + sum(low_rank_changes(layer))
    return weight if isinstance(base, nn.Linear) else weight.mT  # Conv1D stores (in, out)


def low_rank_changes(layer: Any) -> list[Tensor]:
    """What active adapters of PEFT add to the weight of a layer and that is not merged into it; raises for other adapters than LoRA."""
    active = [name for name in layer.active_adapters if name in getattr(layer, "lora_A", ())]
    variants = getattr(layer, "lora_variant", {})
    if not hasattr(layer, "lora_A") or any(name in variants for name in active):
        raise UnsupportedError(
            f"a projection of this model has an adapter that is not plain LoRA ({type(layer).__name__}), so its weight is not known: "
            "call merge_and_unload() first, or leave this projection without an adapter"
        )
    return [] if layer.merged or layer.disable_adapters else [layer.get_delta_weight(name) for name in active]


CROSS = ("EncDecAttention", "encoder_attn", "crossattention")  # names of modules that read another sequence


def find_attention_sites(model: nn.Module) -> Iterator[tuple[str, nn.Module, AttentionSite]]:
    """Every self-attention module with a known layout: its name, the module and its projections."""
    for name, module in model.named_modules():
        crossing = any(part in CROSS for part in name.split("."))
        if crossing or "Cross" in type(module).__name__ or getattr(module, "is_cross_attention", False):
            continue
        parent = model.get_submodule(name.rpartition(".")[0])
        site = next((site for layout in REFINABLE if (site := layout.find(module, parent)) is not None), None)
        if site is not None:
            yield name, module, site
