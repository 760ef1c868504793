"""Sigmoid attention: no competition between keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from attractor.errors import InputError
from attractor.laws.kernels.kernel import Kernel, Pairing, as_bias


@dataclass(frozen=True)
class Sigmoid(Kernel):
    r""":math:`w_{ij} = m_j\,\sigma(s_{ij} + b)`, an average over the measure, not normalised [ramapuram2024sigmoid]."""

    bias: float = 0.0
    name: ClassVar[str] = "sigmoid"
    normalised: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not abs(self.bias) < float("inf"):
            raise InputError(f"sigmoid needs a finite bias, got {self.bias}")
        object.__setattr__(self, "bias", float(self.bias))

    def attend(self, pairing: Pairing, v: Tensor) -> Tensor:
        return pairing.average(pairing.scaled_query, v, as_bias(self.bias, pairing.k), "sigmoid")

    def citations(self) -> tuple[str, ...]:
        return ("ramapuram2024sigmoid",)
