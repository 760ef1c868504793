"""Which tokens coincide: they are drawn as one disc that carries their joint mass, and coloured alike."""

from __future__ import annotations

import numpy as np


def groups(points: np.ndarray, tolerance: float, grids: int = 6) -> np.ndarray:
    """Labels (n,) of tokens chained by steps of about the tolerance.

    Tokens that share a cell in one of several shifted grids are joined, so the cost is linear in n even when thousands
    of tokens sit on one point.
    """
    # scipy is slow to import, and importing pictures must not be
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n, dim = points.shape
    generator = np.random.default_rng(0)
    mixers = generator.integers(1, 2**62, size=dim, dtype=np.int64) | 1
    tokens, cells, count = [], [], n
    for _ in range(grids):
        shifted = np.floor(points / tolerance + generator.random(dim))
        with np.errstate(over="ignore"):
            keys = (shifted.astype(np.int64) * mixers).sum(axis=1)
        _, cell = np.unique(keys, return_inverse=True)
        tokens.append(np.arange(n))
        cells.append(count + cell)
        count += int(cell.max()) + 1
    rows, columns = np.concatenate(tokens), np.concatenate(cells)
    graph = coo_array((np.ones(rows.size, dtype=np.int8), (rows, columns)), shape=(count, count))
    labels = connected_components(graph, directed=False)[1][:n]
    return np.unique(labels, return_inverse=True)[1]
