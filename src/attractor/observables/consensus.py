"""Distance from consensus and hemisphere margin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attractor.laws import Law
from attractor.observables.geometry import average, centre_tokens, has_mass, to_isometric, unit_directions
from attractor.observables.registry import observable
from attractor.spaces import Space
from attractor.states import Tokens, vector_norm


@observable
def consensus_metric(tokens: Tokens, law: Law | None = None, space: Space | None = None) -> Tensor:
    r"""Consensus metric of the experiments of [abella2024asymptotic], shape (...): 0 at consensus.

    :math:`1 - \text{mean}_j |\cos(x_1, x_j)|`, j = 1 included.
    It ignores signs: two antipodal clusters score 0, so report ``cosine_min`` as well. The first token of
    positive mass is :math:`x_1`; the mean is weighted by mass; a token at the origin counts as orthogonal. Computed
    from :math:`1 - |\cos| = \min(|u_1 - u_j|^2, |u_1 + u_j|^2)/2`, so that it does not stop at the rounding of 1.
    """
    units = unit_directions(tokens, space)
    first = has_mass(tokens).to(torch.int8).argmax(-1)[..., None, None]
    reference = units.take_along_dim(first, -2)
    same, opposite = (((units - sign * reference) ** 2).sum(-1) for sign in (1.0, -1.0))
    pointing = (units != 0).any(-1) & (reference != 0).any(-1)
    return average(torch.where(pointing, torch.minimum(same, opposite) / 2.0, 1.0), tokens.masses)


@observable
def consensus_gap(tokens: Tokens, law: Law | None = None, space: Space | None = None) -> Tensor:
    r"""Largest distance of a token from the mean, shape (...).

    :math:`\max_i |x_i - \bar x|` in the norm of the space, :math:`\bar x` the mean of the measure.
    """
    lengths = vector_norm(centre_tokens(tokens, space))
    return torch.where(has_mass(tokens), lengths, 0.0).amax(-1)


Array = np.ndarray
ROUNDING = 2e-15  # relative to the largest token; smaller differences are rounding
OFFERS = 32  # vertices that may enter per pass over all tokens


@dataclass(frozen=True)
class Nearest:
    """The nearest point as weights on ``vertices``, its distance, and its direction (None at the origin itself)."""

    vertices: list[int]
    weights: Array
    distance: float
    normal: Array | None


@dataclass
class Corral:
    r"""Affinely independent vertices S (Wolfe's corral) with the QR factors of :math:`A_S = [Y_S^\top; 1^\top]`.

    No Gram matrix is formed, so nearly equal tokens cost no digits: the factors are those of tokens moved by
    rounding, and the distance from the origin to a hull moves no further than its vertices do.
    """

    vertices: list[int]
    weights: Array
    basis: Array
    triangle: Array

    @classmethod
    def around(cls, vertices: list[int], weights: Array, points: Array) -> Corral:
        columns = np.vstack((points[vertices].T, np.ones(len(vertices))))
        return cls(vertices, weights, *_factors(columns))

    @property
    def full(self) -> bool:
        """Whether no vertex is affinely independent of these."""
        return len(self.vertices) == len(self.basis)

    def add(self, vertex: int, point: Array) -> bool:
        """Add a vertex, unless it is in the affine hull up to rounding."""
        from scipy.linalg import LinAlgError, qr_insert  # type: ignore[attr-defined]

        column, last = np.append(point, 1.0), len(self.vertices)
        try:
            basis, triangle = qr_insert(self.basis, self.triangle, column, last, which="col")
        except LinAlgError:
            return False
        if abs(triangle[last, last]) <= ROUNDING:
            return False
        self.basis, self.triangle = basis, triangle
        self.vertices.append(vertex)
        self.weights = np.append(self.weights, 0.0)
        return True

    def drop(self, place: int) -> None:
        from scipy.linalg import qr_delete  # type: ignore[attr-defined]

        self.vertices.pop(place)
        kept = len(self.vertices)
        # a square basis counts as a full factorisation for scipy, which then keeps the surplus column
        basis, triangle = qr_delete(self.basis, self.triangle, place, which="col")
        self.basis, self.triangle = basis[:, :kept], triangle[:kept]
        self.weights = np.delete(self.weights, place)

    def minimise(self) -> None:
        """Move to the nearest point of the affine hull, and drop the vertices whose weight becomes zero."""
        from scipy.linalg import solve_triangular

        while True:
            wanted = solve_triangular(self.triangle, self.basis[-1])
            wanted = wanted / wanted.sum()
            leaving = np.flatnonzero(wanted <= 0)
            if not len(leaving):
                self.weights = wanted
                return
            ahead = self.weights[leaving] - wanted[leaving]
            steps = self.weights[leaving] / np.where(ahead > 0, ahead, 1.0)
            self.weights = np.maximum(self.weights + steps.min() * (wanted - self.weights), 0.0)
            self.drop(int(leaving[np.argmin(steps)]))

    def nearest_point(self, points: Array) -> Nearest:
        """Return the nearest point; its distance is computed along the normal, which is accurate near 0."""
        normal = self.normal()
        if normal is not None:
            distance = float(self.weights @ (points[self.vertices] @ normal))
        else:
            distance = float(np.linalg.norm(self.weights @ points[self.vertices]))
        if distance <= ROUNDING:
            normal, distance = None, 0.0
        return Nearest(list(self.vertices), self.weights, distance, normal)

    def normal(self) -> Array | None:
        r"""The direction of the nearest point of the affine hull; None where that is the origin.

        The unit vector e with :math:`\langle e, y_i\rangle` equal and positive over S.
        It comes from the part of the last basis vector that is orthogonal to :math:`A_S`. Projecting twice keeps its
        direction where that part is almost nothing.
        """
        part = -self.basis @ self.basis[-1]
        part[-1] += 1.0
        length = float(np.linalg.norm(part))
        if length <= ROUNDING:
            return None
        part /= length
        part -= self.basis @ (self.basis.T @ part)
        length = float(np.linalg.norm(part[:-1]))
        return None if length < 0.5 else -part[:-1] / length


def nearest_hull_point(points: Array) -> tuple[Array, Array]:
    r"""Weights :math:`\lambda` (n,) of the point of the hull of points (n, d) nearest to 0, and its direction e (d,).

    e is zero where the hull contains the origin. Otherwise :math:`\langle e, y_i\rangle \ge \rho` for all i, with equality
    where :math:`\lambda_i > 0`: the pair proves the distance :math:`\rho` from both sides, up to the rounding of the
    direction of a very small vector be known. Wolfe's algorithm [wolfe1976finding] on the least-squares problem
    :math:`[Y^\top; 1^\top]\lambda = e_{d+1},\ \lambda \ge 0` [lawson1974solving], started from scipy's answer to it.
    """
    weights, direction = np.zeros(points.shape[0]), np.zeros(points.shape[1])
    size = float(np.abs(points).max())
    if size == 0.0:
        weights[0] = 1.0
        return weights, direction
    scaled = points / size  # first, because squares leave the range of floats before the tokens do
    scaled, frame = _in_own_span(scaled / np.linalg.norm(scaled, axis=1).max())
    found = _search(scaled)
    weights[found.vertices] = found.weights
    if found.normal is not None:
        direction = found.normal if frame is None else frame @ found.normal
    return weights, direction


def _factors(columns: Array) -> tuple[Array, Array]:
    from scipy.linalg import qr

    basis, triangle = qr(columns, mode="economic")  # type: ignore[misc]
    return np.asarray(basis), np.asarray(triangle)


def _in_own_span(points: Array) -> tuple[Array, Array | None]:
    """With fewer tokens than dimensions, return coordinates in their span and the basis of the span."""
    if points.shape[1] <= points.shape[0]:
        return points, None
    frame, triangle = _factors(points.T)
    return np.ascontiguousarray(triangle.T), frame


def _search(points: Array) -> Nearest:
    """Add vertices while they bring the hull closer to the origin by more than rounding."""
    corral = _initial_corral(points)
    corral.minimise()
    found = corral.nearest_point(points)
    while found.normal is not None:
        heights = points @ found.normal
        below = np.flatnonzero(heights < found.distance - ROUNDING)
        closer = _add_vertices(points, corral, found, below[np.argsort(heights[below])[:OFFERS]])
        if closer is found:
            break
        found = closer
    return found


def _initial_corral(points: Array) -> Corral:
    """Return the vertices that scipy's solver finds, or the shortest token if it fails or they are dependent."""
    from scipy.optimize import nnls

    target = np.append(np.zeros(points.shape[1]), 1.0)
    shortest = int(np.argmin(np.linalg.norm(points, axis=1)))
    alone = Corral.around([shortest], np.ones(1), points)
    try:
        weights, _ = nnls(np.vstack((points.T, np.ones(len(points)))), target)
    except RuntimeError:
        return alone
    vertices = np.flatnonzero(weights > 0)
    if not 0 < len(vertices) <= len(target):
        return alone
    corral = Corral.around(vertices.tolist(), weights[vertices] / weights[vertices].sum(), points)
    return corral if np.abs(np.diag(corral.triangle)).min() > ROUNDING else alone


def _add_vertices(points: Array, corral: Corral, found: Nearest, offers: Array) -> Nearest:
    """Add the vertices that are still below the nearest point; return ``found`` itself if none helps."""
    for vertex in offers.tolist():
        if found.normal is None or corral.full:
            break
        if vertex in found.vertices or points[vertex] @ found.normal >= found.distance - ROUNDING:
            continue
        if not corral.add(vertex, points[vertex]):
            continue
        corral.minimise()
        closer = corral.nearest_point(points)
        if closer.distance >= found.distance:
            break
        found = closer
    return found


@observable
def hemisphere_margin(tokens: Tokens, law: Law | None = None, space: Space | None = None) -> Tensor:
    r"""Distance from the origin to the convex hull of the tokens, in the norm of the space, shape (...).

    :math:`\rho = \operatorname{dist}(0, \operatorname{conv}\{x_i\}) = \max_{|e|=1}\min_i\langle e, x_i\rangle^+`.
    Tokens lie in an open hemisphere exactly when :math:`\rho > 0`; on the unit sphere
    :math:`\rho = 1` exactly at consensus. With V = I it never decreases [abella2024asymptotic] (consensus T2). The
    error is a few roundings of the longest token; the value is exactly 0 where the hull contains the origin. Its
    gradient is :math:`\partial\rho/\partial x_i = \lambda_i e` with the weights of the nearest point
    [wolfe1976finding].
    """
    points = to_isometric(tokens.points, space).double()
    flat = points.detach().reshape(-1, tokens.n, tokens.dim).cpu().numpy()
    parts = has_mass(tokens).reshape(-1, tokens.n).cpu().numpy()
    weights, normals = np.zeros(flat.shape[:-1]), np.zeros((len(flat), tokens.dim))
    for state, part in enumerate(parts):
        weights[state, part], normals[state] = nearest_hull_point(flat[state, part])
    heights = points @ torch.from_numpy(normals).to(points).reshape(*tokens.batch_shape, tokens.dim, 1)
    lifted = torch.from_numpy(weights).to(points).reshape(*tokens.batch_shape, tokens.n)
    return (lifted * heights.squeeze(-1)).sum(-1).clamp_min(0.0).to(tokens.points.dtype)
