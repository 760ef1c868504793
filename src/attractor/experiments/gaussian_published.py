r"""What the published code concludes, emulated: Euler steps of the covariance, eigenvalues cut at zero, and a rank by an absolute cut.

Steps :math:`\Sigma \leftarrow \Pi_+(\Sigma + h(B\Sigma + \Sigma B^\top))`, with :math:`\Pi_+` the projection on positive semi-definite
matrices; the rank is
the number of eigenvalues above 0.1; runs of rank above (d + 1)//2 count as exceptions and are left out of the histogram. The step
and the number of steps are not in the description: h = 0.01 and 10,000 steps are used here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from attractor.attention import Law
from attractor.attention.closure import Closure, numeric

STEP, STEPS = 0.01, 10_000
CUT = 0.1
INFINITE = 1e12


@dataclass(frozen=True)
class Emulated:
    """What the procedure would report: "diverged", or a rank; ``censored`` runs would be dropped."""

    covariance: np.ndarray
    rank: int | None
    diverged: bool
    censored: bool


def published_procedure(law: Law, covariance: np.ndarray, step: float = STEP, steps: int = STEPS) -> Emulated:
    """Euler with projection, from one covariance."""
    Closure(law)
    field, Sigma = numeric(law.member(torch.tensor([0]))), np.array(covariance, dtype=np.float64)
    zero, d = np.zeros(len(Sigma)), len(Sigma)
    values, vectors = np.linalg.eigh(Sigma)
    for _ in range(steps):
        slope, _ = field(zero, vectors * np.sqrt(np.maximum(values, 0.0)))
        moved = Sigma + step * (slope @ Sigma + Sigma @ slope.T)
        if not np.isfinite(moved).all() or np.abs(moved).max() > INFINITE:
            return Emulated(Sigma, None, True, False)
        values, vectors = np.linalg.eigh((moved + moved.T) / 2)
        new = (vectors * np.maximum(values, 0.0)) @ vectors.T
        if np.array_equal(new, Sigma):
            break
        Sigma = new
    rank = int(np.sum(np.linalg.eigvalsh(Sigma) > CUT))
    return Emulated(Sigma, rank, False, rank > (d + 1) // 2)
