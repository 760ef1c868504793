"""Averages, norms, distances, cosines, diameter, moments and ranks of tokens."""

from __future__ import annotations

from itertools import product
from typing import Literal

import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.laws import Law
from attractor.observables.registry import observable
from attractor.spaces import Euclidean, Space
from attractor.states import Tokens, split_scale, vector_norm


def average(values: Tensor, masses: Tensor | None) -> Tensor:
    r""":math:`\sum_i m_i v_i / \sum_i m_i` of values (..., n); masses of None are all equal."""
    if masses is None:
        return values.mean(-1)
    return (masses * values).sum(-1) / masses.sum(-1)


def barycentre(points: Tensor, masses: Tensor | None) -> Tensor:
    r""":math:`\sum_i m_i y_i / \sum_i m_i` of points (..., n, c)."""
    if masses is None:
        return points.mean(-2)
    return (masses.unsqueeze(-1) * points).sum(-2) / masses.sum(-1, keepdim=True)


def has_mass(tokens: Tokens) -> Tensor:
    """True (..., n) for the tokens that carry mass."""
    return (tokens.weights > 0).expand(*tokens.batch_shape, tokens.n)


def sum_off_diagonal(vectors: Tensor) -> Tensor:
    r""":math:`\sum_{i\ne j}\langle a_i, a_j\rangle` of vectors (..., n, c), linear in n.

    The square of the sum less the sum of the squares, with the longest vector taken out first: where one mass
    outweighs all others, that difference would lose the pairs in rounding.
    """
    longest = (vectors * vectors).sum(-1).argmax(-1)[..., None, None]
    heavy = vectors.gather(-2, longest.expand(*longest.shape[:-1], vectors.shape[-1]))
    others = vectors.scatter(-2, longest.expand_as(heavy), 0.0)
    rest = others.sum(-2)
    among_others = (rest * rest).sum(-1) - (others * others).sum((-2, -1))
    return 2.0 * (heavy.squeeze(-2) * rest).sum(-1) + among_others


def pair_mass(tokens: Tokens) -> Tensor:
    r""":math:`\sum_{i\ne j} m_i m_j`: zero when a single token carries all mass."""
    return sum_off_diagonal(tokens.weights.unsqueeze(-1))


def safe_quotient(numerator: Tensor, denominator: Tensor, otherwise: float) -> Tensor:
    """numerator / denominator, and ``otherwise`` where the denominator is not positive, without NaN in the gradient."""
    defined = denominator > 0
    return torch.where(defined, numerator / torch.where(defined, denominator, 1.0), otherwise)


def to_isometric(vectors: Tensor, space: Space | None) -> Tensor:
    """Vectors (..., d) in coordinates whose Euclidean length is their length in the space."""
    if space is None:
        return vectors
    space.check_dimension(vectors.shape[-1])
    return space.isometric(vectors)


def centre_tokens(tokens: Tokens, space: Space | None = None) -> Tensor:
    """Tokens less their mean, in isometric coordinates.

    Centred twice: the first mean is rounded like the tokens are, the second removes what that left, so that a cloud
    far from the origin keeps the digits of its shape.
    """
    points = tokens.points
    for _ in range(2):
        points = points - barycentre(points, tokens.masses).unsqueeze(-2)
    return to_isometric(points, space)


def unit_directions(tokens: Tokens, space: Space | None = None) -> Tensor:
    """Tokens divided by their lengths, in isometric coordinates; a token at the origin stays there."""
    points = to_isometric(tokens.points, space)
    # squares of very short or very long tokens leave the range of floats before the tokens do
    size = points.detach().abs().amax(-1, keepdim=True)
    points = points / torch.where(size > 0, size, 1.0)
    length = torch.linalg.vector_norm(points, dim=-1, keepdim=True)
    return points / torch.where(length > 0, length, 1.0)


@observable
def token_norm(
    tokens: Tokens,
    law: Law | None = None,
    space: Space | None = None,
    *,
    reduce: Literal["mean", "max", "min"] = "mean",
) -> Tensor:
    r"""Mean, largest or smallest length of the tokens in the norm of the space.

    ``reduce="mean"`` is :math:`\sum_i m_i |x_i| / \sum_i m_i`, shape (...).
    """
    space = Euclidean() if space is None else space
    space.check_dimension(tokens.dim)
    lengths = space.norm(tokens.points)
    if reduce == "mean":
        return average(lengths, tokens.masses)
    if reduce == "max":
        return torch.where(has_mass(tokens), lengths, -torch.inf).amax(-1)
    if reduce == "min":
        return torch.where(has_mass(tokens), lengths, torch.inf).amin(-1)
    raise InputError(f"reduce must be 'mean', 'max' or 'min', got {reduce!r}")


@observable
def pairwise_distance(
    tokens: Tokens, law: Law | None = None, space: Space | None = None, *, root: bool = False
) -> Tensor:
    r"""Mean squared distance of two different tokens, shape (...).

    :math:`\sum_{i\ne j} m_i m_j |x_i - x_j|^2 / \sum_{i\ne j} m_i m_j`.
    With equal masses this is :math:`2(n\sum|x|^2 - |\sum x|^2)/(n(n-1))`; it is computed from centred tokens, where
    nothing cancels. ``root=True`` gives its square root. A single token has distance 0. Straight distances in the
    norm of the space.
    """
    points, scale = split_scale(centre_tokens(tokens, space))
    weights, scale = tokens.weights, scale.squeeze((-2, -1))
    # with centred tokens, sum_ij m_i m_j |x_i - x_j|^2 = 2 M sum_i m_i |x_i|^2
    squares = 2.0 * weights.sum(-1) * (weights * (points * points).sum(-1)).sum(-1)
    mean_square = safe_quotient(squares, pair_mass(tokens), 0.0)
    return scale * mean_square.sqrt() if root else scale**2 * mean_square


@observable
def sharpness(tokens: Tokens, law: Law | None = None, space: Space | None = None) -> Tensor:
    r"""How much of the tokens' size is spread: ``pairwise_distance`` over twice the mean squared length, shape (...).

    With equal masses :math:`(2n\sum|x|^2 - 2|\sum x|^2) / (2(n-1)\sum|x|^2)`, the layer metric of
    [pham2025dynamical]: 0 at consensus, n/(n-1) for tokens of mean zero. Zero for a single token and for tokens that
    all vanish.
    """
    tokens = tokens.with_points(split_scale(tokens.points)[0])
    points = to_isometric(tokens.points, space)
    squares = average((points * points).sum(-1), tokens.masses)
    return safe_quotient(pairwise_distance(tokens, law, space), 2.0 * squares, 0.0)


PAIRS = 1 << 18  # pairs held at once: they stay in the cache
SMALL = 1 << 10  # tokens up to which all pairs of a state are compared at once


@observable
def diameter(tokens: Tokens, law: Law | None = None, space: Space | None = None, *, geodesic: bool = False) -> Tensor:
    r"""Largest distance between two tokens, :math:`\max_{ij}|x_i - x_j|`, shape (...); exact.

    Straight distance in the norm of the space; ``geodesic=True`` gives the distance along the space between the same
    two tokens, which on a sphere or an ellipsoid are also the two that are farthest apart along it. It is no Lyapunov
    function: it can grow while it exceeds a right angle (consensus T2).
    """
    first, second = farthest_pair(centre_tokens(tokens.with_points(tokens.points.detach()), space), has_mass(tokens))
    space = Euclidean() if space is None else space
    x, y = (tokens.points.take_along_dim(index[..., None, None], -2).squeeze(-2) for index in (first, second))
    return space.distance(x, y) if geodesic else space.norm(x - y)


def farthest_pair(points: Tensor, taking_part: Tensor) -> tuple[Tensor, Tensor]:
    """Indices (...) of the two points (..., n, d) at the largest distance; they should be centred (``_squares``)."""
    batch, (n, d) = points.shape[:-2], points.shape[-2:]
    points, _ = split_scale(points)
    states, taking_part = points.reshape(-1, n, d), taking_part.reshape(-1, n)
    if n <= SMALL:
        step = max(1, PAIRS // (n * n))
        found = [
            _all_pairs(states[start : start + step], taking_part[start : start + step])
            for start in range(0, len(states), step)
        ]
        pairs = torch.cat(found)
    else:
        pairs = torch.stack([_pruned_search(state, part) for state, part in zip(states, taking_part, strict=True)])
    return pairs[:, 0].reshape(batch), pairs[:, 1].reshape(batch)


def _squares(x: Tensor, y: Tensor) -> Tensor:
    """Squared distances (..., a, b). For centred points the error is a few roundings of the largest of them."""
    lengths = (x * x).sum(-1).unsqueeze(-1) + (y * y).sum(-1).unsqueeze(-2)
    return lengths - 2.0 * (x @ y.mT)


def _all_pairs(states: Tensor, taking_part: Tensor) -> Tensor:
    n = states.shape[-2]
    both = taking_part.unsqueeze(-1) & taking_part.unsqueeze(-2)
    # a token and itself: the answer where there is only one, never ahead of two others
    squares = torch.where(both, _squares(states, states), -torch.inf)
    squares.diagonal(dim1=-2, dim2=-1).clamp_(max=0.0)
    best = squares.flatten(-2).argmax(-1)
    return torch.stack((best // n, best % n), dim=-1)


def _pruned_search(state: Tensor, taking_part: Tensor) -> Tensor:
    """Tokens by falling distance from the centre: a pair can only win while the radii of both reach the best so far."""
    radii = torch.where(taking_part, torch.linalg.vector_norm(state, dim=-1), -torch.inf)
    radii, order = radii.sort(descending=True)
    count = int(taking_part.sum())
    radii, order = radii[:count], order[:count]
    points = state[order]
    best, pair = _sweep(points)
    start = 0
    while start < count and radii[start] + radii[0] > best:
        reach = int((radii > best - radii[start]).sum())
        stop = min(count, start + max(1, PAIRS // max(1, reach)))
        columns = min(stop, reach)
        squares = _squares(points[start:stop], points[:columns])
        largest, index = squares.flatten().max(-1)
        if largest.clamp_min(0.0).sqrt() > best:
            best, pair = largest.sqrt(), (start + int(index) // columns, int(index) % columns)
        start = stop
    return order[list(pair)]


def _sweep(points: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """A long pair to start from: the farthest point of the farthest point, a few times."""
    here, best, pair = 0, points.new_zeros(()), (0, 0)
    for _ in range(4):
        distance, there = torch.linalg.vector_norm(points - points[here], dim=-1).max(-1)
        if distance <= best:
            break
        best, pair, here = distance, (here, int(there)), int(there)
    return best, pair


@observable
def cosine(tokens: Tokens, law: Law | None = None, space: Space | None = None) -> Tensor:
    r"""Mean cosine of two different tokens, shape (...).

    :math:`\sum_{i\ne j} m_i m_j \cos(x_i, x_j) / \sum_{i\ne j} m_i m_j`.
    From :math:`|\sum_i m_i u_i|^2` with :math:`u_i = x_i/|x_i|`, linear in n. A token at the origin has cosine 0 with
    every other; a single token has cosine 1.
    """
    pairs = sum_off_diagonal(tokens.weights.unsqueeze(-1) * unit_directions(tokens, space))
    return safe_quotient(pairs, pair_mass(tokens), 1.0).clamp(-1.0, 1.0)


NARROW, STATES = 8, 1024  # dimension up to which states are stored side by side, and how many at once
GPU_COSINES = 1 << 27  # that are held at once on a GPU


def _count_close_on_gpu(points: Tensor, threshold: float) -> Tensor | None:
    square, tiny = (points * points).sum(-1, keepdim=True), torch.finfo(points.dtype).tiny ** 0.5
    if not bool(((square > tiny) & (square < 1.0 / tiny)).all()):
        return None
    n, found = points.shape[1], []
    once = torch.ones((n, n), dtype=torch.bool, device=points.device).tril(-1)
    for part in (points / square.sqrt()).split(max(1, GPU_COSINES // (n * n))):
        above = (part @ part.mT > threshold).logical_and_(once)
        found.append(torch.count_nonzero(above, dim=(-2, -1)).to(points.dtype))
    return torch.cat(found) if found else points.new_zeros(0)


def _count_close(points: Tensor, threshold: float) -> Tensor | None:
    """Number of pairs (S,) of different tokens (S, n, d) with a cosine above ``threshold``; None if squares leave the range of floats.

    States are the last axis of all products, which torch computes faster on a CPU than products of many small matrices.
    """
    if points.device.type == "cuda":
        return _count_close_on_gpu(points, threshold)
    found, tiny = [], torch.finfo(points.dtype).tiny ** 0.5
    for part in points.split(STATES):
        x = part.permute(2, 1, 0).contiguous()
        square = x[0] * x[0]
        for row in x[1:]:
            square.addcmul_(row, row)
        if not bool(((square > tiny) & (square < 1.0 / tiny)).all()):
            return None
        x /= square.sqrt_()
        count = x.new_zeros(x.shape[-1])
        for i in range(x.shape[1] - 1):
            cosine = x[0, i] * x[0, i + 1 :]
            for row in x[1:]:
                cosine.addcmul_(row[i], row[i + 1 :])
            count += cosine.gt_(threshold).sum(0)
        found.append(count)
    return torch.cat(found) if found else points.new_zeros(0)


@observable
def pair_fraction(
    tokens: Tokens, law: Law | None = None, space: Space | None = None, *, threshold: float = 0.999
) -> Tensor:
    r"""Fraction of pairs of different tokens with a cosine above ``threshold``, shape (...) [geshkovski2023mathematical].

    :math:`\sum_{i\ne j} m_i m_j 1[\cos(x_i, x_j) > \text{threshold}] / \sum_{i\ne j} m_i m_j`.
    A token at the origin has cosine 0 with every other; a single token has the fraction 1.
    """
    if not -1.0 <= threshold <= 1.0:
        raise InputError(f"the threshold of a cosine lies between -1 and 1, got {threshold}")
    n = tokens.n
    if tokens.masses is None and n > 1 and tokens.dim <= NARROW:
        found = _count_close(to_isometric(tokens.points.detach(), space).reshape(-1, n, tokens.dim), threshold)
        if found is not None:
            return (2.0 * found / (n * (n - 1))).reshape(tokens.batch_shape)
    units = unit_directions(tokens, space).reshape(-1, n, tokens.dim)
    weights = None if tokens.masses is None else tokens.masses.expand(*tokens.batch_shape, n).reshape(-1, n)
    found, height = torch.zeros_like(units[:, 0, 0]), max(1, min(n, PAIRS // n))
    step = max(1, PAIRS // (n * height))
    for first, start in product(range(0, len(units), step), range(0, n, height)):
        states, rows = slice(first, first + step), slice(start, start + height)
        above = units[states, rows] @ units[states].mT > threshold
        above.diagonal(start, -2, -1)[...] = False
        if weights is None:
            found[states] += torch.count_nonzero(above, dim=(-2, -1))
        else:
            pairs = torch.where(above, weights[states, None], 0.0).sum(-1)
            found[states] += (weights[states, rows] * pairs).sum(-1)
    total = float(n * (n - 1)) if weights is None else pair_mass(tokens)
    return safe_quotient(found.reshape(tokens.batch_shape), torch.as_tensor(total).to(found), 1.0).clamp(0.0, 1.0)


@observable
def cosine_min(tokens: Tokens, law: Law | None = None, space: Space | None = None) -> Tensor:
    r"""Smallest cosine of two tokens with its sign, shape (...): -1 for an antipodal pair, 1 at consensus.

    It is :math:`1 - |u_i - u_j|^2/2` for the two unit vectors farthest apart. A token at the origin has cosine 0 with
    every other; a single token has cosine 1.
    """
    units = unit_directions(tokens, space)
    taking_part = has_mass(tokens)
    pointing = taking_part & (units != 0).any(-1)
    first, second = farthest_pair(_centre_units(units.detach(), pointing), pointing)
    x, y = (units.take_along_dim(index[..., None, None], -2).squeeze(-2) for index in (first, second))
    smallest = 1.0 - ((x - y) ** 2).sum(-1) / 2.0
    at_origin = (taking_part & ~pointing).any(-1) & (taking_part.sum(-1) > 1)
    smallest = torch.where(pointing.any(-1), smallest, 1.0)
    return torch.where(at_origin, smallest.clamp(max=0.0), smallest).clamp(min=-1.0)


def _centre_units(units: Tensor, pointing: Tensor) -> Tensor:
    """Unit vectors less their mean, so that the distances of nearly parallel ones keep their digits."""
    count = pointing.sum(-1, keepdim=True).clamp_min(1).unsqueeze(-1)
    centre = torch.where(pointing.unsqueeze(-1), units, 0.0).sum(-2, keepdim=True) / count
    return units - centre


@observable
def mean(tokens: Tokens, law: Law | None = None, space: Space | None = None) -> Tensor:
    r"""Mean of the measure, :math:`\sum_i m_i x_i / \sum_i m_i`, shape (..., d), in the ambient coordinates."""
    return barycentre(tokens.points, tokens.masses)


@observable
def order_parameter(tokens: Tokens, law: Law | None = None, space: Space | None = None, *, order: int = 1) -> Tensor:
    r"""Length of the mean direction, :math:`|\sum_i m_i x_i/|x_i|| / \sum_i m_i`, shape (...): 1 where all tokens have one direction.

    In the plane, at angles :math:`\theta_i`, ``order`` = k gives :math:`|\sum_i m_i e^{ik\theta_i}| / \sum_i m_i`, the size of the
    Fourier coefficient :math:`c_k` of the measure on the circle, which is large where tokens form k groups at equal angles.
    """
    if int(order) != order or order < 1 or (order > 1 and tokens.dim != 2):
        raise InputError(
            f"order must be a whole number of at least 1, and 1 outside of the plane; got {order} in dimension {tokens.dim}"
        )
    if order == 1:
        sizes = vector_norm(tokens.points, keepdim=True)
        return vector_norm(barycentre(tokens.points / torch.where(sizes > 0, sizes, 1.0), tokens.masses))
    angles = int(order) * torch.atan2(tokens.points[..., 1], tokens.points[..., 0])
    return vector_norm(barycentre(torch.stack((angles.cos(), angles.sin()), dim=-1), tokens.masses))


@observable
def covariance(tokens: Tokens, law: Law | None = None, space: Space | None = None) -> Tensor:
    r"""Covariance of the measure, shape (..., d, d), in the ambient coordinates.

    :math:`\sum_i m_i (x_i - \bar x)(x_i - \bar x)^\top / \sum_i m_i`: with equal masses the divisor is n, not n - 1.
    """
    points = centre_tokens(tokens)
    weights = tokens.weights.unsqueeze(-1)
    return points.mT @ (weights * points) / weights.sum(-2, keepdim=True)


@observable
def effective_rank(
    tokens: Tokens, law: Law | None = None, space: Space | None = None, *, centred: bool = False
) -> Tensor:
    r"""Effective rank of the tokens, shape (...) [roy2007effective].

    :math:`\exp(-\sum_k p_k \log p_k)` with :math:`p_k = \sigma_k / \sum_l \sigma_l`.
    The singular values are those of the tokens as rows :math:`\sqrt{m_i}\,x_i`, so their squares are the eigenvalues
    of the second moment. ``centred=True`` subtracts the mean first (then they belong to the covariance). Between 1
    and min(n, d); 0 where all tokens vanish.
    """
    points = centre_tokens(tokens, space) if centred else to_isometric(tokens.points, space)
    if tokens.masses is not None:
        points = tokens.masses.sqrt().unsqueeze(-1) * points
    singular = torch.linalg.svdvals(points)
    total = singular.sum(-1, keepdim=True)
    shares = singular / torch.where(total > 0, total, 1.0)
    # p log p tends to 0 with p, its derivative does not: zero shares are kept out of the gradient
    entropy = -(shares * torch.where(shares > 0, shares, 1.0).log()).sum(-1)
    return torch.where(total.squeeze(-1) > 0, entropy.exp(), 0.0)
