"""The history of merges, as arrays, and the events that a user reads from it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import accumulate
from typing import overload

import numpy as np

from attractor.flow.outcome import Event


class Forest:
    """Merges of one member as a binary forest, like a linkage matrix.

    Tokens are nodes 0 to n-1, merge k makes node n + k; ``rows`` (merges, 4) hold its time, the two nodes that became one and
    their joint mass. So the log of n tokens is linear in n, and the members of a node are found by walking down.
    """

    def __init__(self, n: int, rows: np.ndarray | None = None) -> None:
        self.n = n
        self._chunks = [np.zeros((0, 4)) if rows is None else rows.reshape(-1, 4)]
        self._count = len(self._chunks[0])

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> np.ndarray:
        if len(self._chunks) > 1:
            self._chunks = [np.concatenate(self._chunks)]
        return self._chunks[0]

    def extend(self, time: float | np.ndarray, left: np.ndarray, right: np.ndarray, mass: np.ndarray) -> np.ndarray:
        """Log merges of pairs of nodes at one time, or each at its own; the nodes they make."""
        rows = np.empty((len(left), 4))
        for column, values in enumerate((time, left, right, mass)):
            rows[:, column] = values
        self._chunks.append(rows)
        made = self.n + self._count + np.arange(len(left))
        self._count += len(left)
        return made

    def sizes(self) -> np.ndarray:
        """How many tokens each merge put together, (merges,)."""
        sizes = [1] * self.n
        for left, right in self.rows[:, 1:3].astype(np.int64).tolist():
            sizes.append(sizes[left] + sizes[right])
        return np.array(sizes[self.n :], dtype=np.int64)

    def leaves(self, merge: int) -> tuple[int, ...]:
        """The tokens that a merge put together."""
        leaves, stack, rows = [], [self.n + merge], self.rows
        while stack:
            node = stack.pop()
            if node < self.n:
                leaves.append(node)
            else:
                stack += [int(rows[node - self.n, 1]), int(rows[node - self.n, 2])]
        return tuple(sorted(leaves))


class Log(Sequence[Event]):
    """Events in the order of time: those of the user, then the merges of each member; a merge is put into words when asked for."""

    def __init__(self, own: Sequence[Event], forests: Sequence[Forest], members: Sequence[int] | None = None) -> None:
        self._own, self._forests = list(own), list(forests)
        self._members = list(range(len(self._forests)) if members is None else members)
        self._starts = [0, *accumulate([len(self._own), *map(len, self._forests)])]

    @cached_property
    def _order(self) -> np.ndarray:
        times = [np.array([event.time for event in self._own]), *(forest.rows[:, 0] for forest in self._forests)]
        return np.argsort(np.concatenate(times), kind="stable")

    @cached_property
    def _sizes(self) -> list[np.ndarray]:
        return [forest.sizes() for forest in self._forests]

    @classmethod
    def from_events(cls, events: Sequence[Event]) -> Log:
        """A log as it is, or one of the events given."""
        return events if isinstance(events, Log) else cls(events, [])

    def of(self, member: int) -> Log:
        """The events of one member."""
        own = [event for event in self._own if event.member == member]
        return Log(own, [self._forests[member]] if member < len(self._forests) else [], [member])

    @property
    def merges(self) -> int:
        """How many of the events are merges."""
        return len(self) - len(self._own)

    def some(self, which: Callable[[np.ndarray], np.ndarray]) -> list[Event]:
        """All events of the user and the merges that ``which`` picks out of their numbers, in the order of time."""
        own = self._order < len(self._own)
        picked = np.concatenate([np.flatnonzero(own), which(np.flatnonzero(~own))])
        return [self._event(place) for place in self._order[np.sort(picked)].tolist()]

    def __len__(self) -> int:
        return self._starts[-1]

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, (Log, list, tuple)) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[Event]:
        return map(self._event, self._order.tolist())

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        if isinstance(index, slice):
            return [self._event(place) for place in self._order[index].tolist()]
        return self._event(int(self._order[index]))

    def _event(self, place: int) -> Event:
        part = bisect_right(self._starts, place) - 1
        merge = place - self._starts[part]
        if part == 0:
            return self._own[merge]
        forest, size = self._forests[part - 1], int(self._sizes[part - 1][merge])
        time, _, _, mass = forest.rows[merge].tolist()
        return Event("merge", time, mass, size, self._members[part - 1], partial(forest.leaves, merge))

    def __repr__(self) -> str:
        return f"Log({len(self)} events)" if len(self) > 20 else repr(list(self))
