r"""The lambda slice of the published code: head h adds a diagonal form on its share of the channels.

.. math:: s^h_{ij} = \text{scale}\,(\langle q_i, k_j\rangle + x_i[h]^\top \Lambda_h\, x_j[h])

with x[h] the h-th of equal slices of what the layer reads; over all heads this adds the diagonal matrix :math:`\Lambda` to the
sum of the W_h. :math:`\mathrm{sym}(V^\top W)` of the head gains :math:`\mathrm{sym}(V^\top \Lambda_h)`: whether that pushes to
divergence or to collapse depends on the signs of V, so no sign of :math:`\lambda` is right for every model.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.nn.refinements.refinement import Refinement, Sign
from attractor.nn.weights import Weights


class Slice(Refinement):
    """One strength for each head and channel of its slice; "+" from 0.05 unless told otherwise.

    ``channels`` keeps the first so many of every slice, which makes queries and keys less wide.
    """

    name: ClassVar[str] = "slice"
    default_sign: ClassVar[Sign] = "+"

    def __init__(
        self,
        dim: int,
        heads: int,
        sign: Sign | None = None,
        value: float | None = None,
        *,
        channels: int | None = None,
    ) -> None:
        if dim < 1 or heads < 1 or dim % heads:
            raise InputError(
                f"a slice for each head needs a dimension that is a multiple of heads, got {dim} and {heads}"
            )
        self.heads, self.width = heads, dim // heads
        self.channels = self.width if channels is None else channels
        if not 1 <= self.channels <= self.width:
            raise InputError(f"a slice of {self.width} channels has 1 to {self.width} of them to use, got {channels}")
        super().__init__(self.strengths(), sign, value)
        self.sizes = dim, heads

    def strengths(self) -> tuple[int, ...]:
        """The shape of the parameter."""
        return self.heads, self.channels

    def query_part(self, x: Tensor, output: Tensor, metric: Tensor | None) -> Tensor:
        return self.key_part(x, x) * self.diagonal(metric).to(x.dtype).unsqueeze(-2)

    def key_part(self, x: Tensor, v: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, self.width))[..., : self.channels].transpose(-3, -2)

    def diagonal(self, metric: Tensor | None) -> Tensor:
        """What multiplies the channels of each slice, (h, channels)."""
        return self.strength

    def rows(self, weights: Weights, metric: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        identity = torch.eye(self.heads * self.width, dtype=weights.query.dtype, device=weights.query.device)
        key = identity.unflatten(0, (self.heads, self.width))[:, : self.channels]
        return self.diagonal(metric).to(key).unsqueeze(-1) * key, key, None
