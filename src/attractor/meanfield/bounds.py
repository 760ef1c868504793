r"""What can be said of a Gaussian before it is followed [castin2025unified; derived for this project].

With :math:`A = \text{scale}\,K^\top Q`, :math:`S = (A + A^\top)/2`, spectral norms throughout:

- softmax, V symmetric positive definite and S > 0:
  :math:`\frac{1}{2|V||A||\Sigma_0|} \le T^* \le \frac{d}{2\lambda_{\min}(S)\lambda_{\min}(V)^2
  \mathrm{tr}(V^{-1}\Sigma_0)}` (proved); the lower bound needs none of that, as :math:`|\Sigma|' \le 2|V||A||\Sigma|^2` always.
- l2, K square and invertible: :math:`|\Sigma_t| \le |\Sigma_0|e^{2|V||K^{-1}||Q|t}` (proved).
- sinkhorn: :math:`|\Sigma_t| \le |\Sigma_0|e^{2|V|t}` (proved).

Heads add: norms are summed over them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from attractor.attention import Attention, Kernel
from attractor.errors import InputError, UnsupportedError
from attractor.states import Gaussian


@dataclass(frozen=True)
class BlowUpBounds:
    """An interval for the blow-up time; ``upper`` is infinite where no upper bound is known, and ``reason`` says why."""

    lower: float
    upper: float
    reason: str = ""


def blow_up_bounds(law: Attention, start: Gaussian) -> BlowUpBounds:
    """The sandwich of the blow-up time of a softmax law from one Gaussian."""
    if _kernel(law) != "softmax":
        raise UnsupportedError(f"bounds of the blow-up time are those of softmax attention, not of {_kernel(law)}")
    V, A = matrices(law)
    Sigma = start.covariance.numpy()
    if V[0].shape != Sigma.shape:
        raise InputError(f"the law moves points of {len(V[0])} coordinates, the Gaussian has {len(Sigma)}")
    growth = sum(_norm(v) * _norm(a) for v, a in zip(V, A, strict=True)) * _norm(Sigma)
    lower = 1.0 / (2.0 * growth) if growth > 0 else math.inf
    reason = _no_upper_bound(V, A)
    if reason:
        return BlowUpBounds(lower, math.inf, reason)
    S, v = (A[0] + A[0].T) / 2.0, V[0]
    size = float(np.trace(np.linalg.solve(v, Sigma)))
    if size <= 0:
        return BlowUpBounds(lower, math.inf, "the covariance is zero")
    low = float(np.linalg.eigvalsh(S)[0]) * float(np.linalg.eigvalsh(v)[0]) ** 2
    return BlowUpBounds(lower, len(v) / (2.0 * low * size))


def growth_rate(law: Attention) -> float:
    r"""The r of :math:`|\Sigma_t| \le |\Sigma_0|e^{rt}`: for l2 with square invertible keys, and for sinkhorn."""
    V, _ = matrices(law)
    if _kernel(law) == "sinkhorn":
        return 2.0 * sum(_norm(v) for v in V)
    if _kernel(law) != "l2":
        raise UnsupportedError(f"{_kernel(law)} attention has no exponential bound of its covariance: it may blow up")
    rate = 0.0
    for v, q, k in zip(V, _heads(law.query), _heads(law.key), strict=True):
        if k.shape[0] != k.shape[1] or np.linalg.svd(k)[1][-1] <= 1e-14 * _norm(k):
            raise UnsupportedError(
                "l2 attention has an exponential bound where K is square and invertible; here it is not"
            )
        rate += 2.0 * _norm(v) * _norm(np.linalg.inv(k)) * _norm(q)
    return rate


def matrices(law: Attention) -> tuple[np.ndarray, np.ndarray]:
    """V and A = scale K'Q, both (h, d, d)."""
    query, key, value = _heads(law.query), _heads(law.key), _heads(law.value_map)
    return value, float(law.scale) * key.swapaxes(-1, -2) @ query


def _heads(part: object) -> np.ndarray:
    array = np.asarray(part.detach().cpu().double())  # type: ignore[attr-defined]
    return array[None] if array.ndim == 2 else array


def _kernel(law: Attention) -> str:
    assert isinstance(law.kernel, Kernel)
    return law.kernel.name


def _no_upper_bound(V: np.ndarray, A: np.ndarray) -> str:
    if len(V) > 1:
        return "an upper bound is known for one head"
    if np.abs(V[0] - V[0].T).max() > 1e-12 * np.abs(V[0]).max() or np.linalg.eigvalsh(V[0])[0] <= 0:
        return "an upper bound needs a symmetric positive definite V"
    if np.linalg.eigvalsh((A[0] + A[0].T) / 2.0)[0] <= 0:
        return "an upper bound needs K'Q with a positive definite symmetric part"
    return ""


def _norm(matrix: np.ndarray) -> float:
    return float(np.linalg.norm(matrix, 2))
