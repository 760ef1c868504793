"""Pictures with labels in memory, as bytes: batches, mirrored and shifted for training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from attractor.experiments.training.config import Config
from attractor.experiments.training.data import Batch
from attractor.experiments.training.data.order import samples
from attractor.experiments.training.data.sources import arrays_of

if TYPE_CHECKING:
    from attractor.experiments.training.data.files import PictureFiles


@dataclass(frozen=True)
class Images:
    """Pictures (count, height, width, channels) of bytes and their labels, by part."""

    pictures: dict[str, Tensor]
    labels: dict[str, Tensor]
    classes: int
    mean: list[float]
    deviation: list[float]
    augment: str

    @property
    def shape(self) -> tuple[int, int, int]:
        _, height, width, channels = self.pictures["train"].shape
        return height, width, channels

    def parts(self) -> tuple[str, ...]:
        return tuple(self.pictures)

    def batch(self, size: int, seed: int, number: int, rank: int = 0, world: int = 1) -> Batch:
        """(pictures, labels): every epoch goes once through all."""
        chosen = torch.from_numpy(samples(len(self.labels["train"]), size, seed, number, rank, world))
        pictures, labels = self.pictures["train"][chosen], self.labels["train"][chosen]
        return augmented(pictures, self.augment, np.random.default_rng((seed, number, rank, 1))), labels

    def evaluation(self, part: str, size: int, count: int) -> Iterator[Batch]:
        """All of a part, or ``count`` batches spread over it."""
        total = len(self.labels[part])
        chosen = torch.arange(total)
        if count and count * size < total:
            chosen = torch.linspace(0, total - 1, count * size, dtype=torch.float64).long()
        for part_of in chosen.split(size):
            yield self.pictures[part][part_of], self.labels[part][part_of]

    def scores(self, part: str, totals: dict[str, float]) -> dict[str, float]:
        return image_scores(totals)


def image_scores(totals: dict[str, float]) -> dict[str, float]:
    """Cross entropy in nats and the share of right answers."""
    return {"loss": totals["loss"] / totals["count"], "accuracy": totals["right"] / totals["count"]}


def augmented(pictures: Tensor, kind: str, draw: np.random.Generator) -> Tensor:
    """Mirrored half of the time ("flip"), and moved by up to an eighth of the side into black ("crop")."""
    if kind == "none":
        return pictures
    count, height, width, _ = pictures.shape
    mirrored = torch.from_numpy(draw.random(count) < 0.5)
    reach = (height // 8, width // 8) if kind == "crop" else (0, 0)
    moves = torch.from_numpy(np.stack([draw.integers(0, 2 * most + 1, count) for most in reach]))
    rows = moves[0][:, None] + torch.arange(height)
    columns = moves[1][:, None] + torch.arange(width)
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    padded = functional.pad(pictures, (0, 0, reach[1], reach[1], reach[0], reach[0]))
    return padded[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]


def open_images(config: Config) -> Images | PictureFiles:
    """The pictures of a configuration: in memory where their files are arrays, from disk where they are pictures in class folders."""
    arrays = arrays_of(config.data)
    if arrays is None:
        from attractor.experiments.training.data.files import open_files

        return open_files(config)
    pictures = {part: _sized(torch.from_numpy(np.array(found)), config.size) for part, (found, _) in arrays.items()}
    labels = {part: torch.from_numpy(found.astype(np.int64)) for part, (_, found) in arrays.items()}
    mean, deviation = moments(pictures["train"])
    return Images(pictures, labels, int(labels["train"].max()) + 1, mean, deviation, config.augment)


def moments(pictures: Tensor) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel, as numbers between 0 and 1."""
    total, squares = torch.zeros(2, pictures.shape[-1], dtype=torch.float64)
    for part in pictures.split(4096):  # in doubles all at once would be eight times the set
        values = part.double() / 255
        total += values.sum((0, 1, 2))
        squares += values.square().sum((0, 1, 2))
    mean, square = (found / pictures[..., 0].numel() for found in (total, squares))
    return mean.tolist(), (square - mean.square()).clamp_min(1e-6).sqrt().tolist()


def _sized(pictures: Tensor, size: int) -> Tensor:
    """Brought to ``size`` by ``size`` pixels; 0 leaves them."""
    if size in (0, pictures.shape[1]) and pictures.shape[1] == pictures.shape[2]:
        return pictures
    side = size or pictures.shape[1]
    wide = functional.interpolate(
        pictures.permute(0, 3, 1, 2).float(), (side, side), mode="bilinear", antialias=True, align_corners=False
    )
    return wide.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()
