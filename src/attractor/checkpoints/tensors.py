"""Where a checkpoint's tensors lie, and how one of them is read without the others."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, Protocol
from zipfile import is_zipfile

import torch
from torch import Tensor

from attractor.errors import CheckpointError, missing

# parts of the names of files that Trainer, accelerate and others write beside the weights
BESIDE = (
    "optimizer",
    "scheduler",
    "scaler",
    "training_args",
    "rng_state",
    "random_states",
    "trainer_state",
    "adapter_model",
)


class Tensors(Protocol):
    """Named tensors that are read one at a time."""

    def names(self) -> Collection[str]:
        """Every name there is, without reading anything."""
        ...

    def read(self, name: str) -> Tensor:
        """One tensor as it is stored."""
        ...

    def describe(self) -> str:
        """Where the tensors are, for messages."""
        ...


class SafetensorsFolder:
    """The safetensors files of a folder, one or many.

    A file is mapped into memory only while one of its tensors is read: pages that were touched would count as memory of the
    process for as long as the map exists.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        index = folder / "model.safetensors.index.json"
        if index.exists():
            self._files = {name: folder / file for name, file in _weight_map(index).items()}
            absent = sorted({file.name for file in self._files.values() if not file.exists()})
            if absent:
                raise CheckpointError(
                    f"{index} names {len(set(self._files.values()))} files and {len(absent)} of them are missing: {', '.join(absent[:3])}"
                )
            for file in sorted(set(self._files.values())):
                held = set(_keys(file))  # reads the header alone, and refuses a file that is shorter than it says
                lost = next((name for name, place in self._files.items() if place == file and name not in held), None)
                if lost is not None:
                    raise CheckpointError(f"{index} says that {file.name} holds the tensor {lost}, which it does not")
        else:
            files = [file for file in sorted(folder.glob("*.safetensors")) if not _beside(file)]
            whole = folder / "model.safetensors"
            files = [whole] if whole in files else files
            self._files = {name: file for file in files for name in _keys(file)}

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
        return str(self.folder)


class PickleFolder:
    """PyTorch's own files, read only if they hold nothing but tensors."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files
        self._tensors: dict[str, Tensor] = {}
        for file in files:
            self._tensors |= unpickled(file)

    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def read(self, name: str) -> Tensor:
        return self._tensors[name]

    def describe(self) -> str:
        return str(self.files[0].parent)


class LiveTensors:
    """The parameters of a model in memory; nothing is copied before it is read."""

    def __init__(self, model: torch.nn.Module, as_in_files: bool = False) -> None:
        self._tensors = model.state_dict()
        if as_in_files:
            from transformers.core_model_loading import revert_weight_conversion

            self._tensors = revert_weight_conversion(model, self._tensors)  # type: ignore[arg-type]
        self._kind = type(model).__name__

    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def read(self, name: str) -> Tensor:
        return self._tensors[name].detach()

    def describe(self) -> str:
        return f"the {self._kind} in memory"


def folder_tensors(folder: Path) -> Tensors:
    """The tensors of a folder: safetensors, or pickles that load safely."""
    if (
        any(not _beside(file) for file in folder.glob("*.safetensors"))
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
        f"{folder} holds no weights: there is neither a .safetensors file nor a .bin, .pt or .gguf file"
    )


def _pickles(folder: Path) -> list[Path]:
    """Files that may hold weights, where none has the name that transformers uses; what training leaves beside them is left out."""
    found = sorted(folder.glob("*.bin")) + sorted(folder.glob("*.pt")) + sorted(folder.glob("*.pth"))
    return [file for file in found if not _beside(file)]


def _beside(file: Path) -> bool:
    return any(word in file.name.lower() for word in BESIDE)


def unpickled(file: Path) -> dict[str, Tensor]:
    """The tensors of a pickle, refused if it asks for anything else."""
    if not file.exists():
        raise CheckpointError(f"the index names {file.name}, which is missing from {file.parent}")
    try:
        stored = torch.load(
            file, map_location="cpu", weights_only=True, mmap=is_zipfile(file)
        )  # old files cannot be mapped
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
        found = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{index} cannot be read as an index of weights: {type(error).__name__}: {error}"
        ) from None
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
