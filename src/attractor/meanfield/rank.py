r"""The rank of a limit that is approached but never reached.

Eigenvalues that vanish in the limit may fall as slowly as 1/t, so no fixed cut tells them from those that stay. One is kept if it is
above :math:`10^{-7}\lambda_1` and :math:`\log_{10}\lambda(10T)/\lambda(T) > -0.3`: half of the digit that 1/t loses in a decade of time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

CUT = 1e-7  # of the largest eigenvalue
FALL = -0.3  # decades of an eigenvalue in a decade of time


def limit_rank(early: ArrayLike, late: ArrayLike) -> int:
    """How many eigenvalues stay, given covariances at times T and 10 T, or their eigenvalues."""
    before, after = _eigenvalues(early), _eigenvalues(late)
    if after[0] <= 0:
        return 0
    with np.errstate(divide="ignore", invalid="ignore"):
        fall = np.log10(after / before)
    return int(np.sum((after > CUT * after[0]) & (fall > FALL)))


def _eigenvalues(covariance: ArrayLike) -> np.ndarray:
    """From the largest down; an array of eigenvalues stands for itself."""
    given = np.asarray(covariance, dtype=np.float64)
    values = np.linalg.eigvalsh(given) if given.ndim == 2 else given
    return np.sort(np.maximum(values, 0.0))[::-1]
