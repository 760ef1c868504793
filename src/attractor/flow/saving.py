"""Which times are kept, and where the states go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.errors import InputError

MOST = 201  # states kept when the user does not say
MEMORY = 1 << 28  # bytes those may take


def save_times(save: Any, start: float, until: float, row_bytes: int) -> tuple[np.ndarray, bool]:
    """Times to keep, and whether the user named them.

    None gives a grid that is linear near the start and logarithmic later (0.1 sinh), thinned to 256 MiB; a whole number
    gives that many equal intervals; a sequence gives those times.
    """
    if save is None:
        return _grid(start, until, int(min(MOST, max(2, MEMORY // max(1, row_bytes))))).copy(), False
    if isinstance(save, (int, np.integer)) and not isinstance(save, bool):
        if save < 1:
            raise InputError(f"save must be at least one interval, got {save}")
        return np.linspace(start, until, int(save) + 1), True
    if isinstance(save, Tensor):
        save = save.detach().cpu().numpy()
    if isinstance(save, str) or not isinstance(save, (Sequence, np.ndarray)):
        raise InputError(f"save must be None, a number of intervals or a list of times, got {save!r}")
    times = np.asarray(save, dtype=np.float64).reshape(-1)
    if len(times) == 0:
        return times, True
    if not np.isfinite(times).all() or (times[1:] <= times[:-1]).any():
        raise InputError("save times must be finite and increasing")
    if times[0] < start or times[-1] > until:
        raise InputError(
            f"save times must lie between the start {start:g} and until {until:g}, got {times[0]:g} to {times[-1]:g}"
        )
    return times, True


@lru_cache(maxsize=16)
def _grid(start: float, until: float, count: int) -> np.ndarray:
    unit = min(0.1, (until - start) / 10)
    reach = math.asinh((until - start) / unit)
    times = start + unit * np.sinh(np.linspace(0.0, reach, count))
    times[0], times[-1] = start, until
    return times


class Recorder:
    """States kept so far: points (saved times, members, n, d).

    ``next`` is each member's next row, ``reached`` how many it came to before it ended and ``ends`` when that was; the rest of
    its rows hold its last state.
    """

    def __init__(self, times: np.ndarray, explicit: bool, members: int, like: Tensor) -> None:
        self.times = times
        self.explicit = explicit
        self.next = np.zeros(members, dtype=np.int64)
        self.reached = np.zeros(members, dtype=np.int64)
        self.ends = np.full(members, np.nan)
        self.points = like.new_zeros((len(times), members, *like.shape[1:]))

    def due(self, who: np.ndarray, t: np.ndarray) -> np.ndarray:
        """Which members have a row to write at or before their time."""
        if len(self.times) == 0:
            return np.zeros(len(who), dtype=bool)
        following = self.times[np.minimum(self.next[who], len(self.times) - 1)]
        return (self.next[who] < len(self.times)) & (following <= t)

    def pending(self, who: np.ndarray) -> np.ndarray:
        """Which members still owe a time that the user named."""
        return (self.next[who] < len(self.times)) & self.explicit

    def write(self, who: np.ndarray, points: Tensor) -> None:
        """The next row of each of some members."""
        rows = torch.from_numpy(self.next[who])
        self.points[rows.to(points.device), torch.from_numpy(who).to(points.device)] = points
        self.next[who] += 1
        self.reached[who] = self.next[who]

    def end(self, member: int, time: float, points: Tensor) -> None:
        """A member ends; its last state stands for the rest of its rows."""
        self.ends[member] = time
        if not self.explicit:  # its end was found inside a step, after rows up to the end of the step were written
            self.next[member] = min(int(self.next[member]), int(np.searchsorted(self.times, time, side="right")))
            self.reached[member] = self.next[member]
        if self.next[member] < len(self.times):
            self.points[int(self.next[member]) :, member] = points
            self.next[member] = len(self.times)

    @property
    def rows(self) -> int:
        """Rows that some member came to."""
        return int(self.reached.max(initial=0))

    @property
    def complete(self) -> int:
        """Rows that are final for every member."""
        return min(int(self.next.min(initial=len(self.times))), self.rows)
