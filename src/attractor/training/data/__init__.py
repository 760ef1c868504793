"""Training data: text and images in batches."""

from __future__ import annotations

from pathlib import Path

from attractor.training.config import Config
from attractor.training.data.batches import Batch, Data, Prefetcher
from attractor.training.data.images import open_images
from attractor.training.data.text import open_text

__all__ = ["Batch", "Data", "Prefetcher", "open_data"]


def open_data(config: Config, cache: Path) -> Data:
    """Open the data of a configuration; joined corpora and tokens are kept in the folder ``cache``."""
    return open_text(config, cache) if config.task == "text" else open_images(config)
