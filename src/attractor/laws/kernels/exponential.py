"""The unnormalised exponential: the plain gradient flow of the interaction energy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from attractor.engines import Mode
from attractor.errors import UnsupportedError
from attractor.laws.kernels.kernel import Kernel, Pairing
from attractor.laws.kernels.softmax import ExponentialEnergy


@dataclass(frozen=True)
class Exponential(ExponentialEnergy, Kernel):
    r""":math:`w_{ij} = m_j e^{s_{ij}}`, the (USA) dynamics of [geshkovski2023mathematical].

    Symbols: our s is :math:`\beta\langle Qx, Ky\rangle` there; our masses are 1/n.
    """

    name: ClassVar[str] = "exponential"
    mode: ClassVar[Mode | None] = "exponential"
    normalised: ClassVar[bool] = False
    exponential: ClassVar[bool] = True
    pairwise: ClassVar[bool] = True
    token_metric: ClassVar[str | None] = "wasserstein"

    def attend(self, pairing: Pairing, v: Tensor) -> Tensor:
        return pairing.average(pairing.scaled_query, v, None, "exponential")

    def expected_field(
        self, A: np.ndarray, mean: np.ndarray, factor: np.ndarray, order: int
    ) -> tuple[np.ndarray, np.ndarray]:
        shift, slope = A @ mean, A @ factor  # A x = shift + slope z
        tilt, tilted = factor.T @ shift, factor.T @ slope
        H = np.eye(factor.shape[1]) - tilted.T @ tilted
        if np.linalg.eigvalsh(H)[0] <= 0:
            raise UnsupportedError(
                "the moments of exponential attention are infinite here: a singular value of L'AL has reached one; end the run earlier"
            )
        linear = slope.T @ mean + tilted.T @ tilt
        centre = np.linalg.solve(H, linear)
        mass = np.exp(mean @ shift + tilt @ tilt / 2.0 + linear @ centre / 2.0) / np.sqrt(np.linalg.det(H))
        level, gain = mean + factor @ tilt, factor @ tilted
        second = np.linalg.inv(H) + np.outer(centre, centre)
        return mass * (level + gain @ centre), mass * (np.outer(level, centre) + gain @ second)

    def citations(self) -> tuple[str, ...]:
        return ("geshkovski2023mathematical",)
