r"""The gradient in two passes that recompute the scores, so that no two blocks add to the same row.

With :math:`G_i` the gradient of output i, :math:`g_{ij} = \langle G_i, v_j\rangle` (0 for j = i if the self term is skipped),
:math:`w_{ij}` the weight of v_j in output i and :math:`p_{ij}` the softmax,

=============  =========================================  ===========================================================
softmax        :math:`ds_{ij} = p_{ij}(g_{ij} + t_i)`       :math:`t_i` = gradient of logsumexp i :math:`- \langle G_i, o_i\rangle`
exponential    :math:`ds_{ij} = w_{ij} g_{ij} + p_{ij} t_i`  :math:`t_i` = gradient of logsumexp i
sigmoid        :math:`ds_{ij} = w_{ij}(1 - w_{ij}) g_{ij}`
linear         :math:`ds_{ij} = g_{ij}`
=============  =========================================  ===========================================================

and :math:`\nabla q_i = \sum_j ds_{ij} k_j`, :math:`\nabla k_j = \sum_i ds_{ij} q_i`, :math:`\nabla b_j = \sum_i ds_{ij}`,
:math:`\nabla v_j = \sum_i w_{ij} G_i`. Float32 products take six products of bfloat16 parts on the tensor cores.
"""

from __future__ import annotations

import triton
import triton.language as tl

from attractor.engines.triton.primitives import LOG2E, PRECISE, exp2, seen, sigmoid2


def configurations() -> list[triton.Config]:
    return [
        triton.Config({"BM": rows, "BN": keys}, num_warps=warps, num_stages=1)
        for rows, keys, warps in ((32, 32, 4), (64, 64, 4), (64, 64, 8), (64, 32, 4))
    ]


@triton.jit
def dot(a, b):
    if a.dtype == tl.float32:
        return tl.dot(a, b, input_precision=PRECISE)
    return tl.dot(a, b, input_precision="ieee", out_dtype=a.dtype)


@triton.jit
def rows(P, at, size, COLUMNS: tl.constexpr):
    """Rows ``at`` of a matrix with that many columns, zero past its end."""
    return tl.load(
        P + at.to(tl.int64)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :], mask=at[:, None] < size, other=0.0
    )


@triton.jit
def slopes(s, pull, level, term, open, own, MODE: tl.constexpr):
    """Weights w and ds of a tile from its scores and from <G, v>."""
    w = s
    if MODE == 0:
        w = tl.where(open, exp2(s - level), 0.0)
        ds = w * (tl.where(own, 0.0, pull) + term)
    elif MODE == 1:
        w = tl.where(open, exp2(s), 0.0)
        # an infinite weight times a zero gradient is 0
        ds = tl.where(own | (pull == 0.0), 0.0, w * pull) + tl.where(open, exp2(s - level), 0.0) * term
    elif MODE == 2:
        w = tl.where(open, sigmoid2(s), 0.0)
        ds = tl.where(own, 0.0, w * sigmoid2(-s) * pull)
    else:
        w = tl.where(open, s, 0.0)
        ds = tl.where(open & (own == 0), pull, 0.0)
    return tl.where(own, 0.0, w), ds


@triton.jit
def both(q, k, g, v, B, X, T, V, i, j, n, m, offset, window, MODE: tl.constexpr, BIAS: tl.constexpr, SKIP: tl.constexpr,
         CAUSAL: tl.constexpr, WINDOW: tl.constexpr, VISIBLE: tl.constexpr, C: tl.constexpr):  # fmt: skip
    """w and ds (queries, keys) of a tile."""
    s = dot(q, tl.trans(k))
    if MODE < 3:
        s = s * LOG2E
    if BIAS:
        s += tl.load(B + j, mask=j < m, other=0.0)[None, :]
    pull = tl.zeros_like(s)
    if C > 1:
        pull = dot(g, tl.trans(v))
    place = i[:, None] + offset
    open = seen(place, j[None, :], n + offset, m, window, V, CAUSAL, WINDOW, VISIBLE)
    own = place != place
    if SKIP:
        own = place == j[None, :]
    level = tl.load(X + i, mask=i < n, other=float("inf"))[:, None]
    term = tl.load(T + i, mask=i < n, other=0.0)[:, None]
    return slopes(s, pull, level, term, open, own, MODE)


@triton.autotune(configurations(), cache_results=True, key=["size", "E", "C", "MODE"])
@triton.jit(do_not_specialize=["n", "m", "offset", "window", "size"])
def over_keys(Q, K, W, B, G, X, T, V, DQ, n, m, offset, visible, window, size, E: tl.constexpr, C: tl.constexpr, MODE: tl.constexpr,
              BIAS: tl.constexpr, SKIP: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, VISIBLE: tl.constexpr,
              BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """The gradient of a block of queries: a pass over the keys."""
    entry = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * BM
    i = row + tl.arange(0, BM)
    Q, K, W, G, DQ = Q + entry * n * E, K + entry * m * E, W + entry * m * C, G + entry * n * C, DQ + entry * n * E
    B, X, T, V = B + entry * m, X + entry * n, T + entry * n, V + entry * visible - offset.to(tl.int64) * m
    q = rows(Q, i, n, E)
    g = q
    if C > 1:
        g = rows(G, i, n, C)
    low, high = row * 0, m
    if CAUSAL:
        high = tl.minimum(m, row + offset + BM)
    if WINDOW:
        low = tl.maximum(row + offset - window + 1, 0) // BN * BN
        high = tl.minimum(high, row + offset + BM + window - 1)
    total = tl.zeros([BM, E], q.dtype)
    for start in tl.range(low, high, BN):
        j = start + tl.arange(0, BN)
        k = rows(K, j, m, E)
        v = k
        if C > 1:
            v = rows(W, j, m, C)
        _, ds = both(q, k, g, v, B, X, T, V, i, j, n, m, offset, window, MODE, BIAS, SKIP, CAUSAL, WINDOW, VISIBLE, C)
        total += dot(ds, k)
    tl.store(DQ + i.to(tl.int64)[:, None] * E + tl.arange(0, E)[None, :], total, mask=i[:, None] < n)


@triton.autotune(configurations(), cache_results=True, key=["size", "E", "C", "MODE"])
@triton.jit(do_not_specialize=["n", "m", "offset", "window", "size"])
def over_queries(Q, K, W, B, G, X, T, V, DK, DW, DB, n, m, offset, visible, window, size, E: tl.constexpr, C: tl.constexpr,
                 MODE: tl.constexpr, BIAS: tl.constexpr, SKIP: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
                 VISIBLE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """The gradients of a block of keys, values and biases: a pass over the queries."""
    entry = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BN
    j = column + tl.arange(0, BN)
    Q, K, W, G = Q + entry * n * E, K + entry * m * E, W + entry * m * C, G + entry * n * C
    B, X, T, V = B + entry * m, X + entry * n, T + entry * n, V + entry * visible - offset.to(tl.int64) * m
    k = rows(K, j, m, E)
    v = k
    if C > 1:
        v = rows(W, j, m, C)
    low, high = column * 0, n
    if CAUSAL:
        low = tl.minimum(tl.maximum(column - offset, 0) // BM * BM, n // BM * BM)
    if WINDOW:
        low = tl.maximum(low, tl.maximum(column - offset - window + 1, 0) // BM * BM)
        high = tl.minimum(high, column - offset + BN + window - 1)
    to_keys, to_values, to_biases = tl.zeros([BN, E], k.dtype), tl.zeros([BN, C], k.dtype), tl.zeros([BN], k.dtype)
    for start in tl.range(low, high, BM):
        i = start + tl.arange(0, BM)
        q = rows(Q, i, n, E)
        g = q
        if C > 1:
            g = rows(G, i, n, C)
        w, ds = both(q, k, g, v, B, X, T, V, i, j, n, m, offset, window, MODE, BIAS, SKIP, CAUSAL, WINDOW, VISIBLE, C)
        to_keys += dot(tl.trans(ds), q)
        to_biases += tl.sum(ds, axis=0)
        if C > 1:
            to_values += dot(tl.trans(w), g)
    inside = j[:, None] < m
    at = (entry * m + j)[:, None]
    tl.store(DK + at * E + tl.arange(0, E)[None, :], to_keys, mask=inside)
    tl.store(DB + entry * m + j, to_biases, mask=j < m)
    if C > 1:
        tl.store(DW + at * C + tl.arange(0, C)[None, :], to_values, mask=inside)
