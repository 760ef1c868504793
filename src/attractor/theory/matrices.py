r"""The matrices of an attention law, as the theorems name them.

Per head the interaction :math:`W_h = \text{scale}\,Q_h^\top K_h` and the value map :math:`V_h`; one metric A with
:math:`A V_h = W_h` for all heads makes :math:`A\dot x_l` the gradient of one convex function at :math:`x_l`. For one head with
invertible V it is :math:`A = W V^{-1}`; otherwise the least-squares one, with its residual.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attractor.attention import Attention
from attractor.errors import UnsupportedError


@dataclass(frozen=True, eq=False)
class Matrices:
    """``interactions`` W (h, d, d), scale included, and ``values`` V (h, d, d), output projection included."""

    interactions: Tensor
    values: Tensor

    @cached_property
    def interaction(self) -> Tensor:
        """The sum of W over heads."""
        return self.interactions.sum(0)

    @cached_property
    def value(self) -> Tensor:
        """The sum of V over heads: it moves the mean near zero, and the first token under a causal mask."""
        return self.values.sum(0)

    @cached_property
    def spread(self) -> float:
        """Smallest over largest singular value of all values side by side: zero where no one metric is determined."""
        sizes = torch.linalg.svdvals(torch.cat(tuple(self.values), dim=-1))
        return float(sizes[-1] / sizes[0].clamp_min(1e-300))

    @cached_property
    def metric(self) -> Tensor:
        """The A that comes closest to A V = W for every head."""
        values, interactions = torch.cat(tuple(self.values), -1), torch.cat(tuple(self.interactions), -1)
        return torch.linalg.lstsq(values.mT, interactions.mT, driver="gelsd").solution.mT

    @cached_property
    def residual(self) -> float:
        """How far A V = W is missed, relative to W."""
        missed = torch.linalg.vector_norm(self.interactions - self.metric @ self.values)
        return float(missed / torch.linalg.vector_norm(self.interactions).clamp_min(1e-300))

    @cached_property
    def congruent(self) -> Tensor:
        """V'W of one head, congruent to its metric: the same inertia without an inverse."""
        return self.values[0].mT @ self.interactions[0]


def matrices(law: Attention) -> Matrices:
    """The matrices of a law without an ensemble axis, in float64."""
    if law.query.ndim > 3:
        raise UnsupportedError("the law has parameters for several ensemble members: ask about law.member(...) of one")
    interaction, value = (law.scale * law.interaction).detach().double(), law.value_map.detach().double()
    if not (bool(interaction.isfinite().all()) and bool(value.isfinite().all())):
        raise UnsupportedError("the law has entries that are not finite")
    d = law.dim
    return Matrices(interaction.reshape(-1, d, d).cpu(), value.reshape(-1, d, d).cpu())


def symmetric(matrix: Tensor) -> Tensor:
    """(M + M') / 2."""
    return (matrix + matrix.mT) / 2


def asymmetry(matrix: Tensor) -> float:
    """The skew part over the whole, in the Frobenius norm: 0 for symmetric, 1 for skew matrices."""
    whole = torch.linalg.vector_norm(matrix)
    return float(torch.linalg.vector_norm(matrix - matrix.mT) / 2 / whole.clamp_min(1e-300))


def extremes(matrix: Tensor) -> tuple[float, float]:
    """Smallest and largest eigenvalue of the symmetric part, relative to the spectral norm of the matrix."""
    values = torch.linalg.eigvalsh(symmetric(matrix))
    size = torch.linalg.matrix_norm(matrix, 2).clamp_min(1e-300)
    return float(values[0] / size), float(values[-1] / size)
