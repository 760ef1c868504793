"""Interaction energy, its rate of change, partition functions and score spread."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attractor.engines import Problem, attend
from attractor.errors import InputError, UnsupportedError
from attractor.laws import Attention, Exponential, Kernel, Law, Linear, Pairing, Sigmoid, Sinkhorn, Softmax
from attractor.observables.geometry import covariance, present
from attractor.observables.registry import Times, along, kernel_of, observable, pairing_of
from attractor.spaces import Euclidean, Space
from attractor.states import Gaussian, Tokens

PAIRS = 1 << 22  # pairs held at once


def masses(tokens: Tokens, total: bool) -> Tensor:
    """Masses (..., 1, n) with room for heads; one for every token of positive mass if ``total``."""
    chosen = present(tokens).to(tokens.points.dtype) if total else tokens.weights
    return chosen.unsqueeze(-2)


def log_partition(pairing: Pairing, weights: Tensor) -> Tensor:
    r""":math:`\log\sum_j m_j e^{s_{ij}}` over the visible keys, (..., h, n)."""
    hide: dict[str, Any] = pairing.hide
    _, values = attend(pairing.scaled_query, pairing.k, None, weights.log(), "softmax", **hide)
    assert values is not None
    return values


def transport(pairing: Pairing, kernel: Sinkhorn, weights: Tensor) -> Tensor:
    r""":math:`\max_\pi \int s\,d\pi - \varepsilon\,\mathrm{KL}(\pi|\mu\otimes\mu)` over couplings, heads summed, (...).

    This is :math:`-\varepsilon\sum_i m_i (f_i + g_i)`. The potential f is the exact answer to g, so an error of g
    enters squared and the gradient at fixed g is the gradient (envelope theorem).
    """
    if pairing.hide:
        raise UnsupportedError("the sinkhorn energy belongs to the full coupling; under a mask it has no meaning")
    q, log_weights = pairing.scaled_query / kernel.eps, weights.log()
    with torch.no_grad():
        g = kernel.potential(pairing, q, log_weights)
    _, values = attend(q, pairing.k, None, g + log_weights, "softmax")
    assert values is not None
    return kernel.eps * (weights * (values - g)).sum((-2, -1))


def squared_scores(pairing: Pairing, weights: Tensor) -> Tensor:
    r""":math:`\sum_{hij} m_i m_j s_{ij}^2`, (...): from second moments of queries and keys where no pair is hidden."""
    if pairing.hide:
        return pair_sum(pairing, torch.square, weights)
    q, k, column = pairing.scaled_query, pairing.k, weights.unsqueeze(-1)
    return ((q.mT @ (column * q)) * (k.mT @ (column * k))).sum((-3, -2, -1))


def pair_sum(pairing: Pairing, function: Callable[[Tensor], Tensor], weights: Tensor) -> Tensor:
    r""":math:`\sum_{hij} m_i m_j \varphi(s_{ij})` over the visible pairs, (...), in blocks of rows."""
    hide: dict[str, Any] = {"causal": False, "window": None, "visible": None, **pairing.hide}
    problem = Problem(pairing.scaled_query, pairing.k, None, None, "linear", skip_self=False, **hide)
    n = problem.queries
    height = max(1, PAIRS // max(1, problem.batch.numel() * n))
    sums = []
    for start in range(0, n, height):
        rows = slice(start, min(start + height, n))
        values = function(problem.q[..., rows, :] @ problem.k.mT)
        hidden = problem.hidden_pairs(rows, slice(0, n))
        values = values if hidden is None else values.masked_fill(hidden, 0.0)
        sums.append((weights[..., rows] * (values * weights.unsqueeze(-2)).sum(-1)).sum((-2, -1)))
    return torch.stack(sums).sum(0)


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
        kernel = kernel_of(attention)
        if not isinstance(kernel, (Softmax, Exponential)):
            raise UnsupportedError(
                f"partition is the sum of e^s over the keys, and the {kernel.name} kernel has no such sum"
            )
        values = log_partition(pairing_of(attention, state), masses(state, total))
        return values if log else values.exp()

    return along("partition", of, tokens, law, time)


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
    return along("energy", lambda state, attention: _energy(state, attention, total, log), tokens, law, time)


def _energy(tokens: Tokens, law: Attention, total: bool, log: bool) -> Tensor:
    kernel, weights = kernel_of(law), masses(tokens, total)
    pairing = pairing_of(law, tokens)
    if isinstance(kernel, (Softmax, Exponential)):
        terms = weights.log() + log_partition(pairing, weights)
        value = torch.logsumexp(terms.flatten(-2), dim=-1) - math.log(2.0)
        return value if log else value.exp()
    if isinstance(kernel, Sinkhorn):
        check_transport(total, log)
        return transport(pairing, kernel, weights) / 2.0
    if isinstance(kernel, Linear):
        value = squared_scores(pairing, weights) / 4.0
    elif isinstance(kernel, Sigmoid):
        value = (
            pair_sum(pairing, lambda scores: torch.logaddexp(scores + kernel.bias, scores.new_zeros(())), weights) / 2.0
        )
    else:
        raise no_energy(kernel.name)
    return value.log() if log else value


def check_transport(total: bool, log: bool) -> None:
    """Refuse what has no meaning for the energy of a coupling."""
    if total:
        raise UnsupportedError(
            "the sinkhorn energy is that of a coupling of two measures; total=True has no meaning for it"
        )
    if log:
        raise UnsupportedError("the sinkhorn energy can be negative and has no logarithm; leave out log=True")


def no_energy(kernel: str) -> UnsupportedError:
    """The error for a kernel without an interaction energy, with the reason where it is known."""
    if kernel != "l2":
        return UnsupportedError(f"no interaction energy is known for the {kernel} kernel")
    return UnsupportedError(
        "no interaction energy is known for the l2 kernel: its weights depend on differences Qx - Ky while tokens move "
        "along values Vy, which is not the direction of the gradient of such a function of pairs"
    )


def gaussian_energy(mean: Tensor, factor: Tensor, law: Attention) -> Tensor:
    r"""The energy (...) of a Gaussian with a mean (..., d) and a factor L (..., d, r) of its covariance :math:`LL^\top`."""
    if not isinstance(law, Attention):
        raise InputError(f"the energy of a Gaussian belongs to one attention, got {type(law).__name__}")
    name = kernel_of(law).name
    if name not in _ENERGIES:
        raise UnsupportedError(
            f"no energy of Gaussians is known for the {name} kernel; there is one for {', '.join(_ENERGIES)}"
        )
    return _ENERGIES[name](mean.unsqueeze(-2).unsqueeze(-1), factor.unsqueeze(-3), _products(law, mean), law).sum(-1)


def _products(law: Attention, like: Tensor) -> Tensor:
    """A of every head, (h, d, d)."""
    products = law.scale * (law.key.mT @ law.query).to(like)
    return products.unsqueeze(0) if products.ndim == 2 else products


def _trace(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)


def _quadratic(mean: Tensor, A: Tensor) -> Tensor:
    return (mean.mT @ A @ mean).squeeze(-1).squeeze(-1)


def _softmax(mean: Tensor, factor: Tensor, A: Tensor, law: Attention) -> Tensor:
    return ((factor.mT @ A @ factor) ** 2).sum((-2, -1)) / 4.0


def _linear(mean: Tensor, factor: Tensor, A: Tensor, law: Attention) -> Tensor:
    return _softmax(mean, torch.cat((factor, mean.expand(*factor.shape[:-1], 1)), -1), A, law)


def _sinkhorn(mean: Tensor, factor: Tensor, A: Tensor, law: Attention) -> Tensor:
    kernel = kernel_of(law)
    assert isinstance(kernel, Sinkhorn)
    spread = factor.mT @ (A / kernel.eps) @ factor
    roots = (1.0 + 4.0 * torch.linalg.eigvalsh((spread + spread.mT) / 2.0) ** 2).sqrt()
    psi = (roots - 1.0 - ((1.0 + roots) / 2.0).log()) / 2.0
    return _quadratic(mean, A) / 2.0 + kernel.eps * psi.sum(-1) / 2.0


def _l2(mean: Tensor, factor: Tensor, A: Tensor, law: Attention) -> Tensor:
    spread = factor.mT @ A @ factor
    identity = torch.eye(spread.shape[-1], dtype=spread.dtype, device=spread.device)
    return _quadratic(mean, A) / 2.0 + _trace(spread) / 2.0 - torch.logdet(identity + 2.0 * spread) / 4.0


_ENERGIES: dict[str, Callable[[Tensor, Tensor, Tensor, Attention], Tensor]] = {
    "softmax": _softmax,
    "sinkhorn": _sinkhorn,
    "l2": _l2,
    "linear": _linear,
}


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


LIMIT = 0.5  # above it, the plain variance of the weights of a Gaussian is infinite


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
    return along("tilt", _tilt, tokens, law, time)  # type: ignore[arg-type]


def heavy(law: Law) -> bool:
    """Whether the weights of a law are exponentials of scores without a bound, so that ``tilt`` above 1/2 is a warning."""
    return isinstance(law, Attention) and isinstance(kernel_of(law), (Exponential, Softmax))


def _tilt(state: Tokens | Gaussian, law: Attention) -> Tensor:
    shape = covariance(state) if isinstance(state, Tokens) else state.covariance
    values, vectors = torch.linalg.eigh(shape)
    factor = (vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2)).unsqueeze(-3)
    query, key = (part.unsqueeze(0) if part.ndim == 2 else part for part in (law.query, law.key))
    kernel = kernel_of(law)
    scale = law.scale / kernel.eps if isinstance(kernel, Sinkhorn) else law.scale
    spread = (key.to(factor) @ factor).mT @ (query.to(factor) @ factor)
    return abs(scale) * torch.linalg.matrix_norm(spread, ord=2)
