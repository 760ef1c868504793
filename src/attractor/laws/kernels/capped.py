"""Softmax of scores that cannot leave an interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.laws.kernels.kernel import Kernel, Pairing, option


@dataclass(frozen=True)
class Capped(Kernel):
    r"""Softmax of :math:`c\tanh(s_{ij}/c)` with c = ``cap``, the ``attn_logit_softcapping`` of Gemma 2.

    The cap acts on each score, so the scores of all pairs are held at once.
    """

    cap: float = option(50.0, "What scores of --kernel capped stay below.")
    name: ClassVar[str] = "capped"

    def __post_init__(self) -> None:
        if not 0 < self.cap < float("inf"):
            raise InputError(f"a cap on scores must be a positive number, got {self.cap}")

    def attend(self, pairing: Pairing, v: Tensor) -> Tensor:
        scores = self.cap * torch.tanh(pairing.scaled_query @ pairing.k.mT / self.cap)
        if pairing.log_masses is not None:
            scores = scores + pairing.log_masses.unsqueeze(-2)
        ((_, hidden),) = pairing.row_blocks(pairing.q, pairing.k, scores.numel())
        weights = (scores if hidden is None else scores.masked_fill(hidden, -torch.inf)).softmax(dim=-1)
        if pairing.skip_self:
            weights = weights - torch.diag_embed(weights.diagonal(dim1=-2, dim2=-1))
        return weights @ v
