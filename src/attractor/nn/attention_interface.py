"""The attention function and key-value cache of a refined ``transformers`` model."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from attractor.errors import UnsupportedError, missing
from attractor.nn.attention_sites import AttentionSite
from attractor.nn.refinements import Refinement, Shift, Slice, can_fuse


class WideKeyCache:
    """A key-value cache that stores the refinement's coordinates with the keys."""

    def __init__(self, cache: Any, coordinates: Tensor) -> None:
        self._cache, self._coordinates = cache, coordinates

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def update(self, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> tuple[Tensor, Tensor]:
        wide = torch.cat((key, self._coordinates.to(key.dtype)), dim=-1)
        return self._cache.update(wide, value, *rest, **options)


def group_slices(slices: Tensor, groups: int) -> Tensor:
    """Slices of every head (batch, h, n, c) as (batch, h / groups, n, groups c), for heads that share a key."""
    return slices.unflatten(1, (-1, groups)).transpose(2, 3).flatten(3)


def ungroup_slices(cached: Tensor, groups: int) -> Tensor:
    """The inverse of ``group_slices``."""
    return cached.unflatten(-1, (groups, -1)).transpose(2, 3).flatten(1, 2)


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
    """Register the refined form of an attention implementation with transformers; return its name."""
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    except ImportError:
        raise missing("transformers", "checkpoints") from None
    name = PREFIX + base
    AttentionInterface.register(name, _make_attention(base))
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[base])
    return name


def prepare_module(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Forward pre-hook: keep the module's input, and wrap its cache where slices must be cached with the keys."""
    site: AttentionSite = module.__dict__["refined"]
    config: Any = module.config
    now: str = config._attn_implementation
    if not now.startswith(PREFIX):
        raise UnsupportedError(
            f"the attention implementation was changed to {now!r} after refining, which would leave the refinement out: "
            "unrefine the model, change it, and refine again"
        )
    x = args[0] if args else kwargs["hidden_states"]
    site.tokens = x
    if x.is_cuda and x.dtype == torch.float32 and torch.is_autocast_enabled("cuda"):
        # otherwise every projection rounds its own copy, with gradients of twice the size
        x, site.tokens = _round_tokens(x, torch.get_autocast_dtype("cuda"))
        args, kwargs = ((x, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": x})
    refinement = get_refinement(module)
    name = next((name for name in CACHES if kwargs.get(name) is not None), None)
    if name is not None and isinstance(refinement, Slice):
        cache = getattr(kwargs[name], "self_attention_cache", kwargs[name])
        kwargs = {**kwargs, name: WideKeyCache(cache, group_slices(refinement.key_part(x, x), site.groups))}
    return args, kwargs


CACHES = ("past_key_values", "layer_past")  # names of the argument with cached keys and values


def get_refinement(module: Any) -> Refinement:
    """The refinement of an attention module; of several copies that PEFT keeps (``modules_to_save``), the active one."""
    found = module.refinement
    if hasattr(found, "modules_to_save"):
        active = [name for name in found.active_adapters if name in found.modules_to_save]
        found = found.modules_to_save[active[0]] if active and not found.disable_adapters else found.original_module
    assert isinstance(found, Refinement)
    return found


def _make_attention(base: str) -> Callable[..., Pair]:
    def refined_attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
    ) -> Pair:
        attend = _get_base(base, module)
        site: AttentionSite | None = module.__dict__.get("refined")
        if site is None:
            _check_loaded(module)
            return attend(module, query, key, value, attention_mask, **options)
        refinement, x = get_refinement(module), site.tokens
        assert x is not None
        site.tokens = None  # a reference would keep the autograd graph of this step alive
        own = key[..., : site.head_dim]
        idle = refinement.is_idle()
        learning = torch.is_grad_enabled() and refinement.theta.requires_grad
        if idle and not learning:
            return attend(module, query, own, value, attention_mask, **options)
        wide_module, q, k, v = _extend(module, refinement, site, x, query, key, value)
        if not idle:
            with _prefer_backend(site.backend):
                return _attend_padded(attend, wide_module, q, k, v, attention_mask, options, site.pad)
        # both evaluations of an idle refinement must drop the same weights, and draw as often as the plain model
        devices = [query.device] if query.is_cuda else []
        with _prefer_backend(site.backend), torch.random.fork_rng(devices):
            output, weights = _attend_padded(attend, wide_module, q, k, v, attention_mask, options, site.pad)
        # bitwise the values of the plain model, with the derivative of the refined one
        plain, weights = attend(module, query, own, value, attention_mask, **options)
        return plain.detach() + (output - output.detach()), weights

    return refined_attention


def _check_loaded(module: Any) -> None:
    """Raise for a model that was saved with a refinement and loaded without it."""
    # the type of such a folder is an entry of its own in the configuration, and not that of the class
    if "model_type" in vars(getattr(module, "config", None) or object):
        kind = str(module.config.model_type)
        if kind.startswith("attractor-"):
            raise UnsupportedError(
                f"this model of type {kind!r} was saved with a refinement, which from_pretrained left out: load it with "
                "at.nn.load_refined(folder)"
            )


def _extend(
    module: nn.Module, refinement: Refinement, site: AttentionSite, x: Tensor, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Any, Tensor, Tensor, Tensor]:
    """Queries, keys and values with the coordinates of the refinement; shared keys are repeated where they now differ by head."""
    if query.is_cuda and torch.is_autocast_enabled("cuda"):
        # rotary embeddings return float32, which the kernel would round later
        query, key, value = (part.to(torch.get_autocast_dtype("cuda")) for part in (query, key, value))
    if not isinstance(refinement, Slice):
        if can_fuse(query, key, value):
            from attractor.nn.fused_concatenation import ConcatShift

            strength = refinement.strength if site.scale == 1.0 else site.scale * refinement.strength
            return module, *ConcatShift.apply(x, site.output_weight(), strength, query, key, value)
        a = _scaled(site, refinement.query_part(x, site.output_weight(), None)).to(query.dtype)
        return module, torch.cat((query, a), dim=-1), torch.cat((key, value), dim=-1), value
    own, cached = key[..., : site.head_dim], key[..., site.head_dim :]
    if site.groups > 1:
        own, value = own.repeat_interleave(site.groups, dim=1), value.repeat_interleave(site.groups, dim=1)
    wide = module if site.groups == 1 else _UngroupedModule(module)
    if not cached.shape[-1] and can_fuse(query, own):
        from attractor.nn.fused_concatenation import ConcatSlice

        strength = _scaled(site, refinement.diagonal(None))
        return wide, *ConcatSlice.apply(refinement.key_part(x, x), strength, query, own), value
    slices = ungroup_slices(cached, site.groups) if cached.shape[-1] else refinement.key_part(x, x).to(key.dtype)
    a = _scaled(site, refinement.query_part(x, site.output_weight(), None)).to(query.dtype)
    return wide, torch.cat((query, a), dim=-1), torch.cat((own, slices), dim=-1), value


def _scaled(site: AttentionSite, part: Tensor) -> Tensor:
    """Coordinates of queries with the factor that the module has applied to its own queries."""
    return part if site.scale == 1.0 else site.scale * part


def _round_tokens(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Tokens in the precision of autocast, for the module and for its refinement."""
    if can_fuse(x[:, None]) and dtype in (torch.float16, torch.bfloat16):
        from attractor.nn.fused_concatenation import RoundForTwo

        return RoundForTwo.apply(x, dtype)
    y = x.to(dtype)
    return y, y


class _UngroupedModule:
    """A module whose heads do not share keys, for attention functions that would repeat them."""

    num_key_value_groups = 1

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _attend_padded(
    attend: Callable[..., Pair], module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, options: Any, pad: bool | None
) -> Pair:
    """Attention with keys wider than values; values are padded where the fastest fused kernel needs equal widths.

    Keys of the shift end with the values themselves, so the keys serve as padded values and nothing is copied.
    """
    width = v.shape[-1]
    if pad is None:
        pad = q.is_cuda and mask is None and q.dtype in (torch.float16, torch.bfloat16) and _needs_equal_widths(q)
    if not pad:
        return attend(module, q, k, v, mask, **options)
    if isinstance(get_refinement(module), Shift):
        output, weights = attend(module, q, k, k, mask, **options)
        return output[..., -width:], weights
    output, weights = attend(module, q, k, functional.pad(v, (0, q.shape[-1] - width)), mask, **options)
    return output[..., :width], weights


def _needs_equal_widths(q: Tensor) -> bool:
    """Whether PyTorch's fastest kernel for these queries needs values of the same width; cuDNN's on Hopper and later does not."""
    return q.shape[-1] <= 256 and torch.cuda.get_device_capability(q.device) < (9, 0)


def _prefer_backend(backend: str | None) -> Any:
    """A context in which PyTorch's fused attention tries this kernel first."""
    if backend is None:
        return contextlib.nullcontext()
    first = KERNELS[backend]
    return sdpa_kernel([first, *(kernel for kernel in KERNELS.values() if kernel != first)], set_priority=True)


def _get_base(base: str, module: nn.Module) -> Callable[..., Pair]:
    """The attention function that the model had; eager functions are defined in the model's own module."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if base == "eager":
        return sys.modules[type(module).__module__].eager_attention_forward
    return ALL_ATTENTION_FUNCTIONS[base]
