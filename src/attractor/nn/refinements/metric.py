r"""The lambda-A slice: the diagonal form of a head is its share of the metric itself.

.. math:: s^h_{ij} = \text{scale}\,(\langle q_i, k_j\rangle + \lambda_h\, x_i[h]^\top A[h]\, x_j[h])

for layers whose metric A is explicit and diagonal; with equal strengths the sum of the W_h gains :math:`\lambda A`. Where one
head has :math:`W' = W + \lambda A` and :math:`V = A^{-1} W`, :math:`\mathrm{sym}(V^\top W')` gains
:math:`\lambda\,\mathrm{sym}(W)`: since sym W > 0 by construction, a positive strength pushes to divergence whatever A is. (The
source names a lambda-A term without defining it; this is our reading.)
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from attractor.errors import UnsupportedError
from attractor.nn.refinements.refinement import Sign
from attractor.nn.refinements.slice import Slice


class MetricSlice(Slice):
    """One strength for each head, zero at the start unless told otherwise."""

    name: ClassVar[str] = "metric"
    default_sign: ClassVar[Sign] = "free"

    def strengths(self) -> tuple[int, ...]:
        return self.heads, 1

    def check_metric(self, metric: Tensor | None) -> None:
        if metric is None:
            raise UnsupportedError(
                "the metric refinement needs an explicit diagonal metric: DefiniteAttention(..., metric='diagonal') has one"
            )

    def diagonal(self, metric: Tensor | None) -> Tensor:
        self.check_metric(metric)
        assert metric is not None
        return self.strength.to(metric) * metric.unflatten(0, (self.heads, self.width))[:, : self.channels]
