"""Device functions shared by the Triton kernels: exp2, weights from scores, masks."""

from __future__ import annotations

import triton
import triton.language as tl

from attractor.engines.problem import INTERPRETED

FAST: tl.constexpr = tl.constexpr(not INTERPRETED)
PRECISE: tl.constexpr = tl.constexpr("ieee" if INTERPRETED else "bf16x6")  # float32 from tensor cores
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)


@triton.jit
def exp2(x, SMALL: tl.constexpr = False):
    """2^x; in float32 the hardware's own instruction (2 ulp), without the detour that saves denormal results.

    ``SMALL`` promises that x is below 1000.
    """
    if FAST and x.dtype == tl.float32:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    if x.dtype == tl.float64:
        return exp2_double(x, SMALL)
    return tl.exp2(x)


@triton.jit
def exp2_double(x, SMALL: tl.constexpr):
    """2^x in float64 without a branch: x = i + f with \\|f\\| <= 1/2, a polynomial in f (4e-18), i added to the exponent.

    Below 2^-1022 it is 0. The polynomial interpolates 2^f at the twelve Chebyshev points.
    """
    shifted = x + 6755399441055744.0  # 1.5 2^52: the last bits of the sum are the nearest integer
    f = x - (shifted - 6755399441055744.0)
    p = f * 4.4558179083360645e-10 + 7.074194297288521e-09
    p = p * f + 1.0178057087733941e-07
    p = p * f + 1.3215432535912375e-06
    p = p * f + 1.5252733841556773e-05
    p = p * f + 0.00015403530463724353
    p = p * f + 0.001333355814640647
    p = p * f + 0.009618129107587256
    p = p * f + 0.055504108664821625
    p = p * f + 0.24022650695910158
    p = p * f + 0.6931471805599453
    p = p * f + 1.0
    scaled = (p.to(tl.int64, bitcast=True) + (shifted.to(tl.int64, bitcast=True) << 52)).to(tl.float64, bitcast=True)
    # NaN stays NaN: its last bits, which would be added to the exponent, are 0
    scaled = tl.where(x < -1022.0, 0.0, scaled)
    return scaled if SMALL else tl.where(x >= 1023.5, float("inf"), scaled)


@triton.jit
def sigmoid2(x):
    """1 / (1 + 2^-x) without overflow."""
    small = exp2(-tl.abs(x))
    return tl.where(x >= 0, 1.0, small) / (1.0 + small)


@triton.jit
def seen(i, j, n, m, window, V, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, VISIBLE: tl.constexpr):
    """True where query i (a column) sees key j (a row), and both exist; V points to the rows of a boolean matrix (n, m)."""
    open = (j < m) & (i < n)
    if CAUSAL:
        open = open & (j <= i)
    if WINDOW:
        open = open & (i - j < window) & (j - i < window)
    if VISIBLE:
        open = open & (tl.load(V + i.to(tl.int64) * m + j, mask=open, other=0) != 0)
    return open
