"""Attention modules of ``transformers`` models, and the attention function and cache of a refined model."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from attractor.errors import UnsupportedError, missing
from attractor.nn.refinements import Refinement, Shift, Slice, fast


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


class Carrying:
    """A cache as a refined module sees it; all but ``update`` is the cache's own."""

    def __init__(self, cache: Any, coordinates: Tensor) -> None:
        self._cache, self._coordinates = cache, coordinates

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def update(self, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> tuple[Tensor, Tensor]:
        wide = torch.cat((key, self._coordinates.to(key.dtype)), dim=-1)
        return self._cache.update(wide, value, *rest, **options)


def grouped(slices: Tensor, groups: int) -> Tensor:
    """Slices of every head (batch, h, n, c), those of heads that share a key side by side: (batch, h / groups, n, groups c)."""
    return slices.unflatten(1, (-1, groups)).transpose(2, 3).flatten(3)


def ungrouped(carried: Tensor, groups: int) -> Tensor:
    """The slice of every head again, (batch, h, n, c)."""
    return carried.unflatten(-1, (groups, -1)).transpose(2, 3).flatten(1, 2)


PREFIX = "attractor_"
BASES = ("sdpa", "eager")
KERNELS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
Pair = tuple[Tensor, Any]


def register(base: str) -> str:
    """Make the refined form of an implementation known, and say its name."""
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    except ImportError:
        raise missing("transformers", "checkpoints") from None
    name = PREFIX + base
    AttentionInterface.register(name, _attention(base))
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[base])
    return name


def remember(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Before the module runs: keep the tokens that it reads, and let keys carry them where a cache needs that."""
    seat: Seat = module.__dict__["refined"]
    config: Any = module.config
    now: str = config._attn_implementation
    if not now.startswith(PREFIX):
        raise UnsupportedError(
            f"the attention implementation was changed to {now!r} after refining, which would leave the refinement out: "
            "unrefine the model, change it, and refine again"
        )
    x = args[0] if args else kwargs["hidden_states"]
    seat.tokens = x
    if x.is_cuda and x.dtype == torch.float32 and torch.is_autocast_enabled("cuda"):
        # every projection would round them so, each with a copy of its own and gradients of twice the size
        x, seat.tokens = _rounded(x, torch.get_autocast_dtype("cuda"))
        args, kwargs = ((x, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": x})
    cache = kwargs.get("past_key_values")
    if cache is not None and isinstance(module.refinement, Slice):
        cache = getattr(cache, "self_attention_cache", cache)
        kwargs = {**kwargs, "past_key_values": Carrying(cache, grouped(module.refinement.key_part(x, x), seat.groups))}
    return args, kwargs


def _attention(base: str) -> Callable[..., Pair]:
    def refined_attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
    ) -> Pair:
        attend = _base(base, module)
        seat: Seat | None = module.__dict__.get("refined")
        if seat is None:
            return attend(module, query, key, value, attention_mask, **options)
        refinement, x = module.refinement, seat.tokens
        assert isinstance(refinement, Refinement)
        assert x is not None
        seat.tokens = None  # or it would keep the graph of this step alive
        own = key[..., : seat.head_dim]
        idle = refinement.idle()
        learning = torch.is_grad_enabled() and refinement.theta.requires_grad
        if idle and not learning:
            return attend(module, query, own, value, attention_mask, **options)
        wide_module, q, k, v = _extended(module, refinement, seat, x, query, key, value)
        if not idle:
            with _preferred(seat.backend):
                return _narrow(attend, wide_module, q, k, v, attention_mask, options, seat.pad)
        # dropout must fall on the same weights in both passes of an idle refinement, and draw as often as the plain model
        devices = [query.device] if query.is_cuda else []
        with _preferred(seat.backend), torch.random.fork_rng(devices):
            output, weights = _narrow(attend, wide_module, q, k, v, attention_mask, options, seat.pad)
        # the values of the plain model to the last bit, with the derivative of the refined one
        plain, weights = attend(module, query, own, value, attention_mask, **options)
        return plain.detach() + (output - output.detach()), weights

    return refined_attention


def _extended(
    module: nn.Module, refinement: Refinement, seat: Seat, x: Tensor, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Any, Tensor, Tensor, Tensor]:
    """Queries, keys and values with the coordinates of the refinement; heads that shared a key stand apart where it differs now."""
    if query.is_cuda and torch.is_autocast_enabled("cuda"):
        # rotary positions leave float32, which the kernel would round later
        query, key, value = (part.to(torch.get_autocast_dtype("cuda")) for part in (query, key, value))
    if not isinstance(refinement, Slice):
        if fast(query, key, value):
            from attractor.nn.fused_concatenation import Shifted

            return module, *Shifted.apply(x, seat.output_weight(), refinement.strength, query, key, value)
        a = refinement.query_part(x, seat.output_weight(), None).to(query.dtype)
        return module, torch.cat((query, a), dim=-1), torch.cat((key, value), dim=-1), value
    own, carried = key[..., : seat.head_dim], key[..., seat.head_dim :]
    if seat.groups > 1:
        own, value = own.repeat_interleave(seat.groups, dim=1), value.repeat_interleave(seat.groups, dim=1)
    wide = module if seat.groups == 1 else _Apart(module)
    if not carried.shape[-1] and fast(query, own):
        from attractor.nn.fused_concatenation import Sliced

        return wide, *Sliced.apply(refinement.key_part(x, x), refinement.diagonal(None), query, own), value
    slices = ungrouped(carried, seat.groups) if carried.shape[-1] else refinement.key_part(x, x).to(key.dtype)
    a = refinement.query_part(x, seat.output_weight(), None).to(query.dtype)
    return wide, torch.cat((query, a), dim=-1), torch.cat((own, slices), dim=-1), value


def _rounded(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Tokens in the precision of autocast, for the module and for its refinement."""
    if fast(x[:, None]) and dtype in (torch.float16, torch.bfloat16):
        from attractor.nn.fused_concatenation import RoundedTwice

        return RoundedTwice.apply(x, dtype)
    y = x.to(dtype)
    return y, y


class _Apart:
    """A module whose heads no longer share keys, for the function that would repeat them."""

    num_key_value_groups = 1

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _narrow(
    attend: Callable[..., Pair], module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, options: Any, pad: bool | None
) -> Pair:
    """Attention with keys wider than values; where the fastest fused kernel wants equal widths, values are made as wide.

    Keys of the shift end with the values themselves, so they take the place of padded values: nothing is copied.
    """
    width = v.shape[-1]
    if pad is None:
        pad = q.is_cuda and mask is None and q.dtype in (torch.float16, torch.bfloat16) and _equal_widths(q)
    if not pad:
        return attend(module, q, k, v, mask, **options)
    if isinstance(module.refinement, Shift):
        output, weights = attend(module, q, k, k, mask, **options)
        return output[..., -width:], weights
    output, weights = attend(module, q, k, functional.pad(v, (0, q.shape[-1] - width)), mask, **options)
    return output[..., :width], weights


def _equal_widths(q: Tensor) -> bool:
    """Whether PyTorch's fastest kernel for these queries wants values as wide: on Hopper and later, that of cuDNN does not."""
    return q.shape[-1] <= 256 and torch.cuda.get_device_capability(q.device) < (9, 0)


def _preferred(backend: str | None) -> Any:
    """The kernel of PyTorch's fused attention that is tried first."""
    if backend is None:
        return contextlib.nullcontext()
    first = KERNELS[backend]
    return sdpa_kernel([first, *(kernel for kernel in KERNELS.values() if kernel != first)], set_priority=True)


def _base(base: str, module: nn.Module) -> Callable[..., Pair]:
    """The implementation that the model had; each family defines its own eager one."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if base == "eager":
        return sys.modules[type(module).__module__].eager_attention_forward
    return ALL_ATTENTION_FUNCTIONS[base]
