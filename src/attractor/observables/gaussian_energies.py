r"""Energies of Gaussians: the functions that covariances climb where a closure is a gradient flow (meanfield T11).

With :math:`A = \text{scale}\,K^\top Q`, heads summed, and the Bures-Wasserstein metric, in which a field
:math:`\Gamma(x) = B(x-\alpha) + \dot\alpha` has the squared length :math:`\int|\Gamma|^2 = |\dot\alpha|^2 + \mathrm{tr}(B\Sigma B^\top)`:

========  =====================================================================================================================
softmax   :math:`\frac14\mathrm{tr}(A^\top\Sigma A\Sigma)`, of the covariance alone: with a mean the field is no gradient
sinkhorn  :math:`\frac12\alpha^\top A\alpha + \frac\epsilon2\sum_i\psi(s_i)`,
          s the eigenvalues of :math:`\Sigma^{1/2}A\Sigma^{1/2}/\epsilon`,
          :math:`\psi(s) = \frac12[\sqrt{1+4s^2} - 1 - \log\frac{1+\sqrt{1+4s^2}}2]`
l2        :math:`\frac12\alpha^\top A\alpha + \frac12\mathrm{tr}(A\Sigma) - \frac14\log\det(I + 2A\Sigma)`, for Q = K
linear    :math:`\frac14\mathrm{tr}(A^\top RAR)`, :math:`R = \Sigma + \alpha\alpha^\top`
========  =====================================================================================================================

Those of sinkhorn and linear are the interaction energies of the Gaussian as a measure: what ``energy`` is of many tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attractor.attention import Attention, Sinkhorn
from attractor.errors import InputError, UnsupportedError
from attractor.observables.laws import kernel_of


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
