r"""How far tokens can get: the support grows at most exponentially (meanfield T12).

Rows of softmax, l2 and sinkhorn average the values, and weights of sigmoid lie below the masses, so
:math:`|\Gamma(x)| \le \rho R` with :math:`\rho = \sum_h\|V_h\|` (times the total mass for sigmoid) wherever the measure lives in the ball
of radius R. Hence :math:`R_t \le R_0e^{\rho t}`: particles of these laws never blow up in finite time, masked or not. Exponential
and linear attention have no such bound: their particles can.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attractor.attention import Attention, Exponential, Law, Linear
from attractor.attention.kernels import Kernel
from attractor.errors import InputError, UnsupportedError
from attractor.states import Tokens


def checked(law: Law, what: str) -> Attention:
    """The attention of which a bound is known."""
    if not isinstance(law, Attention):
        raise UnsupportedError(f"{what} is known for one attention, not for {type(law).__name__}")
    if isinstance(law.kernel, (Exponential, Linear)):
        assert isinstance(law.kernel, Kernel)
        raise UnsupportedError(
            f"{what} is not known for the {law.kernel.name} kernel: its tokens can reach infinity in finite time"
        )
    if law.positions is not None or law.query.ndim == 4:
        raise UnsupportedError(f"{what} is known for laws without positions and without ensemble parameters")
    if any(bias is not None for bias in (law.query_bias, law.key_bias, law.value_bias, law.output_bias)):
        raise UnsupportedError(f"{what} is known for laws without biases")
    return law


def support_rate(law: Law, mass: float = 1.0) -> float:
    r""":math:`\rho = \sum_h\|V_h\|`, times the total mass where rows are not normalised."""
    attention = checked(law, "a bound on the support")
    assert isinstance(attention.kernel, Kernel)
    value = attention.value_map if attention.value_map.ndim == 3 else attention.value_map.unsqueeze(0)
    total = float(torch.linalg.matrix_norm(value.double(), ord=2).sum())
    return total if attention.kernel.normalised else total * mass


def radius(tokens: Tokens) -> Tensor:
    """Largest length (...) of a token that carries mass."""
    lengths = tokens.points.norm(dim=-1)
    return torch.where(tokens.weights > 0, lengths, 0.0).amax(-1)


def support_bound(
    law: Law, start: float | Tensor | np.ndarray, times: Tensor | np.ndarray, mass: float = 1.0
) -> np.ndarray:
    r""":math:`R_0e^{\rho t}` for every time (first axis) and every initial radius (other axes)."""
    first, moments = np.asarray(start, dtype=float), np.asarray(times, dtype=float)
    if np.any(first < 0) or np.any(moments < 0):
        raise InputError("a bound on the support needs a radius and times that are not negative")
    factor = np.exp(support_rate(law, mass) * moments)
    return factor.reshape(-1, *([1] * first.ndim)) * first
