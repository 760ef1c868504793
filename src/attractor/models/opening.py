"""Opening a checkpoint: a hub name, a folder, a file, a model in memory, or the name of something to fetch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import product
from numbers import Real
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from attractor.errors import CheckpointError, InputError, UnsupportedError, missing
from attractor.files import read_json
from attractor.models import llama2c
from attractor.models.checkpoints import DEPTHS, Checkpoint
from attractor.models.derived_tensors import ScaledTensors, check_packed, has_scales, read_adapter, read_adapter_config
from attractor.models.family import Family, find_family, list_families
from attractor.models.structure import StructuralFamily, is_changed, unwrap
from attractor.models.tensors import LiveTensors, PartTensors, Tensors, check_files, open_tensors
from attractor.models.trained_models import find_blocks, is_run_folder, open_blocks, open_run
from attractor.nn import MODEL_TYPE, plain_config, read_refined_config
from attractor.registry import closest

LARGEST = 10**9  # a number of heads or a dimension above this is damage
DEEPEST = 10**5  # a number of layers above this is damage; lists with an entry for every layer are made from it
# parts of multimodal models, and words in the names of their tensors
PARTS = {"text": (), "vision": ("vision", "visual", "image"), "audio": ("audio", "speech", "sound")}
PATTERNS = ["*.json", "*.txt", "*.model"]
SIZES = (  # as the families call them
    "num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads",
    "num_key_value_heads", "num_kv_heads", "hidden_size", "n_embd", "d_model", "embed_dim",
)  # fmt: skip


def checkpoint(
    source: Any, *, dtype: torch.dtype = torch.float64, structural: bool = False, part: str | None = None
) -> Checkpoint:
    """Open a model lazily: only its configuration and the names of its tensors are read.

    Parameters
    ----------
    source : a folder with config.json and weights, a GGUF file, a file of llama2.c, a name of ``attractor fetch``, a name on the Hugging
        Face hub, or a model of transformers in memory; the folder of a run of ``attractor train``, the ``TrainedRun`` of
        ``at.training.load``, or a module with a list of ``at.nn.TransformerBlock``.
    dtype : precision of the laws.
    structural : whether a model without a family is opened too. It can be traced by its structure, but has no laws.
    part : "text", "vision" or "audio" of a multimodal model, which has a configuration of its own; the text by default, if the whole
        has no family.

    Returns
    -------
    Checkpoint : ``checkpoint.layers[i]`` reads the attention of one layer.

    Notes
    -----
    Code in a repository is never run, and pickles are opened only if they contain nothing but tensors.
    """
    require_transformers()
    if hasattr(source, "open_checkpoint"):  # a run of attractor train
        return source.open_checkpoint(dtype)
    source = source if isinstance(source, (str, Path)) else unwrap(source)
    if isinstance(source, torch.nn.Module):
        return _open_live(source, dtype, structural, part)
    if not isinstance(source, (str, Path)):
        raise InputError(
            f"a checkpoint is opened from a path, a hub name or a transformers model, not from a {type(source).__name__}"
        )
    path = Path(source).expanduser()
    if path.is_dir() and is_run_folder(path):
        return open_run(path, dtype)
    if path.is_dir():
        return _open_folder(path, str(source), dtype, structural, part=part)
    if path.is_file():
        return _open_file(path, dtype, structural, part)
    if _looks_like_path(str(source)):
        raise InputError(f"there is no file or folder {source}")
    fetched = _fetch(str(source))
    if fetched is not None:
        return replace(checkpoint(fetched, dtype=dtype, structural=structural, part=part), name=str(source))
    return _open_folder(_download(str(source)), str(source), dtype, structural, part=part)


def _open_live(model: torch.nn.Module, dtype: torch.dtype, structural: bool, part: str | None) -> Checkpoint:
    config, kind = plain_config(getattr(model, "config", None)), type(model).__name__
    if config is None or not hasattr(config, "model_type"):
        if find_blocks(model) is not None:
            return open_blocks(model, kind, dtype)
        if not structural:
            raise InputError(
                f"a live model must be one of transformers, with a config, or have a list of at.nn.TransformerBlock; this is a {kind}"
            )
        return Checkpoint(
            kind, StructuralFamily(None), SimpleNamespace(model_type=None), LiveTensors(model, False), dtype, model
        )
    if structural and is_changed(
        model
    ):  # modules are not where the family has them, or only the whole model gathers its weights
        return Checkpoint(kind, StructuralFamily(config.model_type), config, LiveTensors(model, False), dtype, model)
    chosen = _choose_part(config, part, f"the {kind}", structural)
    if chosen is not None:
        return _open_live_part(model, chosen, dtype, structural)
    family = _choose_family(config.model_type, f"the {kind}", structural)
    return Checkpoint(kind, family, config, LiveTensors(model, family.renamed), dtype, model)


def _open_live_part(
    model: torch.nn.Module, chosen: tuple[str, Any], dtype: torch.dtype, structural: bool
) -> Checkpoint:
    """Open the innermost model that has the configuration of a part."""
    from transformers import PreTrainedModel

    kind, (name, config) = type(model).__name__, chosen
    inside = [(path, one) for path, one in model.named_modules() if path and isinstance(one, PreTrainedModel)]
    own = [(path, one) for path, one in inside if one.config is config]
    if not own:
        raise UnsupportedError(f"the {kind} has no module with the configuration {name}_config")
    opened = _open_live(own[-1][1], dtype, structural, None)
    return replace(opened, name=f"{own[-1][0]} of {kind}", notes=(*opened.notes, _explain_parts(model.config, name)))


def _list_parts(config: Any) -> dict[str, Any]:
    """The configurations of the parts of a multimodal model, by the name of the part."""
    found = {name: getattr(config, f"{name}_config", None) for name in PARTS}
    return {name: one for name, one in found.items() if hasattr(one, "model_type")}


def _choose_part(config: Any, part: str | None, where: str, structural: bool) -> tuple[str, Any] | None:
    """The name and configuration of the part to open; None for the whole model."""
    parts, families = _list_parts(config), {kind for family in list_families() for kind in family.model_types}
    if part is not None:
        if part not in parts:
            others = f"; it has {', '.join(parts)}" if parts else ""
            raise InputError(f"{where}, a model of type {config.model_type!r}, has no part {part!r}{others}")
        return part, parts[part]
    text = parts.get("text")
    if structural or config.model_type in families or getattr(text, "model_type", None) not in families:
        return None
    return "text", text


def _explain_parts(config: Any, chosen: str) -> str:
    others = [f"{name} ({one.model_type})" for name, one in _list_parts(config).items() if name != chosen]
    more = f"; part=... opens {' or '.join(others)}" if others else ""
    return f"this is the {chosen} part of a {config.model_type}{more}"


def _find_prefix(names: Collection[str], part: str, family: Family) -> str | None:
    """The beginning of the names of a part's tensors, after which they have the names of its family."""
    found: set[str] = set()
    bare = "" in family.prefixes
    for name, start, probe in product(names, family.prefixes, family.probes):
        at = name.find(start + probe)
        before = name[: max(at, 0)] + start
        if at < 0 or (at > 0 and name[at - 1] != "."):
            continue
        kind = next((other for other in ("vision", "audio") if any(word in before for word in PARTS[other])), "text")
        found |= {before if bare else name[:at]} if kind == part else set()
    return min(found, key=len, default=None)


def _choose_family(model_type: str | None, where: str, structural: bool) -> Family:
    """The family of a model type; with ``structural``, a stand-in for types that transformers has and that have no family."""
    known = {kind for family in list_families() for kind in family.model_types}
    if structural and model_type not in known and is_known_type(model_type):
        return StructuralFamily(model_type)
    return find_family(model_type, where)


def is_known_type(model_type: str | None) -> bool:
    """Whether transformers has a model of this type."""
    from transformers import CONFIG_MAPPING

    return model_type in CONFIG_MAPPING


def _open_folder(
    folder: Path, name: str, dtype: torch.dtype, structural: bool, only: Path | None = None, part: str | None = None
) -> Checkpoint:
    """Open the model of a folder; ``only`` is the file of its weights if it was named, ``part`` the part of a multimodal model."""
    file = folder / "config.json"
    if (folder / "adapter_config.json").exists() and (only is None or only.name.startswith("adapter_model")):
        return _open_adapter(folder, name, dtype, structural)
    if not file.exists():
        return _open_without_config(folder, dtype, structural)
    check_files(folder)
    try:
        settings = read_json(file)
        model_type, built = settings.get("model_type"), settings.get("architectures")
        refined = read_refined_config(folder) if str(model_type).startswith(MODEL_TYPE) else None
        model_type = model_type if refined is None else refined.model_type
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{file} cannot be read as JSON: {error}") from None
    check_sizes(settings, str(file))
    tensors, notes = None, ()
    if model_type is None:
        tensors = open_tensors(folder, only)
        model_type = _infer_model_type(tensors.names(), file)
        notes = (f"config.json names no model_type; its tensors are named as those of {model_type}",)
    where = f"{name} ({', '.join(map(str, built))})" if isinstance(built, list) and built else name
    if refined is not None:
        family = _choose_family(model_type, where, structural)
        return Checkpoint(name, family, refined, open_tensors(folder, only), dtype, notes=notes)
    whole = _read_config(folder, model_type) if part is not None or is_known_type(model_type) else None
    chosen = None if whole is None else _choose_part(whole, part, name, structural)
    config: Any = whole if chosen is None else chosen[1]
    family = _choose_family(model_type if config is None else config.model_type, where, structural)
    config = config or _read_config(folder, model_type)
    tensors = tensors or open_tensors(folder, only)
    if chosen is not None:
        prefix = _find_prefix(tensors.names(), chosen[0], family)
        if prefix is None:
            raise CheckpointError(
                f"{name} holds no tensors named as those of its {chosen[0]} part ({config.model_type})"
            )
        tensors, notes = PartTensors(tensors, prefix), (*notes, _explain_parts(whole, chosen[0]))
    quantised = getattr(config, "quantization_config", None)
    if quantised or has_scales(tensors.names()):
        tensors = _open_quantised(config, tensors, quantised, name)
        notes += ("the weights are stored in 8 bits with scales, so spectra are approximate",)
    return Checkpoint(name, family, config, tensors, dtype, notes=notes)


def _open_quantised(config: Any, tensors: Tensors, settings: Any, name: str) -> Tensors:
    """8-bit tensors with scales; raises for formats that only their own kernels read."""
    settings = settings if isinstance(settings, dict) else getattr(settings, "to_dict", dict)()
    method = settings.get("quant_method")
    check_packed(tensors.names(), name, method)
    if not has_scales(tensors.names()):
        raise UnsupportedError(
            f"{name} holds weights quantised by {method or 'an unnamed method'}, and no scales; open the original, or a GGUF file"
        )
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the tensors are dequantised when they are read
    return ScaledTensors(tensors)


def _open_without_config(folder: Path, dtype: torch.dtype, structural: bool) -> Checkpoint:
    """Open the only GGUF file of a folder without config.json."""
    quantised = sorted(folder.glob("*.gguf"))
    others = sorted(file.name for kind in ("*.safetensors", "*.bin", "*.pt") for file in folder.glob(kind))
    if len(quantised) == 1 and not others:
        return _open_file(quantised[0], dtype, structural)
    if quantised:
        names = [file.name for file in quantised] + others
        listed = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
        raise CheckpointError(f"{folder} holds several models ({listed}): give the path of one file")
    raise CheckpointError(f"{folder} has no config.json, so the model in it is not known")


def _open_adapter(folder: Path, name: str, dtype: torch.dtype, structural: bool) -> Checkpoint:
    """Open a folder with a LoRA adapter: its base model with the adapter merged in."""
    source = str(read_adapter_config(folder).get("base_model_name_or_path") or "")
    places = [folder] if (folder / "config.json").exists() else []
    places += [place for place in (Path(source).expanduser(), folder / source) if source and place.is_dir()]
    beside = folder.parent / Path(source).name
    places += [beside] if source and beside.is_dir() and beside != folder else []
    for place in places:
        if place != folder:
            base = checkpoint(place, dtype=dtype, structural=structural)
            break
        if any(not file.name.startswith("adapter_model") for file in folder.glob("*.safetensors")):
            base = _open_base(folder, dtype, structural)
            break
    else:
        if not source:
            raise CheckpointError(f"{folder} holds an adapter whose adapter_config.json does not name its base model")
        try:
            base = checkpoint(source, dtype=dtype, structural=structural)
        except (InputError, CheckpointError) as error:
            raise CheckpointError(
                f"{folder} holds a LoRA adapter of {source!r}, which could not be opened ({_first_sentence(error)}); "
                f"put the base model into {beside}"
            ) from None
    tensors = read_adapter(folder, base.tensors)
    note = f"the adapter {folder.name} is merged into {base.name} ({len(tensors.changes)} matrices are changed)"
    return replace(base, name=name, tensors=tensors, notes=(*base.notes, note))


def _open_base(folder: Path, dtype: torch.dtype, structural: bool) -> Checkpoint:
    """The base model that lies in the same folder as its adapter."""
    files = [file for file in sorted(folder.glob("*.safetensors")) if not file.name.startswith("adapter_model")]
    return _open_folder(folder, str(folder), dtype, structural, files[0])


def check_sizes(settings: Any, place: str) -> None:
    """Raise if a number of heads or layers or a dimension in a configuration is below 1 or absurdly large."""
    limits = [*((name, LARGEST) for name in SIZES), *((name, DEEPEST) for name in DEPTHS)]
    parts = [settings, *(part for part in settings.values() if isinstance(part, dict))]  # such as text_config
    for part, (name, most) in product(parts, limits):
        value = part.get(name)
        if not isinstance(value, Real) or isinstance(value, bool):
            continue
        if value < 1 and name in SIZES:
            raise CheckpointError(
                f"{place} says {name} = {value}, and a model has at least 1: the configuration is damaged"
            )
        if not value <= most:
            raise CheckpointError(
                f"{place} says {name} = {value:g}, and a model has at most {most:g}: the configuration is damaged"
            )


def _infer_model_type(names: Collection[str], file: Path) -> str:
    """The model type of a configuration without one, from the prefix of tensor names or a family's ``signature``."""
    known = {kind for family in list_families() for kind in family.model_types}
    found = sorted({name.split(".")[0] for name in names} & known)
    if not found:
        found = [family.model_types[0] for family in list_families() if vars(type(family)).get("signature") in names]
    if len(found) != 1:
        some = ", ".join(sorted(names)[:2])
        raise UnsupportedError(
            f"{file} names no model_type, and the tensors ({some}, ...) do not tell which it is; add "
            f'"model_type" to it, one of {", ".join(sorted(known))}'
        )
    return found[0]


def _read_config(folder: Path, model_type: str) -> Any:
    from transformers import AutoConfig

    try:
        if "model_type" not in (settings := read_json(folder / "config.json")):
            return AutoConfig.for_model(model_type, **settings)
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise CheckpointError(
            f"{folder / 'config.json'} is not a sound configuration: {_first_sentence(error)}"
        ) from None


def _open_file(path: Path, dtype: torch.dtype, structural: bool, part: str | None = None) -> Checkpoint:
    if path.suffix == ".gguf":
        from attractor.models.gguf import open_gguf

        return open_gguf(path, dtype)
    if path.name == "config.json":
        return _open_folder(path.parent, str(path.parent), dtype, structural, part=part)
    if path.suffix == ".safetensors":
        return _open_folder(path.parent, str(path), dtype, structural, path, part)
    if path.suffix in (".bin", ".data") and llama2c.is_llama2c(path):
        return llama2c.open_llama2c(path, dtype)
    if path.suffix in (".bin", ".pt", ".pth") and (path.parent / "config.json").exists():
        return _open_folder(path.parent, str(path), dtype, structural, path, part)
    if path.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl"):
        raise CheckpointError(
            f"{path} is a single pickle without a configuration; give the folder that holds it and its config.json"
        )
    raise InputError(f"{path} is not a checkpoint: give a folder with config.json and weights, or a .gguf file")


def _looks_like_path(source: str) -> bool:
    marked = source.startswith((".", "/", "~")) or source.count("/") > 1 or "\\" in source
    return marked or Path(source).suffix in (".gguf", ".safetensors", ".bin", ".pt")


def _fetch(name: str) -> Path | None:
    """The path of a model of ``attractor fetch``, downloaded if necessary; None for any other name."""
    from attractor import assets

    known = {one.name.lower() for one in assets.list_assets("model")}
    return assets.fetch(name) if name.lower() in known else None


def _download(name: str) -> Path:
    """The folder of a hub model, from the cache or the network."""
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(name, allow_patterns=[*PATTERNS, "*.safetensors"]))
        if not list(folder.glob("*.safetensors")):
            folder = Path(snapshot_download(name, allow_patterns=[*PATTERNS, "pytorch_model*.bin"]))
    except Exception as error:
        from attractor import assets

        asset = closest(name, (one.name for one in assets.list_assets("model")), 0.8)
        hint = f"did you mean {asset!r}? Otherwise " if asset else ""
        raise CheckpointError(
            f"{name!r} is no file or folder here, is not in the cache of the Hugging Face hub and could not be fetched "
            f"({_first_sentence(error).removeprefix('Got: ')}); {hint}connect to the network, or give the path of a folder or a file"
        ) from None
    return folder


def _first_sentence(error: Exception) -> str:
    """The first sentence of an error message."""
    text = " ".join(str(error).split()).split(" An error happened")[0]
    return text.split(". ")[0].rstrip(".") or type(error).__name__


def require_transformers() -> None:
    """Raise if transformers is not installed."""
    try:
        import transformers  # noqa: F401
    except ImportError:
        raise missing("transformers", "checkpoints") from None
