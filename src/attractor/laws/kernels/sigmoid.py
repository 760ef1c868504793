"""Sigmoid attention: no competition between keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from attractor.engines import Mode
from attractor.errors import InputError
from attractor.laws.kernels.kernel import HeadNorms, Kernel, Logits, Pairing, option


@dataclass(frozen=True)
class Sigmoid(Kernel):
    r""":math:`w_{ij} = m_j\,\sigma(s_{ij} + b)` with b = ``bias``, an average over the measure, not normalised [ramapuram2024sigmoid].

    Symbols: b is the paper's b. The paper has no masses: its choice b = -log n plays the part of our 1/n.
    """

    bias: float = option(0.0, "Bias of every score of --kernel sigmoid.")
    name: ClassVar[str] = "sigmoid"
    pairwise: ClassVar[bool] = True
    mode: ClassVar[Mode | None] = "sigmoid"
    normalised: ClassVar[bool] = False
    token_metric: ClassVar[str | None] = "wasserstein"

    def __post_init__(self) -> None:
        if not abs(self.bias) < float("inf"):
            raise InputError(f"sigmoid needs a finite bias, got {self.bias}")
        object.__setattr__(self, "bias", float(self.bias))

    @property
    def bounded(self) -> bool:
        return True

    @property
    def score_bias(self) -> float:
        return self.bias

    def attend(self, pairing: Pairing, v: Tensor) -> Tensor:
        bias = None if self.bias == 0.0 else torch.full_like(pairing.k[..., 0], self.bias)
        return pairing.average(pairing.scaled_query, v, bias, "sigmoid")

    def logits(self, pairing: Pairing, log_masses: Tensor) -> Logits | None:
        return Logits(pairing.scaled_query, pairing.k, log_masses, lambda scores: logsigmoid(scores + self.bias))

    def energy_obstacle(self, total: bool = False, log: bool = False) -> str | None:
        return None

    def energy(self, pairing: Pairing, masses: Tensor) -> Tensor:
        r""":math:`\frac12\sum_{hij} m_i m_j \log(1 + e^{s_{ij} + b})`."""
        return pairing.sum_pairs(lambda s: torch.logaddexp(s + self.bias, s.new_zeros(())), masses) / 2.0

    def expected_field(
        self, A: np.ndarray, mean: np.ndarray, factor: np.ndarray, order: int
    ) -> tuple[np.ndarray, np.ndarray]:
        from scipy.special import expit

        z, weights = gauss_hermite(order, len(mean))
        u = (mean + z @ factor.T) @ A.T
        tilt = u @ factor
        nodes, inner = np.polynomial.hermite_e.hermegauss(max(order, 24))
        inner = inner / inner.sum()
        s = expit((u @ mean + self.bias)[:, None] + np.linalg.norm(tilt, axis=1)[:, None] * nodes)
        field = (s @ inner)[:, None] * mean + ((s * (1.0 - s)) @ inner)[:, None] * (tilt @ factor.T)
        return weights @ field, (field * weights[:, None]).T @ z

    def lipschitz(self, norms: HeadNorms, radius: np.ndarray, mass: float) -> tuple[np.ndarray, np.ndarray | None]:
        V, A, R = norms.value, norms.interaction, radius
        return (mass * V * A * R**2 / 4).sum(-1), (mass * V * (1 + A * R**2 / 4)).sum(-1)

    def causal_factor(self, p: float) -> float | None:
        return 1.0

    def citations(self) -> tuple[str, ...]:
        return ("ramapuram2024sigmoid",)


def gauss_hermite(order: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (n, d) and weights (n,) of Gauss-Hermite quadrature against a standard Gaussian."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    axes = np.meshgrid(*[nodes] * dim, indexing="ij")
    mass = np.ones(1)
    for _ in range(dim):
        mass = np.multiply.outer(mass, weights / weights.sum())
    return np.stack([axis.ravel() for axis in axes], axis=1), mass.ravel()
