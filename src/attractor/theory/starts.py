r"""Starts that are exceptions of theorems about almost every start, and how far a start is from them.

On a sphere, with :math:`V_h = c_hI`, three of them can be tested: two tokens are opposite; no token moves (an equilibrium that is not a
consensus); the start has symmetries that a consensus does not have. The last are found without a search for the symmetries: the coherent
closure of the Gram matrix G (the smallest algebra of matrices that contains G and is closed under matrix and entrywise products) contains
G(t) for all times, because weights are entrywise functions of G. Its fibres F are sets of tokens with :math:`\dot y_F = \sum_{F'}
b_{FF'}(t)\,y_{F'}` for their sums :math:`y_F`, so where all sums are zero they stay zero, and tokens of one point have no such sums.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.spheres import list_laws, to_sphere
from attractor.theory.theorem import Case

MANY, FEW = 4096, 64  # tokens that are still compared pair by pair, or triple by triple
AT_ONCE = 1e-14  # an exception up to rounding
BANDS = {
    torch.float64: 1e-9,
    torch.float32: 1e-5,
}  # below these a start cannot be told from an exception, and inner products are equal


def measure_opposition(points: Tensor) -> float:
    """Return half of the smallest distance of a token to the opposite of another."""
    sums = torch.cdist(points, -points)
    sums.fill_diagonal_(float("inf"))
    return float(sums.min()) / 2.0


def measure_rest(points: Tensor, logits: Tensor) -> float:
    r"""Return the largest share of the pull of the others that does not cancel: zero at an equilibrium, near 1 for a token that others pull
    one way, however slowly.

    ``logits`` (h, n, n) are the logarithms of the weights of the heads, minus infinity for hidden tokens. Self-weights do not count, so
    that slow tokens at low temperature are told from tokens at rest.
    """
    n = len(points)
    logits = torch.logsumexp(logits, 0).clone()
    logits.fill_diagonal_(-float("inf"))
    shift = logits.amax(-1, keepdim=True)
    pulls = torch.where(shift.isfinite(), logits - shift, -float("inf")).exp()
    whole = pulls @ points
    moved = (whole - (whole * points).sum(-1, keepdim=True) * points).norm(dim=-1)
    heights = points @ points.mT
    lengths = (1 - heights.square()).clamp_min(0.0).sqrt()
    size = (pulls * lengths).sum(-1)
    moving = size > 1e-12 * n  # others are not at the same point or its opposite
    return float((moved[moving] / size[moving]).max()) if bool(moving.any()) else float("inf")


def measure_symmetry(points: Tensor, band: float = BANDS[torch.float64]) -> float:
    """Return the largest length of the sum of the tokens of a fibre, over their number: zero if symmetries exclude a consensus."""
    n = len(points)
    mean = float(points.mean(0).norm())
    if mean > 1e3 * band or n > FEW:
        return float("inf")
    labels = find_fibres((points @ points.mT).numpy(), band)
    return max(float(points[labels == label].mean(0).norm()) for label in np.unique(labels))


def find_fibres(gram: np.ndarray, band: float = BANDS[torch.float64]) -> np.ndarray:
    """Return the fibre of every token, (n,), in the coherent closure of a matrix (two-dimensional Weisfeiler-Leman refinement)."""
    colors = _number_values(gram, band)
    count = colors.max() + 1
    while True:
        left, right = colors[:, :, None].astype(np.uint64), colors[None].astype(np.uint64)  # of (i, k) and (k, j)
        paths = _scramble(left * np.uint64(0x9E3779B97F4A7C15) + _scramble(right)).sum(1)
        keys = np.stack((colors.astype(np.uint64).ravel(), paths.ravel()))
        colors = np.unique(keys, axis=1, return_inverse=True)[1].reshape(gram.shape)
        if colors.max() + 1 == count:
            return colors.diagonal()
        count = colors.max() + 1


def _number_values(gram: np.ndarray, band: float) -> np.ndarray:
    """Number the entries so that those that are equal within rounding have one number."""
    order = gram.ravel().argsort()
    steps = np.diff(gram.ravel()[order], prepend=-np.inf) > band
    numbers = np.empty(gram.size, dtype=np.int64)
    numbers[order] = steps.cumsum() - 1
    return numbers.reshape(gram.shape)


def _scramble(values: np.ndarray) -> np.ndarray:
    """Mix the bits of 64-bit numbers (splitmix64), so that sums of them tell multisets apart."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def compute_logits(case: Case, points: Tensor) -> Tensor | None:
    """Return the logarithms of c_h w^h_ij, (h, n, n), of points of the unit sphere; None for scores that are no bilinear form."""
    (law, *more), found = list_laws(case), to_sphere(case)
    if more or law.positions is not None or any(getattr(law, name) is not None for name in ("query_bias", "key_bias")):
        return None
    scores = points @ found.interactions @ points.mT + case.tokens.weights.log()
    if law.mask is not None:
        order = torch.arange(len(points))
        scores = scores.masked_fill(order > order[:, None], -float("inf"))
    weights = found.values.diagonal(dim1=-2, dim2=-1).mean(-1).clamp_min(0.0)
    return torch.log_softmax(scores, -1) + weights.log()[:, None, None]


def _measure_exception(case: Case, symmetric: bool) -> Margin:
    points = to_sphere(case).map_points(case.initial_tokens.points.double())
    band = BANDS[case.precision]
    if len(points) < 2 or len(points) > MANY:
        return Margin.boolean(True, f"{len(points)} tokens, not compared")
    if float((points - points[0]).norm(dim=-1).max()) < band:
        return Margin.boolean(True, "the tokens are at one point")
    found = {}
    logits = compute_logits(case, points)
    if logits is not None:
        found["the start is an equilibrium: no token moves"] = measure_rest(points, logits)
    found["two tokens are opposite"] = measure_opposition(points)
    if symmetric:
        found["the start has symmetries that no consensus has, and keeps them"] = measure_symmetry(points, band)
    reason, value = min(
        found.items(), key=lambda item: max(item[1], AT_ONCE)
    )  # the first of those that are zero up to rounding
    detail = reason if value < band else "distance from starts that are at rest, symmetric or have opposite tokens"
    return Margin(min(value, 1.0), AT_ONCE, band, detail)


GENERIC_START = Hypothesis(
    "generic start",
    r"x_i \ne -x_j,\ \dot x \ne 0",
    lambda case: _measure_exception(case, symmetric=False),
    generic=True,
)
# for laws that every permutation of tokens and every rotation of the sphere leaves as they are
GENERIC_POSITION = Hypothesis(
    "generic start",
    r"x_i \ne -x_j,\ \dot x \ne 0, \text{ no symmetry that moves every point}",
    lambda case: _measure_exception(case, symmetric=True),
    generic=True,
)
