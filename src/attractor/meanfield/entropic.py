r"""Transport above the reach of exact solvers: the Sinkhorn divergence, in memory linear in the number of points.

With the cost :math:`|x-y|^2` and :math:`T_\epsilon(\mu,\nu) = \min_\pi \int|x-y|^2 d\pi + \epsilon\,\mathrm{KL}(\pi|\mu\otimes\nu)`,

.. math:: S_\epsilon(\mu,\nu) = T_\epsilon(\mu,\nu) - \tfrac12 T_\epsilon(\mu,\mu) - \tfrac12 T_\epsilon(\nu,\nu),

which is non-negative, vanishes only at :math:`\mu=\nu`, and tends to :math:`W_2^2` as :math:`\epsilon\to0`. Rounds of logsumexp
are the engines' hot operation: the score is :math:`2\langle x,y\rangle/\epsilon` and the squares are key biases.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attractor.engines import attend
from attractor.errors import AttractorError, InputError, UnsupportedError
from attractor.meanfield.measures import Cloud, check_pair, cloud
from attractor.states import Tokens

SHARE = 0.05  # default eps, as a share of the mean squared distance between the two clouds


def sinkhorn_distance(
    first: Tokens, second: Tokens, eps: float | None = None, tolerance: float = 1e-4, rounds: int = 5000
) -> Tensor:
    r""":math:`S_\epsilon^{1/2}` (...): an approximation of W_2 for very many points.

    ``eps`` in units of squared length, by default 5% of the mean squared distance between the clouds (one number for an
    ensemble); ``tolerance`` is the relative error of the marginals at which the rounds end, which enters the result squared.
    """
    check_pair(first, second, "sinkhorn_distance")
    if not isinstance(first, Tokens) or not isinstance(second, Tokens):
        raise UnsupportedError("sinkhorn_distance compares tokens; draw some from the Gaussian by meanfield.sample")
    here, there = cloud(first), cloud(second)
    centre = (here.explicit.unsqueeze(-1) * here.points).sum(-2, keepdim=True)
    here, there = (Cloud(side.points - centre, side.weights) for side in (here, there))
    if eps is None:
        size = sum((side.explicit * (side.points**2).sum(-1)).sum(-1) for side in (here, there))
        eps = SHARE * float(torch.as_tensor(size).max()) or 1.0  # two clouds at one point need none
    if not 0 < eps < float("inf"):
        raise InputError(f"sinkhorn_distance needs eps > 0, got {eps}")
    pairs = ((here, there), (here, here), (there, there))
    across, left, right = (_transport(*pair, eps, tolerance, rounds) for pair in pairs)
    return (across - (left + right) / 2.0).clamp_min(0.0).sqrt()


def _transport(a: Cloud, b: Cloud, eps: float, tolerance: float, rounds: int) -> Tensor:
    """T_eps: the sum of both potentials against their measures, at potentials that settled."""
    q, k = 2.0 / eps * a.points, b.points
    q_bias, k_bias = (side.explicit.log() - (side.points**2).sum(-1) / eps for side in (a, b))
    f, g = torch.zeros_like(q_bias), torch.zeros_like(k_bias)
    same = a is b
    for _ in range(rounds):
        # f and g are divided by eps and less the squares |x|^2 / eps
        update = -_logsumexp(q, k, g + k_bias) + (a.points**2).sum(-1) / eps
        if same:
            change, f = (update - f).abs(), (f + update) / 2.0
            g = f
        else:
            change, f = (update - f).abs(), update
            g = -_logsumexp(k, q, f + q_bias) + (b.points**2).sum(-1) / eps
        if float(torch.where(a.explicit > 0, change, 0.0).max()) < tolerance:
            weigh = [torch.where(side.explicit > 0, side.explicit * h, 0.0).sum(-1) for side, h in ((a, f), (b, g))]
            return eps * (weigh[0] + weigh[1])
    raise AttractorError(f"sinkhorn_distance did not settle in {rounds} rounds at eps = {eps:g}; raise eps or rounds")


def _logsumexp(q: Tensor, k: Tensor, bias: Tensor) -> Tensor:
    _, values = attend(q, k, None, bias)
    assert values is not None
    return values
