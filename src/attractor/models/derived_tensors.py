"""Tensors that are computed from stored ones: 8-bit weights with scales, and low-rank adapters merged into their base."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attractor.errors import CheckpointError, UnsupportedError
from attractor.files import read_json
from attractor.models.tensors import SafetensorsFolder, Tensors, load_pickle

SCALES = ("_scale_inv", "_scale", "_scales")
HELPERS = (*SCALES, "_zero_point", "input_scale", "output_scale", "k_scale", "v_scale", "_shape", "_g_idx")
PACKED = ("qweight", "qzeros", "weight_packed", "weight.absmax", "weight.quant_state", "weight.SCB")
MANTISSA = {"float8_e4m3fn": (3, -6), "float8_e5m2": (2, -14)}  # bits, and the exponent below which the grid is uniform


def has_scales(names: Collection[str]) -> bool:
    """Whether weights are stored with separate scales."""
    return any(name.endswith(tuple(f".weight{end}" for end in SCALES)) for name in names)


def check_packed(names: Collection[str], where: str, method: str | None) -> None:
    """Raise if weights are packed in a format that only its own kernels read (GPTQ, AWQ, bitsandbytes)."""
    found = next((name for name in names if name.endswith(PACKED)), None)
    if found is not None:
        kind = f" by {method}" if method else ""
        raise UnsupportedError(
            f"{where} holds weights packed{kind} ({found}), which only its own kernels read; open the original model, or a GGUF file"
        )


@dataclass(frozen=True, eq=False)
class ScaledTensors:
    """Weights stored in 8 bits, fp8 or integers, multiplied by their scales: one for a tensor, a row or a block."""

    stored: Tensors

    def names(self) -> Collection[str]:
        return [name for name in self.stored.names() if not name.endswith(HELPERS)]

    def read(self, name: str) -> Tensor:
        values = self.stored.read(name)
        scale = self._scale(name, values)
        return values if scale is None else values.float() * scale

    def step(self, name: str) -> Tensor | None:
        """The distance of neighbouring stored numbers at every entry; None for a tensor that is not in 8 bits."""
        values = self.stored.read(name)
        scale = self._scale(name, values)
        if scale is None:
            return None
        if not values.is_floating_point():
            return scale.double().abs().expand(values.shape)
        bits, lowest = MANTISSA[str(values.dtype).removeprefix("torch.")]
        sizes = values.double().abs()
        exponent = sizes.clamp_min(2.0**lowest).log2().floor()
        return 2.0 ** (exponent - bits) * scale.double().abs()

    def without_grid(self) -> list[str]:
        """Formats without a grid: none."""
        return []

    def describe(self) -> str:
        return self.stored.describe()

    def _scale(self, name: str, values: Tensor) -> Tensor | None:
        """The scale of every entry of a tensor, broadcast to its shape; None if it is not in 8 bits."""
        if values.element_size() != 1 or values.dtype == torch.bool:
            return None
        known = set(self.stored.names())
        place = next((name + end for end in SCALES if name + end in known), None)
        if place is None:
            raise UnsupportedError(
                f"the tensor {name} is stored in 8 bits without a scale, so its values are not known"
            )
        if f"{name}_zero_point" in known and bool((self.stored.read(f"{name}_zero_point") != 0).any()):
            raise UnsupportedError(f"the tensor {name} is stored with zero points, which are not read")
        scale = self.stored.read(place).float()
        if scale.numel() == 1 or values.ndim != 2:
            return (
                scale.reshape([1] * values.ndim)
                if scale.numel() == 1
                else scale.reshape(values.shape[0], *[1] * (values.ndim - 1))
            )
        if scale.ndim == 1:
            scale = scale[:, None]
        if scale.shape[0] == values.shape[0] and scale.shape[1] == 1:
            return scale
        blocks = [-(-size // count) for size, count in zip(values.shape, scale.shape, strict=True)]
        blocks = [
            1 << (block - 1).bit_length() if count > 1 else block
            for block, count in zip(blocks, scale.shape, strict=True)
        ]
        whole = scale
        for axis, (block, size) in enumerate(zip(blocks, values.shape, strict=True)):
            if -(-size // block) != scale.shape[axis]:
                raise CheckpointError(
                    f"the scales {place} {tuple(scale.shape)} do not fit the tensor {name} {tuple(values.shape)}"
                )
            whole = whole.repeat_interleave(block, axis).narrow(axis, 0, size)
        return whole


@dataclass(frozen=True)
class LowRank:
    """One low-rank change of a matrix: factor * B A, with the magnitudes of its rows in DoRA."""

    down: Tensor
    up: Tensor
    factor: float
    magnitude: Tensor | None = None
    embedding: bool = False

    def apply(self, matrix: Tensor) -> Tensor:
        """The changed matrix, in float32 at least."""
        matrix = matrix if matrix.dtype == torch.float64 else matrix.float()
        change = self.factor * (self.up.double() @ self.down.double())
        change = change.mT if self.embedding else change
        swapped = change.shape != matrix.shape and change.mT.shape == matrix.shape
        if change.shape != matrix.shape and not swapped:
            raise CheckpointError(
                f"an adapter of shape {tuple(change.shape)} does not fit a matrix {tuple(matrix.shape)}"
            )
        whole = (matrix.mT if swapped else matrix).double() + change
        if self.magnitude is not None:
            whole = whole * (self.magnitude.double() / torch.linalg.vector_norm(whole, dim=1))[:, None]
        return (whole.mT if swapped else whole).to(matrix.dtype)


@dataclass(frozen=True, eq=False)
class AdaptedTensors:
    """The tensors of a base model with the changes of an adapter, merged one tensor at a time."""

    base: Tensors
    changes: Mapping[str, LowRank]
    replaced: Mapping[str, Tensor] = field(default_factory=dict)
    place: str = ""

    def names(self) -> Collection[str]:
        return self.base.names()

    def read(self, name: str) -> Tensor:
        if name in self.replaced:
            return self.replaced[name]
        change, matrix = self.changes.get(name), self.base.read(name)
        return matrix if change is None else change.apply(matrix)

    def describe(self) -> str:
        return self.place


def read_adapter(folder: Path, base: Tensors) -> AdaptedTensors:
    """The tensors of a base model with the LoRA adapter of a folder (adapter_config.json and adapter_model) merged in."""
    settings = read_adapter_config(folder)
    file = folder / "adapter_model.safetensors"
    if file.exists():
        held = SafetensorsFolder(folder, file)
        stored = {name: held.read(name) for name in held.names()}
    elif (folder / "adapter_model.bin").exists():
        stored = load_pickle(folder / "adapter_model.bin")
    else:
        raise CheckpointError(
            f"{folder} has an adapter_config.json, but neither adapter_model.safetensors nor adapter_model.bin"
        )
    known = _Names(base.names(), str(folder))
    parts: dict[str, dict[str, Tensor]] = {}
    replaced: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        module, _, kind = name.removeprefix("base_model.model.").partition(".lora_")
        if kind:
            parts.setdefault(module, {})[kind.split(".")[0]] = tensor
        else:
            replaced[known.find(module.replace(".base_layer.", ".").replace(".modules_to_save.default.", "."))] = tensor
    changes = {}
    for module, tensors in parts.items():
        unknown = set(tensors) - {"A", "B", "magnitude_vector", "embedding_A", "embedding_B"}
        if unknown or len(tensors) < 2:
            raise UnsupportedError(
                f"{folder} has the tensors lora_{', lora_'.join(sorted(tensors))} of {module}, which are not a pair A, B"
            )
        embedding = "embedding_A" in tensors
        down, up = (tensors["embedding_A"], tensors["embedding_B"]) if embedding else (tensors["A"], tensors["B"])
        factor = _factor(settings, module, down.shape[0])
        changes[known.find(f"{module}.weight")] = LowRank(down, up, factor, tensors.get("magnitude_vector"), embedding)
    return AdaptedTensors(base, changes, replaced, str(folder))


def read_adapter_config(folder: Path) -> dict[str, Any]:
    """The settings of an adapter; raises for kinds other than LoRA."""
    file = folder / "adapter_config.json"
    try:
        settings = read_json(file)
        kind = settings.get("peft_type", "LORA")
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{file} cannot be read as JSON: {error}") from None
    if kind != "LORA":
        raise UnsupportedError(f"{folder} holds an adapter of type {kind}; LoRA and DoRA are merged, others are not")
    return settings


def _factor(settings: dict[str, Any], module: str, rank: int) -> float:
    """alpha / r, or alpha / sqrt(r) for rank-stabilised LoRA, with the module's own alpha where it has one."""
    alpha = float(settings.get("lora_alpha", 8))
    for pattern, own in (settings.get("alpha_pattern") or {}).items():
        if module == pattern or module.endswith(f".{pattern}"):
            alpha = float(own)
    return alpha / (rank**0.5 if settings.get("use_rslora") else rank)


class _Names:
    """Finds the tensors of the base that an adapter means: their names may differ by the prefix of a head."""

    def __init__(self, names: Collection[str], where: str) -> None:
        self._names, self._where = set(names), where

    def find(self, name: str) -> str:
        if name in self._names:
            return name
        near = [one for one in self._names if name.endswith(f".{one}") or one.endswith(f".{name}")]
        if len(near) != 1:
            raise CheckpointError(f"the adapter {self._where} changes {name}, which its base model does not have")
        return near[0]
