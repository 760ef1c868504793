"""Coinciding tokens become one weighted token."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attractor.flow.forest import Forest
from attractor.flow.nearness import close_pairs


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
        self.forest = [Forest(n) for _ in range(members)]

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
