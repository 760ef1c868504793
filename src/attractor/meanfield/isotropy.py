r"""Stationary covariances of softmax attention, and how large their rank can be [castin2025unified; derived for this project].

:math:`\Sigma` rests iff :math:`B\Sigma + \Sigma B^\top = 0`. With U a basis of its image and :math:`S = (A + A^\top)/2`:

- V = I: iff the image is isotropic for S, :math:`U^\top SU = 0`; so the rank is at most :math:`n_0 + \min(n_+, n_-)` of the inertia of S
  (proved). From a positive definite start with S not negative semi-definite there is blow-up, never a limit (proved).
- generic V, A invertible: limits with :math:`U^\top AU = 0` have rank at most :math:`\lfloor d/2\rfloor`. In dimensions two and three all
  limits of softmax attention were such (checked); from four on there are others, of higher rank, on which tokens turn, and for l2 too:
  ``attractor claims`` has an example of each.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike

from attractor.attention import Attention, Law
from attractor.attention.closure import Closure, numeric
from attractor.meanfield.bounds import matrices
from attractor.states import Gaussian


def is_isotropic(covariance: ArrayLike, form: ArrayLike, tolerance: float = 1e-6, cut: float = 1e-7) -> bool:
    """Whether a bilinear form vanishes on the image of a covariance; eigenvalues below ``cut`` of the largest are not in it."""
    values, vectors = np.linalg.eigh(np.asarray(covariance, dtype=np.float64))
    U = vectors[:, values > cut * max(float(values[-1]), 1e-300)]
    form = np.asarray(form, dtype=np.float64)
    return bool(np.abs(U.T @ form @ U).max(initial=0.0) <= tolerance * max(float(np.abs(form).max()), 1e-300))


def stationary_residual(law: Law, state: Gaussian) -> float:
    r""":math:`|B\Sigma + \Sigma B^\top|/(2|B||\Sigma|)`, between 0 (the covariance rests) and 1; the mean is not looked at."""
    Closure(law)
    slope, _ = numeric(law.member(torch.tensor([0])))(state.mean.numpy(), state.factor.numpy())
    Sigma = state.covariance.numpy()
    size = 2.0 * float(np.linalg.norm(slope)) * float(np.linalg.norm(Sigma))
    return float(np.linalg.norm(slope @ Sigma + Sigma @ slope.T)) / size if size > 0 else 0.0


def rank_bound(law: Attention, tolerance: float = 1e-12) -> int | None:
    """The largest rank of a limit under one head of softmax attention, or None where none is known."""
    V, A = matrices(law)
    if getattr(law.kernel, "name", "") != "softmax" or len(V) > 1:
        return None
    if np.abs(V[0] - np.eye(len(V[0]))).max() <= tolerance:
        values = np.linalg.eigvalsh((A[0] + A[0].T) / 2.0)
        size = tolerance * max(float(np.abs(values).max()), 1e-300)
        plus, minus = int(np.sum(values > size)), int(np.sum(values < -size))
        return len(values) - plus - minus + min(plus, minus)
    invertible = np.linalg.cond(A[0]) < 1.0 / tolerance
    return len(A[0]) // 2 if invertible and len(A[0]) <= 3 else None  # false from d = 4 on
