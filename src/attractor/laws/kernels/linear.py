"""Linear attention: scores are the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from attractor.engines import Mode
from attractor.laws.kernels.kernel import HeadMatrices, Kernel, Moments, Pairing


@dataclass(frozen=True)
class Linear(Kernel):
    r""":math:`w_{ij} = m_j s_{ij}` [katharopoulos2020linear] (there with feature maps :math:`\phi(q), \phi(k)` and rows normalised; here
    :math:`\phi` is the identity and nothing is divided).

    Without a mask :math:`\sum_j m_j v_j k_j^\top` is computed first, so the cost is linear in n.
    """

    name: ClassVar[str] = "linear"
    mode: ClassVar[Mode | None] = "linear"
    normalised: ClassVar[bool] = False
    signed: ClassVar[bool] = True
    token_metric: ClassVar[str | None] = "wasserstein"

    def attend(self, pairing: Pairing, v: Tensor) -> Tensor:
        if pairing.hide:
            return pairing.average(pairing.scaled_query, v, None, "linear")
        n = pairing.k.shape[-2]
        keys = pairing.k / n if pairing.masses is None else pairing.k * pairing.masses.unsqueeze(-1)
        moved = pairing.scaled_query @ (keys.transpose(-1, -2) @ v)
        if pairing.skip_self:
            moved = moved - (pairing.scaled_query * keys).sum(-1, keepdim=True) * v
        return moved

    def energy_obstacle(self, total: bool = False, log: bool = False) -> str | None:
        return None

    def energy(self, pairing: Pairing, masses: Tensor) -> Tensor:
        r""":math:`\frac14\sum_{hij} m_i m_j s_{ij}^2`: from second moments of queries and keys where no pair is hidden."""
        if pairing.hide:
            return pairing.sum_pairs(torch.square, masses) / 4.0
        q, k, column = pairing.scaled_query, pairing.k, masses.unsqueeze(-1)
        return ((q.mT @ (column * q)) * (k.mT @ (column * k))).sum((-3, -2, -1)) / 4.0

    def closure_obstacle(self, scale: float, masked: bool) -> str:
        if masked:
            return (
                "linear attention under a causal mask weighs a prefix by its mass, so the field depends on the position"
            )
        return ""

    def gaussian_moments(self, heads: HeadMatrices, mean: Any, factor: Any) -> Moments:
        r""":math:`B = V(\Sigma + \alpha\alpha^\top)A` and :math:`\dot\alpha = B\alpha`."""
        B = heads.value @ (factor @ factor.swapaxes(-1, -2) + mean @ mean.swapaxes(-1, -2)) @ heads.interaction
        return B, B @ mean

    def gaussian_energy(self, mean: Tensor, factor: Tensor, A: Tensor) -> Tensor:
        r""":math:`\frac14|M^\top AM|^2` with :math:`MM^\top = \Sigma + \alpha\alpha^\top`."""
        second = torch.cat((factor, mean.expand(*factor.shape[:-1], 1)), -1)
        return ((second.mT @ A @ second) ** 2).sum((-2, -1)) / 4.0

    def citations(self) -> tuple[str, ...]:
        return ("katharopoulos2020linear",)
