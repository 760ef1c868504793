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
from attractor.errors import InputError
from attractor.solvers.log_time import exponential
from attractor.solvers.outcome import EventRecord
from attractor.solvers.saving import to_numpy, to_tensor

FEW = 4096  # tokens up to which all nearest neighbors are found: their smallest gap tells when to search again
RARE = 16  # close tokens per mutual pair above which many coincide; where at most two coincide there are about three
FLAT = 8  # largest dimension in which a search by cells is faster


def close_pairs(points: np.ndarray, tolerance: float) -> tuple[np.ndarray, float]:
    """Find pairs of points closer than the tolerance.

    Parameters
    ----------
    points : (n, d).
    tolerance : distance.

    Returns
    -------
    pairs : (k, 2), indices (keep, drop), no index in two pairs. There is at least one if any two points are closer than the
        tolerance, so that repeated rounds leave none.
    gap : a lower bound on all distances.

    Notes
    -----
    Of many points, those that share a cell are paired first: a tree would compare all of them with each other.
    """
    if not np.isfinite(points).all():
        raise InputError("points must be finite to find close pairs of them; one is NaN or infinite")
    if len(points) <= FEW or points.shape[1] > FLAT:
        return nearest_pairs(points, tolerance)
    pairs = cell_pairs(points, tolerance)
    return (pairs if len(pairs) else mutual_pairs(points, tolerance)), 0.0


def nearest_pairs(points: np.ndarray, tolerance: float) -> tuple[np.ndarray, float]:
    """Find pairs (keep, drop), keep < drop, of mutual nearest neighbors closer than the tolerance; and the smallest distance.

    Only mutual neighbors are paired, so that a chain of tokens does not merge in one round.
    """
    from scipy.spatial import KDTree  # slow to import, and not every run merges

    distance, neighbor = (np.asarray(found) for found in KDTree(points).query(points, k=2))
    own = np.arange(len(points))
    # the query may list a point that coincides with others second among its own neighbors, or not at all
    first = neighbor[:, 0] != own
    second, gap = np.where(first, neighbor[:, 0], neighbor[:, 1]), np.where(first, distance[:, 0], distance[:, 1])
    close = np.flatnonzero(gap < tolerance)
    mutual = close[second[second[close]] == close]
    pairs = np.stack([mutual, second[mutual]], axis=1)[mutual < second[mutual]]
    if RARE * len(pairs) < len(close):
        # tokens at one point all have the same few nearest neighbors, and would merge one by one
        others = cell_pairs(points, tolerance)
        pairs = others if len(others) > len(pairs) else pairs
    return pairs, float(gap.min())


def cell_pairs(points: np.ndarray, tolerance: float) -> np.ndarray:
    """Pair points (keep, drop) that share a cell whose diagonal is below the tolerance: the first with the second, and so on."""
    found = native.cell_mates(points, tolerance)
    return _cell_pairs(points, tolerance) if found is None else found


def _cell_pairs(points: np.ndarray, tolerance: float) -> np.ndarray:
    density = 1.01 * np.sqrt(points.shape[1]) / tolerance  # cells per unit of length
    if not np.abs(points).max(initial=0.0) < 2.0**62 / density:
        return np.zeros((0, 2), dtype=np.int64)
    keys = _hash_cells(np.floor(points * density).astype(np.int64))
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    fresh = np.concatenate([[True], keys[1:] != keys[:-1]])
    if fresh.all():
        return np.zeros((0, 2), dtype=np.int64)
    place = np.arange(len(keys)) - np.flatnonzero(fresh)[np.cumsum(fresh) - 1]  # index within its cell
    second = np.flatnonzero(place % 2 == 1)
    keep, drop = order[second - 1], order[second]
    # two cells may have the same key
    near = np.linalg.norm(points[keep] - points[drop], axis=1) < tolerance
    return np.stack([keep, drop], axis=1)[near]


def _hash_cells(cells: np.ndarray) -> np.ndarray:
    """Hash each cell (n, d) to one integer."""
    odd = np.random.default_rng(0).integers(1, 2**62, size=cells.shape[1], dtype=np.int64) | 1
    with np.errstate(over="ignore"):
        return (cells * odd).sum(axis=1)


def mutual_pairs(points: np.ndarray, tolerance: float) -> np.ndarray:
    """Find pairs (keep, drop) closer than the tolerance such that neither point is in a closer pair; ties are broken by index."""
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
    """Merges of one member as a binary tree, in the format of SciPy's linkage matrix.

    Tokens are nodes 0 to n-1 and merge k makes node n + k. ``rows`` (merges, 4) hold its time, the two nodes that merged and
    their total mass. Memory is linear in n, and the tokens of a node are found by traversing the tree.
    """

    def __init__(self, n: int, rows: np.ndarray | None = None) -> None:
        self.n = n
        self._chunks = [np.zeros((0, 4)) if rows is None else rows.reshape(-1, 4)]
        self._count = len(self._chunks[0])

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> np.ndarray:
        """The merges in their order, (merges, 4)."""
        if len(self._chunks) > 1:
            self._chunks = [np.concatenate(self._chunks)]
        return self._chunks[0]

    def extend(self, time: float | np.ndarray, left: np.ndarray, right: np.ndarray, mass: np.ndarray) -> np.ndarray:
        """Append merges of pairs of nodes, at one time or each at its own; return the nodes they make."""
        rows = np.empty((len(left), 4))
        for column, values in enumerate((time, left, right, mass)):
            rows[:, column] = values
        self._chunks.append(rows)
        made = self.n + self._count + np.arange(len(left))
        self._count += len(left)
        return made

    def sizes(self) -> np.ndarray:
        """Number of tokens in the node of each merge, (merges,)."""
        sizes = [1] * self.n
        for left, right in self.rows[:, 1:3].astype(np.int64).tolist():
            sizes.append(sizes[left] + sizes[right])
        return np.array(sizes[self.n :], dtype=np.int64)

    def leaves(self, merge: int) -> tuple[int, ...]:
        """The tokens in the node of a merge, sorted."""
        leaves, stack, rows = [], [self.n + merge], self.rows
        while stack:
            node = stack.pop()
            if node < self.n:
                leaves.append(node)
            else:
                stack += [int(rows[node - self.n, 1]), int(rows[node - self.n, 2])]
        return tuple(sorted(leaves))


class EventLog(Sequence[EventRecord]):
    """Events of a run in the order of time: those of the ``user``, and the merges of each member (made from the ``trees`` on access).

    With ``log_errors`` the trees hold logarithms of times, and these their errors, and whether they are bounds, for every merge of each
    member, (merges, 2).
    """

    def __init__(
        self,
        user: Sequence[EventRecord],
        trees: Sequence[MergeTree],
        members: Sequence[int] | None = None,
        log_errors: Sequence[np.ndarray] | None = None,
    ) -> None:
        self.user, self.trees = list(user), list(trees)
        self.log_errors = None if log_errors is None else list(log_errors)
        self._members = list(range(len(self.trees)) if members is None else members)
        self._starts = [0, *accumulate([len(self.user), *map(len, self.trees)])]

    @cached_property
    def _order(self) -> np.ndarray:
        times = [np.array([event.time for event in self.user]), *(tree.rows[:, 0] for tree in self.trees)]
        return np.argsort(np.concatenate(times), kind="stable")

    @cached_property
    def _sizes(self) -> list[np.ndarray]:
        return [tree.sizes() for tree in self.trees]

    @classmethod
    def from_events(cls, events: Sequence[EventRecord]) -> EventLog:
        """Return a log of events; a log is returned unchanged."""
        return events if isinstance(events, EventLog) else cls(events, [])

    def select(self, member: int) -> EventLog:
        """The events of one member."""
        own = [event for event in self.user if event.member == member]
        errors = None if self.log_errors is None else self.log_errors[member : member + 1]
        return EventLog(own, [self.trees[member]] if member < len(self.trees) else [], [member], errors)

    @property
    def merges(self) -> int:
        """Number of events that are merges."""
        return len(self) - len(self.user)

    def thin(self, which: Callable[[np.ndarray], np.ndarray]) -> list[EventRecord]:
        """All events of the user and the merges that ``which`` selects from their indices, in the order of time."""
        own = self._order < len(self.user)
        picked = np.concatenate([np.flatnonzero(own), which(np.flatnonzero(~own))])
        return [self._event(place) for place in self._order[np.sort(picked)].tolist()]

    def __len__(self) -> int:
        return self._starts[-1]

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, (EventLog, list, tuple)) else NotImplemented

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
            return self.user[merge]
        tree, size = self.trees[part - 1], int(self._sizes[part - 1][merge])
        time, _, _, mass = tree.rows[merge].tolist()
        member, leaves = self._members[part - 1], partial(tree.leaves, merge)
        if self.log_errors is None:
            return EventRecord("merge", time, mass, size, member, _members=leaves)
        error, bound = self.log_errors[part - 1][merge].tolist()
        return EventRecord("merge", exponential(time), mass, size, member, time, error, bool(bound), leaves)

    def __repr__(self) -> str:
        return f"EventLog({len(self)} events)" if len(self) > 20 else repr(list(self))


class Merger:
    """Merges tokens that are closer than ``tolerance``.

    ``row_of`` (members, n) has the row that stands for each original token, ``node_of`` the node of the merge tree of each row
    and ``trees`` the merge tree of every member of the ensemble.
    """

    def __init__(self, tolerance: float, masses: Tensor) -> None:
        members, n = masses.shape
        self.tolerance = tolerance
        self.n = n
        self.masses = masses  # (members, rows); zero where a row has no token
        self.alive = torch.ones(members, n, dtype=torch.bool, device=masses.device)
        self.row_of = np.arange(n)[None].repeat(members, axis=0)
        self.node_of = self.row_of.copy()
        self.members = np.arange(members)
        # no pair can be close before a token has moved by half the slack: the smallest gap minus the tolerance at the anchor
        self.anchor: Tensor | None = None
        self.slack = np.zeros(members)
        self.trees = [MergeTree(n) for _ in range(members)]

    def find(self, points: Tensor, members: np.ndarray) -> dict[int, np.ndarray]:
        """Find pairs of rows (keep, drop) closer than the tolerance, for each of some members that has any."""
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
            if not np.isfinite(rows).all():  # the run is about to end
                continue
            alive = np.flatnonzero(self.alive[member].cpu().numpy())
            if len(alive) < 2:
                self.slack[member] = np.inf
                continue
            if not np.isfinite(rows).all():
                continue  # the member ends here, and its outcome says why
            pairs, gap = close_pairs(rows if len(alive) == len(rows) else rows[alive], self.tolerance)
            self.slack[member] = gap - self.tolerance
            if gap > self.tolerance:
                self.anchor[member] = points[member]
            if len(pairs):
                found[int(member)] = alive[pairs]
        return found

    def apply(self, found: dict[int, np.ndarray], t: np.ndarray) -> RowMap:
        """Log merges at times t and renumber rows; return the map from old rows to new ones."""
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
            nodes[keep] = self.trees[self.members[member]].extend(float(t[member]), nodes[keep], nodes[drop], total)
        return self._renumber(alive, target, share)

    def _renumber(self, alive: np.ndarray, target: np.ndarray, share: np.ndarray) -> RowMap:
        """Move rows that stand for tokens to the front; the others are padding without mass."""
        counts = alive.sum(1)
        width = int(counts.max())
        place = np.where(alive, np.cumsum(alive, axis=1) - 1, -1)
        new_row = np.take_along_axis(place, target, axis=1)  # rows that were padding map to -1
        change = RowMap(torch.from_numpy(np.where(new_row < 0, width, new_row)), torch.from_numpy(share), width)
        self.masses = change.total(self.masses)
        self.row_of = np.take_along_axis(np.where(new_row < 0, 0, new_row), self.row_of, axis=1)
        nodes = np.zeros((len(alive), width), dtype=np.int64)
        filled = np.arange(width)[None] < counts[:, None]
        nodes[filled] = self.node_of[alive]  # both in the order of rows
        self.node_of = nodes
        self.alive = torch.from_numpy(filled).to(self.alive.device)
        return change

    def expand(self, points: Tensor, members: np.ndarray) -> Tensor:
        """Points of all original tokens of some members, (len(members), n, d)."""
        index = torch.from_numpy(self.row_of[members]).to(points.device)
        if len(index) == 1:
            return points[:, index[0]]
        return points[torch.arange(len(index), device=points.device)[:, None], index]

    def select(self, index: Tensor | slice) -> None:
        """Keep some members only."""
        chosen = index if isinstance(index, slice) else index.cpu().numpy()
        self.masses, self.alive = self.masses[index], self.alive[index]
        self.slack = self.slack[chosen]
        self.anchor = None if self.anchor is None else self.anchor[index]
        self.row_of, self.node_of, self.members = self.row_of[chosen], self.node_of[chosen], self.members[chosen]

    def apply_native(self, done: NativeMerges, counts: np.ndarray, finished: bool) -> int:
        """Apply merges of the native loop, which left ``counts`` tokens in each row; return the number of columns left.

        If every member has ended, masses and nodes are not used again and keep their columns.
        """
        width = done.masses.shape[1]
        self.slack, self.anchor, self.row_of = done.slack, done.anchor, done.row_of
        for row, merges in enumerate(done.merges.tolist()):
            if merges:
                logs = (log[row, :merges] for log in (done.times, done.left, done.right, done.weights))
                self.trees[self.members[row]].extend(*logs)
        if finished or not done.merges.any():
            return width
        width = int(counts.max())
        self.masses, self.anchor = narrow(done.masses, width), narrow(done.anchor, width)
        self.node_of = done.node_of[:, :width].copy()
        self.alive = torch.from_numpy(np.arange(width)[None] < counts[:, None]).to(self.alive.device)
        return width

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return the arrays of a checkpoint, apart from the merge trees."""
        anchor = np.zeros(0) if self.anchor is None else to_numpy(self.anchor)
        arrays = {"masses": to_numpy(self.masses), "alive": to_numpy(self.alive), "anchor": anchor}
        return arrays | {"slack": self.slack, "row_of": self.row_of, "node_of": self.node_of, "merging": self.members}

    def restore(self, arrays: dict[str, np.ndarray], device: torch.device) -> None:
        """Set the merger to a checkpoint, apart from the merge trees."""
        self.masses, self.alive = to_tensor(arrays["masses"], device), to_tensor(arrays["alive"], device)
        self.anchor = to_tensor(arrays["anchor"], device) if arrays["anchor"].size else None
        self.slack, self.row_of, self.node_of = arrays["slack"], arrays["row_of"], arrays["node_of"]
        self.members = arrays["merging"]


class NativeMerges:
    """Copies of a merger's arrays for the native loop to change, and room for the merges that it makes."""

    def __init__(self, merger: Merger, y: Tensor) -> None:
        members, width = merger.masses.shape
        known = merger.anchor is not None and merger.anchor.shape == y.shape
        self.masses = merger.masses.clone()
        self.anchor = (merger.anchor if known else y).clone(memory_format=torch.contiguous_format)  # type: ignore[union-attr]
        self.slack = merger.slack.copy() if known else np.zeros(members)
        self.row_of, self.node_of = np.array(merger.row_of), np.array(merger.node_of)
        self.nodes = np.array([merger.n + len(merger.trees[member]) for member in merger.members])
        self.merges = np.zeros(members, dtype=np.int64)
        self.times, self.weights = np.empty((2, members, width))
        self.left, self.right = np.empty((2, members, width), dtype=np.int64)

    def arrays(self) -> dict[str, Tensor | np.ndarray | None]:
        """Return the arrays by their names in the native loop."""
        return {
            "masses": self.masses,
            "near_anchor": self.anchor,
            "slack": self.slack,
            "merges": self.merges,
            "row_of": self.row_of,
            "node_of": self.node_of,
            "nodes": self.nodes,
            "log_time": self.times,
            "log_mass": self.weights,
            "log_left": self.left,
            "log_right": self.right,
        }


def narrow(array: Tensor, width: int) -> Tensor:
    """The first ``width`` tokens of every member, contiguous."""
    return array if array.shape[1] == width else array[:, :width].contiguous()


class RowMap:
    """A map from rows to fewer rows: new row r is the mass-weighted mean of the old rows that map to it."""

    def __init__(self, row: Tensor, share: Tensor, width: int) -> None:
        self.row, self.share, self.width = row, share, width

    def then(self, other: RowMap) -> RowMap:
        """Compose this map with one that follows it; rows that are padding (``width``) stay padding."""
        row = torch.nn.functional.pad(other.row, (0, 1), value=other.width).gather(1, self.row)
        share = torch.nn.functional.pad(other.share, (0, 1), value=1.0).gather(1, self.row)
        return RowMap(row, self.share * share, other.width)

    def __call__(self, array: Tensor) -> Tensor:
        """Map points or slopes (members, rows, d); padding copies row 0."""
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
        """Sum masses (members, rows) over the rows that map to one."""
        wide = masses.new_zeros((masses.shape[0], self.width + 1))
        return wide.scatter_add(1, self.row.to(masses.device), masses)[:, : self.width]
