r"""Distances between measures.

=========================  ==================================================================================================
wasserstein                :math:`W_p(\mu,\nu) = \min_\pi(\int|x-y|^p d\pi)^{1/p}`, exact: quantiles in one dimension, an
                           assignment for two equally weighted clouds of one size, the network simplex of POT otherwise
sliced_wasserstein         :math:`(\int_{S^{d-1}} W_p^p(\theta_\#\mu, \theta_\#\nu)\,d\theta)^{1/p}`, for any number of points
energy_distance            :math:`(2E|X-Y| - E|X-X'| - E|Y-Y'|)^{1/2}`, all pairs, in blocks
bures_wasserstein          :math:`|\alpha_1-\alpha_2|^2 + \min_U |L_1 - L_2U|_F^2`, the :math:`W_2^2` of Gaussians with these moments
=========================  ==================================================================================================

Measures are taken with total mass one. Every function takes ensembles and returns one number for each member, shape (...).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.errors import InputError, UnsupportedError, missing
from attractor.meanfield.line import line_energy, normal_distance, quantile_distance
from attractor.meanfield.measures import (
    Cloud,
    Measure,
    check_order,
    check_pair,
    cloud,
    factor_of,
    moments_of,
)
from attractor.states import Gaussian, Tokens

REACH = 25_000_000  # pairs of points up to which transport is solved exactly
PAIRS = 1 << 22  # distances held at once


def wasserstein(first: Tokens, second: Tokens, p: float = 2.0) -> Tensor:
    """W_p, exact, of two clouds of tokens; masses are used. In one dimension a Gaussian may stand on either side (p = 2)."""
    check_pair(first, second, "wasserstein")
    p = check_order(p, "wasserstein")
    if isinstance(first, Gaussian) or isinstance(second, Gaussian):
        return _with_gaussian(first, second, p)
    here, there = cloud(first), cloud(second)
    if first.dim == 1:
        return quantile_distance(here.line, here.weights, there.line, there.weights, p) ** (1.0 / p)
    if here.n * there.n > REACH:
        raise UnsupportedError(
            f"exact transport between {here.n:,} and {there.n:,} points is out of reach ({REACH:,} pairs at most); "
            "use sliced_wasserstein or sinkhorn_distance"
        )
    equal = here.weights is None and there.weights is None and here.n == there.n
    solve = _assignment if equal else _simplex
    costs = [solve(*pair, p) for pair in _members(here, there)]
    return torch.tensor(costs, dtype=torch.float64).reshape(first.batch_shape) ** (1.0 / p)


def _with_gaussian(first: Measure, second: Measure, p: float) -> Tensor:
    if isinstance(first, Gaussian) and isinstance(second, Gaussian) and p == 2.0:
        return bures_wasserstein(first, second)
    tokens, gaussian = (first, second) if isinstance(first, Tokens) else (second, first)
    if not isinstance(tokens, Tokens) or not isinstance(gaussian, Gaussian) or tokens.dim > 1 or p != 2.0:
        raise UnsupportedError(
            "the exact distance to a Gaussian is known for p = 2 and tokens in one dimension (or another Gaussian); "
            "use sliced_wasserstein, bures_wasserstein (a lower bound), or tokens drawn by meanfield.sample"
        )
    here = cloud(tokens)
    mean, deviation = gaussian.mean.squeeze(-1), gaussian.covariance.squeeze(-1).squeeze(-1).clamp_min(0.0).sqrt()
    return normal_distance(here.line, here.weights, mean, deviation).clamp_min(0.0).sqrt()


def _members(here: Cloud, there: Cloud) -> list[tuple[Cloud, Cloud]]:
    """The pairs of an ensemble one by one."""

    def split(side: Cloud) -> list[Cloud]:
        points = side.points.reshape(-1, *side.points.shape[-2:])
        if side.weights is None:
            return [Cloud(part, None) for part in points]
        return [Cloud(part, row) for part, row in zip(points, side.explicit.reshape(len(points), side.n), strict=True)]

    return list(zip(split(here), split(there), strict=True))


def _costs(here: Cloud, there: Cloud, p: float) -> np.ndarray:
    # differences, not |x|^2 - 2xy + |y|^2: two clouds that nearly coincide must keep their digits
    distances = torch.cdist(here.points, there.points, compute_mode="donot_use_mm_for_euclid_dist").cpu().numpy()
    return distances if p == 1.0 else distances**p


def _assignment(here: Cloud, there: Cloud, p: float) -> float:
    from scipy.optimize import linear_sum_assignment

    costs = _costs(here, there, p)
    rows, columns = linear_sum_assignment(costs)
    return float(costs[rows, columns].mean())


def _simplex(here: Cloud, there: Cloud, p: float) -> float:
    transport = optimal_transport()
    here, there = _carrying(here), _carrying(there)
    costs = _costs(here, there, p)
    a, b = (side.explicit.cpu().numpy() for side in (here, there))
    _, log = transport.emd2(a / a.sum(), b / b.sum(), costs, numItermax=10_000_000, return_matrix=False, log=True)
    if log["warning"]:
        raise UnsupportedError(f"POT could not finish the transport problem: {log['warning']}")
    return max(float(log["cost"]), 0.0)


def _carrying(side: Cloud) -> Cloud:
    """Without the points of no mass."""
    if side.weights is None or bool((side.weights > 0).all()):
        return side
    return Cloud(side.points[side.weights > 0], side.weights[side.weights > 0])


def optimal_transport() -> Any:
    """The package POT."""
    try:
        import ot
    except ImportError:
        raise missing("POT", "meanfield") from None
    return ot


def sliced_wasserstein(first: Measure, second: Measure, p: float = 2.0, directions: int = 128, seed: int = 0) -> Tensor:
    """Sliced W_p: every slice exact, against a Gaussian too (p = 2); in the plane the directions are equispaced, elsewhere random."""
    check_pair(first, second, "sliced_wasserstein")
    p = check_order(p, "sliced_wasserstein")
    if directions < 1:
        raise InputError(f"sliced_wasserstein needs at least one direction, got {directions}")
    gaussians = [side for side in (first, second) if isinstance(side, Gaussian)]
    if gaussians and p != 2.0:
        raise UnsupportedError(f"slices of a Gaussian are compared for p = 2, not p = {p:g}")
    axes = _directions(first.dim, directions, seed)
    if len(gaussians) == 2:
        (m1, s1), (m2, s2) = (_slices(side, axes) for side in gaussians)
        powers = (m1 - m2) ** 2 + (s1 - s2) ** 2
    elif gaussians:
        side = cloud(first if isinstance(first, Tokens) else second)  # type: ignore[arg-type]
        powers = normal_distance(*_shadows(side, axes), *_slices(gaussians[0], axes))
    else:
        assert isinstance(first, Tokens)
        assert isinstance(second, Tokens)
        powers = quantile_distance(*_shadows(cloud(first), axes), *_shadows(cloud(second), axes), p)
    return powers.mean(-1).clamp_min(0.0) ** (1.0 / p)


def _directions(dim: int, count: int, seed: int) -> Tensor:
    """Unit vectors (count, d), of which opposite ones are the same slice."""
    if dim == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    if dim == 2:
        angles = math.pi * (torch.arange(count, dtype=torch.float64) + 0.5) / count
        return torch.stack((angles.cos(), angles.sin()), -1)
    vectors = torch.from_numpy(np.random.default_rng(seed).standard_normal((count, dim)))
    return vectors / vectors.norm(dim=-1, keepdim=True)


def _shadows(side: Cloud, axes: Tensor) -> tuple[Tensor, Tensor | None]:
    """Points (..., directions, n) of every slice, with their weights."""
    shadows = axes.to(side.points) @ side.points.mT
    return shadows, None if side.weights is None else side.weights.unsqueeze(-2)


def _slices(gaussian: Gaussian, axes: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (..., directions) of the slices of a Gaussian."""
    return gaussian.mean @ axes.T, (axes @ gaussian.factor).norm(dim=-1)


def energy_distance(first: Tokens, second: Tokens) -> Tensor:
    """The square root of the energy distance of two clouds, as scipy has it in one dimension; all pairs, in blocks."""
    check_pair(first, second, "energy_distance")
    if not isinstance(first, Tokens) or not isinstance(second, Tokens):
        raise UnsupportedError("energy_distance compares tokens; draw some from the Gaussian by meanfield.sample")
    here, there = cloud(first), cloud(second)
    if first.dim == 1:
        return line_energy(here.line, here.weights, there.line, there.weights).clamp_min(0.0).sqrt()
    squares = [
        2.0 * _mean_distance(a, b) - _mean_distance(a, a) - _mean_distance(b, b) for a, b in _members(here, there)
    ]
    return torch.stack(squares).reshape(first.batch_shape).clamp_min(0.0).sqrt()


def _mean_distance(a: Cloud, b: Cloud) -> Tensor:
    height = max(1, PAIRS // b.n)
    weights, sums = a.explicit, []
    for start in range(0, a.n, height):
        rows = slice(start, start + height)
        block = torch.cdist(a.points[rows], b.points, compute_mode="donot_use_mm_for_euclid_dist")
        sums.append(weights[rows] @ (block @ b.explicit))
    return torch.stack(sums).sum()


def bures_wasserstein(first: Measure, second: Measure) -> Tensor:
    r"""W_2 of the Gaussians with the moments of the two measures: equal to W_2 for Gaussians, never above it (Gelbrich).

    :math:`\min_U|L_1 - L_2U|_F` over orthogonal U for factors :math:`\Sigma_i = L_iL_i^\top`, from the singular vectors of
    :math:`L_2^\top L_1`: no square roots of covariances and no difference of traces, so nothing is lost where the
    covariances are singular or nearly equal.
    """
    check_pair(first, second, "bures_wasserstein")
    (m1, s1), (m2, s2) = moments_of(first), moments_of(second)
    here, there = factor_of(s1), factor_of(s2)
    left, _, right = torch.linalg.svd(there.mT @ here)
    shape = torch.linalg.matrix_norm(here - there @ (left @ right))
    return torch.hypot(torch.linalg.vector_norm(m1 - m2, dim=-1), shape)
