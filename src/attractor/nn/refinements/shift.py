r"""The metric shift: every head's interaction moves along its own value map.

.. math:: W_h' = W_h + \lambda_h\,O_h V_h, \qquad A' = A + \lambda I

where A is the metric, :math:`W = A\,(OV)`. So :math:`\mathrm{sym}((OV)^\top W')` gains
:math:`\lambda\,(OV)^\top (OV) \succeq 0`: a positive strength moves every head towards divergence and a negative one towards
collapse, whatever the value is. The term of the score is :math:`\lambda_h \langle O_h^\top x_i, v_j\rangle`: keys need nothing
but values, which a cache already holds.

Symbols: W + lambda V' in [pham2025dynamical], whose V is our value map transposed.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from attractor.errors import InputError
from attractor.nn.refinements.refinement import Refinement, Sign
from attractor.nn.weights import Weights


class Shift(Refinement):
    """One strength for each head."""

    name: ClassVar[str] = "shift"

    def __init__(self, dim: int, heads: int, sign: Sign | None = None, value: float | None = None) -> None:
        if dim < 1 or heads < 1:
            raise InputError(f"a shift needs a dimension and heads of at least 1, got {dim} and {heads}")
        super().__init__((heads,), sign, value)
        self.sizes = dim, heads

    def query_part(self, x: Tensor, output: Tensor, metric: Tensor | None) -> Tensor:
        # strengths multiply the weights, which are fewer than tokens times channels
        scaled = output.unflatten(1, (self.theta.shape[0], -1)) * self.strength.to(output.dtype).unsqueeze(-1)
        return (x @ scaled.flatten(1).to(x.dtype)).unflatten(-1, scaled.shape[1:]).transpose(-3, -2)

    def key_part(self, x: Tensor, v: Tensor) -> Tensor:
        return v

    def rows(self, weights: Weights, metric: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        strength = self.strength.to(weights.query)[:, None, None]
        return strength * weights.output.mT, weights.value, weights.value_bias
