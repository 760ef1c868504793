"""The field of one member at several points, and the linear systems of its Jacobian."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor import engines
from attractor.engines import distributed
from attractor.solvers.steppers.stepper import Field
from attractor.states import Tokens

DENSE = 3072  # coordinates up to which linear systems are solved by factorisation
SPECTRUM = 128  # coordinates up to which all eigenvalues are computed
KRYLOV = 40  # vectors of a Krylov space for eigenvalues
RESTART = 60  # vectors of a Krylov space for linear systems
RESTARTS = 4
RESIDUAL = 1e-4  # of linear systems without factorisation, relative to the right side
RITZ = 0.05  # residual of an approximate eigenvalue above which it is ignored
ROUNDING = 64 * np.finfo(np.float64).eps  # growth rate, relative to the size of the Jacobian, that counts as zero
AGREEMENT = 1e-6  # relative difference of a law's velocities of several states at once and one by one
CHUNK = 1 << 24  # entries of the pairs of a batch of states

Solver = Callable[[np.ndarray], np.ndarray]


class MemberField:
    """The lifted field of one member as a function of times (k,) and points (k, N) with N = n d coordinates."""

    def __init__(self, field: Field, row: int, members: int) -> None:
        self.whole = field
        self.field = field if members == 1 else field.member(row)
        self.given = (field.law, field.masses)
        self.together: bool | None = None  # whether several states can be evaluated at once

    def is_of(self, field: Field) -> bool:
        """Whether law and masses are still those of the run."""
        return self.given[0] is field.law and self.given[1] is field.masses

    def evaluate(self, times: np.ndarray, points: Tensor) -> Tensor:
        """The field at points (k, n, d), each at its time."""
        field, count = self.field, len(points)
        if count == 1 or not field.law.autonomous or self.together is False:
            return self._one_by_one(times, points)
        self.whole.evaluations += count
        repeated = _repeat(field, count)
        if self.together is None:
            with torch.no_grad():
                single = self._one_by_one(times, points)
                try:
                    found = repeated.lifted_velocity(times[:1], points)
                except Exception:  # a law of the user for single states; its own errors were raised above
                    self.together = False
                    return single
            size = float(single.abs().max())
            self.together = found.shape == single.shape and float((found - single).abs().max()) <= AGREEMENT * size
            return found if self.together else single
        return repeated.lifted_velocity(times[:1], points)

    def _one_by_one(self, times: np.ndarray, points: Tensor) -> Tensor:
        before = self.field.evaluations
        found = torch.cat([self.field.lifted_velocity(times[k : k + 1], points[k : k + 1]) for k in range(len(points))])
        if self.field is not self.whole:
            self.whole.evaluations += self.field.evaluations - before
        return found

    def jacobian(self, t: float, y: Tensor) -> np.ndarray:
        """The Jacobian (N, N) at y (n, d): in closed form, by reverse-mode differentiation, or by differences."""
        found = self.derivative(t, y)
        with distributed.use_group(None):
            return self._differences(t, y) if found is None else found

    def derivative(self, t: float, y: Tensor) -> np.ndarray | None:
        """The Jacobian (N, N) at y (n, d) without differences; None if the law cannot be differentiated."""
        with distributed.use_group(None):
            found = self._closed_form(t, y)
            return self._differentiate(t, y) if found is None else found

    def _closed_form(self, t: float, y: Tensor) -> np.ndarray | None:
        space, field = self.field.space, self.field
        surface = space.surface(y.shape[-1])
        if space.is_curved and (surface is None or space.native_name is None):
            return None
        points = space.retract(y)
        J = field.law.jacobian(field._tokens(points[None]), t, skip_self=field.skip_self)
        if J is None:
            return None
        self.whole.evaluations += 1
        J = J.reshape(y.shape[0], y.shape[1], y.shape[0], y.shape[1]).double()
        if surface is None:
            return J.reshape(y.numel(), y.numel()).cpu().numpy()
        # F(y) = s (v - x <Wx, v>) with x = y / s and s = sqrt(y'Wy): dx = (dy - x <Wx, dy>) / s and ds = <Wx, dy>
        x, W = points.double(), surface.to(points).double()
        v = field.law.velocity(field._tokens(points[None]), t, skip_self=field.skip_self)[0].double()
        normal = x @ W
        inner = J - torch.einsum("ia,ib,ibkc->iakc", x, normal, J)
        own = torch.arange(len(x), device=x.device)
        along = (normal * v).sum(-1)
        eye = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
        inner[own, :, own, :] -= along[:, None, None] * eye + x[:, :, None] * (v @ W)[:, None, :]
        inner = inner - torch.einsum("iakb,kb,kc->iakc", inner, x, normal)
        inner[own, :, own, :] += (v - x * along[:, None])[:, :, None] * normal[:, None, :]
        return inner.reshape(y.numel(), y.numel()).cpu().numpy()

    def _differentiate(self, t: float, y: Tensor) -> np.ndarray | None:
        """One backward pass for each row; None if the law cannot be differentiated."""
        times = np.array([t])
        with torch.enable_grad(), engines.using("reference"):
            points = y.detach().clone().requires_grad_()
            self._one_by_one(times, y[None])  # errors of the law itself are not those of its derivative
            try:
                velocity = self.field.lifted_velocity(times, points[None])[0].flatten()
                if not velocity.requires_grad:
                    return None
                rows = [
                    torch.autograd.grad(velocity[index], points, retain_graph=True)[0].flatten()
                    for index in range(len(velocity))
                ]
            except (RuntimeError, TypeError, NotImplementedError):  # the law has no derivative
                return None
        self.whole.evaluations += 2
        return torch.stack(rows).double().cpu().numpy()

    def _differences(self, t: float, y: Tensor) -> np.ndarray:
        """Central differences."""
        size = y.numel()
        lengths = torch.linalg.vector_norm(y, dim=-1, keepdim=True).expand_as(y).flatten()
        step = torch.finfo(y.dtype).eps ** (1 / 3) * lengths.clamp_min(1e-3 * float(lengths.max()) or 1.0)
        columns = []
        width = max(1, CHUNK // max(1, 2 * y.shape[0] ** 2))
        for begin in range(0, size, width):
            index = torch.arange(begin, min(begin + width, size), device=y.device)
            shifts = torch.zeros(len(index), size, dtype=y.dtype, device=y.device)
            shifts[torch.arange(len(index)), index] = step[index]
            points = torch.cat([y.flatten() + shifts, y.flatten() - shifts]).view(-1, *y.shape)
            above, below = self.evaluate(np.full(len(points), t), points).flatten(1).split(len(index))
            columns.append((above - below) / (2.0 * step[index, None]))
        return torch.cat(columns).T.double().cpu().numpy()


def _repeat(field: Field, count: int) -> Field:
    """The field of so many copies of one member."""
    index = torch.zeros(count, dtype=torch.int64)
    masses, positions = (
        part if part is None or part.ndim == 1 else part[index] for part in (field.masses, field.positions)
    )
    return Field(
        field.law.member(index), field.space, Tokens.unchecked(torch.empty(0), masses, positions), field.skip_self
    )


class Linearisation:
    """The Jacobian J of one member at the start of a step, and what the step needs of it."""

    def __init__(self, member: MemberField, t: float, y: Tensor) -> None:
        self.member, self.t, self.y = member, t, y
        self.size = y.numel()
        self.matrix = member.jacobian(t, y) if self.size <= DENSE else None
        self.factors: dict[complex, Solver] = {}

    @property
    def is_finite(self) -> bool:
        return self.matrix is None or bool(np.isfinite(self.matrix).all())

    def apply(self, vector: np.ndarray) -> np.ndarray:
        """J times a real or complex vector (N,)."""
        if self.matrix is not None:
            return self.matrix @ vector
        if np.iscomplexobj(vector):
            return self.apply(np.real(vector)) + 1j * self.apply(np.imag(vector))
        length = float(np.linalg.norm(vector))
        if length == 0.0:
            return np.zeros_like(vector)
        step = float(np.sqrt(torch.finfo(self.y.dtype).eps)) * float(self.y.norm()) / length
        moved = self.y + torch.from_numpy(step * vector).to(self.y).view_as(self.y)
        found = self.member.evaluate(np.array([self.t]), moved[None])[0].double().cpu().numpy().ravel()
        return (found - self._velocity) / step

    @cached_property
    def _velocity(self) -> np.ndarray:
        return self.member.evaluate(np.array([self.t]), self.y[None])[0].double().cpu().numpy().ravel()

    def solver(self, shift: complex) -> Solver:
        """The function that solves (shift I - J) x = b."""
        if self.matrix is None:
            return lambda right: self._solve_by_iteration(shift, right)
        if shift not in self.factors:
            from scipy.linalg import get_lapack_funcs

            system = -self.matrix.astype(complex if isinstance(shift, complex) and shift.imag else float)
            system[np.diag_indices(self.size)] += shift if np.iscomplexobj(system) else shift.real
            factorise, substitute = get_lapack_funcs(("getrf", "getrs"), (system,))
            lu, pivots, _ = factorise(system, overwrite_a=True)
            self.factors[shift] = lambda right: substitute(lu, pivots, right)[0]
        return self.factors[shift]

    def _solve_by_iteration(self, shift: complex, right: np.ndarray) -> np.ndarray:
        from scipy.sparse.linalg import LinearOperator, gmres

        make: Any = LinearOperator  # its type is not that of its subclasses
        shape = (self.size, self.size)
        system = make(shape, matvec=lambda v: shift * v.ravel() - self.apply(v.ravel()), dtype=right.dtype)
        return gmres(system, right, rtol=RESIDUAL, restart=RESTART, maxiter=RESTARTS)[0]

    @cached_property
    def _tangent(self) -> np.ndarray:
        """The Jacobian on tangent vectors: along its normal the lifted field has a Jordan block of rounding errors."""
        assert self.matrix is not None
        space, n = self.member.field.space, len(self.y)
        surface = space.surface(self.y.shape[-1])
        if surface is None:
            return self.matrix
        x = space.retract(self.y).double().cpu().numpy()
        normal = x @ surface.double().cpu().numpy()
        J = self.matrix.reshape(n, x.shape[1], n, x.shape[1])
        J = J - x[:, :, None, None] * np.einsum("ia,iakc->ikc", normal, J)[:, None]
        J = J - np.einsum("iakb,kb->iak", J, x)[..., None] * normal[None, None]
        return J.reshape(self.size, self.size)

    @cached_property
    def _eigenvalues(self) -> np.ndarray:
        return np.linalg.eigvals(self._tangent)

    @cached_property
    def radius(self) -> float:
        """Spectral radius of J, approximately."""
        if self.matrix is not None and self.size <= SPECTRUM:
            return float(np.abs(self._eigenvalues).max(initial=0.0))
        values, _ = _ritz(self.apply, self.size)
        return float(np.abs(values).max(initial=0.0))

    def growth(self, shift: float) -> float:
        """Largest growth rate of a repelling direction; of a large system, of rates comparable to ``shift``."""
        if self.matrix is None:
            values, residuals = _ritz(self.apply, self.size)
            values = values[residuals < RITZ * np.abs(values)]
        elif self.size <= SPECTRUM:
            values = self._eigenvalues
        else:
            # the Cayley transform maps the right half-plane to the outside of the unit circle
            solve = self.solver(shift)
            found, residuals = _ritz(lambda v: 2.0 * shift * solve(v) - v, self.size)
            found = found[(residuals < RITZ * np.abs(found)) & (np.abs(found) > 1.0)]
            values = shift * (found - 1.0) / (found + 1.0)
        largest = float(np.real(values).max(initial=0.0))
        return largest if largest > ROUNDING * self.radius else 0.0


def _ritz(apply: Callable[[np.ndarray], np.ndarray], size: int) -> tuple[np.ndarray, np.ndarray]:
    """Approximate eigenvalues from a Krylov space, and their residuals."""
    count = min(KRYLOV, size)
    V, H = np.zeros((count + 1, size)), np.zeros((count + 1, count))
    first = np.random.default_rng(0).standard_normal(size)
    V[0] = first / np.linalg.norm(first)
    for k in range(count):
        w = apply(V[k])
        if not np.isfinite(w).all():
            return np.zeros(0), np.zeros(0)
        for _ in range(2):
            part = V[: k + 1] @ w
            w = w - part @ V[: k + 1]
            H[: k + 1, k] += part
        H[k + 1, k] = np.linalg.norm(w)
        if H[k + 1, k] <= 1e-14 * np.linalg.norm(H[: k + 1, k]):
            count = k + 1
            break
        V[k + 1] = w / H[k + 1, k]
    values, vectors = np.linalg.eig(H[:count, :count])
    return values, np.abs(H[count, count - 1] * vectors[-1])
