"""Refinement of ``transformers`` models in place: attach, remove, load."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from attractor.errors import InputError, StoreError, UnsupportedError
from attractor.files import read_json
from attractor.nn.attention_interface import BASES, KERNELS, PREFIX, prepare_module, register
from attractor.nn.attention_sites import AttentionSite, find_attention_sites
from attractor.nn.refinements import REFINEMENTS, Refinement, Sign, make_refinement
from attractor.registry import check_name

Model = TypeVar("Model", bound=nn.Module)
REFINEMENT = "refinement"  # name of the module that refine adds to attention modules
MODEL_TYPE = "attractor-"  # beginning of the model type in config.json of a refined model
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
    """Add a refinement to the self-attention of a ``transformers`` model, in place.

    The scores of head h become :math:`x_i^\\top (W_h + \\lambda_h R_h) x_j` with learned strengths :math:`\\lambda`, which are
    parameters of the model from then on. At :math:`\\lambda = 0` the logits are bitwise those of the model.

    Parameters
    ----------
    model : a model with separate projections (Llama, Mistral, Qwen, ViT, OPT, CLIP, T5...), or built like BERT, GPT-2, GPT-NeoX, Phi-3 or
        ModernBERT, with attention "sdpa" or "eager"; a model with LoRA adapters of PEFT, which the shift reads.
    kind : "shift", where R_h is the value map O_h V_h of the head; or "slice", a diagonal form on the head's share of the channels.
    sign : "+" and "-" are plus and minus a softplus, never zero; "free" has any sign. The default is "free" for the shift and "+"
        for the slice.
    value : initial size of the strengths, by default 0 for "free" and 0.05 otherwise.
    channels : number of channels of each slice that are used, all by default; fewer make keys narrower and steps faster.
    layers : indices of the attention modules to refine, all by default.
    pad : pad values to the width of keys, which some fused kernels need; by default where it helps on a GPU.
    backend : kernel of PyTorch's fused attention to try first ("cudnn", "flash", "efficient", "math").

    Returns
    -------
    The same model.

    Notes
    -----
    Tokens x are the input of the attention module: after the norm of a pre-norm model, with absolute positions where a model adds
    them. A key-value cache filled before refining cannot be used afterwards.
    """
    base = _check_model(model, kind)
    if backend is not None:
        check_name(backend, KERNELS, "backend")
    found = list(find_attention_sites(model))
    if not found:
        raise UnsupportedError(
            f"no attention module of {type(model).__name__} is known: refine is for models built like BERT, Llama, GPT-2, "
            "GPT-NeoX, Phi-3, OPT, ModernBERT, ViT, T5 or CLIP"
        )
    if layers is not None and (
        not isinstance(layers, Collection) or not layers or not set(layers) <= {*range(len(found))}
    ):
        raise InputError(
            f"layers must be some of 0 to {len(found) - 1}, such as [0], or left out for all; got {layers!r}"
        )
    chosen = [item for index, item in enumerate(found) if layers is None or index in layers]
    made = [_make_refinement(name, site, kind, sign, value, channels) for name, _, site in chosen]
    name = register(base)
    for (_, module, site), refinement in zip(chosen, made, strict=True):
        module.refinement = refinement.train(module.training)
        module.__dict__["refined"] = site
        site.pad, site.backend = pad, backend
        site.handle = module.register_forward_pre_hook(prepare_module, with_kwargs=True)
    for each in _list_configs(model):
        if (each._attn_implementation or "eager") == base:
            each._attn_implementation = name
    _release_gguf(model)
    config: Any = model.config
    config.__class__ = _refined_class(type(config))
    options = {"sign": sign, "value": value, "channels": channels, "layers": None if layers is None else [*layers]}
    setattr(config, RECORD, {"kind": kind, **options})
    return model


def unrefine(model: Model) -> Model:
    """Remove the refinement of a model, in place."""
    if not is_refined(model):
        raise InputError(f"this {type(model).__name__} has no refinement to take away")
    for module in model.modules():
        site = module.__dict__.pop("refined", None)
        if site is not None:
            site.handle.remove()
            del module.refinement
    for each in _list_configs(model):
        each._attn_implementation = (each._attn_implementation or "eager").removeprefix(PREFIX)
    _release_gguf(model)
    config: Any = model.config
    config.__class__ = type(config).plain
    delattr(config, RECORD)
    return model


def _release_gguf(model: Any) -> None:
    """Let a model that was opened from GGUF be saved: its weights are floating-point numbers, which transformers calls quantised."""
    settings = getattr(model.config, "quantization_config", None)
    if getattr(settings, "quant_method", None) == "gguf" and all(
        part.is_floating_point() for part in model.parameters()
    ):
        del model.config.quantization_config
        for name in ("hf_quantizer", "is_quantized", "quantization_method"):
            if name in vars(model):
                delattr(model, name)


def _list_configs(model: nn.Module) -> list[Any]:
    """The configurations of a model and of its parts, some of which have copies of their own (T5)."""
    found = {id(config): config for part in model.modules() if (config := getattr(part, "config", None)) is not None}
    return [config for config in found.values() if hasattr(config, "_attn_implementation")]


@cache
def _refined_class(kind: type[Any]) -> type[Any]:
    """The class of configurations of refined models.

    The file config.json of such a model has another model type and an attention function of attractor: transformers would otherwise load
    the model without its refinement.
    """

    class Refined(kind):
        plain = kind

        def to_diff_dict(self) -> dict[str, Any]:
            found = super().to_diff_dict()
            return {
                **found,
                "model_type": MODEL_TYPE + kind.model_type,
                "attn_implementation": self._attn_implementation,
            }

        def __reduce__(self) -> Any:
            return _rebuild_config, (kind, dict(self.__dict__))

    Refined.__name__, Refined.__qualname__ = kind.__name__, kind.__qualname__
    return Refined


def _rebuild_config(kind: type[Any], entries: dict[str, Any]) -> Any:
    made: Any = object.__new__(_refined_class(kind))
    made.__dict__.update(entries)
    return made


def plain_config(config: Any) -> Any:
    """The configuration of the model without its refinement; another configuration is returned unchanged."""
    kind = getattr(type(config), "plain", None)
    if kind is None:
        return config
    made = copy.copy(config)
    made.__class__ = kind
    made._attn_implementation = made._attn_implementation.removeprefix(PREFIX)
    return made


def read_refined_config(folder: Path) -> Any:
    """The configuration in the folder of a refined model, with the kind of refinement, for the model without it; None for others."""
    from transformers import AutoConfig

    settings = read_json(folder / "config.json")
    kind = settings.get("model_type")
    if not isinstance(kind, str) or not kind.startswith(MODEL_TYPE):
        return None
    rest = {name: value for name, value in settings.items() if name not in ("model_type", "attn_implementation")}
    return AutoConfig.for_model(kind.removeprefix(MODEL_TYPE), **rest)


def is_refined(model: nn.Module) -> bool:
    """Whether a model has a refinement."""
    return any("refined" in module.__dict__ for module in model.modules())


def _check_model(model: nn.Module, kind: str) -> str:
    """Check that a model can be refined; return its attention implementation."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "_attn_implementation"):
        raise InputError(f"refine takes a model of the transformers library, got {type(model).__name__}")
    check_name(kind, REFINEMENTS, "refinement")
    if kind == "metric":
        raise UnsupportedError(
            "a pretrained model has no explicit metric: the metric refinement is for DefiniteAttention(..., metric='diagonal')"
        )
    if is_refined(model):
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


def _make_refinement(
    name: str, site: AttentionSite, kind: str, sign: Sign | None, value: float | None, channels: int | None
) -> Refinement:
    if not site.is_refinable():
        raise UnsupportedError(
            f"the output projection of {name} is not a plain ({site.dim}, {site.heads * site.head_dim}) matrix, which the "
            "refinement reads: quantised and wrapped weights are not supported"
        )
    refinement = make_refinement(kind, site.dim, site.heads, sign, value, channels)
    assert refinement is not None
    return refinement.to(site.output_weight().detach())


END = ".refinement.theta"


def load_refined(folder: str | Path, factory: Any = None, **options: Any) -> Any:
    """Load a refined model that ``model.save_pretrained(folder)`` has written.

    Parameters
    ----------
    folder : holds the weights, with the strengths among them, and the configuration, with the kind of refinement.
    factory : a class of transformers, ``AutoModelForCausalLM`` by default.
    options : further arguments of ``factory.from_pretrained``.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise StoreError(f"{folder} holds no config.json: give a folder that save_pretrained wrote")
    if factory is None:
        from transformers import AutoModelForCausalLM as factory
    try:
        config = read_refined_config(folder)
    except (OSError, ValueError, AttributeError) as error:
        raise StoreError(f"{folder / 'config.json'} is not a sound configuration: {error}") from None
    model = _load_quietly(factory, folder, options if config is None else {"config": config, **options})
    if getattr(model.config, RECORD, None) is None:
        raise InputError(
            f"the model in {folder} was not refined when it was saved: from_pretrained and refine do the rest"
        )
    return attach_strengths(model, _read_strengths(folder), str(folder))


def attach_strengths(model: Model, saved: Mapping[str, torch.Tensor], place: str) -> Model:
    """Refine a model as its configuration says, with stored strengths, by their names."""
    record = getattr(model.config, RECORD)
    delattr(model.config, RECORD)
    refine(model, **record)
    own = {name: value for name, value in model.named_parameters() if name.endswith(END)}
    with torch.no_grad():
        for name, parameter in own.items():
            # parameters of a model with a head have a prefix that those of the bare model lack
            near = _find_near(name, saved) or _find_near(_name_in_files(model, name, parameter), saved)
            if len(near) != 1 or saved[near[0]].shape != parameter.shape:
                raise StoreError(f"the weights in {place} have no strength for {name.removesuffix(END)}")
            parameter.copy_(saved[near[0]])
    return model


def _find_near(name: str, saved: Mapping[str, torch.Tensor]) -> list[str]:
    return [key for key in saved if key == name or key.endswith("." + name) or name.endswith("." + key)]


def _name_in_files(model: Any, name: str, parameter: torch.Tensor) -> str:
    """The name of a parameter in files, where transformers has renamed modules (ViT)."""
    from transformers.core_model_loading import revert_weight_conversion

    return next(iter(revert_weight_conversion(model, {name: parameter.detach()})), name)  # type: ignore[arg-type]


def _load_quietly(factory: Any, folder: Path, options: dict[str, Any]) -> Any:
    """Load the bare model without the warning about unexpected strengths, which are read afterwards."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        return factory.from_pretrained(folder, **options)
    finally:
        logging.set_verbosity(before)


def _read_strengths(folder: Path) -> dict[str, torch.Tensor]:
    """The refinement's tensors in all weight files."""
    from safetensors import safe_open

    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys() if name.endswith(END)}  # noqa: SIM118
    return found
