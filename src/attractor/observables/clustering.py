"""Clusters: connected components of the graph of close tokens."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from attractor.errors import InputError, UnsupportedError
from attractor.laws import Attention, Law
from attractor.observables.geometry import centre_tokens, has_mass, token_norm
from attractor.observables.registry import Times, evaluate_at_times, observable, pairing_of
from attractor.spaces import Space
from attractor.states import Tokens

PAIRS = 1 << 22  # pairs held at once
SMALL = 1 << 9  # tokens up to which all pairs of a state are compared at once
EDGES = 1 << 24  # pairs of close tokens that a graph may hold
FLAT = 8  # dimensions up to which a tree of cells pays
CROWD = 4  # tokens to a cell above which cells are joined instead of tokens
Array = np.ndarray


def find_components(points: Tensor, taking_part: Array, radius: Array) -> Array:
    """For every token of (B, n, d) the first token of its component, -1 for tokens without mass; radius (B,).

    Two tokens are joined when they are closer than the radius of their state, or coincide.
    """
    states, n, _ = points.shape
    # "at most the float below the radius" is "closer than the radius", and leaves coinciding tokens joined at radius 0
    reach = np.maximum(np.nextafter(radius, -np.inf), 0.0)
    if n <= SMALL:
        step = max(1, PAIRS // (n * n))
        pieces = [slice(start, start + step) for start in range(0, states, step)]
        return np.concatenate([_label_small(points[piece], taking_part[piece], reach[piece]) for piece in pieces])
    roots = np.full((states, n), -1)
    for state in range(states):
        here = np.flatnonzero(taking_part[state])
        roots[state, here] = here[_label_large(points[state][torch.from_numpy(here)], float(reach[state]))]
    return roots


def _label_small(points: Tensor, taking_part: Array, reach: Array) -> Array:
    """Compare all pairs of small states, in one graph with a block for each state."""
    states, n, _ = points.shape
    close = _close(points, points, reach[:, None, None]).numpy()
    state, i, j = np.nonzero(np.triu(close & taking_part[:, :, None] & taking_part[:, None, :], 1))
    roots = _first_members(state * n + i, state * n + j, states * n).reshape(states, n) % n
    return np.where(taking_part, roots, -1)


def _label_large(points: Tensor, reach: float) -> Array:
    crowded = _join_by_cells(points.numpy(), reach) if points.shape[-1] <= FLAT else None
    if crowded is not None:
        return crowded
    pairs = _close_pairs(points, reach)
    # if most tokens are close to each other, there are too many pairs to list, but a flood fill ends after few rounds
    return _label_by_flooding(points, reach) if pairs is None else _first_members(pairs[:, 0], pairs[:, 1], len(points))


def _close_pairs(points: Tensor, reach: float) -> Array | None:
    """All pairs (p, 2) within reach, each once; None if there are too many."""
    n = len(points)
    if points.shape[-1] <= FLAT:
        from scipy.spatial import KDTree  # imported here because scipy is slow to import

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


def _join_by_cells(points: Array, reach: float) -> Array | None:
    """The first member of each component by cells whose diagonal is the reach; None where tokens are few to a cell.

    Tokens of one cell are connected. So are cells whose first tokens are close; where those are not, and no other path joins
    the two cells, the nearest two of their tokens decide.
    """
    density = 1.01 * points.shape[1] ** 0.5 / max(reach, 1e-300)
    if not np.abs(points).max(initial=0.0) < 2.0**62 / density:
        return None
    cells = np.floor(points * density).astype(np.int64)
    cells -= cells.min(axis=0)
    extent = cells.max(axis=0) + 1
    if np.prod(extent.astype(np.float64)) > 2.0**62:
        return None  # so many cells that they cannot be numbered
    keys = np.ravel_multi_index(tuple(cells.T), tuple(extent))
    _, first, cell = np.unique(keys, return_index=True, return_inverse=True)
    if CROWD * len(first) > len(points):
        return None
    order = np.argsort(cell, kind="stable")
    starts = np.searchsorted(cell[order], np.arange(len(first) + 1))
    members = [order[a:b] for a, b in pairwise(starts)]
    joined = _join_cells(points, first, members, reach)
    # cells are numbered by place: the component's first token is the smallest of the first tokens of its cells
    root = np.full(len(first), len(points))
    np.minimum.at(root, joined, first)
    return root[joined][cell]


def _join_cells(points: Array, first: Array, members: list[Array], reach: float) -> Array:
    """For every cell the smallest cell of its component."""
    from scipy.spatial import KDTree

    heads = KDTree(points[first])
    links = heads.query_pairs(reach, output_type="ndarray")
    joined = _first_members(links[:, 0], links[:, 1], len(first))
    candidates = heads.query_pairs(3.0 * reach, output_type="ndarray")
    for i, j in candidates[joined[candidates[:, 0]] != joined[candidates[:, 1]]].tolist():
        if joined[i] != joined[j]:
            gaps, _ = KDTree(points[members[i]]).query(points[members[j]])
            if gaps.min() <= reach:
                low, high = sorted((joined[i], joined[j]))
                joined[joined == high] = low
    return joined


def _label_by_flooding(points: Tensor, reach: float) -> Array:
    """Flood fill: each token is compared once with the tokens that are in no component yet."""
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
    products, whose error is a rounding of the squared size of the cloud and must be small relative to the squared reach.
    """
    limit = torch.as_tensor(reach, dtype=x.dtype)
    products = x.shape[-1] > 64 and float(limit.min()) > 1e-4 * float(torch.linalg.vector_norm(x, dim=-1).max())
    mode = "use_mm_for_euclid_dist" if products else "donot_use_mm_for_euclid_dist"
    return torch.cdist(x, y, compute_mode=mode) <= limit


SHARE = 0.1  # the default radius, in lengths of the longest token


@observable
def clusters(
    tokens: Tokens, law: Law | None = None, space: Space | None = None, *, radius: float | None = None
) -> Tensor:
    """Number of clusters, shape (...), whole numbers.

    They are the connected components of the graph that joins two tokens when they are closer than ``radius``.
    Straight distance in the norm of the space; tokens at the same point are in one cluster, tokens of mass 0 do not
    count. The default radius is a tenth of the length of the longest token of each state: 0.1 on the unit sphere, and
    indifferent to scale where tokens shrink to 0 or grow without bound.
    """
    roots = _roots(tokens, space, radius)
    own = np.arange(tokens.n)
    return torch.from_numpy((roots == own).sum(-1)).to(tokens.points.device).reshape(tokens.batch_shape)


@observable
def cluster_sizes(
    tokens: Tokens, law: Law | None = None, space: Space | None = None, *, radius: float | None = None
) -> Tensor:
    """Masses of the clusters, largest first, padded with zeros: shape (..., n). See ``clusters``."""
    roots = torch.from_numpy(_roots(tokens, space, radius)).to(tokens.points.device)
    weights = tokens.weights.expand(*tokens.batch_shape, tokens.n).reshape(-1, tokens.n)
    sizes = torch.zeros_like(weights).scatter_add(-1, roots.clamp_min(0), torch.where(roots >= 0, weights, 0.0))
    return sizes.sort(dim=-1, descending=True).values.reshape(*tokens.batch_shape, tokens.n)


@observable
def cluster_entropy(
    tokens: Tokens, law: Law | None = None, space: Space | None = None, *, radius: float | None = None
) -> Tensor:
    r"""Entropy of the masses of the clusters in nats, shape (...): 0 for one cluster, log k for k of equal mass.

    :math:`-\sum_k p_k \log p_k`, p the masses of ``cluster_sizes`` divided by their sum.
    """
    sizes = cluster_sizes(tokens, law, space, radius=radius)
    shares = sizes / sizes.sum(-1, keepdim=True)
    return -torch.special.xlogy(shares, shares).sum(-1).clamp(max=0.0)


WIDTHS = 2.0  # of the kernel, within which a cluster has no second peak


@observable
def kernel_clusters(
    tokens: Tokens,
    law: Law | None = None,
    space: Space | None = None,
    *,
    widths: float = WIDTHS,
    time: Times = None,
) -> Tensor:
    r"""Number of clusters at the scale of the kernel, shape (...), whole numbers.

    They are the peaks of the density :math:`f_i = \sum_j m_j e^{-D_{ij}}`, where :math:`D_{ij}` is the larger of
    :math:`s_{ii} - s_{ij}` and :math:`s_{jj} - s_{ji}` (and the largest over heads): how much less than itself a token sees the other.
    Token i is a peak if no token with :math:`D_{ij} \le \text{widths}^2/2` has a higher density. For
    :math:`Q^\top K = \beta I` on the unit sphere :math:`D_{ij} = \beta|x_i - x_j|^2/2`, so the kernel has the width
    :math:`\beta^{-1/2}`, and two equal point masses count as two where they are more than two widths apart: where the density
    between them has a minimum. Masks are ignored; tokens of mass 0 do not count.
    """
    if not 0 < widths < float("inf"):
        raise InputError(f"widths must be a positive number, got {widths}")
    return evaluate_at_times(
        "kernel_clusters", lambda state, attention: _count_peaks(state, attention, widths**2 / 2.0), tokens, law, time
    )


def _count_peaks(tokens: Tokens, law: Attention, reach: float) -> Tensor:
    pairing, n = pairing_of(law, tokens), tokens.n
    logits = law.kernel.logits(pairing, torch.zeros_like(pairing.q[..., 0]))
    if logits is None:
        raise UnsupportedError(
            f"{law.kernel.name} attention has no exponential weights, so its kernel has no width: count clusters with a radius"
        )
    q, k, function, bias = logits.q, logits.k, logits.function, logits.bias
    own = function((q * k).sum(-1)) + bias
    height = max(1, PAIRS // max(1, tokens.batch_shape.numel() * law.heads * n))
    blocks = [slice(start, start + height) for start in range(0, n, height)]

    def separations(rows: slice) -> Tensor:
        there = function(q[..., rows, :] @ k.mT) + bias.unsqueeze(-2)
        back = function(k[..., rows, :] @ q.mT) + bias[..., rows, None]
        apart = torch.maximum(own[..., rows, None] - there, own.unsqueeze(-2) - back)
        return apart.amax(-3)

    weights = tokens.weights.expand(*tokens.batch_shape, n)
    density = torch.cat(
        [(torch.exp(-separations(rows).clamp_min(0.0)) * weights.unsqueeze(-2)).sum(-1) for rows in blocks], -1
    )
    taking_part, place = weights > 0, torch.arange(n, device=density.device)
    count = torch.zeros(tokens.batch_shape, dtype=torch.int64, device=density.device)
    for rows in blocks:
        here, all_ = density[..., rows, None], density.unsqueeze(-2)
        higher = (all_ > here) | ((all_ == here) & (place < place[rows, None]))
        hidden = ((separations(rows) <= reach) & higher & taking_part.unsqueeze(-2)).any(-1)
        count += (taking_part[..., rows] & ~hidden).sum(-1)
    return count


def _roots(tokens: Tokens, space: Space | None, radius: float | None) -> np.ndarray:
    """Return the first token of every token's cluster, (states, n), states flattened."""
    if radius is not None and not 0 <= radius < float("inf"):
        raise InputError(f"the radius of clusters must be a number that is not negative, got {radius}")
    still = tokens.with_points(tokens.points.detach())
    points = centre_tokens(still, space).double().reshape(-1, tokens.n, tokens.dim).cpu()
    if radius is None:
        reach = SHARE * token_norm(still, space=space, reduce="max").double().reshape(-1).cpu().numpy()
    else:
        reach = np.full(len(points), float(radius))
    return find_components(points, has_mass(tokens).reshape(-1, tokens.n).cpu().numpy(), reach)
