"""Connected components of the graph of close tokens, in linear memory."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

PAIRS = 1 << 22  # pairs held at once
SMALL = 1 << 9  # tokens up to which all pairs of a state are compared at once
EDGES = 1 << 24  # pairs of close tokens that a graph may hold
FLAT = 8  # dimensions up to which a tree of cells pays
Array = np.ndarray


def components(points: Tensor, taking_part: Array, radius: Array) -> Array:
    """For every token of (B, n, d) the first token of its component, -1 for those that take no part; radius (B,).

    Two tokens are joined when they are closer than the radius of their state, or coincide.
    """
    states, n, _ = points.shape
    # "at most the float below the radius" is "closer than the radius", and leaves coinciding tokens joined at radius 0
    reach = np.maximum(np.nextafter(radius, -np.inf), 0.0)
    if n <= SMALL:
        step = max(1, PAIRS // (n * n))
        pieces = [slice(start, start + step) for start in range(0, states, step)]
        return np.concatenate([_batch(points[piece], taking_part[piece], reach[piece]) for piece in pieces])
    roots = np.full((states, n), -1)
    for state in range(states):
        here = np.flatnonzero(taking_part[state])
        roots[state, here] = here[_large(points[state][torch.from_numpy(here)], float(reach[state]))]
    return roots


def _batch(points: Tensor, taking_part: Array, reach: Array) -> Array:
    """All pairs of some small states; one graph with a block for each state."""
    states, n, _ = points.shape
    close = _close(points, points, reach[:, None, None]).numpy()
    state, i, j = np.nonzero(np.triu(close & taking_part[:, :, None] & taking_part[:, None, :], 1))
    roots = _first_members(state * n + i, state * n + j, states * n).reshape(states, n) % n
    return np.where(taking_part, roots, -1)


def _large(points: Tensor, reach: float) -> Array:
    pairs = _close_pairs(points, reach)
    # where most tokens are close to each other there are too many pairs to list, but a flood ends after few waves
    return _flood(points, reach) if pairs is None else _first_members(pairs[:, 0], pairs[:, 1], len(points))


def _close_pairs(points: Tensor, reach: float) -> Array | None:
    """All pairs (p, 2) within reach, each once; None if there are too many."""
    n = len(points)
    if points.shape[-1] <= FLAT:
        from scipy.spatial import KDTree  # scipy's parts are slow to import, so they are met where they are used

        tree = KDTree(points.numpy())
        if tree.count_neighbors(tree, reach) > EDGES:
            return None
        return tree.query_pairs(reach, output_type="ndarray")
    found, count, height = [], 0, max(1, PAIRS // n)
    for start in range(0, n, height):
        i, j = np.nonzero(np.triu(_close(points[start : start + height], points[start:], reach).numpy(), 1))
        found.append(np.stack((i, j), -1) + start)
        count += len(i)
        if count > EDGES:
            return None
    return np.concatenate(found)


def _flood(points: Tensor, reach: float) -> Array:
    """Spread from one token at a time: each is compared once with the tokens that no component has reached yet."""
    roots = np.full(len(points), -1)
    waiting = torch.arange(len(points))
    while len(waiting):
        root, wave, waiting = int(waiting[0]), waiting[:1], waiting[1:]
        while len(wave):
            roots[wave.numpy()] = root
            reached = torch.zeros(len(waiting), dtype=torch.bool)
            for block in wave.split(max(1, PAIRS // max(1, len(waiting)))):
                reached |= _close(points[block], points[waiting], reach).any(0)
            wave, waiting = waiting[reached], waiting[~reached]
    return roots


def _first_members(i: Array, j: Array, nodes: int) -> Array:
    """For every node the smallest node of its component."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(i), dtype=np.int8), (i, j)), shape=(nodes, nodes))
    _, labels = connected_components(graph, directed=False)
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return first[inverse]


def _close(x: Tensor, y: Tensor, reach: Array | float) -> Tensor:
    """True (..., a, b) where x and y are within reach.

    Distances come from differences, except in many dimensions, where these cost too much: there they come from
    products, whose error is a rounding of the squared size of the cloud and must be small beside the squared reach.
    """
    limit = torch.as_tensor(reach, dtype=x.dtype)
    products = x.shape[-1] > 64 and float(limit.min()) > 1e-4 * float(torch.linalg.vector_norm(x, dim=-1).max())
    mode = "use_mm_for_euclid_dist" if products else "donot_use_mm_for_euclid_dist"
    return torch.cdist(x, y, compute_mode=mode) <= limit
