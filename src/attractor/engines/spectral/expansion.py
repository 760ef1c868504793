r"""The exponential of an inner product on a sphere, as a series with positive coefficients, and the error of cutting it.

For :math:`|q| = a`, :math:`|k| = b`, :math:`\beta = ab` and t the cosine of the angle between q and k,

.. math::
    e^{\langle q, k\rangle - \beta} = e^{\beta(t - 1)} = \sum_{l \ge 0} \lambda_l(\beta)\, p_l(t), \qquad
    \lambda_l = \begin{cases} (2 - \delta_{l0})\, e^{-\beta} I_l(\beta) & p_l = \cos(l \arccos t) \text{ on the circle,} \\
    (2l + 1)\, e^{-\beta} i_l(\beta) & p_l = P_l(t) \text{ on the 2-sphere,} \end{cases}

with the modified Bessel functions I (Jacobi and Anger) and spherical ones :math:`i_l = \sqrt{\pi/2\beta}\, I_{l+1/2}` (Gegenbauer).

**Truncation.** All :math:`\lambda_l > 0`, :math:`|p_l| \le 1 = p_l(1)`, and at t = 1 the series sums to one. So cutting it after the order
L makes an error of at most

.. math:: \varepsilon_L = \sup_t \Big|\sum_{l > L} \lambda_l p_l(t)\Big| = \sum_{l > L} \lambda_l,

relative to the largest value of the kernel, and that is attained, at t = 1. The sum needs finitely many terms: with :math:`\nu = l`
(circle) or :math:`l + 1/2` (sphere), :math:`I_{\nu+1}/I_\nu < \beta / (\nu + 1/2 + \sqrt{\beta^2 + (\nu + 1/2)^2}) < 1`
[amos1974computation], which falls with the degree, so coefficients fall faster than a geometric series.

A row with normaliser :math:`Z_i = \sum_j m_j e^{s_{ij} - \beta}` and total mass M has a relative error of at most
:math:`\varepsilon_L M / Z_i`, and its values one of as much relative to the largest :math:`|v_j|`.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

HIGHEST = 420  # order up to which harmonics of high degree stay within the range of float64
NEGLIGIBLE = 1e-30  # coefficients below it are left out of the sums


@lru_cache(maxsize=64)
def coefficients(dim: int, beta: float) -> np.ndarray:
    """All coefficients of the series that are not negligible; they sum to one."""
    if beta < NEGLIGIBLE:
        return np.ones(1)
    half = 0.0 if dim == 2 else 0.5
    start, bound = 0, 1.0
    while bound > NEGLIGIBLE:
        bound *= beta / (start + 0.5 + half + np.hypot(beta, start + 0.5 + half))
        start += 1
    values = np.zeros(start + 4)
    values[start + 2] = 1e-280
    # downwards, where the recurrence is stable: I_{v-1} = I_{v+1} + (2v / beta) I_v
    for degree in range(start + 2, 0, -1):
        values[degree - 1] = values[degree + 1] + 2.0 * (degree + half) / beta * values[degree]
    degrees = np.arange(len(values))
    values *= np.where(degrees == 0, 1.0, 2.0) if dim == 2 else 2.0 * degrees + 1.0
    values /= values.sum()
    values.setflags(write=False)
    return values


def truncation_error(dim: int, beta: float, order: int) -> float:
    """The sup over the sphere of the kernel's error if the series stops at this order, relative to the kernel's maximum."""
    return float(coefficients(dim, beta)[order + 1 :].sum())


@lru_cache(maxsize=256)
def order_for(dim: int, beta: float, tolerance: float) -> int:
    """The smallest order whose truncation error is at most the tolerance."""
    tails = np.cumsum(coefficients(dim, beta)[::-1])[::-1]
    return max(0, int(np.count_nonzero(tails > tolerance)) - 1)
