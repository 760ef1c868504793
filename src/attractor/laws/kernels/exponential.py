"""The unnormalised exponential: the plain gradient flow of the interaction energy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from attractor.engines import Mode
from attractor.errors import InputError, UnsupportedError
from attractor.laws.kernels.kernel import Kernel, Logits, Pairing, option
from attractor.laws.kernels.softmax import ExponentialEnergy


@dataclass(frozen=True)
class Exponential(ExponentialEnergy, Kernel):
    r""":math:`w_{ij} = m_j e^{s_{ij} - c}` with c = ``shift``: the (USA) dynamics of [geshkovski2023mathematical].

    With c = beta on the unit sphere the weights :math:`e^{\beta(\langle x_i, x_j\rangle - 1)}` are at most one and do not overflow; time
    is then counted in units of :math:`e^{-\beta}`.

    Symbols: our s is :math:`\beta\langle Qx, Ky\rangle` there; our masses are 1/n.
    """

    shift: float = option(
        0.0, "Number subtracted from every score of --kernel exponential, such as beta on the sphere."
    )
    name: ClassVar[str] = "exponential"
    mode: ClassVar[Mode | None] = "exponential"
    normalised: ClassVar[bool] = False
    exponential: ClassVar[bool] = True
    pairwise: ClassVar[bool] = True
    token_metric: ClassVar[str | None] = "wasserstein"

    def __post_init__(self) -> None:
        if not abs(self.shift) < math.inf:
            raise InputError(f"the exponential kernel needs a finite shift, got {self.shift}")
        object.__setattr__(self, "shift", float(self.shift))

    @property
    def plain(self) -> bool:
        return self.shift == 0.0  # a shift changes the unit of time

    @property
    def score_bias(self) -> float:
        return -self.shift

    def attend(self, pairing: Pairing, v: Tensor) -> Tensor:
        bias = None if self.shift == 0.0 else torch.full_like(pairing.k[..., 0], -self.shift)
        return pairing.average(pairing.scaled_query, v, bias, "exponential")

    def logits(self, pairing: Pairing, log_masses: Tensor) -> Logits | None:
        return Logits(pairing.scaled_query, pairing.k, log_masses - self.shift)

    def log_energy(self, pairing: Pairing, masses: Tensor) -> Tensor:
        return super().log_energy(pairing, masses) - self.shift

    def energy_sums(self, pairing: Pairing, values: Tensor, masses: Tensor) -> tuple[Tensor, Tensor | None]:
        outputs, log_partition = super().energy_sums(pairing, values, masses)
        return outputs, None if log_partition is None else log_partition - self.shift

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
        mass = np.exp(mean @ shift - self.shift + tilt @ tilt / 2.0 + linear @ centre / 2.0) / np.sqrt(np.linalg.det(H))
        level, gain = mean + factor @ tilt, factor @ tilted
        second = np.linalg.inv(H) + np.outer(centre, centre)
        return mass * (level + gain @ centre), mass * (np.outer(level, centre) + gain @ second)

    def citations(self) -> tuple[str, ...]:
        return ("geshkovski2023mathematical",)
