r"""Head dimensions up to four: queries, keys and sums all in registers.

A thread keeps a few queries and meets one key of every tile of ``TILE``; it holds its own partial sums for each of its queries, which are
added over threads once in ``CHUNK`` keys. So no reduction stands in the inner loop, and rounding grows with the length of a
chunk, not with n (two-level accumulation). Scores lie within \|q\| max \|k\| of 0 (Cauchy and Schwarz): where that and the biases
keep exponents far from the ends of their range nothing is subtracted, else a first pass finds each row's maximum.

Keys, values and biases arrive in tiles, (tiles, slots, TILE) with a slot for every coordinate, so that all loads of a tile
share one address.
"""

from __future__ import annotations

import triton
import triton.language as tl

from attractor.engines.triton.primitives import LN2, LOG2E, exp2, seen, sigmoid2

TILE = 32
CHUNK: tl.constexpr = tl.constexpr(8192)  # keys between two reductions
BN: tl.constexpr = tl.constexpr(TILE)


def configurations() -> list[triton.Config]:
    """Rows of a block, unrolled tiles and warps; the best depends on the type and on the columns."""
    return [
        triton.Config({"BM": rows, "UNROLL": unroll}, num_warps=warps, num_stages=1)
        for rows, unroll, warps in ((32, 4, 4), (32, 2, 2), (16, 8, 4), (64, 2, 4), (16, 4, 4))
    ]


@triton.jit
def slot(P, index: tl.constexpr, size: tl.constexpr):
    """Coordinate ``index`` of a tile of keys; unused coordinates repeat the first."""
    return tl.load(P + (index if index < size else 0) * BN)


@triton.jit
def score(q0, q1, q2, q3, P, start, E: tl.constexpr, STARTED: tl.constexpr):
    s = q0[:, None] * slot(P, 0, E)[None, :]
    if STARTED:
        s += start
    if E > 1:
        s += q1[:, None] * slot(P, 1, E)[None, :]
    if E > 2:
        s += q2[:, None] * slot(P, 2, E)[None, :]
    if E > 3:
        s += q3[:, None] * slot(P, 3, E)[None, :]
    return s


@triton.jit
def add_values(sums, w, P, FIRST: tl.constexpr, C: tl.constexpr):
    """Add the weighted values of a tile, whose slots begin at ``FIRST``, to the partial sums after the first (of weights)."""
    part, a0, a1, a2, a3 = sums
    if C > 0:
        a0 += w * slot(P, FIRST, 8)[None, :]
    if C > 1:
        a1 += w * slot(P, FIRST + 1, 8)[None, :]
    if C > 2:
        a2 += w * slot(P, FIRST + 2, 8)[None, :]
    if C > 3:
        a3 += w * slot(P, FIRST + 3, 8)[None, :]
    return part, a0, a1, a2, a3


@triton.jit
def reduce_threads(totals, sums, C: tl.constexpr, WEIGHTS: tl.constexpr):
    """Add partial sums over threads to those of the rows."""
    L, A0, A1, A2, A3 = totals
    part, a0, a1, a2, a3 = sums
    if WEIGHTS:
        L += tl.sum(part, axis=1)
    if C > 0:
        A0 += tl.sum(a0, axis=1)
    if C > 1:
        A1 += tl.sum(a1, axis=1)
    if C > 2:
        A2 += tl.sum(a2, axis=1)
    if C > 3:
        A3 += tl.sum(a3, axis=1)
    return L, A0, A1, A2, A3


@triton.jit
def tile(sums, P, i, j, n, m, q0, q1, q2, q3, base, window, V, E: tl.constexpr, C: tl.constexpr, MODE: tl.constexpr,
         BIAS: tl.constexpr, SAME: tl.constexpr, SKIP: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
         VISIBLE: tl.constexpr, MASKED: tl.constexpr, SHIFTED: tl.constexpr):  # fmt: skip
    """Add one tile of keys to the partial sums."""
    part, a0, a1, a2, a3 = sums
    s = score(q0, q1, q2, q3, P, -base[:, None], E, MODE == 0 and SHIFTED)
    if BIAS:
        s += slot(P, E + (0 if SAME else C), 9)[None, :]
    if MASKED:
        open = seen(i[:, None], j[None, :], n, m, window, V, CAUSAL, WINDOW, VISIBLE)
        if MODE < 2:
            s = tl.where(open, s, float("-inf"))
    w = s
    if MODE < 2:
        w = exp2(s, MODE == 0)
        part += w if MODE == 0 else exp2(s - base[:, None], True)
    if MODE == 2:
        w = sigmoid2(s)
    if MASKED and MODE > 1:
        w = tl.where(open, w, 0.0)
    if MASKED and SKIP:
        w = tl.where(i[:, None] == j[None, :], 0.0, w)
    FIRST: tl.constexpr = 0 if SAME else E
    return add_values((part, a0, a1, a2, a3), w, P, FIRST, C)


@triton.jit
def segment(totals, P, low, high, i, n, m, q0, q1, q2, q3, base, window, V, E: tl.constexpr, C: tl.constexpr,
            MODE: tl.constexpr, BIAS: tl.constexpr, SAME: tl.constexpr, SKIP: tl.constexpr, CAUSAL: tl.constexpr,
            WINDOW: tl.constexpr, VISIBLE: tl.constexpr, MASKED: tl.constexpr, SHIFTED: tl.constexpr, SLOTS: tl.constexpr, BM: tl.constexpr,
            UNROLL: tl.constexpr):  # fmt: skip
    """Add the keys from ``low`` (a multiple of the tile) up to ``high`` to the sums of the rows, chunk by chunk."""
    lane = tl.arange(0, BN)
    for chunk in range(low, high, CHUNK):
        zero = tl.zeros([BM, BN], dtype=q0.dtype)
        sums = (zero, zero, zero, zero, zero)
        here = P + chunk * SLOTS + lane
        for start in tl.range(chunk, tl.minimum(chunk + CHUNK, high), BN, loop_unroll_factor=1 if MASKED else UNROLL):
            sums = tile(sums, here, i, start + lane, n, m, q0, q1, q2, q3, base, window, V, E, C, MODE, BIAS, SAME, SKIP, CAUSAL,
                        WINDOW, VISIBLE, MASKED, SHIFTED)  # fmt: skip
            here += SLOTS * BN
        totals = reduce_threads(totals, sums, C, MODE < 2)
    return totals


@triton.jit
def sweep(sums, P, low, a, b, c, high, i, n, m, q0, q1, q2, q3, base, window, V, E: tl.constexpr, C: tl.constexpr,
          MODE: tl.constexpr, BIAS: tl.constexpr, SAME: tl.constexpr, SKIP: tl.constexpr, CAUSAL: tl.constexpr,
          WINDOW: tl.constexpr, VISIBLE: tl.constexpr, SHIFTED: tl.constexpr, EVEN: tl.constexpr, SLOTS: tl.constexpr,
          BM: tl.constexpr, UNROLL: tl.constexpr):  # fmt: skip
    """All keys: plain [low, a), masked [a, b) around the diagonal, plain [b, c), masked [c, high)."""
    for stage in tl.static_range(4):
        begin = low if stage == 0 else a if stage == 1 else b if stage == 2 else c
        end = a if stage == 0 else b if stage == 1 else c if stage == 2 else high
        if (stage == 0 and (SKIP or CAUSAL)) or (stage == 1 and SKIP) or stage == 2 or (stage == 3 and not EVEN):
            sums = segment(sums, P, begin, end, i, n, m, q0, q1, q2, q3, base, window, V, E, C, MODE, BIAS, SAME, SKIP,
                           CAUSAL, WINDOW, VISIBLE, stage % 2 == 1, SHIFTED, SLOTS, BM, UNROLL)  # fmt: skip
    return sums


@triton.jit
def queries(Q, i, n, entry, E: tl.constexpr, MODE: tl.constexpr):
    """Coordinates of a block of queries, in units of log 2 except in linear mode; unused coordinates repeat the first."""
    q = Q + (entry * n + i) * E
    inside = i < n
    q0 = tl.load(q, mask=inside, other=0.0)
    q1 = tl.load(q + (1 if E > 1 else 0), mask=inside, other=0.0)
    q2 = tl.load(q + (2 if E > 2 else 0), mask=inside, other=0.0)
    q3 = tl.load(q + (3 if E > 3 else 0), mask=inside, other=0.0)
    if MODE < 3:
        q0, q1, q2, q3 = q0 * LOG2E, q1 * LOG2E, q2 * LOG2E, q3 * LOG2E
    return q0, q1, q2, q3


@triton.jit(do_not_specialize=["n", "m", "offset", "window"])
def shifts(Q, K, R, V, BASE, n, m, offset, keys, visible, window, room, E: tl.constexpr, PLACE: tl.constexpr, BIAS: tl.constexpr,
           CAUSAL: tl.constexpr, WINDOW: tl.constexpr, VISIBLE: tl.constexpr, SLOTS: tl.constexpr,
           BM: tl.constexpr):  # fmt: skip
    """The shift of exponents of each row: 0 where the bound excludes overflow and underflow, else the largest score.

    A kernel of its own, so that its registers do not burden the other. ``R`` has (max \\|k\\|, largest bias, smallest bias) of
    each entry, ``room`` is the spread of exponents that neither underflows nor overflows, ``PLACE`` the slot of the bias.
    """
    entry = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * BM
    i = row + tl.arange(0, BM)
    # masks use positions: query i is at the position of key offset + i
    P, V = K + entry * keys, V + entry * visible - offset.to(tl.int64) * m
    first, place = row + offset, i + offset
    q0, q1, q2, q3 = queries(Q, i, n, entry, E, 0)
    length = q0 * q0
    if E > 1:
        length += q1 * q1
    if E > 2:
        length += q2 * q2
    if E > 3:
        length += q3 * q3
    bound = tl.sqrt(length) * tl.load(R + entry * 3)
    top = tl.load(R + entry * 3 + 1)
    # exponents of either sign are safe while the largest and the smallest are far from the ends of the range
    base = tl.zeros_like(bound)
    # NaN takes the slow path
    if not (tl.max(bound + tl.maximum(top, -tl.load(R + entry * 3 + 2)), axis=0) < 0.5 * room):
        low, high = row * 0, m
        if CAUSAL:
            high = tl.minimum(m, first + BM)
        if WINDOW:
            low = tl.minimum(tl.maximum(first - window + 1, 0) // BN * BN, m // BN * BN)
            high = tl.minimum(high, first + BM + window - 1)
        lane = tl.arange(0, BN)
        peak = tl.full([BM, BN], float("-inf"), dtype=q0.dtype)
        here = P + low * SLOTS + lane
        for start in tl.range(low, high, BN):
            s = score(q0, q1, q2, q3, here, q0[:, None], E, False)
            if BIAS:
                s += slot(here, PLACE, 9)[None, :]
            open = seen(place[:, None], (start + lane)[None, :], n + offset, m, window, V, CAUSAL, WINDOW, VISIBLE)
            peak = tl.maximum(peak, tl.where(open, s, float("-inf")))
            here += SLOTS * BN
        found = tl.max(peak, axis=1)
        base = tl.where(found == float("-inf"), 0.0, found)
    tl.store(BASE + entry * n + i, base, mask=i < n)


@triton.autotune(configurations(), cache_results=True, key=["size", "E", "C", "MODE", "BIAS", "SAME"])
@triton.jit(do_not_specialize=["n", "m", "offset", "window", "size"])
def narrow(Q, K, BASE, V, OUT, SUM, n, m, offset, keys, visible, window, size, E: tl.constexpr, C: tl.constexpr, MODE: tl.constexpr,
           BIAS: tl.constexpr, SAME: tl.constexpr, SKIP: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
           VISIBLE: tl.constexpr, SLOTS: tl.constexpr, EVEN: tl.constexpr, BM: tl.constexpr,
           UNROLL: tl.constexpr):  # fmt: skip
    """Rows of one batch entry: q (n, E), packed keys K, output (n, C) and logsumexp (n,).

    ``keys`` and ``visible`` are strides over entries; ``EVEN``: all tiles are full and nothing but the own key is hidden.
    """
    entry = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * BM
    i = row + tl.arange(0, BM)
    inside = i < n
    P, V = K + entry * keys, V + entry * visible - offset.to(tl.int64) * m
    first, place = row + offset, i + offset
    q0, q1, q2, q3 = queries(Q, i, n, entry, E, MODE)
    # plain [low, a), masked [a, b) around the diagonal, plain [b, c), masked [c, high): all but high are whole tiles
    low, high = row * 0, m
    a, b, c = low, low, m // BN * BN
    if SKIP:
        a, b = tl.minimum(first // BN * BN, c), tl.minimum((first + BM + BN - 1) // BN * BN, c)
    if CAUSAL:
        high = tl.minimum(m, first + BM)
        a = tl.minimum(first // BN * BN, c)
        b, c = a, a
    if WINDOW:
        low = tl.minimum(tl.maximum(first - window + 1, 0) // BN * BN, m // BN * BN)
        high = tl.minimum(high, first + BM + window - 1)
    if WINDOW or VISIBLE:
        a, b, c = low, low, low
    base = tl.zeros_like(q0)
    if MODE < 2:
        base = tl.load(BASE + entry * n + i, mask=inside, other=0.0)
    zero = tl.zeros_like(q0)
    sums = (zero, zero, zero, zero, zero)
    # the shift is usually 0 in all rows, and subtracting it would be a ninth of the work
    if MODE == 0 and tl.max(tl.abs(base), axis=0) > 0.0:
        sums = sweep(sums, P, low, a, b, c, high, place, n + offset, m, q0, q1, q2, q3, base, window, V, E, C, MODE, BIAS, SAME,
                     SKIP, CAUSAL, WINDOW, VISIBLE, True, EVEN, SLOTS, BM, UNROLL)  # fmt: skip
    else:
        sums = sweep(sums, P, low, a, b, c, high, place, n + offset, m, q0, q1, q2, q3, base, window, V, E, C, MODE, BIAS, SAME,
                     SKIP, CAUSAL, WINDOW, VISIBLE, False, EVEN, SLOTS, BM, UNROLL)  # fmt: skip
    total, a0, a1, a2, a3 = sums
    if MODE == 0:
        norm = 1.0 / tl.where(total == 0.0, 1.0, total)
        a0, a1, a2, a3 = a0 * norm, a1 * norm, a2 * norm, a3 * norm
    if MODE < 2:
        sees = tl.where(total == 0.0, float("-inf"), (base + tl.log2(total)) * LN2)
        tl.store(SUM + entry * n + i, sees, mask=inside)
    o = OUT + (entry * n + i) * C
    if C > 0:
        tl.store(o, a0, mask=inside)
    if C > 1:
        tl.store(o + 1, a1, mask=inside)
    if C > 2:
        tl.store(o + 2, a2, mask=inside)
    if C > 3:
        tl.store(o + 3, a3, mask=inside)
