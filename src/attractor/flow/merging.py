"""Coinciding tokens become one weighted token."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from attractor.flow.outcome import Event


class Merger:
    """Which original token stands in which row, and the history of merges as a binary forest.

    A merge of two rows makes a node of the forest, like a row of a linkage matrix, so that the log of n tokens is linear in
    n; the members of a node are found by walking down.
    """

    def __init__(self, tolerance: float, masses: Tensor) -> None:
        members, n = masses.shape
        self.tolerance = tolerance
        self.n = n
        self.masses = masses  # (members, rows); zero where a row stands for nothing
        self.alive = torch.ones(members, n, dtype=torch.bool, device=masses.device)
        self.row_of = np.tile(np.arange(n), (members, 1))
        self.node_of = np.tile(np.arange(n), (members, 1))
        self.who = np.arange(members)
        # no pair can be close before tokens have moved by half of what kept the closest pair apart at the last search
        self.anchor: Tensor | None = None
        self.slack = np.zeros(members)
        self.forest: list[list[tuple[float, int, int, float]]] = [[] for _ in range(members)]

    def find(self, points: Tensor, members: np.ndarray) -> dict[int, np.ndarray]:
        """Pairs of rows (keep, drop) that have come within the tolerance, for each of some members that has any."""
        points = points.detach()
        if self.anchor is not None and self.anchor.shape == points.shape:
            moved = torch.linalg.vector_norm(points - self.anchor, dim=-1).amax(-1).cpu().double().numpy()
            members = members[2.0 * moved[members] >= self.slack[members]]
        else:
            self.anchor, self.slack = points.clone(), np.zeros(len(points))
        found: dict[int, np.ndarray] = {}
        for member in members:
            alive = np.flatnonzero(self.alive[member].cpu().numpy())
            if len(alive) < 2:
                self.slack[member] = np.inf
                continue
            pairs, gap = nearest_pairs(points[member].cpu().double().numpy()[alive], self.tolerance)
            self.anchor[member], self.slack[member] = points[member], gap - self.tolerance
            if len(pairs):
                found[int(member)] = alive[pairs]
        return found

    def apply(self, found: dict[int, np.ndarray], t: np.ndarray) -> Shrink:
        """Log the merges, renumber rows and say how arrays shrink."""
        members, rows = self.alive.shape
        target = np.tile(np.arange(rows), (members, 1))
        masses = self.masses.cpu().double().numpy()
        share = np.ones((members, rows))
        for member, pairs in found.items():
            for keep, drop in pairs:
                total = masses[member, keep] + masses[member, drop]
                parts = (masses[member, keep] / total, masses[member, drop] / total) if total > 0 else (0.5, 0.5)
                share[member, keep], share[member, drop] = parts
                target[member, drop] = keep
                self._log(member, float(t[member]), int(keep), int(drop), total)
        alive = self.alive.cpu().numpy()
        for member, pairs in found.items():
            alive[member, pairs[:, 1]] = False
        return self._renumber(alive, target, share)

    def _log(self, member: int, time: float, keep: int, drop: int, mass: float) -> None:
        forest = self.forest[self.who[member]]
        forest.append((time, int(self.node_of[member, keep]), int(self.node_of[member, drop]), float(mass)))
        self.node_of[member, keep] = self.n + len(forest) - 1

    def _renumber(self, alive: np.ndarray, target: np.ndarray, share: np.ndarray) -> Shrink:
        """Rows that live come first; rows left over are padding without mass."""
        members, rows = alive.shape
        width = int(alive.sum(1).max())
        place = np.full((members, rows), -1)
        for member in range(members):
            living = np.flatnonzero(alive[member])
            place[member, living] = np.arange(len(living))
        new_row = np.take_along_axis(place, target, axis=1)  # rows that were padding map to -1
        shrink = Shrink(torch.from_numpy(np.where(new_row < 0, width, new_row)), torch.from_numpy(share), width)
        self.masses = shrink.total(self.masses)
        self.row_of = np.take_along_axis(np.where(new_row < 0, 0, new_row), self.row_of, axis=1)
        nodes = np.zeros((members, width), dtype=np.int64)
        for member in range(members):
            living = np.flatnonzero(alive[member])
            nodes[member, : len(living)] = self.node_of[member, living]
        self.node_of = nodes
        counts = alive.sum(1)
        self.alive = torch.from_numpy(np.arange(width)[None] < counts[:, None]).to(self.alive.device)
        return shrink

    def expand(self, points: Tensor, members: np.ndarray) -> Tensor:
        """Points of all original tokens, (len(members), n, d)."""
        index = torch.from_numpy(self.row_of[members]).to(points.device)
        return torch.take_along_dim(points, index.unsqueeze(-1), dim=1)

    def keep(self, index: Tensor) -> None:
        """Go on with some members only."""
        chosen = index.cpu().numpy()
        self.masses, self.alive = self.masses[index], self.alive[index]
        self.slack = self.slack[chosen]
        self.anchor = None if self.anchor is None else self.anchor[index]
        self.row_of, self.node_of, self.who = self.row_of[chosen], self.node_of[chosen], self.who[chosen]


class Shrink:
    """A change from old rows to fewer: new row r is the mass-weighted mean of the old rows that map to it."""

    def __init__(self, row: Tensor, share: Tensor, width: int) -> None:
        self.row, self.share, self.width = row, share, width

    def __call__(self, array: Tensor) -> Tensor:
        """Points or slopes (members, rows, d) after the merge; padding copies row 0."""
        row, share = self.row.to(array.device), self.share.to(array)
        index = row.unsqueeze(-1).expand_as(array)
        wide = array.new_zeros((array.shape[0], self.width + 1, array.shape[2]))
        merged = wide.scatter_add(1, index, share.unsqueeze(-1) * array)[:, : self.width]
        touched = torch.zeros((array.shape[0], self.width + 1), dtype=torch.bool, device=array.device)
        touched = touched.scatter(1, row, True)[:, : self.width]
        return torch.where(touched.unsqueeze(-1), merged, merged[:, :1])

    def total(self, masses: Tensor) -> Tensor:
        """Masses (members, rows) added up."""
        wide = masses.new_zeros((masses.shape[0], self.width + 1))
        return wide.scatter_add(1, self.row.to(masses.device), masses)[:, : self.width]


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
    return np.stack([mutual, second[mutual]], axis=1)[mutual < second[mutual]], float(gap.min())


def merge_events(forest: list[tuple[float, int, int, float]], n: int, member: int) -> list[Event]:
    """The log of one member as events; the original tokens of a merge are looked up when asked for."""
    sizes = [1] * n
    events = []
    for k, (time, left, right, mass) in enumerate(forest):
        sizes.append(sizes[left] + sizes[right])
        events.append(Event("merge", time, mass, sizes[-1], member, partial(_leaves, forest, n, n + k)))
    return events


def _leaves(forest: list[tuple[float, int, int, float]], n: int, node: int) -> tuple[int, ...]:
    leaves, stack = [], [node]
    while stack:
        node = stack.pop()
        if node < n:
            leaves.append(node)
        else:
            stack += forest[node - n][1:3]
    return tuple(sorted(leaves))
