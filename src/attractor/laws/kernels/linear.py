"""Linear attention: scores are the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from attractor.laws.kernels.kernel import Kernel, Pairing


@dataclass(frozen=True)
class Linear(Kernel):
    r""":math:`w_{ij} = m_j s_{ij}` [katharopoulos2020linear].

    Without a mask the keys and values meet first, :math:`\sum_j m_j v_j k_j^\top`, so the cost is linear in n.
    """

    name: ClassVar[str] = "linear"
    normalised: ClassVar[bool] = False

    def attend(self, pairing: Pairing, v: Tensor) -> Tensor:
        if pairing.hide or pairing.skip_self:
            return pairing.average(pairing.scaled_query, v, None, "linear")
        n = pairing.k.shape[-2]
        keys = pairing.k / n if pairing.masses is None else pairing.k * pairing.masses.unsqueeze(-1)
        return pairing.scaled_query @ (keys.transpose(-1, -2) @ v)

    def citations(self) -> tuple[str, ...]:
        return ("katharopoulos2020linear",)
