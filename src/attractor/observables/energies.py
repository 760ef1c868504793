"""Interaction energy, its rate of change, partition functions and score spread."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attractor.errors import InputError, UnsupportedError
from attractor.laws import Attention, Kernel, Law, list_kernels
from attractor.observables.geometry import covariance, has_mass
from attractor.observables.registry import Times, evaluate_at_times, observable, pairing_of
from attractor.spaces import Euclidean, Space
from attractor.states import Gaussian, Tokens, split_scale


def head_masses(tokens: Tokens, total: bool) -> Tensor:
    """Masses (..., 1, n) with room for heads; one for every token of positive mass if ``total``."""
    chosen = has_mass(tokens).to(tokens.points.dtype) if total else tokens.weights
    return chosen.unsqueeze(-2)


@observable
def partition(
    tokens: Tokens,
    law: Law | None = None,
    space: Space | None = None,
    *,
    time: Times = None,
    total: bool = False,
    log: bool = False,
) -> Tensor:
    r"""Partition function of every head at every token, shape (..., heads, n).

    :math:`Z_i = \sum_j m_j e^{s_{ij}}` over the visible keys.
    For the softmax and exponential kernels. ``total=True`` gives every token the mass one, ``log=True`` gives log Z.
    It is the weight of the metric in which softmax attention is a gradient flow: Z in [abella2024asymptotic], G in
    [castin2025unified].
    """

    def of(state: Tokens, attention: Attention) -> Tensor:
        kernel = attention.kernel
        if not kernel.exponential:
            raise UnsupportedError(
                f"partition is the sum of e^s over the keys, and the {kernel.name} kernel has no such sum"
            )
        values = pairing_of(attention, state).log_partition(head_masses(state, total))
        return values if log else values.exp()

    return evaluate_at_times("partition", of, tokens, law, time)


@observable
def energy(
    tokens: Tokens,
    law: Law | None = None,
    space: Space | None = None,
    *,
    time: Times = None,
    total: bool = False,
    log: bool = False,
) -> Tensor:
    r"""Interaction energy of the measure under the law, heads summed, shape (...).

    With scores :math:`s(x, y) = \text{scale}\,\langle Qx, Ky\rangle`:

    ====================  ==================================================================================
    softmax, exponential  :math:`\frac12\iint e^{s(x,y)}\,d\mu\,d\mu`
    sigmoid               :math:`\frac12\iint \log(1 + e^{s(x,y) + b})\,d\mu\,d\mu`
    linear                :math:`\frac14\iint s(x,y)^2\,d\mu\,d\mu`
    sinkhorn              :math:`\frac12\max_\pi \int s\,d\pi - \varepsilon\,\mathrm{KL}(\pi|\mu\otimes\mu)`
    ====================  ==================================================================================

    ``total=True`` gives every token the mass one: :math:`\frac12\sum_{ij} e^{s_{ij}}` of [abella2024asymptotic].
    ``log=True`` gives log E without overflow. Pairs that a mask hides are left out.

    E increases along the flow when one head has :math:`P = \text{scale}\,Q^\top K` symmetric and :math:`W V = c P`
    with c > 0, W the matrix of the ellipsoid, I elsewhere (consensus T1, meanfield T11); otherwise it need not.
    """
    return evaluate_at_times(
        "energy", lambda state, attention: _energy(state, attention, total, log), tokens, law, time
    )


def _energy(tokens: Tokens, law: Attention, total: bool, log: bool) -> Tensor:
    kernel = _with_energy(law, total, log)
    energy_of = kernel.log_energy if log else kernel.energy
    return energy_of(pairing_of(law, tokens), head_masses(tokens, total))


def _with_energy(law: Attention, total: bool, log: bool) -> Kernel:
    """The kernel of a law, which must have an interaction energy."""
    kernel = law.kernel
    reason = kernel.energy_obstacle(total, log)
    if reason is not None:
        raise UnsupportedError(reason)
    return kernel


def gaussian_energy(mean: Tensor, factor: Tensor, law: Attention) -> Tensor:
    r"""The energy (...) of a Gaussian with a mean (..., d) and a factor L (..., d, r) of its covariance :math:`LL^\top`."""
    if not isinstance(law, Attention):
        raise InputError(f"the energy of a Gaussian belongs to one attention, got {type(law).__name__}")
    kernel = law.kernel
    if not kernel.has_gaussian_energy:
        known = [other.name for other in list_kernels() if other.gaussian_energy is not Kernel.gaussian_energy]
        raise UnsupportedError(
            f"no energy of Gaussians is known for the {kernel.name} kernel; there is one for {', '.join(known)}"
        )
    A = law.scale * (law.key.mT @ law.query).to(mean)
    A = A.unsqueeze(0) if A.ndim == 2 else A
    return kernel.gaussian_energy(mean.unsqueeze(-2).unsqueeze(-1), factor.unsqueeze(-3), A).sum(-1)


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
    return evaluate_at_times(
        "energy_rate", lambda state, attention: _rate(state, attention, place, total, log), tokens, law, time
    )


def _rate(tokens: Tokens, law: Attention, space: Space, total: bool, log: bool) -> Tensor:
    kernel, weights = _with_energy(law, total, log), head_masses(tokens, total)
    pairing = replace(pairing_of(law, tokens), masses=weights)
    velocity = space.tangent(tokens.points, law.velocity(tokens, skip_self=space.is_curved))
    q_rate, k_rate = (_carried(law, matrix, velocity, tokens, pairing.q.shape[-1]) for matrix in (law.query, law.key))
    outputs, log_partition = kernel.energy_sums(pairing, torch.cat((pairing.k, k_rate), dim=-1), weights)
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


TILT_LIMIT = 0.5  # above it, the plain variance of the weights of a Gaussian is infinite


@observable
def tilt(
    tokens: Tokens | Gaussian, law: Law | None = None, space: Space | None = None, *, time: Times = None
) -> Tensor:
    r"""Largest singular value of :math:`\Sigma^{1/2}A\Sigma^{1/2}` for every head, shape (..., heads), with
    :math:`A = \text{scale}\,K^\top Q` (over eps for sinkhorn) and :math:`\Sigma` the covariance of the measure.

    For independent x, y of a centred Gaussian, :math:`e^{y^\top Ax}` has a finite mean below 1 and a finite variance below
    1/2 (meanfield T2): past 1/2 the error of the softmax field on n tokens falls more slowly than :math:`n^{-1/2}`. The
    weights of l2, sigmoid and linear attention have all moments; for them the number measures scores and warns of nothing.
    """
    return evaluate_at_times("tilt", _tilt, tokens, law, time)  # type: ignore[arg-type]


def has_heavy_tails(law: Law) -> bool:
    """Whether the weights of a law are exponentials of scores without a bound, so that ``tilt`` above 1/2 is a warning."""
    return isinstance(law, Attention) and law.kernel.exponential


def _tilt(state: Tokens | Gaussian, law: Attention) -> Tensor:
    unit = None
    if isinstance(state, Tokens):
        points, unit = split_scale(state.points)
        state = state.with_points(points)
    shape = covariance(state) if isinstance(state, Tokens) else state.covariance
    values, vectors = torch.linalg.eigh(shape)
    factor = (vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2)).unsqueeze(-3)
    query, key = (part.unsqueeze(0) if part.ndim == 2 else part for part in (law.query, law.key))
    scale = law.scale / law.kernel.temperature
    spread = (key.to(factor) @ factor).mT @ (query.to(factor) @ factor)
    finite = torch.isfinite(spread).flatten(-2).all(-1)
    found = abs(scale) * torch.linalg.matrix_norm(torch.nan_to_num(spread, 0.0, 0.0, 0.0), ord=2)
    found = torch.where(finite, found, torch.inf)
    return found if unit is None else found * unit.squeeze(-1) ** 2
