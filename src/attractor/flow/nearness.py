"""Which tokens are close enough to become one."""

from __future__ import annotations

import numpy as np

from attractor.engines import native

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
