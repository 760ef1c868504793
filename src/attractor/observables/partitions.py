"""The normaliser of softmax at every token."""

from __future__ import annotations

from torch import Tensor

from attractor.attention import Attention, Exponential, Law, Softmax
from attractor.errors import UnsupportedError
from attractor.observables.interaction import log_partition, masses
from attractor.observables.laws import Times, along, kernel_of, pairing_of
from attractor.observables.registry import observable
from attractor.spaces import Space
from attractor.states import Tokens


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
