"""Head dimensions above four: tiles of scores on the tensor cores, a running maximum (online softmax).

Float32 operands are split beforehand into three bfloat16 numbers, x = h + m + l with 8 bits each. A product of two such sums is
taken to six terms (those down to 2^-16 of the largest; what is left out is below 2^-23), so that scores and outputs are near
float32 at the tensor cores' speed. The weights of a softmax are split in two only, 16 bits, and the normaliser adds up the very
numbers that weigh the values. Float64 uses the double-precision units.

Products of a tile are added to the sums outside the tensor cores, which round towards zero when they accumulate.
"""

from __future__ import annotations

import triton
import triton.language as tl

from attractor.engines.triton.primitives import LN2, exp2, seen, sigmoid2


def configurations() -> list[triton.Config]:
    """Rows and keys of a tile, warps and stages of the pipeline."""
    return [
        triton.Config({"BM": rows, "BN": keys}, num_warps=warps, num_stages=stages)
        for rows, keys, warps, stages in (
            (64, 32, 4, 2),
            (128, 64, 8, 2),
            (128, 32, 8, 3),
            (128, 32, 8, 2),
            (64, 64, 4, 1),
        )
    ]


@triton.jit
def split(x):
    """Three bfloat16 numbers whose sum is x."""
    h = x.to(tl.bfloat16)
    rest = x - h.to(tl.float32)
    m = rest.to(tl.bfloat16)
    return h, m, (rest - m.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def product(a, B, offsets, inside, size, SPLIT: tl.constexpr, MASKED: tl.constexpr, THREE: tl.constexpr):
    """a @ b with b loaded from its three parts, ``size`` apart; small terms are added first."""
    if MASKED:
        h = tl.load(B + offsets, mask=inside, other=0.0)
    else:
        h = tl.load(B + offsets)
    if SPLIT:
        ah, am, al = a
        if MASKED:
            m = tl.load(B + size + offsets, mask=inside, other=0.0)
            small = tl.load(B + 2 * size + offsets, mask=inside, other=0.0)
        else:
            m = tl.load(B + size + offsets)
            small = tl.load(B + 2 * size + offsets)
        s = tl.dot(am, m)
        s = tl.dot(ah, small, s)
        if THREE:
            s = tl.dot(al, h, s)
        s = tl.dot(am, h, s)
        s = tl.dot(ah, m, s)
        return tl.dot(ah, h, s)
    else:
        return tl.dot(a[0], h, input_precision="ieee", out_dtype=h.dtype)


@triton.jit
def tile(sums, q, K, W, B, own, start, i, n, m, window, V, size_k, size_v, E: tl.constexpr, C: tl.constexpr,
         MODE: tl.constexpr, BIAS: tl.constexpr, SPLIT: tl.constexpr, SKIP: tl.constexpr, CAUSAL: tl.constexpr,
         WINDOW: tl.constexpr, VISIBLE: tl.constexpr, MASKED: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Add one tile of keys; with ``SKIP`` the own key is skipped here, and the caller adds it to the normaliser."""
    peak, total, o = sums
    j = start + tl.arange(0, BN)
    e, c = tl.arange(0, E), tl.arange(0, C)
    s = product(q, K, j[None, :] * E + e[:, None], j[None, :] < m, size_k, SPLIT, MASKED, True)
    if BIAS:
        s += tl.load(B + j, mask=j < m, other=0.0)[None, :]
    if MASKED:
        open = seen(i[:, None], j[None, :], n, m, window, V, CAUSAL, WINDOW, VISIBLE)
        if SKIP:
            open = open & (i[:, None] != j[None, :])
    w = s
    keep = tl.full(peak.shape, 1.0, peak.dtype)
    if MODE < 2:
        if MASKED:
            s = tl.where(open, s, float("-inf"))
        top = tl.maximum(peak, tl.max(s, axis=1))
        shift = tl.where(top == float("-inf"), 0.0, top)
        w = exp2(s - shift[:, None], True)
        keep = exp2(peak - shift)
        peak = top
    if MODE == 2:
        w = sigmoid2(s)
    if MASKED and MODE > 1:
        w = tl.where(open, w, 0.0)
    weights = (w,)
    counted = w
    if SPLIT:
        h, middle, low = split(w)
        weights = (h, middle, low)
        if MODE == 0:
            counted = h.to(tl.float32) + middle.to(tl.float32)
    if MODE < 2:
        total = total * keep + tl.sum(counted, axis=1)
    if C > 1:
        o = o * keep[:, None] + product(weights, W, j[:, None] * C + c[None, :], j[:, None] < m, size_v, SPLIT, MASKED,
                                        MODE != 0)  # fmt: skip
    return peak, total, o


@triton.autotune(configurations(), cache_results=True, key=["size", "E", "C", "MODE", "SPLIT", "WINDOW", "VISIBLE"])
@triton.jit(do_not_specialize=["n", "m", "offset", "window", "size"])
def wide(Q, K, W, B, S, V, OUT, SUM, n, m, offset, visible, window, size, parts_q, parts_k, parts_v, E: tl.constexpr, C: tl.constexpr,
         MODE: tl.constexpr, BIAS: tl.constexpr, SPLIT: tl.constexpr, SKIP: tl.constexpr, CAUSAL: tl.constexpr,
         WINDOW: tl.constexpr, VISIBLE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Rows of one batch entry: q (n, E), k (m, E), values W (m, C), each in its parts; ``S`` has the scores of the own keys.

    E and C are powers of two from 16 up, or C = 1 for no values at all; columns past the operands' own are zero.
    """
    entry = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * BM
    i = row + tl.arange(0, BM)
    inside = i < n
    K, W, B, V = K + entry * m * E, W + entry * m * C, B + entry * m, V + entry * visible - offset.to(tl.int64) * m
    first, place = row + offset, i + offset
    at = (entry * n + i)[:, None] * E + tl.arange(0, E)[None, :]
    h = tl.load(Q + at, mask=inside[:, None], other=0.0)
    q = (h,)
    kind = h.dtype
    if SPLIT:
        middle = tl.load(Q + parts_q + at, mask=inside[:, None], other=0.0)
        q = (h, middle, tl.load(Q + 2 * parts_q + at, mask=inside[:, None], other=0.0))
        kind = tl.float32
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
    peak = tl.full([BM], float("-inf"), kind)
    own = peak
    if SKIP and MODE < 2:
        own = tl.load(S + entry * n + i, mask=inside, other=float("-inf"))
        if MODE == 0:
            peak = own
    sums = (peak, tl.zeros([BM], kind), tl.zeros([BM, C], kind))
    for part in tl.static_range(4):
        begin = low if part == 0 else a if part == 1 else b if part == 2 else c
        end = a if part == 0 else b if part == 1 else c if part == 2 else high
        if part > 1 or SKIP or (CAUSAL and part == 0):
            for start in tl.range(begin, end, BN):
                sums = tile(sums, q, K, W, B, own, start, place, n + offset, m, window, V, parts_k, parts_v, E, C, MODE, BIAS, SPLIT, SKIP,
                            CAUSAL, WINDOW, VISIBLE, part % 2 == 1, BN)  # fmt: skip
    peak, total, o = sums
    if MODE < 2:
        # the own key counts in the normaliser: softmax started its maximum from it, exponential adds it only here
        shift = tl.where(peak == float("-inf"), 0.0, peak)
        if MODE == 0 and SKIP:
            total += exp2(own - shift)
        level = shift
        if MODE == 1 and SKIP:
            top = tl.maximum(peak, own)
            level = tl.where(top == float("-inf"), 0.0, top)
            total = tl.where(total == 0.0, 0.0, total * exp2(shift - level)) + exp2(own - level)
        found = tl.where(total == 0.0, float("-inf"), (level + tl.log2(total)) * LN2)
        tl.store(SUM + entry * n + i, found, mask=inside)
        if MODE == 0:
            o = o / tl.where(total == 0.0, 1.0, total)[:, None]
        else:
            o = tl.where(o == 0.0, 0.0, o * exp2(shift)[:, None])
    if C > 1:
        at = (entry * n + i)[:, None] * C + tl.arange(0, C)[None, :]
        tl.store(OUT + at, o, mask=inside[:, None])
