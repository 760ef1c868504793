"""Softmax: the kernel of Transformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from attractor.laws.kernels.kernel import Kernel, Pairing


@dataclass(frozen=True)
class Softmax(Kernel):
    r""":math:`w_{ij} = m_j e^{s_{ij}} / \sum_l m_l e^{s_{il}}` with :math:`s_{ij} = \text{scale}\,\langle Q x_i, K x_j\rangle`
    [vaswani2017attention]; in the mean-field paper :math:`\Gamma_\mu` of Softmax attention."""

    name: ClassVar[str] = "softmax"

    def attend(self, pairing: Pairing, v: Tensor) -> Tensor:
        return pairing.meet(pairing.scaled_query, v, pairing.log_masses, "softmax")

    def citations(self) -> tuple[str, ...]:
        return ("vaswani2017attention",)
