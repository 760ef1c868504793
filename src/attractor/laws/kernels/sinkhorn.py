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
LARGEST = 2048  # tokens for which its linear systems are solved


@dataclass(frozen=True)
class Sinkhorn(Kernel):
    r"""The coupling of (mu, mu) of the form :math:`\pi_{ij} = m_i m_j e^{f_i + s_{ij}/\varepsilon + g_j}`; weights
    :math:`w_{ij} = \pi_{ij}/m_i` [sander2022sinkformers; cuturi2013sinkhorn].

    Potentials are found by alternating logsumexp rounds,
    :math:`f_i = -\log\sum_j m_j e^{s_{ij}/\varepsilon + g_j}` and likewise g, until they change by less than ``tolerance``
    (the relative error of the marginals); where the score matrix is symmetric positive semi-definite f = g and averaged
    half-steps halve the error each round. Where 50 rounds do not converge, Newton's method takes over. First derivatives come from
    the equations of the potentials, not from the rounds.
    A mask acts on the finished coupling: hidden keys are dropped and rows renormalised (a causal pattern carries no
    coupling with equal marginals but the identity).

    Symbols: scores over eps are -C/eps of [cuturi2013sinkhorn]; :math:`m_i e^{f_i}, m_j e^{g_j}` are its
    :math:`u_i, v_j`; at masses 1/n the weights are :math:`K^\infty` of [sander2022sinkformers].
    """

    eps: float = option(1.0, "Regularisation of --kernel sinkhorn.")
    tolerance: float = 1e-13
    rounds: int = 20_000
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
        """The query potential f and the key potential g, by rounds of logsumexp."""
        g = torch.zeros(torch.broadcast_shapes(q.shape[:-1], k.shape[:-1]), dtype=q.dtype, device=q.device)
        f = g
        change = tolerance = float("inf")
        for count in range(self.rounds):
            if count == ROUNDS and k.shape[-2] <= LARGEST:
                found = _newton_by_levels(q @ k.mT, log_masses, tolerance)
                if found is not None:
                    return found
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

    With the row-stochastic :math:`A_{ij} = p_{ij} m_j` and :math:`B_{ji} = p_{ij} m_i`, where :math:`p_{ij} = e^{f_i + s_{ij} + g_j}`,
    and a, b the right sides of the equations of f and g: :math:`df = da - A\,dg` and :math:`dg = db - B\,df`, so
    :math:`(I - BA)\,dg = db - B\,da`. Constants solve the homogeneous equation and change no weight; m . dg = 0 fixes them.
    """
    a, b = -_logsumexp(q, k, g + log_masses), -_logsumexp(k, q, f + log_masses)
    with torch.no_grad():
        density = (q @ k.mT + f.unsqueeze(-1) + g.unsqueeze(-2)).exp()
        masses = log_masses.exp().unsqueeze(-2)
        rows, columns = density * masses, density.mT * masses
        identity = torch.eye(k.shape[-2], dtype=k.dtype, device=k.device)
        system = identity - columns @ rows + masses / masses.sum(dim=-1, keepdim=True)
    right = (b - b.detach()).unsqueeze(-1) - columns @ (a - a.detach()).unsqueeze(-1)
    return torch.linalg.solve(system, right).squeeze(-1)


def _change(new: Tensor, old: Tensor) -> tuple[float, float]:
    """Largest change of a potential, and its largest absolute value."""
    change, size = torch.stack(((new - old).abs().max(), new.abs().max())).tolist()
    return change, size


STEPS = 100
FIRST_SPREAD = 8.0  # spread of scores at which Newton's method starts
LEVEL_TOLERANCE = 1e-6  # error allowed at the levels before the last
RATIOS = (2.0, 1.2)  # of one spread to the next; the smaller is tried where the larger fails
HALVINGS = 40


def _newton_by_levels(s: Tensor, log_masses: Tensor, tolerance: float) -> tuple[Tensor, Tensor] | None:
    r"""Potentials (f, g) for scores s (..., n, n), by Newton's method; None if the error does not fall to the tolerance.

    The key potential maximises the concave dual
    :math:`D(g) = \sum_j m_j g_j - \sum_i m_i \log\sum_j m_j e^{s_{ij} + g_j}`, whose gradient is the error of the column sums and
    whose Hessian is :math:`-(\mathrm{diag}(c) - P^\top \mathrm{diag}(m) P)` with the row-stochastic P and the column sums
    :math:`c = P^\top m`. (Rounds contract by :math:`\tanh^2` of a quarter of the spread of the scores, which is 1 to twelve digits
    at a spread of 60.) Scores are first divided until they spread over a few units, where Newton's method converges from zero,
    and then multiplied level by level; the potentials of one level, multiplied alike, are close to those of the next.
    """
    spread = float((s.amax((-1, -2)) - s.amin((-1, -2))).max())
    for ratio in RATIOS:
        levels = max(0, math.ceil(math.log(max(spread, 1.0) / FIRST_SPREAD, ratio)))
        found = None
        g = torch.zeros(s.shape[:-1], dtype=s.dtype, device=s.device)
        for level in range(levels, -1, -1):
            found = _newton(s / ratio**level, log_masses, g, LEVEL_TOLERANCE if level else tolerance)
            if found is None:
                break
            g = ratio * found[1]
        if found is not None:
            return found
    return None


def _newton(s: Tensor, log_masses: Tensor, g: Tensor, tolerance: float) -> tuple[Tensor, Tensor] | None:
    """Potentials (f, g) for scores s (..., n, n) from a first g (..., n), or None."""
    log_masses = log_masses.expand_as(g)
    masses = log_masses.exp()
    present = masses > 0
    pinned = torch.diag_embed((~present).to(g.dtype)) + masses.unsqueeze(-1) * masses.unsqueeze(-2)
    f, weights, dual = _rows(s, log_masses, masses, g)
    for _ in range(STEPS):
        columns = (masses.unsqueeze(-1) * weights).sum(-2)
        lack = masses - columns
        error = _error(lack, masses, present)
        if bool((error < tolerance).all()):
            return f, g
        curvature = torch.diag_embed(columns) - (weights.mT * masses.unsqueeze(-2)) @ weights + pinned
        step, failed = torch.linalg.solve_ex(curvature, lack.unsqueeze(-1))
        step = torch.where(present & torch.isfinite(step.squeeze(-1)), step.squeeze(-1), 0.0)
        if bool(failed.any()) and not bool(step.any()):
            return None
        length = torch.ones_like(dual)
        for _ in range(HALVINGS):
            tried = g + length.unsqueeze(-1) * step
            new_f, new_weights, new_dual = _rows(s, log_masses, masses, tried)
            new_error = _error(masses - (masses.unsqueeze(-1) * new_weights).sum(-2), masses, present)
            # near the solution the dual is flat to rounding, and the error itself tells
            good = (new_dual > dual) | (new_error < error) | (error < tolerance)
            if bool(good.all()):
                break
            length = torch.where(good, length, 0.5 * length)
        else:
            return None
        f, g, weights, dual = new_f, tried, new_weights, new_dual
    return None


def _rows(s: Tensor, log_masses: Tensor, masses: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The query potential, the row-stochastic weights and the dual for one key potential."""
    scores = s + (g + log_masses).unsqueeze(-2)
    f = -torch.logsumexp(scores, dim=-1)
    dual = (masses * g).sum(-1) + (masses * f).sum(-1)
    return f, (scores + f.unsqueeze(-1)).exp(), dual


def _error(lack: Tensor, masses: Tensor, present: Tensor) -> Tensor:
    """The largest relative error of a column sum, for every coupling of the batch."""
    return torch.where(present, lack.abs() / torch.where(present, masses, 1.0), 0.0).amax(-1)
