"""Data on the device of a fleet: the batches of ``attractor train`` for the same seeds, cut and augmented there.

What is random is drawn on the host, by the same generators; ``inputs`` are those draws and ``batch`` is made of them on the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from attractor.errors import UnsupportedError
from attractor.experiments.studies.fleet import Fleet
from attractor.experiments.studies.heads import ImageFleet, TextFleet
from attractor.experiments.training.config import Config
from attractor.experiments.training.data import open_data
from attractor.experiments.training.data.images import Images
from attractor.experiments.training.data.order import permutation
from attractor.experiments.training.data.text import Text
from attractor.experiments.training.models import build_model

PROBES = 4  # samples whose tokens are followed through trained models
Batch = tuple[Tensor, Tensor]


class Source:
    """What a fleet reads. ``fleet`` is the kind of fleet for it, ``final`` the number of batches of the last evaluation, 0 for all."""

    fleet: type[Fleet]
    final: int = 0

    def __init__(self, config: Config, data: Any, device: torch.device) -> None:
        self.config, self.data, self.device = config, data, device

    def model(self, config: Config) -> Any:
        """The model that ``attractor train`` makes for this seed."""
        torch.manual_seed(config.seed)
        return build_model(config, self.data)

    def tokens(self) -> int:
        """Tokens of a step of one model."""
        raise NotImplementedError

    def inputs(self, seeds: list[int], number: int) -> list[Tensor]:
        """What step ``number`` reads, (s, b) each, on the host."""
        raise NotImplementedError

    def batch(self, inputs: list[Tensor]) -> Batch:
        """The batch (s, b, ...) on the device."""
        raise NotImplementedError

    def validation(self, models: int, count: int) -> Iterator[Batch]:
        """Whole batches of validation data, the same for every model: ``count`` spread over them, or all where that is 0."""
        held = self.data.evaluation("validation", self.config.batch, count)
        for given, wanted in held:
            if len(given) == self.config.batch:
                yield tuple(part.to(self.device).expand(models, *part.shape) for part in (given, wanted))  # type: ignore[misc]

    def probe(self) -> Tensor:
        """A few validation samples, on the host."""
        return next(iter(self.data.evaluation("validation", PROBES, 1)))[0]

    def scores(self, loss: float, score: float) -> dict[str, float]:
        """What is reported of a mean loss and score."""
        return self.data.scores("validation", {"loss": loss, "right": score, "count": 1.0})


class TextSource(Source):
    """Tokens of text."""

    fleet = TextFleet
    final = 64  # a million tokens of the studies; the error of their mean is far below that of seeds

    def __init__(self, config: Config, data: Text, device: torch.device) -> None:
        super().__init__(config, data, device)
        numbers = np.array(data.pieces["train"].numbers)  # from disk to memory
        self.train = torch.from_numpy(numbers.astype(np.int32) if numbers.dtype != np.uint8 else numbers).to(device)
        self.window = torch.arange(config.context + 1, device=device)

    def tokens(self) -> int:
        return self.config.batch * self.config.context

    def inputs(self, seeds: list[int], number: int) -> list[Tensor]:
        last, size = len(self.train) - self.config.context, self.config.batch
        places = [np.random.default_rng((seed, number, 0)).integers(0, last, size) for seed in seeds]
        return [torch.from_numpy(np.stack(places))]

    def batch(self, inputs: list[Tensor]) -> Batch:
        text = self.train[inputs[0].unsqueeze(-1) + self.window].long()
        return text[..., :-1], text[..., 1:]


class ImageSource(Source):
    """Pictures, padded for their shifts."""

    fleet = ImageFleet

    def __init__(self, config: Config, data: Images, device: torch.device) -> None:
        super().__init__(config, data, device)
        height, width, _ = data.shape
        self.side = height, width
        self.reach = (height // 8, width // 8) if config.augment == "crop" else (0, 0)
        above, beside = self.reach
        self.train = functional.pad(data.pictures["train"].to(device), (0, 0, beside, beside, above, above))
        self.labels = data.labels["train"].to(device)
        self.rows, self.columns = (torch.arange(side, device=device) for side in self.side)

    def tokens(self) -> int:
        patches = (self.side[0] // self.config.patch) * (self.side[1] // self.config.patch)
        return self.config.batch * (patches + (self.config.pooling == "class"))

    def inputs(self, seeds: list[int], number: int) -> list[Tensor]:
        count, size = len(self.labels), self.config.batch
        chosen, mirrored, down, across = [], [], [], []
        for seed in seeds:
            epochs, places = np.divmod(number * size + np.arange(size), count)
            order = {int(epoch): _order(count, seed, int(epoch)) for epoch in np.unique(epochs)}
            chosen.append(np.array([order[int(epoch)][place] for epoch, place in zip(epochs, places, strict=True)]))
            draw = np.random.default_rng((seed, number, 0, 1))
            mirrored.append(draw.random(size) < 0.5)
            down.append(draw.integers(0, 2 * self.reach[0] + 1, size))
            across.append(draw.integers(0, 2 * self.reach[1] + 1, size))
        if self.config.augment == "none":
            mirrored = [np.zeros(size, dtype=bool) for _ in seeds]
        return [torch.from_numpy(np.stack(part)) for part in (chosen, mirrored, down, across)]

    def batch(self, inputs: list[Tensor]) -> Batch:
        chosen, mirrored, down, across = inputs
        rows = down.unsqueeze(-1) + self.rows
        columns = across.unsqueeze(-1) + self.columns
        columns = torch.where(mirrored.unsqueeze(-1), columns.flip(-1), columns)
        pictures = self.train[chosen[..., None, None], rows.unsqueeze(-1), columns.unsqueeze(-2)]
        return pictures, self.labels[chosen]


def source(config: Config, device: torch.device, kept: Path) -> Source:
    """The data of a configuration, on a device; ``kept`` is a folder for what is made of them once."""
    data = open_data(config, kept)
    if isinstance(data, Text):
        return TextSource(config, data, device)
    if isinstance(data, Images):
        return ImageSource(config, data, device)
    raise UnsupportedError(
        f"a fleet reads text, or pictures that fit into memory; {config.data} is a folder of picture files"
    )


@cache
def _order(count: int, seed: int, epoch: int) -> np.ndarray:
    return permutation(count, seed, epoch)
