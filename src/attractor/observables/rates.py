"""How fast the energy changes along the law."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attractor.attention import Attention, Exponential, Law, Linear, Sigmoid, Sinkhorn, Softmax
from attractor.attention.kernels import Kernel, Pairing
from attractor.engines import attend
from attractor.observables.energies import check_transport, energy, no_energy
from attractor.observables.interaction import masses
from attractor.observables.laws import Times, along, kernel_of, pairing_of
from attractor.observables.registry import observable
from attractor.spaces import Euclidean, Space
from attractor.states import Tokens


@observable
def energy_rate(
    tokens: Tokens,
    law: Law | None = None,
    space: Space | None = None,
    *,
    time: Times = None,
    total: bool = False,
    log: bool = False,
) -> Tensor:
    r"""dE/dt of ``energy`` along the law on the space, shape (...); ``log=True`` gives d(log E)/dt.

    From the gradient and the velocity, :math:`\frac12\sum_{ij} m_i m_j\,\varphi'(s_{ij})\,\dot s_{ij}` with
    :math:`\dot s_{ij} = \text{scale}(\langle Q\dot x_i, Kx_j\rangle + \langle Qx_i, K\dot x_j\rangle)`, in linear
    memory. Where P is symmetric and :math:`W V = c P` it equals :math:`\frac1c\sum_i m_i Z_i |\dot x_i|_W^2` for
    softmax (consensus T1, meanfield T11) and :math:`\frac1c\sum_i m_i |\dot x_i|_W^2` for the other kernels. A law
    that changes with time is taken as it is at that time.
    """
    place = Euclidean() if space is None else space
    place.check_dimension(tokens.dim)
    return along("energy_rate", lambda state, attention: _rate(state, attention, place, total, log), tokens, law, time)


def _rate(tokens: Tokens, law: Attention, space: Space, total: bool, log: bool) -> Tensor:
    kernel, weights = kernel_of(law), masses(tokens, total)
    if isinstance(kernel, Sinkhorn):
        check_transport(total, log)
    elif not isinstance(kernel, (Softmax, Exponential, Sigmoid, Linear)):
        raise no_energy(kernel.name)
    pairing = replace(pairing_of(law, tokens), masses=weights)
    velocity = space.tangent(tokens.points, law.velocity(tokens, skip_self=space.curved))
    q_rate, k_rate = (_carried(law, matrix, velocity, tokens, pairing.q.shape[-1]) for matrix in (law.query, law.key))
    outputs, log_partition = _outputs(pairing, kernel, torch.cat((pairing.k, k_rate), dim=-1), weights)
    # sum_ij w_ij ds_ij/dt, read by rows: the columns' share rides along as a second value
    rows = ((torch.cat((q_rate, pairing.q), dim=-1) * pairing.scale) * outputs).sum(-1)
    if log_partition is None:
        rate = (weights * rows).sum((-2, -1)) / 2.0
        return rate / energy(tokens, law, total=total) if log else rate
    log_shares = (weights.log() + log_partition).flatten(-2)
    if log:
        return (log_shares.softmax(-1) * rows.flatten(-2)).sum(-1)
    return (log_shares.exp() * rows.flatten(-2)).sum(-1) / 2.0


def _carried(law: Attention, matrix: Tensor, velocity: Tensor, tokens: Tokens, width: int) -> Tensor:
    """Rates (..., h, n, k) of queries or keys: positions turn them, constant shifts and biases drop out."""
    heads = (matrix.unsqueeze(0) if matrix.ndim == 2 else matrix).to(velocity)
    rates = velocity.unsqueeze(-3) @ heads.mT
    rates = rates if law.positions is None else law.positions.turn(rates, tokens)
    # coordinates that carry a bias of positions do not move
    return torch.nn.functional.pad(rates, (0, width - rates.shape[-1]))


def _outputs(pairing: Pairing, kernel: Kernel, values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor | None]:
    """Sums over keys of the derivative of the pair energy; those of e^s divided by the partition, which comes along."""
    if not isinstance(kernel, (Softmax, Exponential)):
        return kernel.attend(pairing, values), None
    hide: dict[str, Any] = pairing.hide
    outputs, log_partition = attend(pairing.scaled_query, pairing.k, values, weights.log(), "softmax", **hide)
    assert outputs is not None
    return outputs, log_partition
