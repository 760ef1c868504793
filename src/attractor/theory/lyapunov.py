r"""One norm in which no head of a causal layer expands: what T8 needs of several heads.

For a symmetric :math:`L \succ 0` with :math:`\operatorname{sym}(L V_h) \preceq 0` for every head and
:math:`\operatorname{sym}(L \sum_h V_h) \prec 0`, :math:`|x|_L` of a token is driven by earlier tokens alone, so it stays bounded, every
head keeps a positive weight on the token itself, and the sum contracts it. L = I is one candidate; the other is
:math:`L = \mp A` where the heads share a definite metric, :math:`W_h = A V_h`: then :math:`L V_h = \mp W_h`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attractor.theory.matrices import extremes


@dataclass(frozen=True)
class Contraction:
    """Relative to the norms of the matrices, where L is the identity: ``excess`` is the largest growth that a head has in any
    direction, ``strength`` the smallest contraction by the sum."""

    excess: float
    strength: float


def contraction(values: Tensor, metric: Tensor | None = None) -> Contraction | None:
    """What value maps (h, d, d) do in the norm of a ``metric``, of either sign, or in the usual one; None if it is not definite."""
    if metric is not None:
        form = (metric + metric.mT) / 2
        form = form if float(form.diagonal().sum()) > 0 else -form
        lower, failed = torch.linalg.cholesky_ex(form)
        if int(failed) or not bool(lower.isfinite().all()):
            return None
        turned = lower.mT @ values  # C' V C'^-1 is V for y = C' x
        values = torch.linalg.solve_triangular(lower.mT, turned, upper=True, left=False)
    excess = max(extremes(value)[1] for value in values)
    return Contraction(excess, -extremes(values.sum(0))[1])
