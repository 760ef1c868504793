"""Which samples a batch has: every epoch is one permutation of all, and a batch follows from its number alone."""

from __future__ import annotations

from functools import lru_cache

import numpy as np


def samples(count: int, size: int, seed: int, number: int, rank: int = 0, world: int = 1) -> np.ndarray:
    """Indices below ``count`` of batch ``number`` of a process; a batch may reach into the next epoch."""
    stream = (number * world + rank) * size + np.arange(size)
    epochs, places = np.divmod(stream, count)
    return np.array([permutation(count, seed, int(epoch))[place] for epoch, place in zip(epochs, places, strict=True)])


@lru_cache(maxsize=4)
def permutation(count: int, seed: int, epoch: int) -> np.ndarray:
    """The order of an epoch."""
    return np.random.default_rng((seed, epoch)).permutation(count)
