"""Interaction energy: the function that attention climbs where it is a gradient flow."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attractor.attention import Attention, Exponential, Law, Linear, Sigmoid, Sinkhorn, Softmax
from attractor.errors import UnsupportedError
from attractor.observables.interaction import log_partition, masses, pair_sum, squared_scores, transport
from attractor.observables.laws import Times, along, kernel_of, pairing_of
from attractor.observables.registry import observable
from attractor.spaces import Space
from attractor.states import Tokens


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
