"""L2 attention: softmax of minus the squared distance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from attractor.laws.kernels.kernel import Kernel, Pairing


@dataclass(frozen=True)
class L2(Kernel):
    r""":math:`w_{ij} \propto m_j e^{-\text{scale}\,|Q x_i - K x_j|^2}`, rows normalised [kim2021lipschitz].

    The term :math:`|Qx_i|^2` cancels, so this is softmax with score :math:`2\langle Qx_i, Kx_j\rangle` and key bias
    :math:`-|Kx_j|^2`. A shift c common to queries and keys cancels too; keys are centred to keep the squares small, which
    is where low precision would lose its digits: :math:`2\langle q, k\rangle - |k|^2` becomes
    :math:`2\langle q - c, k - c\rangle - |k - c|^2` up to a term that depends on the query alone.
    """

    name: ClassVar[str] = "l2"

    def attend(self, pairing: Pairing, v: Tensor) -> Tensor:
        centre = pairing.k.mean(dim=-2, keepdim=True)
        q, k = pairing.q - centre, pairing.k - centre
        bias = -pairing.scale * (k * k).sum(-1)
        if pairing.masses is not None:
            bias = bias + pairing.masses.log()
        centred = Pairing(q, k, pairing.scale, pairing.masses, pairing.hide, pairing.skip_self)
        return centred.meet(2.0 * centred.scaled_query, v, bias, "softmax")

    def citations(self) -> tuple[str, ...]:
        return ("kim2021lipschitz",)
