"""Sinkhorn attention: weights are a coupling of the measure with itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from attractor.engines import attend
from attractor.errors import AttractorError, InputError, UnsupportedError
from attractor.laws.kernels.kernel import HeadMatrices, HeadNorms, Kernel, Logits, Moments, Pairing, option

ROUNDS = 50  # after which Newton's method is tried
EARLY, SLOW = 8, 300  # it is tried after so many rounds already if their rate says that so many more are needed
LARGEST, PAIRS = (
    2048,
    1 << 24,
)  # tokens, and pairs of all heads and members, for which its linear systems are solved directly
FIRST_SPREAD = 4.0  # size of scores at which Newton's method starts
LEVEL_TOLERANCE = 0.1  # error allowed at the levels before the last
RATIO, SMALLEST_RATIO = 3.0, 1.02  # of one level to the next
STEPS, LAST_STEPS, CUTS, SHIFTS = 20, 100, 3, 8
SLOW_STEP = 0.7  # factor of the error of a step after which a round follows
PRODUCTS = 300  # of a step by conjugate gradients
SHIFT, SMALLEST_SHIFT = 1e-2, 1e-15  # of the linear system, relative to the error; and at least
MEANINGLESS = 0.1  # relative error of a marginal that is no longer called converged
STAGNATION = 30.0  # times the tolerance: the error that is accepted where rounding allows no further step


@dataclass(frozen=True)
class Sinkhorn(Kernel):
    r"""The coupling of (mu, mu) of the form :math:`\pi_{ij} = m_i m_j e^{f_i + s_{ij}/\varepsilon + g_j}`; weights
    :math:`w_{ij} = \pi_{ij}/m_i` [sander2022sinkformers; cuturi2013sinkhorn].

    Potentials are found by alternating logsumexp rounds,
    :math:`f_i = -\log\sum_j m_j e^{s_{ij}/\varepsilon + g_j}` and likewise g, until they change by less than ``tolerance``
    (the relative error of the marginals); where the score matrix is symmetric positive semi-definite f = g and averaged
    half-steps halve the error each round. Where rounds converge slowly, Newton's method takes over; ``rounds`` bounds the evaluations
    of all pairs by both. First derivatives come from the equations of the potentials, not from the rounds.
    A mask acts on the finished coupling: hidden keys are dropped and rows renormalised (a causal pattern carries no
    coupling with equal marginals but the identity).

    Symbols: scores over eps are -C/eps of [cuturi2013sinkhorn]; :math:`m_i e^{f_i}, m_j e^{g_j}` are its
    :math:`u_i, v_j`; at masses 1/n the weights are :math:`K^\infty` of [sander2022sinkformers].
    """

    eps: float = option(1.0, "Regularisation of --kernel sinkhorn.")
    tolerance: float = 1e-13
    rounds: int = 2_000
    name: ClassVar[str] = "sinkhorn"
    reads_values: ClassVar[bool] = True
    uses_symmetry: ClassVar[bool] = True
    sees_hidden_keys: ClassVar[bool] = True
    token_metric: ClassVar[str | None] = "wasserstein"

    def __post_init__(self) -> None:
        if not self.eps > 0:
            raise InputError(f"sinkhorn needs eps > 0, got {self.eps}")
        object.__setattr__(self, "eps", float(self.eps))

    @property
    def temperature(self) -> float:
        return self.eps

    def attend(self, pairing: Pairing, v: Tensor) -> Tensor:
        q = pairing.scaled_query / self.eps
        log_masses = pairing.log_masses
        if log_masses is None:
            log_masses = q.new_full((pairing.k.shape[-2],), -math.log(pairing.k.shape[-2]))
        return pairing.attend(q, v, self.potential(pairing, q, log_masses) + log_masses, "softmax")

    def potential(self, pairing: Pairing, q: Tensor, log_masses: Tensor) -> Tensor:
        """The key potential g (..., h, n), with its first derivative."""
        k = pairing.k
        with torch.no_grad():
            f, g = self._potentials(q, k, log_masses, pairing.symmetric)
        if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or log_masses.requires_grad):
            g = g + _response(q, k, log_masses, f, g)
        return g

    def _potentials(self, q: Tensor, k: Tensor, log_masses: Tensor, symmetric: bool) -> tuple[Tensor, Tensor]:
        """The query potential f and the key potential g."""
        g = torch.zeros(torch.broadcast_shapes(q.shape[:-1], k.shape[:-1]), dtype=q.dtype, device=q.device)
        f = g
        change = tolerance = previous = float("inf")
        for count in range(1, min(ROUNDS, self.rounds) + 1):
            update = -_logsumexp(q, k, g + log_masses)
            if symmetric:
                change, size = _change(update, g)
                f = g = (g + update) / 2
            else:
                change, size = _change(update, f)
                f = update
                g = -_logsumexp(k, q, f + log_masses)
            # the change of a potential is the relative error of a marginal; rounding sets a floor that grows with its size
            tolerance = max(self.tolerance, 4 * torch.finfo(q.dtype).eps * max(1.0, size))
            if change < tolerance:
                return f, g
            if tolerance > MEANINGLESS:
                raise AttractorError(
                    f"sinkhorn cannot be computed: rounding of scores up to {size:.2g} times eps in "
                    f"{str(q.dtype).removeprefix('torch.')} leaves no digit of the weights; raise eps (now {self.eps:g})"
                    + (" or take float64" if q.dtype == torch.float32 else "")
                )
            if not math.isfinite(change):
                raise InputError(
                    f"sinkhorn attention got scores that overflow or are not finite; make the tokens smaller or raise eps "
                    f"(now {self.eps:g})"
                )
            if count >= EARLY and change * min(1.0, change / previous) ** SLOW > tolerance:
                break
            previous = change
        if self.rounds > ROUNDS:
            newton = _Newton(q, k, log_masses, self.rounds)
            found = newton.solve(self.tolerance)
            if found is not None:
                return found
            change, tolerance = newton.error, newton.tolerance(self.tolerance)
        raise AttractorError(
            f"sinkhorn did not converge in {self.rounds} rounds (change {change:.2g}, wanted {tolerance:.2g}); "
            f"raise eps (now {self.eps:g}) or rounds"
        )

    def logits(self, pairing: Pairing, log_masses: Tensor) -> Logits | None:
        q = pairing.scaled_query / self.eps
        return Logits(q, pairing.k, log_masses + self.potential(pairing, q, log_masses))

    def energy_obstacle(self, total: bool = False, log: bool = False) -> str | None:
        if total:
            return "the sinkhorn energy is that of a coupling of two measures; total=True has no meaning for it"
        return "the sinkhorn energy can be negative and has no logarithm; leave out log=True" if log else None

    def energy(self, pairing: Pairing, masses: Tensor) -> Tensor:
        r""":math:`\frac12\max_\pi \int s\,d\pi - \varepsilon\,\mathrm{KL}(\pi|\mu\otimes\mu)` over couplings, heads summed, (...).

        The maximum is :math:`-\varepsilon\sum_i m_i (f_i + g_i)`. The potential f is computed exactly from g, so an error of g
        enters squared and the gradient at fixed g is the gradient (envelope theorem).
        """
        if pairing.hide:
            raise UnsupportedError("the sinkhorn energy belongs to the full coupling; under a mask it has no meaning")
        q, log_masses = pairing.scaled_query / self.eps, masses.log()
        with torch.no_grad():
            g = self.potential(pairing, q, log_masses)
        values = _logsumexp(q, pairing.k, g + log_masses)
        return self.eps * (masses * (values - g)).sum((-2, -1)) / 2.0

    def gaussian_moments(self, heads: HeadMatrices, mean: Any, factor: Any) -> Moments:
        r""":math:`B = 2VL[I + (I + 4aa^\top)^{1/2}]^{-1}L^\top A/\varepsilon` with :math:`a = L^\top AL/\varepsilon`, and
        :math:`\dot\alpha = V\alpha`."""
        right = factor.swapaxes(-1, -2) @ (heads.interaction / self.eps)
        library = heads.library
        U, s, _ = library.linalg.svd(right @ factor)
        middle = U * (2.0 / (1.0 + library.hypot(library.ones_like(s), 2.0 * s)))[..., None, :]
        return heads.value @ (factor @ (middle @ (U.swapaxes(-1, -2) @ right))), heads.value @ mean

    def gaussian_energy(self, mean: Tensor, factor: Tensor, A: Tensor) -> Tensor:
        spread = factor.mT @ (A / self.eps) @ factor
        roots = (1.0 + 4.0 * torch.linalg.eigvalsh((spread + spread.mT) / 2.0) ** 2).sqrt()
        psi = (roots - 1.0 - ((1.0 + roots) / 2.0).log()) / 2.0
        return (mean.mT @ A @ mean).squeeze(-1).squeeze(-1) / 2.0 + self.eps * psi.sum(-1) / 2.0

    def lipschitz(self, norms: HeadNorms, radius: np.ndarray, mass: float) -> tuple[np.ndarray, np.ndarray | None]:
        return (norms.value * norms.interaction * radius**2 / self.eps).sum(-1), None

    def causal_factor(self, p: float) -> float | None:
        return None

    def covariance_growth(self, value: np.ndarray, query: np.ndarray, key: np.ndarray) -> float:
        return 2.0 * float(np.linalg.norm(value, 2))

    def citations(self) -> tuple[str, ...]:
        return ("sander2022sinkformers", "cuturi2013sinkhorn")


def _logsumexp(q: Tensor, k: Tensor, key_bias: Tensor) -> Tensor:
    _, logsumexp = attend(q, k, None, key_bias)
    assert logsumexp is not None
    return logsumexp


def _response(q: Tensor, k: Tensor, log_masses: Tensor, f: Tensor, g: Tensor) -> Tensor:
    r"""Zero, with the first derivative of the key potential: the two equations of the potentials, differentiated.

    With the density :math:`p_{ij} = e^{f_i + s_{ij} + g_j}`, :math:`A_{ij} = p_{ij} m_j`, :math:`B_{ji} = p_{ij} m_i` and a, b the
    right sides of the equations of f and g: :math:`df = da - A\,dg` and :math:`dg = db - B\,df`, so
    :math:`(I - BA)\,dg = db - B\,da`. With :math:`y = \sqrt m\,dg` the matrix is the symmetric :math:`I - R^\top R`,
    :math:`R_{ij} = \sqrt{m_i}\,p_{ij}\sqrt{m_j}`. Constants solve the homogeneous equation and change no weight; m . dg = 0 fixes
    them. Groups of tokens between which no weight passes have a constant each, which the small shift of the matrix fixes.
    """
    a, b = -_logsumexp(q, k, g + log_masses), -_logsumexp(k, q, f + log_masses)
    with torch.no_grad():
        roots = (0.5 * log_masses.double()).exp()
        density = ((q @ k.mT).double() + f.double().unsqueeze(-1) + g.double().unsqueeze(-2)).exp()
        system = _shifted(torch.ones_like(roots), density, roots, torch.full_like(roots[..., :1], SMALLEST_SHIFT))
        columns = (roots.square().unsqueeze(-1) * density).mT
    right = (b - b.detach()).double().unsqueeze(-1) - columns @ (a - a.detach()).double().unsqueeze(-1)
    found = torch.linalg.solve(system, roots.unsqueeze(-1) * right).squeeze(-1)
    return torch.where(roots > 0, found / torch.where(roots > 0, roots, 1.0), 0.0).to(g)


def _change(new: Tensor, old: Tensor) -> tuple[float, float]:
    """Largest change of a potential, and its largest absolute value."""
    change, size = torch.stack(((new - old).abs().max(), new.abs().max())).tolist()
    return change, size


class _Newton:
    r"""Newton's method for the potentials, regularised, with a line search and continuation in the scores.

    The key potential maximises the concave dual
    :math:`D(g) = \sum_j m_j g_j - \sum_i m_i \log\sum_j m_j e^{s_{ij} + g_j}`. With the column sums
    :math:`c_j = \sum_i m_i p_{ij}` in units of :math:`m_j`, its gradient is :math:`m_j (1 - c_j)`, and in the variables
    :math:`\sqrt{m_j}\,g_j` its Hessian is :math:`-(\mathrm{diag}(c) - R^\top R)`. Eigenvalues close to zero belong to groups of tokens
    between which little weight passes. A shift proportional to the error (Levenberg and Marquardt) bounds the steps in these
    directions and leaves convergence quadratic.

    Scores are first divided until they spread over a few units, where the method converges from zero, and then multiplied level
    by level; the potentials of one level, multiplied alike, are close to those of the next. A level that fails is approached from
    the last one in a smaller step. (Rounds contract by :math:`\tanh^2` of a quarter of the spread of the scores, which is 1 to
    twelve digits at a spread of 60.)

    Up to LARGEST tokens the system is solved by Cholesky's method; of more by conjugate gradients, which hold no table of pairs.
    """

    def __init__(self, q: Tensor, k: Tensor, log_masses: Tensor, passes: int) -> None:
        shape = torch.broadcast_shapes(q.shape[:-1], k.shape[:-1], log_masses.shape)
        dense = shape[-1] <= LARGEST and shape.numel() * shape[-1] <= PAIRS
        self.q, self.k, self.dtype = q.double(), k.double(), q.dtype
        self.log_masses = log_masses.double().expand(shape)
        self.masses, self.roots = self.log_masses.exp(), (0.5 * self.log_masses).exp()
        self.present = self.masses > 0
        self.left = passes  # over all pairs
        self.error = float("inf")
        # scores in the type of the tokens: their rounding is part of the problem, and the engine repeats it
        self.scores = (q @ k.mT).double() if dense else None
        self.size = self._size()

    def _size(self) -> float:
        """A bound on the largest score."""
        if self.scores is not None:
            return float(self.scores.abs().max())
        return float(self.q.norm(dim=-1).max() * self.k.norm(dim=-1).max())

    def tolerance(self, wanted: float) -> float:
        """The error that rounding allows where scores are large."""
        return max(wanted, 4 * torch.finfo(self.dtype).eps * max(1.0, self.size))

    def solve(self, wanted: float) -> tuple[Tensor, Tensor] | None:
        """Potentials (f, g) (..., n) with an error of the marginals below ``wanted`` or rounding; None if they are not found."""
        level = min(1.0, FIRST_SPREAD / max(self.size, 1e-300))
        ratio, streak, g = RATIO, 0, torch.zeros_like(self.masses)
        found = self._level(level, g, wanted if level == 1.0 else LEVEL_TOLERANCE)
        while found is not None and level < 1.0:
            trial = min(1.0, level * ratio)
            following = self._level(trial, found[1] * (trial / level), wanted if trial == 1.0 else LEVEL_TOLERANCE)
            if following is not None:
                found, level, streak = following, trial, streak + 1
                ratio = min(RATIO, ratio**1.5) if streak > 2 else ratio
            else:
                ratio, streak = ratio**0.5, 0
                if ratio < SMALLEST_RATIO or self.left <= 0:
                    return None
        return None if found is None else (found[0].to(self.dtype), found[1].to(self.dtype))

    def _level(self, level: float, g: Tensor, wanted: float) -> tuple[Tensor, Tensor] | None:
        """Potentials for the scores times ``level``, from a first key potential."""
        tolerance = self.tolerance(wanted)
        state = self._evaluate(level, g)
        shift = torch.full_like(state.error, SHIFT)
        for _ in range(STEPS if level < 1.0 else LAST_STEPS):
            self.error = float(state.error.max())
            if self.error < tolerance:
                return state.f, state.g
            if self.left <= 0 or not math.isfinite(self.error):
                return None
            done = state.error < tolerance
            step = self._step(level, state, (shift * state.error.clamp(max=1.0)).clamp(min=SMALLEST_SHIFT))
            tried, good, whole = self._search(level, state, step, done)
            if not bool((done | (good & (tried.error < SLOW_STEP * state.error))).all()):
                # a round corrects every column by itself, also those whose masses are lost beside others in the linear system
                before, state = state, state.where(good, tried)
                rounds = torch.where(done.unsqueeze(-1) | ~self.present, 0.0, -state.columns.clamp(min=1e-300).log())
                tried = self._evaluate(level, state.g + rounds)
                good = good | (tried.error < before.error)
            shift = torch.where(whole, 0.1 * shift, torch.where(good, shift, 100.0 * shift)).clamp(1e-8, 1e8)
            if not bool(good.all()) and bool((shift >= 1e8).any()):
                break  # no step helps
            state = tried if bool(good.all()) else state.where(good, tried)
        self.error = float(state.error.max())
        return (state.f, state.g) if self.error < STAGNATION * tolerance else None

    def _search(self, level: float, state: _State, step: Tensor, done: Tensor) -> tuple[_State, Tensor, Tensor]:
        """The state after the step or a part of it, whether it is better, and whether the step is whole (...)."""
        length, cuts = torch.where(done, 0.0, 1.0), 0
        while True:
            tried = self._evaluate(level, state.g + length.unsqueeze(-1) * step)
            # near the solution the dual is flat to rounding, and the error itself tells
            good = done | (tried.dual > state.dual) | (tried.error < state.error)
            if cuts == CUTS or bool(good.all()):
                return tried, good, (length == 1.0) & good
            length, cuts = torch.where(good, length, 0.25 * length), cuts + 1

    def _evaluate(self, level: float, g: Tensor) -> _State:
        """Potential, column sums, error and dual for one key potential."""
        self.left -= 1
        bias = g + self.log_masses
        if self.scores is not None:
            scores = level * self.scores
            f = -torch.logsumexp(scores + bias.unsqueeze(-2), dim=-1)
            density = (scores + f.unsqueeze(-1) + g.unsqueeze(-2)).exp()
            columns = (self.masses.unsqueeze(-2) @ density).squeeze(-2)
        else:
            density = None
            f = -_logsumexp(level * self.q, self.k, bias)
            columns = (g + _logsumexp(self.k, level * self.q, f + self.log_masses)).exp()
        error = torch.where(self.present, (1.0 - columns).abs(), 0.0).amax(-1)
        error = torch.where(torch.isfinite(error), error, torch.inf)
        return _State(f, g, density, columns, error, (self.masses * (g + f)).sum(-1))

    def _step(self, level: float, state: _State, shift: Tensor) -> Tensor:
        """The regularised step of the key potential."""
        lack = torch.where(self.present, 1.0 - state.columns, 0.0)
        if state.density is None:
            return self._conjugate_gradients(level, state, lack, shift)
        factor, failed = torch.linalg.cholesky_ex(self._system(state, shift))
        for _ in range(SHIFTS):
            if not bool(failed.any()):
                break
            shift = torch.where(failed > 0, 100.0 * shift, shift)
            factor, failed = torch.linalg.cholesky_ex(self._system(state, shift))
        step = torch.cholesky_solve((self.roots * lack).unsqueeze(-1), factor).squeeze(-1)
        step = torch.where(self.present, step / torch.where(self.present, self.roots, 1.0), 0.0)
        return torch.where(torch.isfinite(step), step, 0.0)

    def _system(self, state: _State, shift: Tensor) -> Tensor:
        assert state.density is not None
        return _shifted(state.columns, state.density, self.roots, shift.unsqueeze(-1))

    def _conjugate_gradients(self, level: float, state: _State, lack: Tensor, shift: Tensor) -> Tensor:
        """The step without a table of pairs, in the inner product with the masses."""
        q = level * self.q
        key_bias, query_bias = state.g + self.log_masses, state.f + self.log_masses

        def apply(step: Tensor) -> Tensor:
            self.left -= 1
            across, _ = attend(q, self.k, step.unsqueeze(-1), key_bias)
            assert across is not None
            back, _ = attend(self.k, q, across, query_bias)
            assert back is not None
            return state.columns * (step - back.squeeze(-1)) + shift.unsqueeze(-1) * step

        def inner(one: Tensor, other: Tensor) -> Tensor:
            return (self.masses * one * other).sum(-1, keepdim=True)

        step, residual = torch.zeros_like(lack), lack
        direction, square = residual, inner(residual, residual)
        target = square * min(0.1, self.error) ** 2
        for _ in range(PRODUCTS):
            if self.left <= 0 or bool((square <= target).all()):
                break
            moved = apply(direction)
            curvature = inner(direction, moved)
            size = torch.where(curvature > 0, square / torch.where(curvature > 0, curvature, 1.0), 0.0)
            step, residual = step + size * direction, residual - size * moved
            new = inner(residual, residual)
            direction = residual + torch.where(square > 0, new / torch.where(square > 0, square, 1.0), 0.0) * direction
            square = new
        return step


@dataclass(frozen=True)
class _State:
    """Potentials (..., n), the density (..., n, n) or None, column sums in units of the masses, error and dual (...)."""

    f: Tensor
    g: Tensor
    density: Tensor | None
    columns: Tensor
    error: Tensor
    dual: Tensor

    def where(self, good: Tensor, other: _State) -> _State:
        """The other state where it is good, else this one."""
        row = good.unsqueeze(-1)
        density = None
        if self.density is not None and other.density is not None:
            density = torch.where(row.unsqueeze(-1), other.density, self.density)
        f, g, columns = (torch.where(row, getattr(other, name), getattr(self, name)) for name in ("f", "g", "columns"))
        error, dual = (torch.where(good, getattr(other, name), getattr(self, name)) for name in ("error", "dual"))
        return _State(f, g, density, columns, error, dual)


def _shifted(columns: Tensor, density: Tensor, roots: Tensor, shift: Tensor) -> Tensor:
    r""":math:`\mathrm{diag}(c + \lambda) - R^\top R + \sqrt m\sqrt m^\top/\sum m`: positive definite, constants of the potential pinned."""
    table = roots.unsqueeze(-1) * density * roots.unsqueeze(-2)
    pinned = roots.unsqueeze(-1) * roots.unsqueeze(-2) / roots.square().sum(-1)[..., None, None]
    diagonal = torch.where(roots > 0, columns, 1.0) + shift
    return torch.diag_embed(diagonal) - table.mT @ table + pinned
