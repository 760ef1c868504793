"""What a benchmark is asked for, and the processors it may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True)
class Settings:
    """``turn`` is how long a contender is at least kept busy when it is its turn, so that short calls can be timed."""

    rounds: int = 5
    quick: bool = False
    seed: int = 0
    threads: int = 1
    turn: float = 0.1

    def size(self, full: Value, quick: Value) -> Value:
        """A size of the problem, smaller for a smoke run."""
        return quick if self.quick else full


@contextmanager
def confined(threads: int) -> Iterator[None]:
    """Every contender gets the same processors: those of JAX and numpy follow the affinity, torch wants to be told."""
    import torch

    before = torch.get_num_threads()
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    torch.set_num_threads(threads)
    if len(allowed) > threads:
        os.sched_setaffinity(0, sorted(allowed)[:threads])
    try:
        yield
    finally:
        torch.set_num_threads(before)
        if len(allowed) > threads:
            os.sched_setaffinity(0, allowed)
