"""Batches: order of samples, names of data sets, prefetching."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from attractor.assets import fetch, list_assets
from attractor.errors import InputError
from attractor.random_numbers import PLACES, uniforms
from attractor.training.config import Config

Batch = tuple[Tensor, Tensor]


class Data(Protocol):
    """Data of a run: batches of inputs and targets, and scores from sums over them."""

    def batch(self, size: int, seed: int, number: int, rank: int = 0, world: int = 1) -> Batch:
        """Return training batch ``number`` of process ``rank`` of ``world``."""
        ...

    def evaluation(self, part: str, size: int, count: int) -> Iterator[Batch]:
        """Yield ``count`` samples spread over a part, the same for every run, or all of it for 0, in batches of ``size``."""
        ...

    def scores(self, part: str, totals: dict[str, float]) -> dict[str, float]:
        """Return the scores that follow from the totals of a model."""
        ...

    def parts(self) -> tuple[str, ...]:
        """Return the names of the parts: "train", "validation", "test"."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return what a model depends on: size of the vocabulary, or shape, classes and moments of images."""
        ...


def sample_numbers(size: int, number: int, rank: int = 0, world: int = 1) -> np.ndarray:
    """Return the positions of the samples of a batch in the sequence of all samples of a run.

    What a sample is, and how it is augmented, follows from the seed and this position alone. So a step reads the same samples
    whether processes or ``accumulate`` divide it or not.
    """
    return (number * world + rank) * size + np.arange(size)


def sample_indices(count: int, size: int, seed: int, number: int, rank: int = 0, world: int = 1) -> np.ndarray:
    """Return the indices below ``count`` of batch ``number`` of a process; a batch may reach into the next epoch."""
    epochs, places = np.divmod(sample_numbers(size, number, rank, world), count)
    return np.array([permutation(count, seed, int(epoch))[place] for epoch, place in zip(epochs, places, strict=True)])


def sample_places(count: int, seed: int, samples: np.ndarray) -> np.ndarray:
    """Return random places below ``count`` of samples of a run, given by their positions in it."""
    drawn = uniforms(seed, torch.from_numpy(samples), 1, PLACES)[:, 0]
    return (drawn * count).long().clamp_max(count - 1).numpy()


def spread(total: int, count: int) -> np.ndarray:
    """Return ``count`` indices spread evenly over ``total``; all of them for 0, or if there are no more."""
    if not count or count >= total:
        return np.arange(total)
    return np.linspace(0, total - 1, count).astype(np.int64)


@lru_cache(maxsize=4)
def permutation(count: int, seed: int, epoch: int) -> np.ndarray:
    """Return the order of samples in an epoch."""
    return np.random.default_rng((seed, epoch)).permutation(count)


LIBRARY = "datasets:"


def find_paths(data: str) -> list[Path]:
    """Return the paths that ``data`` names: an existing one, or assets joined by "+", fetched if necessary."""
    if Path(data).exists():
        return [Path(data)]
    known = {asset.name for asset in list_assets("data")}
    words = data.split("+")
    if not set(words) <= known:
        raise InputError(
            f"the data folder {data} does not exist, nor is it a name (or names joined by +) of what can be fetched: "
            f"{', '.join(sorted(known))}"
        )
    return [fetch(word) for word in words]


class Prefetcher:
    """Training batches of one process in order, prepared one ahead in a thread."""

    def __init__(self, accelerator: Any, data: Data, config: Config) -> None:
        self.accelerator, self.data, self.config = accelerator, data, config
        self.last = config.steps * config.accumulate
        self.pool = ThreadPoolExecutor(1)
        self.waiting: tuple[int, Future[Batch]] | None = None

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *error: object) -> None:
        self.pool.shutdown(wait=True, cancel_futures=True)

    def get(self, number: int) -> Batch:
        """Return batch ``number`` on the device."""
        if self.waiting is not None and self.waiting[0] == number:
            made = self.waiting[1].result()
        else:
            made = self._make(number)
        if number + 1 < self.last:
            self.waiting = number + 1, self.pool.submit(self._make, number + 1)
        device = self.accelerator.device
        given, wanted = (part.to(device, non_blocking=True) for part in made)
        return given, wanted

    def _make(self, number: int) -> Batch:
        config, world = self.config, self.accelerator.num_processes
        given, wanted = self.data.batch(config.batch, config.seed, number, self.accelerator.process_index, world)
        if self.accelerator.device.type == "cuda":
            return given.pin_memory(), wanted.pin_memory()
        return given, wanted
