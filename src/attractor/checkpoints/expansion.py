r"""How a head spreads or gathers the neighbourhood of a token, through its queries.

The velocity of token l is :math:`\sum_i P_{li} O V x_i` with :math:`P_l` a softmax of
:math:`\text{scale}\,\langle R_l Q x_l, R_i K x_i\rangle`. The divergence with respect to :math:`x_l` through the query alone is

.. math:: e_l = \text{scale}\;\mathrm{tr}\big(\mathrm{Cov}_{P_l}(k, v)\,O Q_l\big), \qquad k_i = R_i K x_i,\ v_i = V x_i,\ Q_l = R_l Q,

negative where the head contracts locally (regimes 4.5); no matrix of size d is formed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attractor.attention import Attention, Softmax
from attractor.errors import UnsupportedError
from attractor.states import Tokens


def query_expansion(law: Attention, tokens: Tokens) -> Tensor:
    """e_l for every head and token, (h, n)."""
    if not isinstance(law.kernel, Softmax):
        raise UnsupportedError(f"the query-path expansion is that of softmax; this law has the kernel {law.kernel!r}")
    if tokens.batch_shape:
        raise UnsupportedError("the query-path expansion is computed for one text at a time")
    points = tokens.points
    query, key, value = (_heads(part).to(points) for part in (law.query, law.key, law.value))
    output = None if law.output is None else _heads(law.output).to(points)
    weights = law.weights(tokens)
    k, v = points @ key.mT, points @ value.mT  # (h, n, k) and (h, n, r)
    if law.key_bias is not None:
        k = k + law.key_bias.to(points).unsqueeze(-2)
    through = query if output is None else query @ output  # (h, k, r): Q O
    if law.positions is None:
        turned = through.unsqueeze(1)
    else:
        k = law.positions.turn(k, tokens)
        columns = through.mT.unsqueeze(-2).expand(-1, -1, tokens.n, -1)  # (h, r, n, k)
        turned = law.positions.turn(columns.transpose(0, 1), tokens).permute(1, 2, 3, 0)  # (h, n, k, r)
    expansion = [_traced(weights[h], k[h], v[h], turned[h]) for h in range(query.shape[0])]
    return float(law.scale) * torch.stack(expansion)


def _traced(weights: Tensor, k: Tensor, v: Tensor, through: Tensor) -> Tensor:
    """tr(Cov(k, v) through) for every row of the weights; ``through`` is (n or 1, k, r)."""
    together = torch.einsum("li,ia,ib->lab", weights, k, v) - torch.einsum("la,lb->lab", weights @ k, weights @ v)
    return (together * through).sum((-2, -1))


def _heads(matrix: Tensor) -> Tensor:
    return matrix.unsqueeze(0) if matrix.ndim == 2 else matrix
