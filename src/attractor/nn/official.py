r"""The published D x D parameterisation, from its description, for comparison.

W and A are made definite, :math:`\pm L\,\mathrm{diag}(\mathrm{softplus})\,L^\top` plus skew parts, and the stacked weights of
``nn.Linear`` (out, in) solve :math:`W_q W_k^\top = W` and :math:`A\,W_v = W` ("quotient": EnWik8, ImageNet) or
:math:`W\,W_v^\top = A` ("product": WikiText-103); :math:`W_q` and :math:`W_o` are free. Scores see :math:`W_q^\top W_k`, which
has the spectrum of W but is not congruent to it unless :math:`W_q` is orthogonal, and tokens move by :math:`W_o W_v` head by
head: so nothing here bounds the regime of the tokens once training has begun.

What the description does not say (the start of the skew parts) follows the other orientation.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from attractor.errors import InputError
from attractor.nn.factors import Signed, working
from attractor.nn.forms import Formed
from attractor.nn.weights import Weights, split_heads, split_output

Solve = Literal["quotient", "product"]
SMALLEST = 1e-2  # eigenvalue that the start's symmetric part is clipped at


class Official(Formed):
    """Free query and output (d, d), definite ``interaction`` W and ``metric`` A (d, d)."""

    def __init__(self, signs: Tensor, inner: Tensor, heads: int, skew: bool, solve: Solve, pivot: float) -> None:
        super().__init__()
        if solve not in ("quotient", "product"):
            raise InputError(f"solve must be 'quotient' or 'product', got {solve!r}")
        dim = signs.shape[0]
        self.heads, self.solve = heads, solve
        self.query, self.output = (nn.Parameter(nn.init.orthogonal_(torch.empty(dim, dim))) for _ in range(2))
        self.interaction = Signed(inner.flatten(), skew=skew, pivot=pivot)
        self.metric = Signed(signs, skew=skew, pivot=pivot)
        for part in (self.interaction, self.metric):
            part.start(_lower(nn.init.orthogonal_(torch.empty(dim, dim))))
        self.mark_form()

    @property
    def form(self) -> str:
        return f"layer of official orientation with solve={self.solve!r}"

    def weights(self, dtype: torch.dtype | None = None) -> Weights:
        wide = working(self.query.dtype, dtype)
        with torch.autocast(self.query.device.type, enabled=False):
            query, interaction, metric = self.query.to(wide), self.interaction(wide), self.metric(wide)
            key = torch.linalg.solve(query, interaction).mT
            quotient = self.solve == "quotient"
            value = torch.linalg.solve(metric, interaction) if quotient else torch.linalg.solve(interaction, metric).mT
            query, key, value = (split_heads(part, self.heads) for part in (query, key, value))
            return Weights(query, key, value, split_output(self.output.to(wide), self.heads))


def _lower(matrix: Tensor) -> Tensor:
    """The unit lower triangular factor of the clipped symmetric part."""
    values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2)
    factor = torch.linalg.cholesky((vectors * values.clamp_min(SMALLEST)) @ vectors.mT)
    return factor / factor.diagonal()
