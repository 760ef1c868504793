"""A picture as a model of pictures reads it: resized, cropped and scaled as the file beside its weights says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.checkpoints.checkpoint import Checkpoint
from attractor.errors import InputError, UnsupportedError, missing

HALF = (0.5, 0.5, 0.5)


def picture(checkpoint: Checkpoint, path: str | Path) -> dict[str, Tensor]:
    """The input ``pixel_values`` (1, channels, height, width) of a model of pictures."""
    size = getattr(checkpoint.config, "image_size", None)
    if size is None:
        raise UnsupportedError(
            f"{checkpoint.name} is a model of text (family {checkpoint.family.name}) and reads no pictures; give a text"
        )
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise missing("pillow", "plot") from None
    settings = _settings(checkpoint)
    try:
        with Image.open(Path(path).expanduser()) as stored:
            image = _sized(stored.convert("RGB"), settings, size)
    except FileNotFoundError:
        raise InputError(f"there is no picture {path}") from None
    except (UnidentifiedImageError, OSError) as error:
        raise InputError(f"{path} is no picture that can be read: {error}") from None
    values = np.asarray(image, dtype=np.float64) * settings.get("rescale_factor", 1 / 255)
    mean, spread = (np.array(settings.get(name, HALF)) for name in ("image_mean", "image_std"))
    pixels = torch.from_numpy((values - mean) / spread).permute(2, 0, 1).float()
    if checkpoint.config.num_channels == 1:
        pixels = pixels.mean(0, keepdim=True)
    return {"pixel_values": pixels.unsqueeze(0)}


def _settings(checkpoint: Checkpoint) -> dict[str, Any]:
    file = Path(checkpoint.tensors.describe()) / "preprocessor_config.json"
    try:
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except ValueError as error:
        raise InputError(f"{file} cannot be read as JSON: {error}") from None


def _sized(image: Any, settings: dict[str, Any], wanted: int | tuple[int, int]) -> Any:
    """Resized to the model's size, or on its shorter side and then cropped, as the settings say."""
    high, wide = (wanted, wanted) if isinstance(wanted, int) else wanted
    resample = settings.get("resample", 2)
    size = settings.get("size")
    shorter = size.get("shortest_edge") if isinstance(size, dict) else None
    if shorter is None or "crop_size" not in settings:
        return image.resize((wide, high), resample)
    scale = max(shorter, high, wide) / min(image.size)
    image = image.resize((max(wide, round(image.width * scale)), max(high, round(image.height * scale))), resample)
    left, top = (image.width - wide) // 2, (image.height - high) // 2
    return image.crop((left, top, left + wide, top + high))
