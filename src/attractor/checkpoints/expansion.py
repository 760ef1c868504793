r"""How a head spreads or gathers the neighbourhood of a token, through its queries.

The velocity of token l is :math:`\sum_i P_{li} O V x_i` with :math:`P_l` a softmax of
:math:`\text{scale}\,\langle R_l Q x_l, R_i K x_i\rangle`. The divergence with respect to :math:`x_l` through the query alone is

.. math:: e_l = \text{scale}\;\mathrm{tr}\big(\mathrm{Cov}_{P_l}(k, v)\,O Q_l\big), \qquad k_i = R_i K x_i,\ v_i = V x_i,\ Q_l = R_l Q,

negative where the head contracts locally (regimes 4.5). No matrix of size d is formed, and none for every token: with
:math:`w_i = Q O v_i` it is

.. math:: \sum_i P_{li}\langle k_i, R_l w_i\rangle - \Big\langle\sum_i P_{li} k_i,\ R_l \sum_i P_{li} w_i\Big\rangle,

and where R turns pairs of coordinates by angles :math:`\theta_l` the first term is a sum over pairs of
:math:`\cos\theta_l\,(P\,k\!\cdot\!w)_l + \sin\theta_l\,(P\,w\times k)_l`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attractor.attention import Attention, Rotary, Softmax
from attractor.errors import UnsupportedError
from attractor.states import Tokens


def query_expansion(law: Attention, tokens: Tokens, weights: Tensor | None = None) -> Tensor:
    """e_l for every head and token, (h, n); ``weights`` (h, n, n) are those of the law, if they are known."""
    if not isinstance(law.kernel, Softmax):
        raise UnsupportedError(f"the query-path expansion is that of softmax; this law has the kernel {law.kernel!r}")
    if tokens.batch_shape:
        raise UnsupportedError("the query-path expansion is computed for one text at a time")
    points = tokens.points
    query, key, value = (_heads(part).to(points) for part in (law.query, law.key, law.value))
    output = None if law.output is None else _heads(law.output).to(points)
    weights = law.weights(tokens) if weights is None else weights
    k, v = points @ key.mT, points @ value.mT  # (h, n, k) and (h, n, r)
    if law.key_bias is not None:
        k = k + law.key_bias.to(points).unsqueeze(-2)
    w = v @ (query if output is None else query @ output).mT  # (h, n, k)
    if isinstance(law.positions, Rotary):
        k = law.positions.turn(k, tokens)
        together = _turned_pairs(weights, k, w, law.positions, tokens)
        apart = ((weights @ k) * law.positions.turn(weights @ w, tokens)).sum(-1)
    else:  # what other positions add to scores does not depend on the query
        together = (weights @ (k * w).sum(-1, keepdim=True)).squeeze(-1)
        apart = ((weights @ k) * (weights @ w)).sum(-1)
    return float(law.scale) * (together - apart)


def _turned_pairs(weights: Tensor, k: Tensor, w: Tensor, positions: Rotary, tokens: Tokens) -> Tensor:
    """sum_i P_li <k_i, R_l w_i>, (h, n); coordinates that are not turned are pairs of angle zero."""
    ones = torch.zeros_like(k[0])
    ones[:, 0::2] = 1.0
    angles = positions.turn(ones.unsqueeze(0), tokens).squeeze(0)  # cosines at even places, sines at odd ones
    (cos, sin), (k1, k2), (w1, w2) = (_pairs(part) for part in (angles, k, w))
    return (cos * (weights @ (k1 * w1 + k2 * w2)) + sin * (weights @ (k2 * w1 - k1 * w2))).sum(-1)


def _pairs(vectors: Tensor) -> tuple[Tensor, Tensor]:
    even = torch.nn.functional.pad(vectors, (0, vectors.shape[-1] % 2))
    return even[..., 0::2], even[..., 1::2]


def _heads(matrix: Tensor) -> Tensor:
    return matrix.unsqueeze(0) if matrix.ndim == 2 else matrix
