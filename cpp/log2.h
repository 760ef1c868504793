// log2 on vectors: x = 2^n m with m within a factor root 2 of 1, and log m = 2 artanh s with s = (m - 1) / (m + 1), by
// its series.
//
// Error below 2e-7 (4e-16) relative to the larger of |log2 x| and 1/2, measured by tests/engines/test_fused.py. 0 gives
// -inf; subnormal numbers count as 0 where the processor flushes them.
#pragma once

#include "simd.h"

namespace attractor::ATTRACTOR_ISA {

template <class T>
ATTRACTOR_INLINE Vector<T> log2(Vector<T> x) {
    constexpr int mantissa = sizeof(T) == 4 ? 23 : 52, terms = sizeof(T) == 4 ? 5 : 11;
    const Bits<T> half = (Bits<T>)splat<T>(T(0.70710678118654752440)), bits = (Bits<T>)x;  // root 1/2
    const Integers<T> n = (Integers<T>)(bits - half) >> mantissa;
    const Vector<T> m = (Vector<T>)(bits - ((Bits<T>)n << mantissa));
    const Vector<T> s = (m - 1) / (m + 1), square = s * s;
    Vector<T> series = splat<T>(T(1.0 / (2 * terms + 1)));
#pragma GCC unroll 16
    for (int term = terms - 1; term >= 0; term--) series = series * square + T(1.0 / (2 * term + 1));
    // n converted to floating point: put in the low bits of a large number, which is then subtracted
    constexpr T magic = sizeof(T) == 4 ? T(0x1.8p23) : T(0x1.8p52);
    const Vector<T> whole = (Vector<T>)((Bits<T>)n + (Bits<T>)splat<T>(magic)) - magic;
    const Vector<T> result = whole + s * (T(2 * 1.4426950408889634074) * series);
    return x > 0 ? (x < infinity<T> ? result : x) : (x == 0 ? splat<T>(-infinity<T>) : splat<T>(T(__builtin_nan(""))));
}

}  // namespace attractor::ATTRACTOR_ISA
