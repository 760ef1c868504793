"""L2 attention: softmax of minus the squared distance."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from attractor.engines import Mode
from attractor.errors import UnsupportedError
from attractor.laws.kernels.kernel import HeadMatrices, HeadNorms, Kernel, Logits, Moments, Pairing, Symmetry

TINY = 1e-200  # added to squared lengths, so that zero columns can be divided by theirs


@dataclass(frozen=True)
class L2(Kernel):
    r""":math:`w_{ij} \propto m_j e^{-\text{scale}\,|Q x_i - K x_j|^2}`, rows normalised [kim2021lipschitz].

    The term :math:`|Qx_i|^2` cancels, so this is softmax with score :math:`2\langle Qx_i, Kx_j\rangle` and key bias
    :math:`-|Kx_j|^2`. A shift c common to queries and keys cancels too. Keys are centred to keep the squares, and with them the
    rounding errors, small: :math:`2\langle q, k\rangle - |k|^2` becomes :math:`2\langle q - c, k - c\rangle - |k - c|^2` up to a term
    that depends on the query alone.

    Symbols: our scale is :math:`1/\sqrt{D/H}` in [kim2021lipschitz]; :math:`\Gamma_\mu` of L2 attention in [castin2025unified] has scale 1.
    """

    name: ClassVar[str] = "l2"
    pairwise: ClassVar[bool] = True
    mode: ClassVar[Mode | None] = "softmax"
    bilinear: ClassVar[bool] = False
    token_obstacle: ClassVar[str] = (
        "under l2 attention tokens follow a gradient, but of no known energy of the measure (Gaussians do, with Q = K)"
    )

    def attend(self, pairing: Pairing, v: Tensor) -> Tensor:
        q, k, bias = self._centred(pairing)
        if pairing.masses is not None:
            bias = bias + pairing.masses.log()
        centred = replace(pairing, q=q, k=k, symmetric=False)
        return centred.attend(2.0 * centred.scaled_query, v, bias, "softmax")

    def _centred(self, pairing: Pairing) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys less the mean key, and the key bias -scale |k|^2."""
        centre = pairing.k.mean(dim=-2, keepdim=True)
        k = pairing.k - centre
        return pairing.q - centre, k, -pairing.scale * (k * k).sum(-1)

    def logits(self, pairing: Pairing, log_masses: Tensor) -> Logits | None:
        q, k, bias = self._centred(pairing)
        return Logits(2.0 * pairing.scale * q, k, log_masses + bias)

    def energy_obstacle(self, total: bool = False, log: bool = False) -> str | None:
        return (
            "no interaction energy is known for the l2 kernel: its weights depend on differences Qx - Ky while tokens move "
            "along values Vy, which is not the direction of the gradient of such a function of pairs"
        )

    def closure_obstacle(self, scale: float, masked: bool) -> str:
        return (
            "with a negative scale the weights of l2 grow at infinity and need not be integrable" if scale < 0 else ""
        )

    def gaussian_moments(self, heads: HeadMatrices, mean: Any, factor: Any) -> Moments:
        r""":math:`B = 2PA` and :math:`\dot\alpha = V(I - 2PK^\top K + 2PA)\alpha` with
        :math:`P = (\Sigma^{-1} + 2K^\top K)^{-1} = U(D^{-2} + 2U^\top K^\top KU)^{-1}U^\top`, the scale inside K and A, L = UD with unit
        columns U, and the inner matrix R'R for the triangular R of the keys above the inverse of D: columns of very different
        length do no harm."""
        V, A, K = heads.value, heads.interaction, heads.sharp_key
        lengths = ((factor * factor).sum(-2) + TINY) ** 0.5
        unit = factor / lengths[..., None, :]
        R = heads.library.linalg.qr(_stack(K @ unit, lengths))[1]
        half = heads.library.linalg.solve(R.swapaxes(-1, -2), unit.swapaxes(-1, -2))
        posterior = half.swapaxes(-1, -2) @ half
        tilted = 2.0 * posterior @ A
        pulled = posterior @ (K.swapaxes(-1, -2) @ (K @ mean))
        return V @ tilted, V @ (mean - pulled + tilted @ mean)

    def gaussian_energy(self, mean: Tensor, factor: Tensor, A: Tensor) -> Tensor:
        spread = factor.mT @ A @ factor
        identity = torch.eye(spread.shape[-1], dtype=spread.dtype, device=spread.device)
        trace = spread.diagonal(dim1=-2, dim2=-1).sum(-1)
        quadratic = (mean.mT @ A @ mean).squeeze(-1).squeeze(-1)
        return quadratic / 2.0 + trace / 2.0 - torch.logdet(identity + 2.0 * spread) / 4.0

    def gaussian_gradient_obstacle(self, query: Tensor, key: Tensor, scale: float, symmetry: Symmetry) -> str:
        return "" if torch.equal(query, key) and scale > 0 else "l2 needs Q = K and a positive scale"

    def lipschitz(self, norms: HeadNorms, radius: np.ndarray, mass: float) -> tuple[np.ndarray, np.ndarray | None]:
        if norms.scale < 0:
            raise UnsupportedError("a stability constant of l2 attention is known for a positive scale")
        V, A, R, root = norms.value, norms.interaction, radius, math.sqrt(norms.scale)
        Q, K = root * norms.query, root * norms.key
        influence = V * (1 + 2 * math.sqrt(2 / math.e) * K * R) * np.exp(((Q + K) * R) ** 2)
        return (2 * V * A * R**2).sum(-1), influence.sum(-1)

    def covariance_growth(self, value: np.ndarray, query: np.ndarray, key: np.ndarray) -> float:
        if key.shape[0] != key.shape[1] or np.linalg.svd(key)[1][-1] <= 1e-14 * np.linalg.norm(key, 2):
            raise UnsupportedError(
                "l2 attention has an exponential bound where K is square and invertible; here it is not"
            )
        norms = [float(np.linalg.norm(matrix, 2)) for matrix in (value, np.linalg.inv(key), query)]
        return 2.0 * norms[0] * norms[1] * norms[2]

    def citations(self) -> tuple[str, ...]:
        return ("kim2021lipschitz",)


def _stack(keyed: Any, lengths: Any) -> Any:
    """The rows of sqrt(2 scale) K U above those of the inverse of D."""
    rank = keyed.shape[-1]
    if isinstance(keyed, np.ndarray):
        below = np.broadcast_to(np.eye(rank) / lengths[..., None, :], (*keyed.shape[:-2], rank, rank))
        return np.concatenate((keyed, below), axis=-2)
    eye = torch.eye(rank, dtype=keyed.dtype, device=keyed.device)
    return torch.cat((keyed, (eye / lengths[..., None, :]).expand(*keyed.shape[:-2], rank, rank)), dim=-2)
