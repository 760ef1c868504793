"""Symmetric scores (queries a multiple of the keys), head dimensions up to four: each pair is computed once, for both its rows.

As in ``narrow``, a warp keeps a few rows and every thread processes one key at a time. For the tiles after its own it adds each
weight to its row and to the key's row: the sums over the warp's rows for one key are in one thread. They go to memory by atomic
additions, into several copies for different rows, so that rounding does not grow with n (two-level accumulation).
"""

from __future__ import annotations

import triton
import triton.language as tl

from attractor.engines.triton.narrow import BN, CHUNK, add_values, reduce_threads, slot
from attractor.engines.triton.primitives import LN2, exp2


@triton.jit
def _plus(a, b, c, d, e, f, g, h, i, j):
    return a + f, b + g, c + h, d + i, e + j


@triton.jit
def coordinates(X, i, n, entry, SIZE: tl.constexpr):
    """Coordinates of some rows; unused coordinates repeat the first."""
    x, inside = X + (entry * n + i) * SIZE, i < n
    return (
        tl.load(x, mask=inside, other=0.0),
        tl.load(x + (1 if SIZE > 1 else 0), mask=inside, other=0.0),
        tl.load(x + (2 if SIZE > 2 else 0), mask=inside, other=0.0),
        tl.load(x + (3 if SIZE > 3 else 0), mask=inside, other=0.0),
    )


@triton.jit
def weights(k, P, factor, E: tl.constexpr):
    """Weights of a block of rows and a tile of keys."""
    k0, k1, k2, k3 = k
    s = k0[:, None] * (slot(P, 0, E) * factor)[None, :]
    if E > 1:
        s += k1[:, None] * (slot(P, 1, E) * factor)[None, :]
    if E > 2:
        s += k2[:, None] * (slot(P, 2, E) * factor)[None, :]
    if E > 3:
        s += k3[:, None] * (slot(P, 3, E) * factor)[None, :]
    return exp2(s, True)


@triton.jit
def add_to_rows(sums, w, kept, P, FIRST: tl.constexpr, C: tl.constexpr, MASS: tl.constexpr):
    """Add a tile to the sums of the rows; ``kept`` are the weights without self terms if these are skipped."""
    part, a0, a1, a2, a3 = sums
    part += w * slot(P, FIRST + C, 9)[None, :] if MASS else w
    return add_values((part, a0, a1, a2, a3), kept, P, FIRST, C)


@triton.jit
def add_to_keys(w, v, mass, T, C: tl.constexpr, MASS: tl.constexpr):
    """Add a tile to the sums of its keys."""
    v0, v1, v2, v3 = v
    zero = tl.zeros_like(w)
    b1 = w * v1[:, None] if C > 1 else zero
    b2 = w * v2[:, None] if C > 2 else zero
    b3 = w * v3[:, None] if C > 3 else zero
    b = w * mass[:, None] if MASS else w
    total, c0, c1, c2, c3 = tl.reduce((b, w * v0[:, None], b1, b2, b3), 0, _plus)
    tl.atomic_add(T, total, sem="relaxed")
    tl.atomic_add(T + BN, c0, sem="relaxed")
    if C > 1:
        tl.atomic_add(T + 2 * BN, c1, sem="relaxed")
    if C > 2:
        tl.atomic_add(T + 3 * BN, c2, sem="relaxed")
    if C > 3:
        tl.atomic_add(T + 4 * BN, c3, sem="relaxed")


@triton.jit(do_not_specialize=["n", "copies"])
def symmetric(K, V, M, P, FACTOR, ROWS, T, n, keys, copies, E: tl.constexpr, C: tl.constexpr, SAME: tl.constexpr,
              MASS: tl.constexpr, SKIP: tl.constexpr, SLOTS: tl.constexpr, BM: tl.constexpr,
              UNROLL: tl.constexpr):  # fmt: skip
    """Sums of the rows over the keys of their own tile and later ones, and their contributions to those keys.

    ``K`` (entries, n, E), ``V`` (entries, n, C) and ``M`` (entries, n) are keys, values times masses, and masses, ``P`` all of
    them in tiles; ``ROWS`` (entries, n, 1 + C) and ``T`` (copies, entries, tiles, 1 + C, TILE) receive sums of weights and of
    weighted values. ``FACTOR`` is the multiple, in units of log 2.
    """
    entry = tl.program_id(1).to(tl.int64)
    block = tl.program_id(0)
    row = block * BM
    i, lane = row + tl.arange(0, BM), tl.arange(0, BN)
    FIRST: tl.constexpr = 0 if SAME else E
    factor = tl.load(FACTOR + entry)
    k = coordinates(K, i, n, entry, E)
    v = k if SAME else coordinates(V, i, n, entry, C)
    mass = tl.load(M + entry * n + i, mask=i < n, other=0.0) if MASS else k[0]
    tiles = (n + BN - 1) // BN
    copy = block.to(tl.int64) * copies // tl.num_programs(0)
    P += entry * keys
    T += (copy * tl.num_programs(1) + entry) * tiles * (1 + C) * BN
    first = row // BN
    zero, none = tl.zeros([BM, BN], dtype=k[0].dtype), tl.zeros_like(k[0])
    totals = (none, none, none, none, none)
    # the own tile, which holds both rows of its pairs
    here = P + first * SLOTS * BN + lane
    j = first * BN + lane
    w = tl.where((j < n)[None, :], weights(k, here, factor, E), 0.0)
    kept = tl.where(i[:, None] == j[None, :], 0.0, w) if SKIP else w
    totals = reduce_threads(totals, add_to_rows((zero, zero, zero, zero, zero), w, kept, here, FIRST, C, MASS), C, True)
    whole = n // BN * BN
    for chunk in range((first + 1) * BN, whole, CHUNK):
        sums = (zero, zero, zero, zero, zero)
        here = P + chunk * SLOTS + lane
        there = T + chunk * (1 + C) + lane
        for _ in tl.range(chunk, tl.minimum(chunk + CHUNK, whole), BN, loop_unroll_factor=UNROLL):
            w = weights(k, here, factor, E)
            sums = add_to_rows(sums, w, w, here, FIRST, C, MASS)
            add_to_keys(w, v, mass, there, C, MASS)
            here += SLOTS * BN
            there += (1 + C) * BN
        totals = reduce_threads(totals, sums, C, True)
    if whole < n and first * BN < whole:
        here = P + whole * SLOTS + lane
        w = tl.where((whole + lane < n)[None, :], weights(k, here, factor, E), 0.0)
        totals = reduce_threads(
            totals, add_to_rows((zero, zero, zero, zero, zero), w, w, here, FIRST, C, MASS), C, True
        )
        add_to_keys(w, v, mass, T + whole * (1 + C) + lane, C, MASS)
    to, inside = ROWS + (entry * n + i) * (1 + C), i < n
    tl.store(to, totals[0], mask=inside)
    tl.store(to + 1, totals[1], mask=inside)
    if C > 1:
        tl.store(to + 2, totals[2], mask=inside)
    if C > 2:
        tl.store(to + 3, totals[3], mask=inside)
    if C > 3:
        tl.store(to + 4, totals[4], mask=inside)


@triton.jit(do_not_specialize=["n", "copies"])
def finish_symmetric(ROWS, T, OUT, SUM, n, copies, C: tl.constexpr, MODE: tl.constexpr):
    """Results of one tile of rows from all its sums, added in float64."""
    entry, tile = tl.program_id(1).to(tl.int64), tl.program_id(0)
    entries, tiles = tl.num_programs(1), tl.num_programs(0)
    lane = tl.arange(0, BN)
    i = tile * BN + lane
    inside = i < n
    total = tl.load(ROWS + (entry * n + i) * (1 + C), mask=inside, other=1.0).to(tl.float64)
    for copy in range(copies):
        total += tl.load(T + ((copy * entries + entry) * tiles + tile) * (1 + C) * BN + lane)
    norm = 1.0 / tl.where(total == 0.0, 1.0, total) if MODE == 0 else tl.full([BN], 1.0, total.dtype)
    for column in tl.static_range(C):
        value = tl.load(ROWS + (entry * n + i) * (1 + C) + 1 + column, mask=inside, other=0.0).to(tl.float64)
        for copy in range(copies):
            value += tl.load(T + (((copy * entries + entry) * tiles + tile) * (1 + C) + 1 + column) * BN + lane)
        tl.store(OUT + (entry * n + i) * C + column, value * norm, mask=inside)
    tl.store(SUM + entry * n + i, tl.where(total == 0.0, float("-inf"), tl.log2(total) * LN2), mask=inside)
