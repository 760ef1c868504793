r"""Dobrushin constants: how fast two measures can part under a law (meanfield T13, T14).

If, for measures in the ball of radius R, :math:`|\Gamma_\mu(x) - \Gamma_\mu(y)| \le L_x|x-y|` and
:math:`|\Gamma_\mu(y) - \Gamma_\nu(y)| \le L_\mu W_1(\mu,\nu)`, then moving an optimal coupling by the two flows gives, for every
:math:`p\ge1`, :math:`W_p(\mu_t,\nu_t) \le W_p(\mu_0,\nu_0)\exp\int_0^t (L_x + L_\mu)(R_s)\,ds` with
:math:`R_s = R_0e^{\rho s}` of ``growth``. With :math:`A = \text{scale}\,K^\top Q` and norms of operators, summed over heads:

========  ================================================  =====================================================================
kernel    :math:`L_x`                                       :math:`L_\mu`
========  ================================================  =====================================================================
softmax   :math:`\|V\|\|A\|R^2`                             :math:`\|V\|(1 + 2\|A\|R^2)e^{2\|A\|R^2}`
l2        :math:`2\|V\|\|A\|R^2`                            :math:`\|V\|(1 + 2\sqrt{2/e}\,\|K\|R)e^{(\|Q\|+\|K\|)^2R^2}`, Q and K times
                                                            :math:`\sqrt{\text{scale}}`
sigmoid   :math:`m\|V\|\|A\|R^2/4`                          :math:`m\|V\|(1 + \|A\|R^2/4)`, m the total mass
sinkhorn  :math:`\|V\|\|A\|R^2/\epsilon`                    finite, no formula: measured by ``local_constants``
========  ================================================  =====================================================================

Softmax and l2: :math:`D\Gamma = V\,\mathrm{Cov}\,A` (twice that for l2) with the covariance of the keys under the weights, at most
:math:`R^2`; and with the mean :math:`m_\nu` of the tilted :math:`\nu`,
:math:`m_\mu - m_\nu = Z_\mu^{-1}\int w(y)(y - m_\nu)\,d(\mu-\nu)`, whose integrand has the Lipschitz constant
:math:`\sup w + 2R\sup|\nabla w|` while :math:`Z \ge \inf w`.

Causal attention compares position by position, in ``conditional_wasserstein``: there rows average prefixes, and Hardy's inequality
(with weights: Copson's) :math:`\|\text{prefix means of } f\|_p \le \frac p{p-1}\|f\|_p` puts :math:`\frac p{p-1}L_\mu` in place of
:math:`L_\mu`. Nothing of the kind holds at p = 1, where the constant grows like log n. Sigmoid does not normalise prefixes and needs no
factor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attractor.attention import L2, Attention, Causal, Law, Sigmoid, Sinkhorn, Softmax
from attractor.errors import InputError, UnsupportedError
from attractor.meanfield.growth import checked, support_rate
from attractor.states import Tokens

NODES = 200  # of the quadrature in time


@dataclass(frozen=True)
class Constants:
    """Lipschitz constants in the point and in the measure; ``influence`` is None where no formula is known.

    ``hardy`` multiplies the influence under a causal mask.
    """

    radius: float
    point: float
    influence: float | None
    hardy: float = 1.0

    @property
    def total(self) -> float:
        """The exponent for a unit of time."""
        return math.inf if self.influence is None else self.point + self.hardy * self.influence


def dobrushin(law: Law, radius: float, p: float = 2.0, mass: float = 1.0) -> Constants:
    """The constants of a law on measures in the ball of a radius."""
    if not 0 <= radius < math.inf:
        raise InputError(f"the constants need a radius that is finite and not negative, got {radius}")
    attention = checked(law, "a stability constant")
    with np.errstate(over="ignore"):
        point, influence = _constants(attention, np.array(radius, dtype=float), mass)
    return Constants(float(radius), float(point), None if influence is None else float(influence), hardy(attention, p))


def hardy(law: Attention, p: float) -> float:
    """p / (p - 1) under a causal mask with normalised rows, 1 without a mask."""
    if law.mask is None:
        return 1.0
    if not isinstance(law.mask, Causal) or isinstance(law.kernel, Sinkhorn):
        raise UnsupportedError("stability under a mask is known for causal masks of softmax, l2 and sigmoid attention")
    if isinstance(law.kernel, Sigmoid):
        return 1.0
    if p <= 1.0:
        raise InputError(
            "causal attention is stable for orders p > 1; at p = 1 the constant grows with the logarithm of n"
        )
    return p / (p - 1.0)


def _norm(matrix: Tensor) -> np.ndarray:
    """Spectral norms (h,) of the heads."""
    heads = matrix if matrix.ndim == 3 else matrix.unsqueeze(0)
    return torch.linalg.matrix_norm(heads.detach().double(), ord=2).cpu().numpy()


def _constants(law: Attention, R: np.ndarray, mass: float) -> tuple[np.ndarray, np.ndarray | None]:
    """L_x and L_mu at radii R of any shape, summed over heads (last axis below)."""
    R = R[..., None]
    V, A = _norm(law.value_map), abs(float(law.scale)) * _norm(law.key.mT @ law.query)
    kernel = law.kernel
    if isinstance(kernel, Softmax):
        influence = V * (1 + 2 * A * R**2) * np.exp(2 * A * R**2)
        return (V * A * R**2).sum(-1), influence.sum(-1)
    if isinstance(kernel, L2):
        if law.scale < 0:
            raise UnsupportedError("a stability constant of l2 attention is known for a positive scale")
        root = math.sqrt(float(law.scale))
        Q, K = root * _norm(law.query), root * _norm(law.key)
        influence = V * (1 + 2 * math.sqrt(2 / math.e) * K * R) * np.exp(((Q + K) * R) ** 2)
        return (2 * V * A * R**2).sum(-1), influence.sum(-1)
    if isinstance(kernel, Sigmoid):
        return (mass * V * A * R**2 / 4).sum(-1), (mass * V * (1 + A * R**2 / 4)).sum(-1)
    if isinstance(kernel, Sinkhorn):
        return (V * A * R**2 / kernel.eps).sum(-1), None
    raise UnsupportedError("a stability constant is known for softmax, l2, sigmoid and sinkhorn attention")


def log_bound(
    law: Law,
    radius: np.ndarray | float,
    times: np.ndarray | Tensor,
    p: float = 2.0,
    mass: float = 1.0,
    influence: float | None = None,
) -> np.ndarray:
    r""":math:`\int_0^t(L_x + L_\mu)(R_s)\,ds` for every time (first axis) and initial radius (other axes): W_p grows at most by its
    exponential. ``influence`` stands in for :math:`L_\mu` where there is no formula. Infinite where it overflows."""
    attention = checked(law, "a stability bound")
    factor, rate = hardy(attention, p), support_rate(law, mass)
    start, moments = np.asarray(radius, dtype=float), np.asarray(times, dtype=float)
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    # s = t (1 + node) / 2, on the first axis; times on the second; radii on the others
    shares = ((1 + nodes) / 2)[:, None] * moments
    with np.errstate(over="ignore"):
        radii = np.exp(rate * shares).reshape(*shares.shape, *([1] * start.ndim)) * start
        point, known = _constants(attention, radii, mass)
        known = np.asarray(influence) if known is None and influence is not None else known
        if known is None:
            raise UnsupportedError(
                "no formula is known for the influence of the measure on sinkhorn attention: give influence=..., "
                "measured by local_constants"
            )
        total = point + factor * known
        average = np.einsum("k,k...->...", weights / 2, total)
    return average * moments.reshape(-1, *([1] * start.ndim))


def local_constants(law: Law, tokens: Tokens, p: float = 2.0) -> tuple[float, float]:
    r"""The constants where the tokens are: derivatives of the field, not bounds on them.

    :math:`\max_i\|\partial_x\Gamma_\mu(x_i)\|`, and the largest change of :math:`\Gamma_\mu(x_i)` when :math:`\mu` moves by one in W_2
    (p = 2) or in W_1. Queries are tokens of no mass beside the measure, so the two derivatives part.
    """
    attention = checked(law, "a stability constant")
    if attention.mask is not None or tokens.batch_shape:
        raise UnsupportedError("local constants are those of one state without a mask")
    carrying = tokens.weights > 0
    tokens = Tokens.trusted(tokens.points[carrying], tokens.weights[carrying])
    n, d = tokens.n, tokens.dim
    masses = torch.cat((torch.zeros(n, dtype=torch.float64), tokens.weights.double()))

    def field(queries: Tensor, points: Tensor) -> Tensor:
        return attention.velocity(Tokens.trusted(torch.cat((queries, points)), masses))[:n]

    points = tokens.points.detach().double()
    by_point, by_measure = torch.autograd.functional.jacobian(field, (points, points))
    own = torch.linalg.matrix_norm(torch.einsum("iaib->iab", by_point), ord=2).max()
    weights = tokens.weights.double() / float(tokens.weights.sum())
    if p == 2.0:
        rows = (by_measure / weights.sqrt().reshape(1, 1, n, 1)).reshape(n, d, n * d)
        return float(own), float(torch.linalg.matrix_norm(rows, ord=2).max())
    blocks = torch.linalg.matrix_norm(by_measure.transpose(1, 2), ord=2) / weights
    return float(own), float(blocks.max())
