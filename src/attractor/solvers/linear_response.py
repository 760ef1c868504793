"""Linear response: how small deviations from a limit grow until the end of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attractor.laws import is_external
from attractor.solvers.steppers.stepper import Field

DENSE = 192  # coordinates up to which the whole Jacobian is computed
KRYLOV = 48  # dimension of the Krylov space above
PAIRS = 1 << 22  # pairs of tokens in one batch of evaluations
STENCIL = ((1.0, 8.0 / 12.0), (2.0, -1.0 / 12.0))  # central differences of fourth order
DIFFERENCE = {torch.float64: 3e-5, torch.float32: 1e-2}  # their step, relative to the tokens
CURVATURE = 2.0  # factor of the measured nonlinearity in the bounds
UNDESCRIBED = 0.5  # nonlinearity, relative to the Jacobian, above which this does not describe the motion
ROUNDING = 64.0  # spacings of floating-point numbers that count as rounding of a velocity
SLACK = 1e-6  # relative growth that still counts as none
STILL = 1e-9  # distance, relative to its size, that a limit at rest may still move until the end
CALM = 2.0  # growth up to which the errors of the steps that are left can be ignored
REPELLING = 10.0  # growth until the end from which a state at rest counts as unstable
FINISHED = 1e-18  # norm of a propagator below which it is zero


@dataclass(frozen=True)
class Growth:
    """Sizes of deviations and norms of the propagator, all (members,).

    Attributes
    ----------
    first, last, peak : size of the deviation now, at the end, and the largest until then.
    factor, highest : norm of the propagator at the end, and the largest until then.
    """

    first: Tensor
    last: Tensor
    peak: Tensor
    factor: Tensor
    highest: Tensor


def propagate(matrix: Tensor, forcing: Tensor, deviation: Tensor, time: Tensor, step: float | None = None) -> Growth:
    r"""Solve :math:`\dot z = Az + b`, or :math:`z_{k+1} = Az_k + b` for a ``step``, by repeated squaring of the propagator.

    Sizes are taken at the times T, T/2, T/4, ..., until nothing grows. Norms of propagators are
    :math:`(\|E\|_1\|E\|_\infty)^{1/2} \ge \|E\|_2`, so that growth of non-normal matrices is seen.

    Parameters
    ----------
    matrix : A (members, k, k).
    forcing : b (members, k, 1).
    deviation : z (members, k, m).
    time : T (members,); with a ``step`` the number of steps is rounded up to a power of two.
    """
    finite = torch.ones(len(matrix), dtype=torch.bool)
    for part in (matrix, forcing, deviation):
        finite &= torch.isfinite(part).flatten(1).all(1)
    matrix, forcing, deviation = (torch.nan_to_num(part, 0.0, 0.0, 0.0) for part in (matrix, forcing, deviation))
    size = torch.linalg.vector_norm(deviation, dim=(-2, -1))
    if step is None:
        scale = torch.nan_to_num(torch.linalg.matrix_norm(matrix) * time, nan=torch.inf)  # an infinite norm times 0
        halvings = int(torch.log2(scale.clamp(1.0, 1e300)).amax().ceil())
        start = (time / 2.0**halvings).view(-1, 1, 1)
        wide = torch.cat(
            (torch.cat((matrix, forcing), -1), torch.zeros_like(torch.cat((forcing.mT, forcing[:, :1]), -1))), -2
        )
        wide = torch.linalg.matrix_exp(wide * start)
        propagator, moved = wide[:, :-1, :-1], wide[:, :-1, -1:]
    else:
        halvings = int(torch.log2((time / step).clamp(1.0, 1e300)).amax().ceil())
        propagator, moved = matrix, forcing
    highest, peak, factor, last = torch.ones_like(size), size, torch.ones_like(size), size
    for squaring in range(halvings + 1):
        if squaring:
            propagator, moved = propagator @ propagator, propagator @ moved + moved
        absolute = propagator.abs()
        factor = (absolute.sum(-1).amax(-1) * absolute.sum(-2).amax(-1)).sqrt()
        last = torch.linalg.vector_norm(propagator @ deviation + moved, dim=(-2, -1))
        factor, last = (torch.nan_to_num(value, nan=torch.inf) for value in (factor, last))
        highest, peak = torch.maximum(highest, factor), torch.maximum(peak, last)
        if bool(((factor < FINISHED) | ~torch.isfinite(factor)).all()):
            break
    last, peak, factor, highest = (value.where(finite, torch.inf) for value in (last, peak, factor, highest))
    return Growth(size, last, peak, factor, highest)


class LinearResponse:
    """Dynamics of some members near a limit.

    Parameters
    ----------
    field : the vector field of these members.
    t, left : time, and time until the end of the run, (members,).
    points, velocities : (members, n, d).
    noise : errors of a step that are tolerated, relative to the largest token, (members,).
    step : size of a discrete layer, None if time is continuous.
    """

    def __init__(
        self,
        field: Field,
        t: np.ndarray,
        left: np.ndarray,
        points: Tensor,
        velocities: Tensor,
        noise: np.ndarray,
        step: float | None = None,
    ) -> None:
        self.field, self.t, self.step = field, t, step
        self.left = torch.from_numpy(left).to(torch.float64)
        self.points, self.velocities = points.detach(), velocities.detach()
        self.noise = torch.from_numpy(noise)
        self.members, self.n, self.d = points.shape
        self.spacing = torch.finfo(points.dtype).eps
        self.evaluations = 0
        law = field.law
        # tokens at one point may be replaced by one: then all of them move alike near it
        self.exchangeable = law.merge_obstacle() is None
        self.alone = is_external(law, float(t[0]))
        if step is not None:  # what a layer adds takes the part of the velocity
            self.velocities = self._velocity(self.points[:, None])[:, 0] - self.points

    # ------------------------------------------------------------------ the three limits

    def stays_together(self, tolerance: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Consensus at the first token.

        Returns
        -------
        attracts : whether the tokens do not move apart until the end, nor in the time scale of the law.
        rests : whether the mean of the tokens stays where it is until the end.
        described : whether the derivative describes the motion.
        """
        base = self.points[:, :1]
        size = _norm(base)
        deviation = self._spread(self.points - base)
        if self.exchangeable:
            matrix, mean, _ = self._exchangeable_response(base, self._step(size))
            drift = self._mean(self.velocities).mT
            spread = deviation.mT  # every token alone, (members, d, n)
            residual = self._spread(self.velocities).mT - self._move(matrix, spread)
            forcing = torch.zeros_like(spread[..., :1])
        else:
            together = base.expand_as(self.points)
            drifts = self._drift(together)
            drift = self.velocities.mean(1).unsqueeze(-1)
            mean = self._derivative(together, self._shifts(self.n), self._step(size)).mean(2).mT
            basis = _differences(self.n, self.points)
            spread = (basis.mT @ deviation).flatten(1).unsqueeze(-1)
            forcing = (basis.mT @ drifts).flatten(1).unsqueeze(-1)
            matrix, spread, forcing, residual = self._reduced(
                together, spread, forcing, (basis.mT @ self.velocities).flatten(1).unsqueeze(-1) - forcing, basis, size
            )
        spread, forcing, residual = (part.cpu().double() for part in (spread, forcing, residual))
        matrix, mean, drift, size = (part.cpu().double() for part in (matrix, mean, drift, size))
        bend, described = self._nonlinearity(matrix, residual, spread, size)
        growth = self._grow(matrix, forcing, spread, bend, self._horizon(matrix))
        floor = self.spacing * size * self.n**0.5
        attracts = (growth.last <= (1.0 + SLACK) * growth.first + floor) & torch.isfinite(growth.peak)
        attracts &= (growth.highest <= CALM) | (growth.highest * self.noise <= tolerance)
        attracts &= (growth.first > ROUNDING * floor) | self._is_stable(matrix)
        return attracts.numpy(), self._rests(mean, drift, matrix, size).numpy(), described.numpy()

    def stays_at_zero(self, size: np.ndarray, tolerance: float) -> tuple[np.ndarray, np.ndarray]:
        """Whether tokens close to zero do not leave it; and whether the derivative there describes their motion."""
        zero, largest = torch.zeros_like(self.points[:, :1]), self.points.abs().amax((-2, -1))
        step = 0.1 * largest.clamp_min(1e-290)
        if self.exchangeable:
            matrix, mean, drift = self._exchangeable_response(zero, step)
            middle, spread = self._mean(self.points), self._spread(self.points)
            parts = [(matrix, 0.0 * drift, spread.mT), (mean, drift, middle.mT)]
            moved, center = self._spread(self.velocities).mT, self._mean(self.velocities).mT
            residual = moved - self._move(matrix, spread.mT)
            residual = torch.cat((residual, center - drift - self._move(mean, middle.mT)), -1)
        else:
            zeros = torch.zeros_like(self.points)
            forcing = self._drift(zeros).flatten(1).unsqueeze(-1)
            here = self.points.flatten(1).unsqueeze(-1)
            moved = self.velocities.flatten(1).unsqueeze(-1) - forcing
            matrix, spread, forcing, residual = self._reduced(zeros, here, forcing, moved, None, step / self._relative)
            parts = [(matrix, forcing, spread)]
        first, last, highest = torch.zeros(self.members), torch.zeros(self.members), torch.zeros(self.members)
        described = torch.ones(self.members, dtype=torch.bool)
        whole = torch.cat([part[2].flatten(1) for part in parts], -1).unsqueeze(-1).cpu().double()
        for matrix, forcing, spread in parts:
            matrix, forcing, spread = (part.cpu().double() for part in (matrix, forcing, spread))
            bend, linear = self._nonlinearity(matrix, residual.cpu().double(), whole, largest.cpu().double())
            growth = self._grow(matrix, forcing, spread, bend, self._horizon(matrix))
            first, last = torch.hypot(first, growth.first), torch.hypot(last, growth.last)
            highest, described = torch.maximum(highest, growth.highest), described & linear
        attracts = (last <= (1.0 + SLACK) * first) & torch.isfinite(highest)
        allowed = tolerance * torch.from_numpy(size)
        attracts &= (highest <= CALM) | (highest * self.noise * largest.cpu().double() <= allowed)
        return attracts.numpy(), described.numpy()

    def stays_here(self, tolerance: np.ndarray, time: np.ndarray) -> np.ndarray:
        """Whether no token leaves its present place by more than ``tolerance`` of its size in some time, and none is repelled."""
        still = ~(self.velocities != 0).flatten(1).any(1).cpu()
        if bool(still.all()):
            return still.numpy()
        size = _norm(self.points)
        forcing = self.velocities.flatten(1).unsqueeze(-1)
        matrix, spread, forcing, _ = self._reduced(self.points, 0.0 * forcing, forcing, forcing, None, size)
        matrix, forcing, spread = (part.cpu().double() for part in (matrix, forcing, spread))
        growth = propagate(matrix, forcing, spread, torch.from_numpy(time), self.step)
        allowed = torch.from_numpy(tolerance) * size.cpu().double() * self.n**0.5
        return (still | ((growth.peak <= allowed) & (growth.factor <= REPELLING))).numpy()

    # ------------------------------------------------------------------ growth

    def _horizon(self, matrix: Tensor) -> Tensor:
        """Time over which deviations must not grow: what is left, or the time scale of the law if that is longer."""
        if self.step is not None:
            return self.left.clamp_min(self.step)
        rate = torch.linalg.matrix_norm(matrix)
        return torch.where(rate > 0, torch.maximum(self.left, 1.0 / rate.clamp_min(1e-300)), self.left)

    def _is_stable(self, matrix: Tensor) -> Tensor:
        """Whether no deviation grows in the long run: for deviations that are too small to be seen."""
        finite = torch.isfinite(matrix).flatten(1).all(1)
        try:
            values = torch.linalg.eigvals(torch.nan_to_num(matrix, 0.0, 0.0, 0.0))
        except torch.linalg.LinAlgError:  # pyright: ignore[reportPrivateImportUsage]  # the eigenvalues are not known
            return torch.zeros_like(finite)
        if self.step is not None:
            return finite & (values.abs().amax(-1) <= 1.0 + SLACK)
        return finite & (values.real.amax(-1) <= SLACK * torch.linalg.matrix_norm(matrix))

    def _grow(self, matrix: Tensor, forcing: Tensor, deviation: Tensor, bend: Tensor, time: Tensor) -> Growth:
        bend = bend.view(-1, 1, 1)
        shifted = (
            matrix + bend * torch.eye(matrix.shape[-1], dtype=matrix.dtype)
            if self.step is None
            else matrix * (1.0 + bend)
        )
        return propagate(shifted, forcing, deviation, time, self.step)

    def _nonlinearity(self, matrix: Tensor, residual: Tensor, deviation: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
        """Rate by which the motion differs from its linear part, (members,); and whether that describes it."""
        finite = torch.isfinite(matrix).flatten(1).all(1)
        scale = torch.linalg.matrix_norm(torch.nan_to_num(matrix, 0.0, 0.0, 0.0), 2)
        missing = (
            torch.linalg.vector_norm(residual, dim=(-2, -1)) - ROUNDING * self.spacing * scale * size * self.n**0.5
        )
        length = torch.linalg.vector_norm(deviation, dim=(-2, -1))
        bend = torch.where(length > 0, missing.clamp_min(0.0) / length.clamp_min(1e-300), 0.0)
        described = finite & (bend <= UNDESCRIBED * scale)
        return CURVATURE * torch.nan_to_num(bend, nan=torch.inf), described

    def _rests(self, mean: Tensor, drift: Tensor, matrix: Tensor, size: Tensor) -> Tensor:
        """Whether the mean of the tokens, which drifts now, moves by less than ``STILL`` of its size until the end."""
        speed = torch.linalg.vector_norm(drift, dim=(-2, -1))
        scale = torch.linalg.matrix_norm(matrix) + torch.linalg.matrix_norm(mean)
        floor = ROUNDING * self.spacing * size * (scale if self.step is None else 1.0)
        drift = drift * (1.0 - floor / speed.clamp_min(1e-300)).clamp_min(0.0).view(-1, 1, 1)
        growth = propagate(mean, drift, torch.zeros_like(drift), self.left, self.step)
        settled = (growth.highest <= CALM) | (growth.highest * self.spacing <= STILL)
        return (speed == 0) | ((growth.peak <= STILL * size) & settled)

    # ------------------------------------------------------------------ derivatives

    @property
    def _relative(self) -> float:
        return DIFFERENCE[self.points.dtype]

    def _step(self, size: Tensor) -> Tensor:
        return self._relative * size.clamp_min(1e-290)

    def _mean(self, values: Tensor) -> Tensor:
        """Mean (members, 1, d) of values of the tokens, weighted by mass."""
        masses = self.field.masses
        if masses is None:
            return values.mean(1, keepdim=True)
        weights = (masses / masses.sum(-1, keepdim=True)).to(values).reshape(-1, 1, self.n)
        return weights @ values

    def _spread(self, values: Tensor) -> Tensor:
        return values - self._mean(values)

    def _shifts(self, n: int) -> Tensor:
        """Displacements (d, n, d) of all tokens together along each axis."""
        return torch.eye(self.d, dtype=self.points.dtype, device=self.points.device)[:, None].expand(-1, n, -1)

    def _velocity(self, points: Tensor, shared: bool = False) -> Tensor:
        """Velocities at points (members, k, n, d); for layers the points after one. ``shared``: of equal masses."""
        members, count, n, _ = points.shape
        batch = 1 if self.alone else max(1, PAIRS // (n * n))
        flat, index = points.flatten(0, 1), np.repeat(np.arange(members), count)
        parts = []
        for start in range(0, len(flat), batch):
            rows = index[start : start + batch]
            field = self.field.members(torch.from_numpy(rows))
            if shared and field.masses is not None:
                field.masses = field.masses.sum(-1, keepdim=True).expand(*field.masses.shape[:-1], n) / n
            some, t = flat[start : start + batch], self.t[rows]
            if self.step is None:
                parts.append(field.lifted_velocity(t, some))
            else:
                parts.append(field.layer(t, self.step, some))
        self.evaluations += len(flat)
        return torch.cat(parts).view_as(points)

    def _derivative(self, points: Tensor, directions: Tensor, step: Tensor, shared: bool = False) -> Tensor:
        """Derivatives (members, k, n, d) at points along directions (k, n, d) or (members, k, n, d)."""
        length = step.view(-1, 1, 1, 1)
        moves = [sign * factor * length * directions for factor, _ in STENCIL for sign in (1.0, -1.0)]
        count = directions.shape[-3]
        values = self._velocity(torch.cat([points[:, None] + move for move in moves], 1), shared).split(count, 1)
        total = sum(weight * (values[2 * k] - values[2 * k + 1]) for k, (_, weight) in enumerate(STENCIL))
        return total / length  # type: ignore[operator]

    def _exchangeable_response(self, base: Tensor, step: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Response of exchangeable tokens at one point: matrices (members, d, d) of differences and of the mean, and the drift.

        Two tokens of half the mass have the same: a token responds by A to its own displacement and by B to that of the mean.
        """
        pair = base.expand(-1, 2, -1)
        push = self._shifts(2) * torch.tensor([1.0, 0.0]).to(base)[:, None]
        response = self._derivative(pair, push, step, shared=True)
        own, other = response[:, :, 0].mT, response[:, :, 1].mT
        return own - other, own + other, self._drift(pair, shared=True)[:, :1].mT

    def _reduced(
        self, points: Tensor, deviation: Tensor, forcing: Tensor, moved: Tensor, basis: Tensor | None, size: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Jacobian at some points, dense or on a Krylov space, with deviation, forcing and the part of ``moved`` it leaves out.

        ``basis`` (n, k) restricts deviations to combinations of tokens; vectors are (members, k d, 1).
        """
        count = self.n if basis is None else basis.shape[1]
        apply = self._apply_in(points, basis, count, self._step(size))
        if count * self.d <= DENSE:
            eye = torch.eye(count * self.d, dtype=points.dtype, device=points.device)
            matrix = apply(eye.expand(self.members, -1, -1))
            return matrix, deviation, forcing, moved - self._move(matrix, deviation)
        space = _krylov_space(apply, deviation + forcing)
        matrix = space.mT @ apply(space)
        response = apply(deviation) - (0.0 if self.step is None else deviation)
        return matrix, space.mT @ deviation, space.mT @ forcing, moved - response

    def _move(self, matrix: Tensor, vectors: Tensor) -> Tensor:
        """Velocity of deviations, or what a layer adds to them."""
        return matrix @ vectors - (0.0 if self.step is None else vectors)

    def _drift(self, points: Tensor, shared: bool = False) -> Tensor:
        """Velocity at points (members, n, d), or what a layer adds to them."""
        moved = self._velocity(points[:, None], shared)[:, 0]
        return moved if self.step is None else moved - points

    def _apply_in(self, points: Tensor, basis: Tensor | None, count: int, step: Tensor) -> Callable[[Tensor], Tensor]:
        def apply(vectors: Tensor) -> Tensor:
            """The Jacobian times vectors (members, count d, k)."""
            directions = vectors.mT.reshape(self.members, -1, count, self.d)
            directions = directions if basis is None else basis @ directions
            result = self._derivative(points, directions, step)
            result = result if basis is None else basis.mT @ result
            return result.flatten(2).mT

        return apply


def _norm(points: Tensor) -> Tensor:
    """Largest token norm, (members,)."""
    return torch.linalg.vector_norm(points, dim=-1).amax(-1)


def _differences(n: int, like: Tensor) -> Tensor:
    """An orthonormal basis (n, n - 1) of the combinations of n tokens whose weights add up to zero."""
    ones = torch.ones((n, 1), dtype=like.dtype, device=like.device)
    basis, _ = torch.linalg.qr(torch.cat((ones, torch.eye(n, n - 1).to(like)), 1))
    return basis[:, 1:]


def _krylov_space(apply: Callable[[Tensor], Tensor], seed: Tensor) -> Tensor:
    """Orthonormal basis (members, k, m) of the Krylov space of a seed (members, k, 1) with a small random part (Arnoldi)."""
    random = torch.randn(seed.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(seed)
    length, noise = (torch.linalg.vector_norm(part, dim=1, keepdim=True) for part in (seed, random))
    vector = seed / length.clamp_min(1e-300) + 1e-3 * random / noise
    basis = vector / torch.linalg.vector_norm(vector, dim=1, keepdim=True)
    for _ in range(KRYLOV - 1):
        vector = apply(basis[..., -1:])
        for _ in range(2):  # a second pass removes the rounding of the first
            vector = vector - basis @ (basis.mT @ vector)
        length = torch.linalg.vector_norm(vector, dim=1, keepdim=True)
        if not bool((length > 0).all()):
            break
        basis = torch.cat((basis, vector / length), -1)
    return basis
