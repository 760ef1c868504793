"""Distances between measures: Wasserstein, sliced, entropic, energy, conditional, Bures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.engines import attend
from attractor.errors import AttractorError, InputError, UnsupportedError, missing
from attractor.observables import covariance, mean
from attractor.states import Gaussian, Tokens

Measure = Tokens | Gaussian


@dataclass(frozen=True)
class Cloud:
    """Points (..., n, d) in float64 and weights (..., n) that sum to one; None: 1/n each."""

    points: Tensor
    weights: Tensor | None

    @property
    def n(self) -> int:
        return self.points.shape[-2]

    @property
    def full_weights(self) -> Tensor:
        """Weights (..., n), also where they are all equal."""
        if self.weights is None:
            return self.points.new_full(self.points.shape[:-1], 1.0 / self.n)
        return self.weights.expand(self.points.shape[:-1])

    @property
    def line(self) -> Tensor:
        """Points (..., n) of a cloud in one dimension."""
        return self.points.squeeze(-1)


def to_cloud(tokens: Tokens) -> Cloud:
    """Tokens as a probability measure: masses are divided by their sum, those of no mass stay with weight zero."""
    weights = None if tokens.masses is None else tokens.masses.detach().double()
    points = tokens.points.detach().double()
    return Cloud(points, None if weights is None else weights / weights.sum(-1, keepdim=True))


def check_pair(first: Any, second: Any, name: str) -> None:
    """Raise for arguments that are not measures, and for measures that cannot be compared."""
    for measure in (first, second):
        if not isinstance(measure, (Tokens, Gaussian)):
            raise InputError(f"{name} compares Tokens(...) or Gaussian(...), got {type(measure).__name__}")
    if first.dim != second.dim:
        raise InputError(f"{name} compares measures of one dimension, got {first.dim} and {second.dim}")
    if first.batch_shape != second.batch_shape:
        raise InputError(
            f"{name} compares measures with the same ensemble axes, got {tuple(first.batch_shape)} and {tuple(second.batch_shape)}"
        )


def check_order(p: float, name: str) -> float:
    if not 1.0 <= p < float("inf"):
        raise InputError(f"{name} needs an order p of at least 1 and finite, got {p}")
    return float(p)


def moments_of(measure: Measure) -> tuple[Tensor, Tensor]:
    """Mean (..., d) and covariance (..., d, d); the covariance of tokens divides by n, not by n - 1."""
    if isinstance(measure, Gaussian):
        return measure.mean, measure.covariance
    return mean(measure).double(), covariance(measure).double()


def factor_of(matrix: Tensor) -> Tensor:
    r"""L (..., d, d) with :math:`LL^\top` the matrix, positive semi-definite up to rounding."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2)


def quantile_distance(x: Tensor, x_weights: Tensor | None, y: Tensor, y_weights: Tensor | None, p: float) -> Tensor:
    """W_p^p (...) of points x (..., n) and y (..., m) on the line; weights sum to one, None are all equal."""
    if x_weights is None and y_weights is None and x.shape[-1] == y.shape[-1]:
        return ((x.sort(-1).values - y.sort(-1).values).abs() ** p).mean(-1)
    x, x_levels = _sort_points(x, x_weights)
    y, y_levels = _sort_points(y, y_weights)
    batch = torch.broadcast_shapes(x.shape[:-1], y.shape[:-1])
    x, x_levels, y, y_levels = (part.expand(*batch, -1).contiguous() for part in (x, x_levels, y, y_levels))
    levels = torch.cat((x_levels, y_levels), -1).sort(-1).values
    widths = torch.diff(levels, dim=-1, prepend=torch.zeros_like(levels[..., :1]))
    there = (_quantiles(x, x_levels, levels) - _quantiles(y, y_levels, levels)).abs() ** p
    return (widths * there).sum(-1)


def normal_distance(x: Tensor, weights: Tensor | None, mean: Tensor, deviation: Tensor) -> Tensor:
    """W_2^2 (...) of points x (..., n) on the line and the normal law of a mean and a standard deviation (...)."""
    x, levels = _sort_points(x, weights)
    widths = torch.diff(levels, dim=-1, prepend=torch.zeros_like(levels[..., :1]))
    z = torch.special.ndtri(levels)  # infinite at one, where the density vanishes
    density = torch.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    masses = torch.diff(-density, dim=-1, prepend=torch.zeros_like(density[..., :1]))
    cells = torch.where(widths > 0, masses / torch.where(widths > 0, widths, 1.0), 0.0)
    offset = x - mean.unsqueeze(-1) - deviation.unsqueeze(-1) * cells
    rest = (1.0 - (widths * cells**2).sum(-1)).clamp_min(0.0)
    return (widths * offset**2).sum(-1) + deviation**2 * rest


def line_energy(x: Tensor, x_weights: Tensor | None, y: Tensor, y_weights: Tensor | None) -> Tensor:
    r""":math:`2\int (F - G)^2`, which on the line is :math:`2E|X-Y| - E|X-X'| - E|Y-Y'|`; weights as above."""
    x, x_levels = _sort_points(x, x_weights)
    y, y_levels = _sort_points(y, y_weights)
    places = torch.cat((x, y), -1).sort(-1).values
    gap = _distribution(x, x_levels, places) - _distribution(y, y_levels, places)
    return 2.0 * (gap[..., :-1] ** 2 * places.diff(dim=-1)).sum(-1)


def _sort_points(x: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Points in order and the distribution function after each, which ends at exactly one."""
    x, order = x.sort(-1)
    if weights is None:
        levels = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device).expand(x.shape) / x.shape[-1]
        return x, levels
    levels = weights.expand(x.shape).gather(-1, order).cumsum(-1)
    return x, levels / levels[..., -1:]


def _quantiles(x: Tensor, x_levels: Tensor, levels: Tensor) -> Tensor:
    """The quantile just below each level."""
    index = torch.searchsorted(x_levels, levels.contiguous()).clamp_max(x.shape[-1] - 1)
    return x.gather(-1, index)


def _distribution(x: Tensor, x_levels: Tensor, places: Tensor) -> Tensor:
    """Mass at or left of each place."""
    count = torch.searchsorted(x.contiguous(), places.contiguous(), right=True)
    padded = torch.cat((torch.zeros_like(x_levels[..., :1]), x_levels), -1)
    return padded.gather(-1, count)


SHARE = 0.05  # default eps, as a share of the mean squared distance between the two clouds


def sinkhorn_distance(
    first: Tokens, second: Tokens, eps: float | None = None, tolerance: float = 1e-4, rounds: int = 5000
) -> Tensor:
    r""":math:`S_\epsilon^{1/2}` (...): an approximation of W_2 for very many points.

    ``eps`` in units of squared length, by default 5% of the mean squared distance between the clouds (one number for an
    ensemble); ``tolerance`` is the relative error of the marginals at which the rounds end, which enters the result squared.
    """
    check_pair(first, second, "sinkhorn_distance")
    if not isinstance(first, Tokens) or not isinstance(second, Tokens):
        raise UnsupportedError("sinkhorn_distance compares tokens; draw some from the Gaussian by meanfield.sample")
    here, there = to_cloud(first), to_cloud(second)
    centre = (here.full_weights.unsqueeze(-1) * here.points).sum(-2, keepdim=True)
    here, there = (Cloud(side.points - centre, side.weights) for side in (here, there))
    if eps is None:
        size = sum((side.full_weights * (side.points**2).sum(-1)).sum(-1) for side in (here, there))
        eps = SHARE * float(torch.as_tensor(size).max()) or 1.0  # two clouds at one point need none
    if not 0 < eps < float("inf"):
        raise InputError(f"sinkhorn_distance needs eps > 0, got {eps}")
    pairs = ((here, there), (here, here), (there, there))
    across, left, right = (_entropic_cost(*pair, eps, tolerance, rounds) for pair in pairs)
    return (across - (left + right) / 2.0).clamp_min(0.0).sqrt()


def _entropic_cost(a: Cloud, b: Cloud, eps: float, tolerance: float, rounds: int) -> Tensor:
    """T_eps: the sum of both potentials against their measures, at potentials that settled."""
    q, k = 2.0 / eps * a.points, b.points
    q_bias, k_bias = (side.full_weights.log() - (side.points**2).sum(-1) / eps for side in (a, b))
    f, g = torch.zeros_like(q_bias), torch.zeros_like(k_bias)
    same = a is b
    for _ in range(rounds):
        # f and g are divided by eps and less the squares |x|^2 / eps
        update = -_logsumexp(q, k, g + k_bias) + (a.points**2).sum(-1) / eps
        if same:
            change, f = (update - f).abs(), (f + update) / 2.0
            g = f
        else:
            change, f = (update - f).abs(), update
            g = -_logsumexp(k, q, f + q_bias) + (b.points**2).sum(-1) / eps
        if float(torch.where(a.full_weights > 0, change, 0.0).max()) < tolerance:
            weigh = [
                torch.where(side.full_weights > 0, side.full_weights * h, 0.0).sum(-1) for side, h in ((a, f), (b, g))
            ]
            return eps * (weigh[0] + weigh[1])
    raise AttractorError(f"sinkhorn_distance did not settle in {rounds} rounds at eps = {eps:g}; raise eps or rounds")


def _logsumexp(q: Tensor, k: Tensor, bias: Tensor) -> Tensor:
    _, values = attend(q, k, None, bias)
    assert values is not None
    return values


REACH = 25_000_000  # pairs of points up to which transport is solved exactly
PAIRS = 1 << 22  # distances held at once


def wasserstein(first: Tokens, second: Tokens, p: float = 2.0) -> Tensor:
    """Compute W_p exactly between two clouds of tokens.

    Parameters
    ----------
    first, second : Tokens, whose masses are divided by their sum; in one dimension and for p = 2 a Gaussian on either side.
    p : order, at least 1.

    Returns
    -------
    Tensor
        (...), one distance for each pair of ensemble members.
    """
    check_pair(first, second, "wasserstein")
    p = check_order(p, "wasserstein")
    if isinstance(first, Gaussian) or isinstance(second, Gaussian):
        return _distance_to_gaussian(first, second, p)
    here, there = to_cloud(first), to_cloud(second)
    if first.dim == 1:
        return quantile_distance(here.line, here.weights, there.line, there.weights, p) ** (1.0 / p)
    if here.n * there.n > REACH:
        raise UnsupportedError(
            f"exact transport between {here.n:,} and {there.n:,} points is out of reach ({REACH:,} pairs at most); "
            "use sliced_wasserstein or sinkhorn_distance"
        )
    equal = here.weights is None and there.weights is None and here.n == there.n
    solve = _solve_assignment if equal else _solve_transport
    costs = [solve(*pair, p) for pair in _split_members(here, there)]
    return torch.tensor(costs, dtype=torch.float64).reshape(first.batch_shape) ** (1.0 / p)


def _distance_to_gaussian(first: Measure, second: Measure, p: float) -> Tensor:
    if isinstance(first, Gaussian) and isinstance(second, Gaussian) and p == 2.0:
        return bures_wasserstein(first, second)
    tokens, gaussian = (first, second) if isinstance(first, Tokens) else (second, first)
    if not isinstance(tokens, Tokens) or not isinstance(gaussian, Gaussian) or tokens.dim > 1 or p != 2.0:
        raise UnsupportedError(
            "the exact distance to a Gaussian is known for p = 2 and tokens in one dimension (or another Gaussian); "
            "use sliced_wasserstein, bures_wasserstein (a lower bound), or tokens drawn by meanfield.sample"
        )
    here = to_cloud(tokens)
    mean, deviation = gaussian.mean.squeeze(-1), gaussian.covariance.squeeze(-1).squeeze(-1).clamp_min(0.0).sqrt()
    return normal_distance(here.line, here.weights, mean, deviation).clamp_min(0.0).sqrt()


def _split_members(here: Cloud, there: Cloud) -> list[tuple[Cloud, Cloud]]:
    """The pairs of an ensemble one by one."""

    def split(side: Cloud) -> list[Cloud]:
        points = side.points.reshape(-1, *side.points.shape[-2:])
        if side.weights is None:
            return [Cloud(part, None) for part in points]
        return [
            Cloud(part, row) for part, row in zip(points, side.full_weights.reshape(len(points), side.n), strict=True)
        ]

    return list(zip(split(here), split(there), strict=True))


def _costs(here: Cloud, there: Cloud, p: float) -> np.ndarray:
    # differences, not |x|^2 - 2xy + |y|^2: two clouds that nearly coincide must keep their digits
    distances = torch.cdist(here.points, there.points, compute_mode="donot_use_mm_for_euclid_dist").cpu().numpy()
    return distances if p == 1.0 else distances**p


def _solve_assignment(here: Cloud, there: Cloud, p: float) -> float:
    from scipy.optimize import linear_sum_assignment

    costs = _costs(here, there, p)
    rows, columns = linear_sum_assignment(costs)
    return float(costs[rows, columns].mean())


def _solve_transport(here: Cloud, there: Cloud, p: float) -> float:
    transport = optimal_transport()
    here, there = _drop_massless(here), _drop_massless(there)
    costs = _costs(here, there, p)
    a, b = (side.full_weights.cpu().numpy() for side in (here, there))
    _, log = transport.emd2(a / a.sum(), b / b.sum(), costs, numItermax=10_000_000, return_matrix=False, log=True)
    if log["warning"]:
        raise UnsupportedError(f"POT could not finish the transport problem: {log['warning']}")
    return max(float(log["cost"]), 0.0)


def _drop_massless(side: Cloud) -> Cloud:
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
        side = to_cloud(first if isinstance(first, Tokens) else second)  # type: ignore[arg-type]
        powers = normal_distance(*_project_points(side, axes), *_slices(gaussians[0], axes))
    else:
        assert isinstance(first, Tokens)
        assert isinstance(second, Tokens)
        powers = quantile_distance(*_project_points(to_cloud(first), axes), *_project_points(to_cloud(second), axes), p)
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


def _project_points(side: Cloud, axes: Tensor) -> tuple[Tensor, Tensor | None]:
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
    here, there = to_cloud(first), to_cloud(second)
    if first.dim == 1:
        return line_energy(here.line, here.weights, there.line, there.weights).clamp_min(0.0).sqrt()
    squares = [
        2.0 * _mean_distance(a, b) - _mean_distance(a, a) - _mean_distance(b, b) for a, b in _split_members(here, there)
    ]
    return torch.stack(squares).reshape(first.batch_shape).clamp_min(0.0).sqrt()


def _mean_distance(a: Cloud, b: Cloud) -> Tensor:
    height = max(1, PAIRS // b.n)
    weights, sums = a.full_weights, []
    for start in range(0, a.n, height):
        rows = slice(start, start + height)
        block = torch.cdist(a.points[rows], b.points, compute_mode="donot_use_mm_for_euclid_dist")
        sums.append(weights[rows] @ (block @ b.full_weights))
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


SAME = 1e-9  # masses of one position that differ by less than this share are the same


def conditional_wasserstein(first: Tokens, second: Tokens, p: float = 2.0) -> Tensor:
    """d_p (...): exact transport at each position, +inf where the masses at some position differ.

    The default positions are 0, 1, ..., n-1: then d_p pairs token i with token i.
    """
    check_pair(first, second, "conditional_wasserstein")
    p = check_order(p, "conditional_wasserstein")
    if not isinstance(first, Tokens) or not isinstance(second, Tokens):
        raise UnsupportedError("conditional_wasserstein compares tokens with positions; a Gaussian has none")
    here, there = to_cloud(first), to_cloud(second)
    if first.positions is None and second.positions is None and first.n == second.n:
        return _paired_distance(here, there, p)
    members = range(max(1, first.batch_shape.numel()))
    values = [_placed_distance(_placed_points(first, here, k), _placed_points(second, there, k), p) for k in members]
    return torch.tensor(values, dtype=torch.float64).reshape(first.batch_shape)


def _paired_distance(here: Cloud, there: Cloud, p: float) -> Tensor:
    weights = here.full_weights
    differ = ((weights - there.full_weights).abs() > SAME * weights.clamp_min(1e-300)).any(-1)
    lengths = (here.points - there.points).norm(dim=-1)
    return torch.where(differ, torch.inf, (weights * lengths**p).sum(-1) ** (1.0 / p))


Placed = tuple[Tensor, Tensor, Tensor]  # points (n, d), weights (n,), positions (n,)


def _placed_points(tokens: Tokens, side: Cloud, member: int) -> Placed:
    positions = tokens.positions
    if positions is None:
        positions = torch.arange(tokens.n, dtype=side.points.dtype)
    positions = positions.expand(side.points.shape[:-1]).reshape(-1, tokens.n)[member].double()
    points = side.points.reshape(-1, *side.points.shape[-2:])[member]
    weights = side.full_weights.reshape(-1, tokens.n)[member]
    carrying = weights > 0
    return points[carrying], weights[carrying], positions[carrying]


def _placed_distance(first: Placed, second: Placed, p: float) -> float:
    places = torch.unique(first[2])
    if not torch.equal(places, torch.unique(second[2])):
        return float("inf")
    total = 0.0
    for place in places:
        (x, a), (y, b) = ((side[0][side[2] == place], side[1][side[2] == place]) for side in (first, second))
        mass, other = float(a.sum()), float(b.sum())
        if abs(mass - other) > SAME * mass:
            return float("inf")
        total += (
            mass
            * float(wasserstein(Tokens.unchecked(x, _masses_or_none(a)), Tokens.unchecked(y, _masses_or_none(b)), p))
            ** p
        )
    return total ** (1.0 / p)


def _masses_or_none(weights: Tensor) -> Tensor | None:
    """Masses, or None where all are the same: assignments are solved faster than transport."""
    return None if bool((weights == weights[0]).all()) else weights
