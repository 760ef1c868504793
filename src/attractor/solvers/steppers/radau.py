"""Implicit Radau IIA methods of order 5 and 9 for stiff systems, with adaptive steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from attractor.solvers.steppers.jacobian import Linearisation, MemberField
from attractor.solvers.steppers.stepper import Field, Step, Stepper, StepPolynomial

ITERATIONS = 12  # of Newton's method
CONVERGED = 1e-2  # error of Newton's method, relative to the tolerance of a step
STALLED = 0.1  # the same where rounding stops the convergence
DOUBTFUL = 1.5  # ratio of a step to the longest one in repelling directions above which it is not tried
FAILED = 0.5  # ratio of the next step to one for which Newton's method fails
GROWTH_RANGE = (0.2, 2.0)  # of the growth exponent of repelling directions in one step


@dataclass(frozen=True)
class Collocation:
    r"""Coefficients of the Radau IIA method with s stages.

    :math:`A^{-1} = T\Lambda T^{-1}` with one real eigenvalue, the first, and pairs of complex ones, of which one each is kept.
    ``error`` are the weights of the stages in the embedded method of order s, ``parts`` maps stages to the coefficients of
    :class:`StepPolynomial`.
    """

    nodes: np.ndarray
    matrix: np.ndarray
    eigenvalues: np.ndarray
    transform: np.ndarray
    inverse: np.ndarray
    error: np.ndarray
    parts: np.ndarray


@cache
def collocation(stages: int) -> Collocation:
    """The Radau IIA method with an odd number of stages [hairer1996solving, section IV.5]."""
    from numpy.polynomial import legendre

    # nodes: zeros of P_s - P_{s-1} on (-1, 1], the last at the end of the step
    difference = legendre.legsub(legendre.Legendre.basis(stages).coef, legendre.Legendre.basis(stages - 1).coef)
    nodes = np.sort(legendre.legroots(difference).real)
    for _ in range(3):  # Newton's method takes the roots to rounding
        nodes = nodes - legendre.legval(nodes, difference) / legendre.legval(nodes, legendre.legder(difference))
    nodes = (nodes + 1.0) / 2.0
    nodes[-1] = 1.0
    powers = np.vander(nodes, stages, increasing=True)
    degrees = np.arange(1, stages + 1)
    # A c^{k-1} = c^k / k for k = 1 ... s
    matrix = np.linalg.solve(powers.T, (nodes[:, None] ** degrees / degrees).T).T
    values, vectors = np.linalg.eig(np.linalg.inv(matrix))
    real = int(np.abs(np.imag(values)).argmin())
    upper = [index for index in np.argsort(np.imag(values)) if np.imag(values)[index] > 1e-8]
    chosen = [real, *upper]
    weights = np.linalg.inv(vectors)
    embedded = 1.0 / degrees - (degrees == 1) / values[real].real
    # the embedded method has the further slope f(t, y) with weight 1 / (the real eigenvalue)
    shift = np.linalg.solve(powers.T, embedded) - matrix[-1]
    basis = np.stack([_product(nodes, index) for index in range(stages)], axis=1)
    return Collocation(
        nodes=nodes,
        matrix=matrix,
        eigenvalues=values[chosen],
        transform=vectors[:, chosen] * np.array([1.0] + [2.0] * len(upper)),
        inverse=weights[chosen],
        error=shift @ np.linalg.inv(matrix),
        parts=np.linalg.inv(basis),
    )


def _product(x: np.ndarray, index: int) -> np.ndarray:
    """The basis of ``StepPolynomial``: x, x(1-x), x(1-x)x, ..."""
    factors = [x if place % 2 == 0 else 1.0 - x for place in range(index + 1)]
    return np.prod(factors, axis=0)


class Past:
    """The collocation polynomials of the last implicit steps of every row, from which the next stages are extrapolated.

    ``parts`` (stages, rows, n, d) are their coefficients, ``h`` their lengths; 0 where there is none.
    """

    def __init__(self, stages: int, y: Tensor) -> None:
        self.stages = stages
        self.parts, self.h = y.new_zeros((stages, *y.shape)), np.zeros(len(y))

    def extrapolate(self, row: int, h: float, nodes: np.ndarray) -> np.ndarray | None:
        """Stages (s, N) of the next step of length h."""
        if not self.h[row]:
            return None
        x = 1.0 + nodes * (h / self.h[row])
        weights = np.stack([_product(x, index) for index in range(self.stages)], axis=1)
        weights[:, 0] -= 1.0  # relative to the end of the last step
        return weights @ self.parts[:, row].detach().double().cpu().numpy().reshape(self.stages, -1)

    def push(self, accepted: np.ndarray, h: np.ndarray, parts: Tensor) -> None:
        """Keep the accepted steps; other rows keep theirs."""
        chosen = torch.from_numpy(accepted).to(parts.device).view(1, -1, 1, 1)
        self.parts, self.h = torch.where(chosen, parts, self.parts), np.where(accepted, h, self.h)

    def select(self, index: Tensor | slice) -> None:
        """Keep some rows only."""
        self.parts = self.parts[:, index]
        self.h = self.h[index if isinstance(index, slice) else index.cpu().numpy()]


class Radau(Stepper):
    r"""Radau IIA: collocation at s nodes, the last of which is the end of the step.

    The stages :math:`Z_i = h\sum_j a_{ij} F(t + c_j h, y + Z_j)` are solved by Newton's method with the Jacobian at the start of the
    step, in the eigenbasis of :math:`A^{-1}`. Members of an ensemble are solved one after the other, so their numbers do not
    depend on each other. The collocation polynomial is the dense output; its error is that of the estimate.

    The method damps components that grow by more than the exponent ``stages`` in a step, so a step is also limited by the
    repelling directions of the Jacobian (``Step.longest``): there a step follows the exponential to the tolerance.
    """

    stages: ClassVar[int] = 0
    adaptive: ClassVar[bool] = True
    interpolates: ClassVar[bool] = True
    implicit: ClassVar[bool] = True
    cites: ClassVar[tuple[str, ...]] = ("hairer1996solving", "hairer1999stiff")

    def __init__(self, rtol: float = 1e-13, atol: float = 1e-15, limited: bool = False) -> None:
        self.rtol, self.atol = rtol, atol
        self.limited = limited  # whether repelling directions limit a step
        self.known: dict[int, Linearisation] = {}  # at the start of the step, by row

    def with_tolerances(self, rtol: float, atol: float) -> Radau:
        return type(self)(rtol, atol, limited=True)

    @property
    def growth(self) -> float:
        """Largest exponent of growth in a step: there the stability function follows the exponential to the tolerance."""
        s = self.stages
        constant = math.factorial(s) * math.factorial(s - 1) / (math.factorial(2 * s - 1) * math.factorial(2 * s))
        least, most = GROWTH_RANGE
        return min(most, max(least, (self.rtol / constant) ** (1.0 / (2 * s))))

    def attempt(
        self,
        field: Field,
        t: np.ndarray,
        h: np.ndarray,
        y: Tensor,
        f: Tensor,
        rows: np.ndarray | None = None,
        past: Past | None = None,
    ) -> Step:
        """``Stepper.attempt`` for some rows, from the last steps of all; the other rows have infinite errors."""
        rows = np.arange(len(y)) if rows is None else rows
        method = collocation(self.stages)
        weights = torch.from_numpy(method.parts).to(y)
        end, slope, error = torch.full_like(y, torch.nan), f.clone(), torch.full_like(y, torch.inf)
        parts = y.new_zeros((self.stages, *y.shape))
        longest, radius = np.full(len(y), np.inf), np.zeros(len(y))
        for row in rows.tolist():
            start, length = float(t[row]), float(h[row])
            linear = self._linearise(field, row, start, y)
            if not linear.is_finite:
                continue
            if self.limited:
                growth = linear.growth(method.eigenvalues[0].real / length)
                radius[row], longest[row] = linear.radius, self.growth / growth if growth > 0 else np.inf
                if length > DOUBTFUL * longest[row]:
                    continue
            guess = None if past is None else past.extrapolate(row, length, method.nodes)
            found = self._solve(linear, start, length, y[row], f[row], guess)
            if found is None:
                longest[row] = min(longest[row], FAILED * length)
                continue
            moved, slope[row], estimate = found
            Z = torch.from_numpy(moved).to(y).view(-1, *y.shape[1:])
            end[row] = y[row] + Z[-1]
            error[row] = torch.from_numpy(estimate).to(y).view_as(y[row])
            parts[:, row] = torch.tensordot(weights, Z, 1)
        return Step(end, slope, (error,), parts, longest, radius)

    def error(self, step: Step, scale: Tensor) -> Tensor:
        return torch.linalg.vector_norm(step.errors[0], dim=-1) / scale

    def interpolate(
        self, field: Field, t: np.ndarray, h: np.ndarray, y: Tensor, f: Tensor, step: Step
    ) -> StepPolynomial:
        assert step.slopes is not None
        return StepPolynomial(h, y, step.slopes)

    # ------------------------------------------------------------------ one member

    def _linearise(self, field: Field, row: int, t: float, y: Tensor) -> Linearisation:
        """The Jacobian at the start of a step; a step that is tried again uses the same."""
        known = self.known.get(row)
        fresh = known is None or not known.member.is_of(field) or known.y.shape != y[row].shape
        if known is None or fresh or known.t != t or not torch.equal(known.y, y[row]):
            member = MemberField(field, row, len(y)) if fresh or known is None else known.member
            self.known[row] = known = Linearisation(member, t, y[row].clone())
        return known

    def _solve(
        self, linear: Linearisation, t: float, h: float, y: Tensor, f: Tensor, guess: np.ndarray | None
    ) -> tuple[np.ndarray, Tensor, np.ndarray] | None:
        """Stages Z (s, N), the field at the end and the error estimate (N,); None if Newton's method does not converge."""
        method, size = collocation(self.stages), y.numel()
        rows = torch.linalg.vector_norm(y, dim=-1).double().cpu().numpy()
        scale = np.repeat(self.atol + self.rtol * rows, y.shape[-1])
        shifts = method.eigenvalues / h
        solvers = [linear.solver(shift.real if index == 0 else shift) for index, shift in enumerate(shifts)]
        Z = np.zeros((self.stages, size)) if guess is None else guess.reshape(self.stages, size)
        W = method.inverse @ Z
        base, times = y.double().cpu().numpy().reshape(1, size), t + method.nodes * h

        def evaluate(times: np.ndarray, points: np.ndarray) -> np.ndarray:
            found = linear.member.evaluate(times, torch.from_numpy(points).to(y).view(-1, *y.shape))
            return found.double().cpu().numpy().reshape(len(points), size)

        last = rate = np.inf
        for count in range(ITERATIONS):
            F = evaluate(times, base + Z)
            if not np.isfinite(F).all():
                return None
            right = method.inverse @ F - shifts[:, None] * W
            change = np.stack(
                [
                    solve(part.real if index == 0 else part)
                    for index, (solve, part) in enumerate(zip(solvers, right, strict=True))
                ]
            )
            moved = np.real(method.transform @ change)
            distance = self._largest(moved, scale, y.shape)
            if not math.isfinite(distance):
                return None
            if count:
                rate = distance / last
                if rate >= 1.0:  # rounding stops the convergence, or there is none
                    if last > STALLED:
                        return None
                    break
                if rate ** (ITERATIONS - count) * distance > 1e3 * STALLED:
                    return None
            W, Z, last = W + change, Z + moved, distance
            if distance == 0.0 or (count and rate / (1.0 - rate) * distance < CONVERGED) or distance < 1e-3 * CONVERGED:
                break
        else:
            return None
        end_slope = evaluate(np.array([t + h]), base + Z[-1])
        real, solve = method.eigenvalues[0].real, solvers[0]
        tail = method.error @ Z
        slope = f.double().cpu().numpy().reshape(size)

        def filtered(slope: np.ndarray) -> np.ndarray:
            return solve(slope + (real / h) * tail)

        estimate = filtered(slope)
        if self._largest(estimate[None], scale, y.shape) > 1.0 and np.isfinite(estimate).all():
            # stiff components are filtered once more (equation IV.8.20)
            estimate = filtered(evaluate(np.array([t]), base + estimate)[0])
        return Z, torch.from_numpy(end_slope).to(y).view_as(y), estimate

    @staticmethod
    def _largest(vectors: np.ndarray, scale: np.ndarray, shape: torch.Size) -> float:
        """Largest length of a token in units of its tolerance."""
        parts = (vectors / scale).reshape(len(vectors), *shape)
        return float(np.sqrt((parts * parts).sum(-1)).max())


class Radau5(Radau):
    """Order 5 with three stages and an error estimate of order 3 [hairer1996solving]."""

    name: ClassVar[str] = "radau5"
    stages: ClassVar[int] = 3
    order: ClassVar[int] = 5
    error_order: ClassVar[int] = 4


class Radau9(Radau):
    """Order 9 with five stages and an error estimate of order 5 [hairer1999stiff]."""

    name: ClassVar[str] = "radau9"
    stages: ClassVar[int] = 5
    order: ClassVar[int] = 9
    error_order: ClassVar[int] = 6
