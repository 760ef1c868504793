"""Keys that carry their tokens into a cache.

The shift needs values alone, and a cache holds those. The slice needs the tokens themselves, which later steps no longer have: so they
travel as further coordinates of the keys, and whatever a cache does with keys (reorder for beams, crop, move) it does with them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Carrying:
    """A cache as a refined module sees it; all but ``update`` is the cache's own."""

    def __init__(self, cache: Any, coordinates: Tensor) -> None:
        self._cache, self._coordinates = cache, coordinates

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def update(self, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> tuple[Tensor, Tensor]:
        wide = torch.cat((key, self._coordinates.to(key.dtype)), dim=-1)
        return self._cache.update(wide, value, *rest, **options)


def grouped(slices: Tensor, groups: int) -> Tensor:
    """Slices of every head (batch, h, n, c), those of heads that share a key side by side: (batch, h / groups, n, groups c)."""
    return slices.unflatten(1, (-1, groups)).transpose(2, 3).flatten(3)


def ungrouped(carried: Tensor, groups: int) -> Tensor:
    """The slice of every head again, (batch, h, n, c)."""
    return carried.unflatten(-1, (groups, -1)).transpose(2, 3).flatten(1, 2)
