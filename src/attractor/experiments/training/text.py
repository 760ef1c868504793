"""Bytes of text from a file or a folder, and batches that depend on the step alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from attractor.errors import InputError

VALIDATION = 0.05  # the last share of the bytes


class Bytes:
    """All files of a folder one after the other, in the order of their names; the last twentieth is for validation.

    Batch number k of a seed is the same whenever it is asked for, so a resumed run reads what it would have read.
    """

    def __init__(self, path: str | Path, context: int) -> None:
        path = Path(path)
        if not path.exists():
            raise InputError(f"the data folder {path} does not exist")
        files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
        parts = [np.fromfile(file, dtype=np.uint8) for file in files]
        whole = np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint8)
        cut = len(whole) - int(VALIDATION * len(whole))
        self.train, self.validation, self.context = whole[:cut], whole[cut:], context
        if len(self.validation) < context + 1:
            raise InputError(
                f"{path} holds {len(whole)} bytes in {len(files)} files; with a context of {context} a run needs at least "
                f"{int((context + 1) / VALIDATION) + 1}"
            )

    def batch(self, size: int, seed: int, number: int, rank: int = 0) -> Tensor:
        """Training text (size, context + 1) at random places."""
        places = np.random.default_rng((seed, number, rank)).integers(0, len(self.train) - self.context, size)
        return self._cut(self.train, places)

    def validation_batch(self, size: int, number: int, count: int) -> Tensor:
        """Validation text (size, context + 1), the same for every run: ``count`` batches spread over it."""
        last = len(self.validation) - self.context - 1
        places = np.linspace(0, last, size * count).astype(np.int64)[number * size : (number + 1) * size]
        return self._cut(self.validation, places)

    def _cut(self, text: np.ndarray, places: np.ndarray) -> Tensor:
        return torch.from_numpy(np.stack([text[place : place + self.context + 1] for place in places]).astype(np.int64))
