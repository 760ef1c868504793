"""What models read: text as bytes, pieces or words, and pictures; batches depend on the step alone, so a resumed run reads the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from torch import Tensor

from attractor.experiments.training.config import Config

Batch = tuple[Tensor, Tensor]


class Data(Protocol):
    """What the loop asks of data: batches of what is given and what is wanted, and scores from sums over them."""

    def batch(self, size: int, seed: int, number: int, rank: int = 0, world: int = 1) -> Batch:
        """Training batch ``number`` of process ``rank`` of ``world``."""
        ...

    def evaluation(self, part: str, size: int, count: int) -> Iterator[Batch]:
        """``count`` batches spread over a part, the same for every run, or all of it where count is 0."""
        ...

    def scores(self, part: str, totals: dict[str, float]) -> dict[str, float]:
        """Scores from the sums that a model returns."""
        ...

    def parts(self) -> tuple[str, ...]:
        """Which of "train", "validation" and "test" there are."""
        ...


def open_data(config: Config, cache: Path) -> Data:
    """The data of a configuration; what has to be made of them first is kept in the folder ``cache``."""
    if config.task == "text":
        from attractor.experiments.training.data.text import open_text

        return open_text(config, cache)
    from attractor.experiments.training.data.images import open_images

    return open_images(config)


__all__ = ["Batch", "Data", "open_data"]
