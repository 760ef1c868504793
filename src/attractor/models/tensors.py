"""Tensor storage of checkpoints, read one tensor at a time."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol
from zipfile import is_zipfile

import torch
from torch import Tensor

from attractor.errors import CheckpointError, InputError, UnsupportedError, missing
from attractor.files import check_regular, read_json

# parts of the names of files that Trainer, accelerate and others write next to the weights
NOT_WEIGHTS = (
    "optimizer",
    "scheduler",
    "scaler",
    "training_args",
    "rng_state",
    "random_states",
    "trainer_state",
    "adapter_model",
)

CPU = torch.device("cpu")


class Tensors(Protocol):
    """Named tensors that are read one at a time."""

    def names(self) -> Collection[str]:
        """All names; no tensor is read."""
        ...

    def read(self, name: str) -> Tensor:
        """Read one tensor as it is stored."""
        ...

    def describe(self) -> str:
        """The location of the tensors, for messages."""
        ...


class SafetensorsFolder:
    """The safetensors files of a folder, one or many.

    A file is mapped only while one of its tensors is read: touched pages count as memory of the process while the map exists.
    With ``only`` the tensors are those of this file, whatever lies beside it.
    """

    def __init__(self, folder: Path, only: Path | None = None) -> None:
        self.folder, self.only = folder, only
        index = folder / "model.safetensors.index.json"
        if only is not None:
            self._files = dict.fromkeys(_keys(only), only)
        elif index.exists():
            self._files = {name: folder / file for name, file in _weight_map(index).items()}
            absent = sorted({file.name for file in self._files.values() if not file.exists()})
            if absent:
                lost = f"{len(absent)} of them {'is' if len(absent) == 1 else 'are'} missing"
                raise CheckpointError(
                    f"{index} names {len(set(self._files.values()))} files and {lost}: {', '.join(absent[:3])}"
                )
            for file in sorted(set(self._files.values())):
                held = set(_keys(file))  # reads only the header, and raises if the file is shorter than it says
                lost = next((name for name, place in self._files.items() if place == file and name not in held), None)
                if lost is not None:
                    raise CheckpointError(f"{index} says that {file.name} holds the tensor {lost}, which it does not")
        else:
            files = [file for file in sorted(folder.glob("*.safetensors")) if not _is_other_file(file)]
            whole = folder / "model.safetensors"
            files = [whole] if whole in files else files
            self._files = {}
            for file in files:
                held = _keys(file)
                twice = next((name for name in held if name in self._files), None)
                if twice is not None:
                    raise CheckpointError(
                        f"{folder} holds the tensor {twice} in {self._files[twice].name} and in {file.name}: give the path of one file"
                    )
                self._files |= dict.fromkeys(held, file)

    def names(self) -> Collection[str]:
        return self._files.keys()

    def read(self, name: str) -> Tensor:
        file = self._files[name]
        try:
            with _safe_open()(file, framework="pt") as stored:
                return stored.get_tensor(name).clone()
        except Exception as error:
            raise _damaged(file, error) from None

    def describe(self) -> str:
        return str(self.only or self.folder)


@dataclass(frozen=True, eq=False)
class PartTensors:
    """The tensors of one part of a model, under their names within it."""

    whole: Tensors
    prefix: str

    def names(self) -> Collection[str]:
        return [name.removeprefix(self.prefix) for name in self.whole.names() if name.startswith(self.prefix)]

    def read(self, name: str) -> Tensor:
        return self.whole.read(self.prefix + name)

    def describe(self) -> str:
        return self.whole.describe()


class PickleFolder:
    """Pickles of PyTorch, read only if they contain nothing but tensors."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files
        self._tensors: dict[str, Tensor] = {}
        for file in files:
            self._tensors |= load_pickle(file)

    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def read(self, name: str) -> Tensor:
        return self._tensors[name]

    def describe(self) -> str:
        return str(self.files[0].parent)


class LiveTensors:
    """The parameters of a model in memory, without copies; low-rank adapters of PEFT that are active are merged when they are read."""

    def __init__(self, model: torch.nn.Module, as_in_files: bool = False) -> None:
        self._tensors = {name.replace("._original_component", ""): one for name, one in model.state_dict().items()}
        for path, module in model.named_modules():
            if hasattr(module, "modules_to_save") and hasattr(module, "original_module"):
                self._tensors = _choose_copy(self._tensors, path, module)
        self._adapted = _find_adapted(model)
        for path in self._adapted:
            inside = {name: tensor for name, tensor in self._tensors.items() if name.startswith(f"{path}.")}
            self._tensors = {name: tensor for name, tensor in self._tensors.items() if name not in inside}
            base = f"{path}.base_layer."
            self._tensors |= {
                f"{path}.{name.removeprefix(base)}": tensor for name, tensor in inside.items() if name.startswith(base)
            }
        absent = next((name for name, tensor in self._tensors.items() if tensor.is_meta), None)
        if absent is not None:
            raise UnsupportedError(
                f"the tensor {absent} of this {type(model).__name__} is on the meta device: its values are offloaded or were never "
                "loaded; load the model without offloading, or give its folder"
            )
        if as_in_files:
            from transformers.core_model_loading import revert_weight_conversion

            self._tensors = revert_weight_conversion(model, self._tensors)  # type: ignore[arg-type]
        self._kind = type(model).__name__

    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def read(self, name: str) -> Tensor:
        stored = self._tensors[name].detach()
        whole = getattr(stored, "full_tensor", None)  # of weights that are sharded over processes
        tensor = stored if whole is None else whole()
        path, _, kind = name.rpartition(".")
        module = self._adapted.get(path)
        if module is None or kind != "weight" or module.merged or module.disable_adapters:
            return tensor
        return tensor + sum(module.get_delta_weight(adapter).detach() for adapter in _active_adapters(module))

    def describe(self) -> str:
        return f"the {self._kind} in memory"


def _choose_copy(tensors: dict[str, Tensor], path: str, module: Any) -> dict[str, Tensor]:
    """Tensors with those of the active one of the copies that PEFT keeps of a module (``modules_to_save``)."""
    active = [name for name in module.active_adapters if name in module.modules_to_save]
    chosen = (
        f"{path}.modules_to_save.{active[0]}." if active and not module.disable_adapters else f"{path}.original_module."
    )
    inside = {f"{path}.{name.removeprefix(chosen)}": one for name, one in tensors.items() if name.startswith(chosen)}
    return {name: one for name, one in tensors.items() if not name.startswith(f"{path}.")} | inside


def _active_adapters(module: Any) -> list[str]:
    """The active adapters that a layer has."""
    return [name for name in module.active_adapters if name in module.lora_A or name in module.lora_embedding_A]


def _find_adapted(model: torch.nn.Module) -> dict[str, Any]:
    """The layers of a model to which PEFT has added a low-rank adapter, by name; raises for other kinds of adapters."""
    found: dict[str, Any] = {path: one for path, one in model.named_modules() if hasattr(one, "base_layer")}
    for path, module in found.items():
        variant = getattr(module, "lora_variant", {})
        if not hasattr(module, "lora_A") or any(name in variant for name in module.active_adapters):
            raise UnsupportedError(
                f"{path} of this {type(model).__name__} has an adapter that is not plain LoRA ({type(module).__name__}); call "
                "merge_and_unload() first"
            )
    return found


def open_tensors(folder: Path, only: Path | None = None) -> Tensors:
    """The tensors of a folder: safetensors, or pickles that load safely; with ``only`` those of one file."""
    check_files(folder)
    if only is not None and not _is_part(only):
        return SafetensorsFolder(folder, only) if only.suffix == ".safetensors" else PickleFolder([only])
    if (
        any(not _is_other_file(file) for file in folder.glob("*.safetensors"))
        or (folder / "model.safetensors.index.json").exists()
    ):
        return SafetensorsFolder(folder)
    index = folder / "pytorch_model.bin.index.json"
    if index.exists():
        names = sorted(set(_weight_map(index).values()))
        return PickleFolder([folder / name for name in names])
    whole = folder / "pytorch_model.bin"
    pickles = [whole] if whole.exists() else _pickles(folder)
    if len(pickles) == 1:
        return PickleFolder(pickles)
    if pickles:
        names = ", ".join(file.name for file in pickles[:4])
        raise CheckpointError(
            f"{folder} holds several files that could be the weights ({names}): name the right one pytorch_model.bin"
        )
    raise CheckpointError(
        f"{folder} holds no weights: there is neither a .safetensors file nor a .bin or .pt file"
        + ("; to open the GGUF file in it, give its path" if any(folder.glob("*.gguf")) else "")
    )


def _is_part(file: Path) -> bool:
    """Whether the index of a folder names a file, which then holds a part of the weights."""
    indices = (file.parent / name for name in ("model.safetensors.index.json", "pytorch_model.bin.index.json"))
    return any(index.exists() and file.name in _weight_map(index).values() for index in indices)


def check_files(folder: Path) -> None:
    """Raise if a folder contains a named pipe, a socket or a device, which could be waited for without end."""
    try:
        for file in folder.iterdir():
            check_regular(file)
    except OSError as error:
        place = error.filename or folder
        raise CheckpointError(f"{place} cannot be read: {error.strerror or error}; remove it from the folder") from None


def _pickles(folder: Path) -> list[Path]:
    """Files that may contain weights, where none has a name of transformers."""
    found = sorted(folder.glob("*.bin")) + sorted(folder.glob("*.pt")) + sorted(folder.glob("*.pth"))
    return [file for file in found if not _is_other_file(file)]


def _is_other_file(file: Path) -> bool:
    return any(word in file.name.lower() for word in NOT_WEIGHTS)


def load_pickle(file: Path) -> dict[str, Tensor]:
    """The tensors of a pickle; raises if it contains anything else."""
    if not file.exists():
        raise CheckpointError(f"the index names {file.name}, which is missing from {file.parent}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the version of a pickle; errors are reported below
            # files of the old format cannot be mapped
            stored = torch.load(file, map_location="cpu", weights_only=True, mmap=is_zipfile(file))
    except Exception as error:
        reason = str(error).split("\n")[0].split(". ")[0]
        raise CheckpointError(
            f"{file} is a pickle that does not load with weights_only=True, so it may run code and is not opened "
            f"({reason}); convert it to safetensors where you trust it"
        ) from None
    if not isinstance(stored, dict) or not all(isinstance(value, Tensor) for value in stored.values()):
        raise CheckpointError(f"{file} is not a table of named tensors, but a {type(stored).__name__}")
    return stored


def _weight_map(index: Path) -> dict[str, str]:
    try:
        found = read_json(index)["weight_map"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{index} cannot be read as an index of weights: {type(error).__name__}: {error}"
        ) from None
    if not isinstance(found, dict) or not all(isinstance(file, str) for file in found.values()):
        raise CheckpointError(
            f'{index} is damaged: its "weight_map" must give the name of a file for every tensor; fetch it again'
        )
    if any(Path(file).name != file for file in found.values()):
        raise CheckpointError(f"{index} names files outside its folder")
    return found


def _keys(file: Path) -> list[str]:
    try:
        with _safe_open()(file, framework="pt") as stored:
            return list(stored.keys())
    except Exception as error:
        raise _damaged(file, error) from None


def _safe_open() -> Any:
    try:
        from safetensors import safe_open
    except ImportError:
        raise missing("safetensors", "checkpoints") from None
    return safe_open


def _damaged(file: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{file} cannot be read ({error}): it is truncated or not a safetensors file; fetch it again"
    )


FEED_FORWARD = re.compile(
    r"\.(mlp|fc1|fc2|fc_in|fc_out|intermediate|experts|ffn|ffn_output|lin1|lin2|DenseReluDense|shared_experts|feed_forward|block_sparse_moe|shared_mlp)\."
)


@dataclass(frozen=True)
class Reader:
    """Reads the tensor ``prefix + name``; raises if its shape contradicts the configuration or an entry is not finite.

    Vectors are converted to ``dtype``; matrices are returned as stored unless ``widened``, and are later converted head by head, so that
    a layer takes no more memory than its file.
    """

    tensors: Tensors
    prefix: str = ""
    dtype: torch.dtype = torch.float64
    names: frozenset[str] = field(default=frozenset(), repr=False)
    widened: bool = False
    device: torch.device = CPU

    def wide(self) -> Reader:
        """A reader that converts matrices to ``dtype`` too."""
        return replace(self, widened=True)

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.names

    def __call__(self, name: str, *shape: int) -> Tensor:
        """Read a tensor; raises if it does not have the given shape."""
        if name not in self:
            raise CheckpointError(
                f"{self.tensors.describe()} has no tensor {self.prefix + name}, which its configuration calls for"
            )
        tensor = self.tensors.read(self.prefix + name).to(self.device)
        if shape and tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"the tensor {self.prefix + name} has shape {tuple(tensor.shape)}, the configuration calls for {shape}"
            )
        if not tensor.is_floating_point():
            raise UnsupportedError(
                f"the tensor {self.prefix + name} holds integers ({str(tensor.dtype).removeprefix('torch.')}) without a scale, so its "
                "values are not known"
            )
        check_finite(self.prefix + name, tensor)
        check_range(self.prefix + name, tensor, self.dtype)
        return tensor.to(self.dtype) if self.widened or tensor.ndim < 2 else tensor

    def maybe(self, name: str, *shape: int) -> Tensor | None:
        """Read a tensor, or return None if it does not exist."""
        return self(name, *shape) if name in self else None

    def first(self, *names: str) -> str:
        """The first name that exists; releases of transformers have renamed modules."""
        return next((name for name in names if name in self), names[0])

    def under(self, prefix: str) -> list[str]:
        """Names below ``prefix``, without those of the feed-forward."""
        start = self.prefix + prefix
        found = [name[len(self.prefix) :] for name in self.names if name.startswith(start)]
        return sorted(name for name in found if not FEED_FORWARD.search(name))


def check_finite(name: str, tensor: Tensor) -> None:
    """Raise if weights are NaN or infinite, or are stored in 8 bits with separate scales."""
    if tensor.is_floating_point() and tensor.element_size() < 2:
        raise UnsupportedError(
            f"the tensor {name} has the type {str(tensor.dtype).removeprefix('torch.')}, whose scales attractor does not read: "
            "convert the checkpoint to bfloat16 first"
        )
    # minimum and maximum propagate NaN, need no copy, and are much faster than a test of every entry
    if tensor.numel() == 0 or all(bool(torch.isfinite(end)) for end in torch.aminmax(tensor)):
        return
    count = int((~torch.isfinite(tensor)).sum())
    entries = "1 entry that is" if count == 1 else f"{count} entries that are"
    if tensor.dtype == torch.float16 and not bool(torch.isnan(tensor).any()):
        cast = "weights above 65504, where float16 ends, were cast to it, or the checkpoint is damaged"
        raise CheckpointError(f"the tensor {name} holds {entries} infinite: {cast}")
    raise CheckpointError(f"the tensor {name} holds {entries} NaN or infinite: the checkpoint is damaged")


def check_range(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    """Raise if a finite weight is too large for the type that it is converted to."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return
    most = torch.finfo(dtype).max
    if torch.finfo(tensor.dtype).max <= most:
        return
    largest = max(abs(float(end)) for end in torch.aminmax(tensor))
    if most < largest < float("inf"):
        kind = str(dtype).removeprefix("torch.")
        raise InputError(
            f"the tensor {name} has an entry of size {largest:.6g}, and {kind} ends at {most:.6g}: take bfloat16, float32 or float64"
        )


def make_reader(
    tensors: Tensors, prefixes: tuple[str, ...], probes: tuple[str, ...], dtype: torch.dtype, device: torch.device = CPU
) -> Reader:
    """A reader with the first prefix under which a tensor exists whose name begins with one of ``probes``."""
    names = frozenset(tensors.names())
    for prefix in prefixes:
        if any(name.startswith(prefix + probe) for name in names for probe in probes):
            return Reader(tensors, prefix, dtype, names, device=device)
    starts = [prefix + probe for prefix in prefixes for probe in probes]
    raise CheckpointError(
        f"{tensors.describe()} has no tensor whose name begins with {' or '.join(starts)}, which its configuration calls for"
    )
