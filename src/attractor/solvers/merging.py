"""Merging of coinciding tokens: neighbor search, merge tree and merger."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import accumulate
from typing import overload

import numpy as np
import torch
from torch import Tensor

from attractor.engines import native
from attractor.solvers.outcome import EventRecord

FEW = 4096  # tokens whose nearest neighbours are all looked up: the smallest gap then says when to look again
RARE = 16  # close tokens to a mutual pair; there are about three where no more than two coincide
FLAT = 8  # dimensions up to which cells pay


def close_pairs(points: np.ndarray, tolerance: float) -> tuple[np.ndarray, float]:
    """Pairs (keep, drop) of rows of (n, d) closer than the tolerance, no row in two of them; and a bound below all gaps.

    As long as two rows are closer there is at least one pair, so that repeated rounds leave none. Many tokens are first
    looked for in cells, where they are close however many share one: a tree would compare all of these.
    """
    if len(points) <= FEW or points.shape[1] > FLAT:
        return nearest_pairs(points, tolerance)
    mates = cell_mates(points, tolerance)
    return (mates if len(mates) else mutual_pairs(points, tolerance)), 0.0


def nearest_pairs(points: np.ndarray, tolerance: float) -> tuple[np.ndarray, float]:
    """Pairs (keep, drop), keep < drop, that are each other's nearest neighbour and closer than the tolerance; the smallest gap.

    Only mutual neighbours merge, so that a chain of tokens does not fall together at once; repeated rounds do the rest.
    """
    from scipy.spatial import KDTree  # slow to import, and not every run merges

    distance, neighbour = (np.asarray(found) for found in KDTree(points).query(points, k=2))
    own = np.arange(len(points))
    # among coinciding points the query may list the point itself second, or not at all
    first = neighbour[:, 0] != own
    second, gap = np.where(first, neighbour[:, 0], neighbour[:, 1]), np.where(first, distance[:, 0], distance[:, 1])
    close = np.flatnonzero(gap < tolerance)
    mutual = close[second[second[close]] == close]
    pairs = np.stack([mutual, second[mutual]], axis=1)[mutual < second[mutual]]
    if RARE * len(pairs) < len(close):
        # tokens at one point all have the same few of them for a neighbour, and would merge one by one
        mates = cell_mates(points, tolerance)
        pairs = mates if len(mates) > len(pairs) else pairs
    return pairs, float(gap.min())


def cell_mates(points: np.ndarray, tolerance: float) -> np.ndarray:
    """Pairs (keep, drop) that share a cell whose diagonal is below the tolerance: the first with the second, and so on."""
    found = native.cell_mates(points, tolerance)
    return _cell_mates(points, tolerance) if found is None else found


def _cell_mates(points: np.ndarray, tolerance: float) -> np.ndarray:
    density = 1.01 * np.sqrt(points.shape[1]) / tolerance  # cells to a length
    if not np.abs(points).max(initial=0.0) < 2.0**62 / density:
        return np.zeros((0, 2), dtype=np.int64)
    keys = _mixed(np.floor(points * density).astype(np.int64))
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    fresh = np.concatenate([[True], keys[1:] != keys[:-1]])
    if fresh.all():
        return np.zeros((0, 2), dtype=np.int64)
    place = np.arange(len(keys)) - np.flatnonzero(fresh)[np.cumsum(fresh) - 1]  # within its cell
    second = np.flatnonzero(place % 2 == 1)
    keep, drop = order[second - 1], order[second]
    # two cells may share a key by chance
    near = np.linalg.norm(points[keep] - points[drop], axis=1) < tolerance
    return np.stack([keep, drop], axis=1)[near]


def _mixed(cells: np.ndarray) -> np.ndarray:
    """Cells (n, d) as one number each, different ones different but for rare chance."""
    odd = np.random.default_rng(0).integers(1, 2**62, size=cells.shape[1], dtype=np.int64) | 1
    with np.errstate(over="ignore"):
        return (cells * odd).sum(axis=1)


def mutual_pairs(points: np.ndarray, tolerance: float) -> np.ndarray:
    """Pairs (keep, drop) closer than the tolerance of which neither is part of a closer one; ties go by number."""
    found = native.mutual_pairs(points, tolerance)
    return _mutual_pairs(points, tolerance) if found is None else found


def _mutual_pairs(points: np.ndarray, tolerance: float) -> np.ndarray:
    from scipy.spatial import KDTree

    tree = KDTree(points, balanced_tree=False, compact_nodes=False)
    pairs = tree.query_pairs(np.nextafter(tolerance, 0.0), output_type="ndarray")
    gaps = np.linalg.norm(points[pairs[:, 0]] - points[pairs[:, 1]], axis=1)
    pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0], gaps))]
    best = np.full(len(points), len(pairs))
    rank = np.arange(len(pairs))
    np.minimum.at(best, pairs.ravel(), np.repeat(rank, 2))
    return pairs[(best[pairs[:, 0]] == rank) & (best[pairs[:, 1]] == rank)]


class MergeTree:
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


class Log(Sequence[EventRecord]):
    """Events in the order of time: those of the user, then the merges of each member; a merge is put into words when asked for."""

    def __init__(
        self, own: Sequence[EventRecord], forests: Sequence[MergeTree], members: Sequence[int] | None = None
    ) -> None:
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
    def from_events(cls, events: Sequence[EventRecord]) -> Log:
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

    def some(self, which: Callable[[np.ndarray], np.ndarray]) -> list[EventRecord]:
        """All events of the user and the merges that ``which`` picks out of their numbers, in the order of time."""
        own = self._order < len(self._own)
        picked = np.concatenate([np.flatnonzero(own), which(np.flatnonzero(~own))])
        return [self._event(place) for place in self._order[np.sort(picked)].tolist()]

    def __len__(self) -> int:
        return self._starts[-1]

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, (Log, list, tuple)) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[EventRecord]:
        return map(self._event, self._order.tolist())

    @overload
    def __getitem__(self, index: int) -> EventRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[EventRecord]: ...
    def __getitem__(self, index: int | slice) -> EventRecord | list[EventRecord]:
        if isinstance(index, slice):
            return [self._event(place) for place in self._order[index].tolist()]
        return self._event(int(self._order[index]))

    def _event(self, place: int) -> EventRecord:
        part = bisect_right(self._starts, place) - 1
        merge = place - self._starts[part]
        if part == 0:
            return self._own[merge]
        forest, size = self._forests[part - 1], int(self._sizes[part - 1][merge])
        time, _, _, mass = forest.rows[merge].tolist()
        return EventRecord("merge", time, mass, size, self._members[part - 1], partial(forest.leaves, merge))

    def __repr__(self) -> str:
        return f"Log({len(self)} events)" if len(self) > 20 else repr(list(self))


class Merger:
    """Which original token stands in which row, and the history of merges: one forest for each member."""

    def __init__(self, tolerance: float, masses: Tensor) -> None:
        members, n = masses.shape
        self.tolerance = tolerance
        self.n = n
        self.masses = masses  # (members, rows); zero where a row stands for nothing
        self.alive = torch.ones(members, n, dtype=torch.bool, device=masses.device)
        self.row_of = np.arange(n)[None].repeat(members, axis=0)
        self.node_of = self.row_of.copy()
        self.who = np.arange(members)
        # no pair can be close before tokens have moved by half of what kept the closest pair apart at the last search
        self.anchor: Tensor | None = None
        self.slack = np.zeros(members)
        self.forest = [MergeTree(n) for _ in range(members)]

    def find(self, points: Tensor, members: np.ndarray) -> dict[int, np.ndarray]:
        """Pairs of rows (keep, drop) that have come within the tolerance, for each of some members that has any."""
        points = points.detach()
        if self.anchor is not None and self.anchor.shape == points.shape:
            if (self.slack[members] > 0).any():
                moved = torch.linalg.vector_norm(points - self.anchor, dim=-1).amax(-1).cpu().double().numpy()
                members = members[2.0 * moved[members] >= self.slack[members]]
        else:
            self.anchor, self.slack = points.clone(), np.zeros(len(points))
        found: dict[int, np.ndarray] = {}
        for member in members:
            rows = points[member].cpu().double().numpy()
            alive = np.flatnonzero(self.alive[member].cpu().numpy())
            if len(alive) < 2:
                self.slack[member] = np.inf
                continue
            pairs, gap = close_pairs(rows if len(alive) == len(rows) else rows[alive], self.tolerance)
            self.slack[member] = gap - self.tolerance
            if gap > self.tolerance:
                self.anchor[member] = points[member]
            if len(pairs):
                found[int(member)] = alive[pairs]
        return found

    def apply(self, found: dict[int, np.ndarray], t: np.ndarray) -> Shrink:
        """Log the merges, renumber rows and say how arrays shrink."""
        members, rows = self.alive.shape
        target = np.tile(np.arange(rows), (members, 1))
        masses = self.masses.cpu().double().numpy()
        share = np.ones((members, rows))
        alive = self.alive.cpu().numpy().copy()
        for member, pairs in found.items():
            keep, drop = pairs[:, 0], pairs[:, 1]
            total = masses[member, keep] + masses[member, drop]
            part = np.divide(masses[member, keep], total, out=np.full(len(total), 0.5), where=total > 0)
            share[member, keep], share[member, drop] = part, 1.0 - part
            target[member, drop] = keep
            alive[member, drop] = False
            nodes = self.node_of[member]
            nodes[keep] = self.forest[self.who[member]].extend(float(t[member]), nodes[keep], nodes[drop], total)
        return self._renumber(alive, target, share)

    def _renumber(self, alive: np.ndarray, target: np.ndarray, share: np.ndarray) -> Shrink:
        """Rows that live come first; rows left over are padding without mass."""
        counts = alive.sum(1)
        width = int(counts.max())
        place = np.where(alive, np.cumsum(alive, axis=1) - 1, -1)
        new_row = np.take_along_axis(place, target, axis=1)  # rows that were padding map to -1
        shrink = Shrink(torch.from_numpy(np.where(new_row < 0, width, new_row)), torch.from_numpy(share), width)
        self.masses = shrink.total(self.masses)
        self.row_of = np.take_along_axis(np.where(new_row < 0, 0, new_row), self.row_of, axis=1)
        nodes = np.zeros((len(alive), width), dtype=np.int64)
        filled = np.arange(width)[None] < counts[:, None]
        nodes[filled] = self.node_of[alive]  # both in the order of rows
        self.node_of = nodes
        self.alive = torch.from_numpy(filled).to(self.alive.device)
        return shrink

    def expand(self, points: Tensor, members: np.ndarray) -> Tensor:
        """Points of all original tokens, (len(members), n, d)."""
        index = torch.from_numpy(self.row_of[members]).to(points.device)
        if len(index) == 1:
            return points[:, index[0]]
        return points[torch.arange(len(index), device=points.device)[:, None], index]

    def keep(self, index: Tensor | slice) -> None:
        """Go on with some members only."""
        chosen = index if isinstance(index, slice) else index.cpu().numpy()
        self.masses, self.alive = self.masses[index], self.alive[index]
        self.slack = self.slack[chosen]
        self.anchor = None if self.anchor is None else self.anchor[index]
        self.row_of, self.node_of, self.who = self.row_of[chosen], self.node_of[chosen], self.who[chosen]


class Shrink:
    """A change from old rows to fewer: new row r is the mass-weighted mean of the old rows that map to it."""

    def __init__(self, row: Tensor, share: Tensor, width: int) -> None:
        self.row, self.share, self.width = row, share, width

    def then(self, other: Shrink) -> Shrink:
        """This change and another after it, as one; rows that are padding (``width``) stay padding."""
        row = torch.nn.functional.pad(other.row, (0, 1), value=other.width).gather(1, self.row)
        share = torch.nn.functional.pad(other.share, (0, 1), value=1.0).gather(1, self.row)
        return Shrink(row, self.share * share, other.width)

    def __call__(self, array: Tensor) -> Tensor:
        """Points or slopes (members, rows, d) after the merge; padding copies row 0."""
        row, share = self.row.to(array.device), self.share.to(array)
        index = row.unsqueeze(-1).expand_as(array)
        wide = array.new_zeros((array.shape[0], self.width + 1, array.shape[2]))
        merged = wide.scatter_add(1, index, share.unsqueeze(-1) * array)[:, : self.width]
        if len(array) == 1:  # the widest member has no padding
            return merged
        touched = torch.zeros((array.shape[0], self.width + 1), dtype=torch.bool, device=array.device)
        touched = touched.scatter(1, row, True)[:, : self.width]
        return torch.where(touched.unsqueeze(-1), merged, merged[:, :1])

    def total(self, masses: Tensor) -> Tensor:
        """Masses (members, rows) added up."""
        wide = masses.new_zeros((masses.shape[0], self.width + 1))
        return wide.scatter_add(1, self.row.to(masses.device), masses)[:, : self.width]
