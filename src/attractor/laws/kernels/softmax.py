"""Softmax: the kernel of Transformers, and what it shares with the unnormalised exponential."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from attractor.engines import Mode, attend
from attractor.laws.kernels.kernel import HeadMatrices, HeadNorms, Kernel, Logits, Moments, Pairing, Symmetry


class ExponentialEnergy:
    r"""The energy :math:`\frac12\iint e^{s(x,y)}\,d\mu\,d\mu` of kernels with exponential weights, normalised or not."""

    def energy_obstacle(self, total: bool = False, log: bool = False) -> str | None:
        return None

    def energy(self, pairing: Pairing, masses: Tensor) -> Tensor:
        return self.log_energy(pairing, masses).exp()

    def log_energy(self, pairing: Pairing, masses: Tensor) -> Tensor:
        terms = masses.log() + pairing.log_partition(masses)
        return torch.logsumexp(terms.flatten(-2), dim=-1) - math.log(2.0)

    def energy_sums(self, pairing: Pairing, values: Tensor, masses: Tensor) -> tuple[Tensor, Tensor | None]:
        outputs, log_partition = attend(
            pairing.scaled_query, pairing.k, values, masses.log(), "softmax", **pairing.hide
        )
        assert outputs is not None
        return outputs, log_partition

    def logits(self, pairing: Pairing, log_masses: Tensor) -> Logits | None:
        return Logits(pairing.scaled_query, pairing.k, log_masses)


@dataclass(frozen=True)
class Softmax(ExponentialEnergy, Kernel):
    r""":math:`w_{ij} = m_j e^{s_{ij}} / \sum_l m_l e^{s_{il}}` with :math:`s_{ij} = \text{scale}\,\langle Q x_i, K x_j\rangle`
    [vaswani2017attention].

    Symbols: our w is softmax(QK') in [vaswani2017attention], where rows are tokens; the velocity is :math:`\Gamma_\mu` of Softmax
    attention in [castin2025unified].
    """

    name: ClassVar[str] = "softmax"
    mode: ClassVar[Mode | None] = "softmax"
    exponential: ClassVar[bool] = True
    pairwise: ClassVar[bool] = True
    scaled_dot_product: ClassVar[bool] = True
    token_metric: ClassVar[str | None] = "twisted"
    covariance_gradient: ClassVar[bool] = True

    def attend(self, pairing: Pairing, v: Tensor) -> Tensor:
        return pairing.attend(pairing.scaled_query, v, pairing.log_masses, "softmax")

    def gaussian_moments(self, heads: HeadMatrices, mean: Any, factor: Any) -> Moments:
        r""":math:`B = V\Sigma A` and :math:`\dot\alpha = V(I + \Sigma A)\alpha`."""
        B = heads.value @ factor @ (factor.swapaxes(-1, -2) @ heads.interaction)
        return B, heads.value @ mean + B @ mean

    def gaussian_energy(self, mean: Tensor, factor: Tensor, A: Tensor) -> Tensor:
        r""":math:`\frac14|L^\top AL|^2`."""
        return ((factor.mT @ A @ factor) ** 2).sum((-2, -1)) / 4.0

    def gaussian_gradient_obstacle(self, query: Tensor, key: Tensor, scale: float, symmetry: Symmetry) -> str:
        # H -> A'HA is self-adjoint for these and no other A
        return "" if symmetry.either else "K'Q is not symmetric"

    def lipschitz(self, norms: HeadNorms, radius: np.ndarray, mass: float) -> tuple[np.ndarray, np.ndarray | None]:
        V, A, R = norms.value, norms.interaction, radius
        influence = V * (1 + 2 * A * R**2) * np.exp(2 * A * R**2)
        return (V * A * R**2).sum(-1), influence.sum(-1)

    def citations(self) -> tuple[str, ...]:
        return ("vaswani2017attention",)
