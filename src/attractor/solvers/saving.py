"""Saved times, dense output and the recorder of states."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.errors import InputError


def to_numpy(tensor: Tensor) -> np.ndarray:
    """A copy of a tensor as an array."""
    return tensor.detach().cpu().numpy().copy()


def to_tensor(array: np.ndarray, device: torch.device) -> Tensor:
    """A copy of an array as a tensor."""
    return torch.from_numpy(np.array(array)).to(device)


def hermite_weights(nodes: np.ndarray, valid: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Weights of values and of slopes at time t, for each member: nodes, valid (k, members), t (members,).

    :math:`p(t) = \sum_i [1 - 2(t-t_i)\ell_i'(t_i)]\,\ell_i(t)^2 y_i + (t-t_i)\,\ell_i(t)^2 f_i` with Lagrange's
    :math:`\ell_i`.
    """
    count = len(nodes)
    values, slopes = np.zeros(nodes.shape), np.zeros(nodes.shape)
    for i in range(count):
        basis, derivative = np.ones(len(t)), np.zeros(len(t))
        for j in range(count):
            use = valid[i] & valid[j] & (j != i)
            gap = np.where(use, nodes[i] - nodes[j], 1.0)
            basis = np.where(use, basis * (t - nodes[j]) / gap, basis)
            derivative = np.where(use, derivative + 1.0 / gap, derivative)
        square = np.where(valid[i], basis**2, 0.0)
        values[i] = (1.0 - 2.0 * (t - nodes[i]) * derivative) * square
        slopes[i] = (t - nodes[i]) * square
    return values, slopes


class History:
    """The last step ends of every row: times (k, rows), points and slopes (k, rows, n, d), newest last.

    Times are relative to the newest end, so that steps far below the spacing of floating-point numbers at a late time
    (2 at 1e16) remain distinct.
    """

    _fold: tuple[Tensor, Tensor] | None = None

    def __init__(self, nodes: int, y: Tensor, f: Tensor) -> None:
        self.size = nodes
        self.restart(y, f)

    def restart(self, y: Tensor, f: Tensor) -> None:
        """Discard the past: the field is not smooth across this time."""
        self.times = np.zeros((self.size, len(y)))
        self.count = np.ones(len(y), dtype=np.int64)
        self._fold = (y, f)
        for name in ("points", "slopes"):
            self.__dict__.pop(name, None)

    def __getattr__(self, name: str) -> Tensor:
        """Expand points and slopes on first use: most runs of the native loop never need them."""
        if name not in ("points", "slopes") or self._fold is None:
            raise AttributeError(name)
        shape, (y, f) = (self.size, *self._fold[0].shape), self._fold
        self.points, self.slopes, self._fold = y.expand(shape), f.expand(shape), None
        return self.__dict__[name]

    def push(self, accepted: np.ndarray, h: np.ndarray, y: Tensor, f: Tensor) -> None:
        """Append a step end for the rows that accepted a step of length h."""
        times = np.concatenate([self.times[1:] - h, np.zeros((1, len(h)))])
        points, slopes = torch.cat([self.points[1:], y[None]]), torch.cat([self.slopes[1:], f[None]])
        if accepted.all():
            self.times, self.points, self.slopes = times, points, slopes
        else:
            chosen = torch.from_numpy(accepted).to(y.device).view(1, -1, 1, 1)
            self.times = np.where(accepted, times, self.times)
            self.points, self.slopes = (
                torch.where(chosen, points, self.points),
                torch.where(chosen, slopes, self.slopes),
            )
        self.count = np.minimum(self.count + accepted, self.size)

    def merge(
        self, change: Callable[[Tensor], Tensor], retract: Callable[[Tensor], Tensor], y: Tensor, f: Tensor
    ) -> None:
        """Apply a merge of tokens at the newest end, which becomes y with slope f."""
        self.points = torch.stack([*(retract(change(points)) for points in self.points[:-1]), y])
        self.slopes = torch.stack([*(change(slopes) for slopes in self.slopes[:-1]), f])

    @property
    def full(self) -> np.ndarray:
        """Which rows have as many ends as the interpolation uses."""
        return self.count >= self.size

    def at(self, rows: np.ndarray, t: np.ndarray) -> Tensor:
        """Points of some rows at times t (<= 0) relative to their newest end, (len(rows), n, d), not retracted."""
        nodes = self.times[:, rows]
        valid = np.arange(self.size)[:, None] >= self.size - self.count[rows]
        values, slopes = hermite_weights(nodes, valid, t)
        index = torch.from_numpy(rows).to(self.points.device)
        column = torch.from_numpy(values).to(self.points)[..., None, None]
        slope_column = torch.from_numpy(slopes).to(self.points)[..., None, None]
        newest = self.points[-1, index]  # the weights of values add up to one: a token at rest stays exactly
        if not t.any():  # also where slopes are not finite
            return newest
        moved = (column * (self.points[:, index] - newest)).sum(0) + (slope_column * self.slopes[:, index]).sum(0)
        ends = torch.from_numpy(t == 0).to(newest.device).view(-1, 1, 1)
        return torch.where(ends, newest, newest + moved)

    def select(self, index: Tensor | slice) -> None:
        """Keep some rows only."""
        chosen = index if isinstance(index, slice) else index.cpu().numpy()
        self.times, self.count = self.times[:, chosen], self.count[chosen]
        if "points" in self.__dict__:
            self.points, self.slopes = self.points[:, index], self.slopes[:, index]
        elif self._fold is not None:
            self._fold = (self._fold[0][index], self._fold[1][index])

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return the arrays of a checkpoint."""
        arrays = {"history_times": self.times, "history_count": self.count}
        return arrays | {"history_points": to_numpy(self.points), "history_slopes": to_numpy(self.slopes)}

    def restore(self, arrays: dict[str, np.ndarray], device: torch.device) -> None:
        """Set the history to that of a checkpoint."""
        self.times, self.count = arrays["history_times"], arrays["history_count"]
        self.points, self.slopes = (to_tensor(arrays[f"history_{name}"], device) for name in ("points", "slopes"))


class LastStates(Sequence["Tensor | None"]):
    """The last state (n, d) of each member of an ensemble, None for those that have not ended; kept in blocks of members."""

    def __init__(self, members: int) -> None:
        self._block = np.full(members, -1)  # block of each member, and its place there
        self._place = np.zeros(members, dtype=np.int64)
        self._blocks: list[Tensor] = []

    def put(self, members: np.ndarray, points: Tensor) -> None:
        """Set the last states of some members to points (len(members), n, d)."""
        self._block[members], self._place[members] = len(self._blocks), np.arange(len(members))
        self._blocks.append(points)

    def stack(self) -> Tensor:
        """The states of all members, which have ended, (members, n, d)."""
        if len(self._blocks) == 1 and (self._place[1:] > self._place[:-1]).all():
            return self._blocks[0]
        starts = np.cumsum([0, *(len(block) for block in self._blocks)])[self._block]
        every = torch.cat(self._blocks)
        return every[torch.from_numpy(starts + self._place).to(every.device)]

    def __len__(self) -> int:
        return len(self._block)

    def __getitem__(self, member: Any) -> Any:
        block = int(self._block[member])
        return None if block < 0 else self._blocks[block][int(self._place[member])]


def stack_states(states: Sequence[Tensor | None]) -> Tensor:
    """Last states of all members, which have ended, (members, n, d)."""
    return (
        states.stack()
        if isinstance(states, LastStates)
        else torch.stack([state for state in states if state is not None])
    )


MAX_STATES = 201  # number of states saved by default
MAX_BYTES = 1 << 28  # memory that those may take


def save_times(save: Any, start: float, until: float, row_bytes: int) -> tuple[np.ndarray, bool]:
    """Return the times to save, and whether the user chose them.

    Parameters
    ----------
    save : None for a grid that is linear near the start and logarithmic later (0.1 sinh), thinned to 256 MiB; an integer for
        that many equal intervals; a sequence for those times (outside the interval by no more than rounding).
    start, until : the interval of the run.
    row_bytes : bytes of one state.
    """
    if save is None:
        return _grid(start, until, int(min(MAX_STATES, max(2, MAX_BYTES // max(1, row_bytes))))).copy(), False
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
    if not np.isfinite(times).all():
        raise InputError("save times must be finite and increasing")
    times = _snap(times, start, until)
    if (times[1:] <= times[:-1]).any():
        raise InputError("save times must be finite and increasing")
    if times[0] < start or times[-1] > until:
        raise InputError(
            f"save times must lie between the start {start:g} and until {until:g}, got {times[0]:g} to {times[-1]:g}"
        )
    return times, True


def _snap(times: np.ndarray, start: float, until: float) -> np.ndarray:
    """Times that lie outside the interval by no more than rounding, moved to its ends: 0.1 + 0.2 is larger than 0.3."""
    size = max(abs(start), abs(until))
    # sums of many steps are off by more than one spacing, but never by a visible part of the interval
    reach = max(4.0 * np.spacing(size), min(1e-12 * size, 1e-9 * (until - start)))
    times = np.where((times < start) & (times >= start - reach), start, times)
    return np.where((times > until) & (times <= until + reach), until, times)


@lru_cache(maxsize=16)
def _grid(start: float, until: float, count: int) -> np.ndarray:
    unit = min(0.1, (until - start) / 10)
    reach = math.asinh((until - start) / unit)
    times = start + unit * np.sinh(np.linspace(0.0, reach, count))
    times[0], times[-1] = start, until
    return times


def grid_rates(passed: np.ndarray, length: float) -> np.ndarray:
    """Derivatives of the default save times with respect to the end; ``passed`` and ``length`` are measured from the start."""
    unit = min(0.1, length / 10)
    if unit < 0.1:  # the grid is a multiple of the length
        return passed / length
    part = np.arcsinh(passed / unit) / math.asinh(length / unit)
    return part * np.sqrt(1.0 + (passed / unit) ** 2) / math.sqrt(1.0 + (length / unit) ** 2)


class Recorder:
    """Saved states: points (saved times, members, n, d).

    ``next`` is the index of each member's next saved time, ``reached`` how many it reached before it ended and ``ends`` its
    end time; later entries hold its last state. ``explicit`` says whether the user chose the times.
    """

    def __init__(self, times: np.ndarray, explicit: bool, members: int, like: Tensor) -> None:
        self.times = times
        self.explicit = explicit
        self.next = np.zeros(members, dtype=np.int64)
        self.reached = np.zeros(members, dtype=np.int64)
        self.ends = np.full(members, np.nan)
        self.points = like.new_zeros((len(times), members, *like.shape[1:]))

    @classmethod
    def finished(cls, times: np.ndarray, explicit: bool, points: Tensor, end: float) -> Recorder:
        """The recorder of a run whose members have all reached its end, with their saved states."""
        recorder, members = object.__new__(cls), points.shape[1]
        recorder.times, recorder.explicit, recorder.points = times, explicit, points
        recorder.next, recorder.reached = (np.full(members, len(times)) for _ in range(2))
        recorder.ends = np.full(members, end)
        return recorder

    def due(self, members: np.ndarray, t: np.ndarray) -> np.ndarray:
        """Which members have a state to save at or before their time."""
        if len(self.times) == 0:
            return np.zeros(len(members), dtype=bool)
        following = self.times[np.minimum(self.next[members], len(self.times) - 1)]
        return (self.next[members] < len(self.times)) & (following <= t)

    def pending(self, members: np.ndarray) -> np.ndarray:
        """Which members have not reached all the times that the user chose."""
        return (self.next[members] < len(self.times)) & self.explicit

    def write(self, members: np.ndarray, points: Tensor) -> None:
        """Save the next state of each of some members."""
        rows = torch.from_numpy(self.next[members])
        self.points[rows.to(points.device), torch.from_numpy(members).to(points.device)] = points
        self.next[members] += 1
        self.reached[members] = self.next[members]

    def end(self, member: int, time: float, points: Tensor) -> None:
        """End a member: its last state fills the rest of its entries."""
        self.ends[member] = time
        if not self.explicit:  # its end was found inside a step, after states up to the end of the step were saved
            self.next[member] = min(int(self.next[member]), int(np.searchsorted(self.times, time, side="right")))
            self.reached[member] = self.next[member]
        if self.next[member] < len(self.times):
            self.points[int(self.next[member]) :, member] = points
            self.next[member] = len(self.times)

    def end_complete(self, members: np.ndarray, time: float) -> None:
        """End members that have reached all saved times."""
        self.ends[members] = time

    @property
    def rows(self) -> int:
        """Number of saved times that some member reached."""
        return int(self.reached.max(initial=0))

    @property
    def complete(self) -> int:
        """Number of saved times whose states are final for every member."""
        return min(int(self.next.min(initial=len(self.times))), self.rows)

    def restore(self, arrays: dict[str, np.ndarray], finals: Sequence[Tensor | None]) -> None:
        """Set the states to those of a checkpoint; ``finals`` are the last states of members that have ended."""
        self.next, self.reached, self.ends = arrays["next"], arrays["reached"], arrays["ends"]
        complete = len(arrays["complete"])
        for first, name in ((0, "complete"), (complete, "rows")):
            target = self.points[first : first + len(arrays[name])]
            target[:] = torch.from_numpy(arrays[name]).reshape(target.shape).to(target)
        for member, final in enumerate(finals):
            if final is not None:
                self.points[int(self.reached[member]) :, member] = final
