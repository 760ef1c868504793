r"""Newton's method for the Sinkhorn potentials, where alternating rounds converge too slowly.

The key potential maximises the concave dual
:math:`D(g) = \sum_j m_j g_j - \sum_i m_i \log\sum_j m_j e^{s_{ij} + g_j}`, whose gradient is the error of the column sums and whose
Hessian is :math:`-(\mathrm{diag}(c) - P^\top \mathrm{diag}(m) P)` with the row-stochastic P and the column sums :math:`c = P^\top m`.
Rounds contract by :math:`\tanh^2` of a quarter of the spread of the scores, which is 1 to twelve digits at a spread of 60.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

STEPS = 100
GENTLE = 8.0  # spread of scores from which Newton's method starts
LOOSE = 1e-6  # error allowed on the way there
RATIOS = (2.0, 1.2)  # of one spread to the next; small ones for scores that leave hardly any freedom
HALVINGS = 40


def settle(s: Tensor, log_masses: Tensor, tolerance: float) -> tuple[Tensor, Tensor] | None:
    """Potentials (f, g) for scores s (..., n, n); None if the error does not fall to the tolerance.

    Scores are first divided until they spread over a few units, where Newton's method converges from zero, and then multiplied
    again and again; the potentials of one level, multiplied alike, are close to those of the next.
    """
    spread = float((s.amax((-1, -2)) - s.amin((-1, -2))).max())
    for ratio in RATIOS:
        levels = max(0, math.ceil(math.log(max(spread, 1.0) / GENTLE, ratio)))
        found = None
        g = torch.zeros(s.shape[:-1], dtype=s.dtype, device=s.device)
        for level in range(levels, -1, -1):
            found = newton(s / ratio**level, log_masses, g, LOOSE if level else tolerance)
            if found is None:
                break
            g = ratio * found[1]
        if found is not None:
            return found
    return None


def newton(s: Tensor, log_masses: Tensor, g: Tensor, tolerance: float) -> tuple[Tensor, Tensor] | None:
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
