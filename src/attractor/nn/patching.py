"""Refinement of ``transformers`` models in place: attach, remove, load."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from attractor.errors import InputError, StoreError, UnsupportedError
from attractor.nn.attention_interface import BASES, KERNELS, PREFIX, Seat, register, remember, seats
from attractor.nn.refinements import REFINEMENTS, Refinement, Sign, refinement_named
from attractor.registry import check_name

Model = TypeVar("Model", bound=nn.Module)
RECORD = "attractor_refinement"  # in the model's configuration, so that it is saved with the model


def refine(
    model: Model,
    kind: Literal["shift", "slice"] = "shift",
    *,
    sign: Sign | None = None,
    value: float | None = None,
    channels: int | None = None,
    layers: Collection[int] | None = None,
    pad: bool | None = None,
    backend: str | None = None,
) -> Model:
    """Give the self-attention of a ``transformers`` model a refinement, in place; its parameters are the model's from then on.

    Parameters
    ----------
    model : a model with four projections (Llama, Mistral, Qwen...), of BERT's or of GPT-2's build, with attention "sdpa" or "eager".
    kind : "shift", W + lambda V of every head; or "slice", a diagonal form on every head's share of the channels.
    sign : "+", "-" (a softplus, never zero) or "free"; the shift is free and the slice "+" unless told otherwise.
    value : the first size of the strength: 0 for "free", 0.05 otherwise. At 0 logits are those of the model, bit by bit.
    channels : of each slice that are used, all of them unless given; fewer make keys less wide and steps faster.
    layers : numbers of the attention modules to refine; all of them unless given.
    pad : pad values to the width of keys, which some fused kernels want; by default where that helps on a GPU.
    backend : the kernel of PyTorch's fused attention to try first (cudnn, flash, efficient, math); PyTorch's own order unless given.

    Tokens are what the attention module reads: after the norm of a pre-norm model, with absolute positions where a model adds them.
    A cache filled before refining cannot be used after it.
    """
    base = _check(model, kind)
    if backend is not None:
        check_name(backend, KERNELS, "backend")
    found = list(seats(model))
    if not found:
        raise UnsupportedError(
            f"no attention module of {type(model).__name__} is known: refine is for models built like BERT, Llama or GPT-2"
        )
    if layers is not None and (
        not isinstance(layers, Collection) or not layers or not set(layers) <= {*range(len(found))}
    ):
        raise InputError(
            f"layers must be some of 0 to {len(found) - 1}, such as [0], or left out for all; got {layers!r}"
        )
    chosen = [item for index, item in enumerate(found) if layers is None or index in layers]
    made = [_made(name, seat, kind, sign, value, channels) for name, _, seat in chosen]
    name = register(base)
    for (_, module, seat), refinement in zip(chosen, made, strict=True):
        module.refinement = refinement.train(module.training)
        module.__dict__["refined"] = seat
        seat.pad, seat.backend = pad, backend
        seat.handle = module.register_forward_pre_hook(remember, with_kwargs=True)
    config: Any = model.config
    config._attn_implementation = name
    options = {"sign": sign, "value": value, "channels": channels, "layers": None if layers is None else [*layers]}
    setattr(config, RECORD, {"kind": kind, **options})
    return model


def unrefine(model: Model) -> Model:
    """Take a refinement away again, in place: the model is what it was."""
    if not refined(model):
        raise InputError(f"this {type(model).__name__} has no refinement to take away")
    for module in model.modules():
        seat = module.__dict__.pop("refined", None)
        if seat is not None:
            seat.handle.remove()
            del module.refinement
    config: Any = model.config
    config._attn_implementation = config._attn_implementation.removeprefix(PREFIX)
    delattr(config, RECORD)
    return model


def refined(model: nn.Module) -> bool:
    """Whether a model carries a refinement."""
    return any("refined" in module.__dict__ for module in model.modules())


def _check(model: nn.Module, kind: str) -> str:
    """The attention implementation that the model has."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "_attn_implementation"):
        raise InputError(f"refine takes a model of the transformers library, got {type(model).__name__}")
    check_name(kind, REFINEMENTS, "refinement")
    if kind == "metric":
        raise UnsupportedError(
            "a pretrained model has no explicit metric: the metric refinement is for DefiniteAttention(..., metric='diagonal')"
        )
    if refined(model):
        raise InputError(f"this {type(model).__name__} is refined already: unrefine it first")
    base = config._attn_implementation or "eager"
    if base not in BASES:
        raise UnsupportedError(
            f"refine works with the attention implementations {' and '.join(BASES)}, and this model has {base!r}: "
            "call model.set_attn_implementation('sdpa') first"
        )
    if getattr(config, "reorder_and_upcast_attn", False) and base == "eager":
        raise UnsupportedError(
            "reorder_and_upcast_attn goes around the attention interface: switch it off or use 'sdpa'"
        )
    return base


def _made(name: str, seat: Seat, kind: str, sign: Sign | None, value: float | None, channels: int | None) -> Refinement:
    if not seat.fits():
        raise UnsupportedError(
            f"the output projection of {name} is not a plain ({seat.dim}, {seat.heads * seat.head_dim}) matrix, which the "
            "refinement reads: quantised and wrapped weights are not supported"
        )
    refinement = refinement_named(kind, seat.dim, seat.heads, sign, value, channels)
    assert refinement is not None
    return refinement.to(seat.output.weight)


__all__ = ["RECORD", "refine", "refined", "unrefine"]


END = ".refinement.theta"


def load_refined(folder: str | Path, factory: Any = None, **options: Any) -> Any:
    """The model in a folder with its refinement; ``factory`` is a class of transformers, AutoModelForCausalLM unless given.

    ``model.save_pretrained(folder)`` writes strengths among the weights and the kind into the configuration.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise StoreError(f"{folder} holds no config.json: give a folder that save_pretrained wrote")
    if factory is None:
        from transformers import AutoModelForCausalLM as factory
    model = _quietly(factory, folder, options)
    record = getattr(model.config, RECORD, None)
    if record is None:
        raise InputError(
            f"the model in {folder} was not refined when it was saved: from_pretrained and refine do the rest"
        )
    delattr(model.config, RECORD)
    refine(model, **record)
    saved = _strengths(folder)
    own = {name: value for name, value in model.named_parameters() if name.endswith(END)}
    with torch.no_grad():
        for name, parameter in own.items():
            # a head model's names have a prefix that the bare model's lack
            near = [key for key in saved if key == name or key.endswith("." + name) or name.endswith("." + key)]
            if len(near) != 1 or saved[near[0]].shape != parameter.shape:
                raise StoreError(f"the weights in {folder} have no strength for {name.removesuffix(END)}")
            parameter.copy_(saved[near[0]])
    return model


def _quietly(factory: Any, folder: Path, options: dict[str, Any]) -> Any:
    """The bare model, without a report that it does not know the strengths: they are read afterwards."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        return factory.from_pretrained(folder, **options)
    finally:
        logging.set_verbosity(before)


def _strengths(folder: Path) -> dict[str, torch.Tensor]:
    """The refinement's tensors in all weight files."""
    from safetensors import safe_open

    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys() if name.endswith(END)}  # noqa: SIM118
    return found
