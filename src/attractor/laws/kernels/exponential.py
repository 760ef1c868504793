"""The unnormalised exponential: the plain gradient flow of the interaction energy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from attractor.laws.kernels.kernel import Kernel, Pairing


@dataclass(frozen=True)
class Exponential(Kernel):
    r""":math:`w_{ij} = m_j e^{s_{ij}}`, the (USA) dynamics of [geshkovski2023mathematical]."""

    name: ClassVar[str] = "exponential"
    normalised: ClassVar[bool] = False

    def attend(self, pairing: Pairing, v: Tensor) -> Tensor:
        return pairing.average(pairing.scaled_query, v, None, "exponential")

    def citations(self) -> tuple[str, ...]:
        return ("geshkovski2023mathematical",)
