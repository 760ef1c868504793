// Counter-based normal numbers on vectors: the numbers of src/attractor/random_numbers.py, to rounding.
//
// Philox4x32-10 (Salmon, Moraes, Dror, Shaw, 2011) maps a counter (c0, c1, c2, c3) and a key (k0, k1), words of 32
// bits, to four words. One round is
//
//     (hi0, lo0) = 0xD2511F53 c0,  (hi1, lo1) = 0xCD9E8D57 c2,   high and low words of 64-bit products
//     c0, c1, c2, c3 = hi1 ^ c1 ^ k0, lo1, hi0 ^ c3 ^ k1, lo0
//
// and there are ten, between which k0 grows by 0x9E3779B9 and k1 by 0xBB67AE85 modulo 2^32. With
// u(r) = (r + 1/2) 2^-32 the words (r0, r1, r2, r3) give four normal numbers in float64,
//
//     z0 = sqrt(-2 log u(r0)) cos(2 pi u(r1)),  z1 = sqrt(-2 log u(r0)) sin(2 pi u(r1)),
//     z2 = sqrt(-2 log u(r2)) cos(2 pi u(r3)),  z3 = sqrt(-2 log u(r2)) sin(2 pi u(r3)).
#pragma once

#include "log2.h"
#include "simd.h"

namespace attractor::ATTRACTOR_ISA {

// One word of 32 bits in each lane of 64.
using Words = Bits<double>;

ATTRACTOR_INLINE Words words(uint64_t value) { return value - Words{}; }

// Products of words, whose high halves are 0.
ATTRACTOR_INLINE Words product(Words a, uint64_t factor) {
#if defined(__AVX512F__) && ATTRACTOR_BYTES == 64
    return (Words)_mm512_mul_epu32((__m512i)a, (__m512i)words(factor));
#elif defined(__AVX2__) && ATTRACTOR_BYTES == 32
    return (Words)_mm256_mul_epu32((__m256i)a, (__m256i)words(factor));
#elif defined(__x86_64__) && ATTRACTOR_BYTES == 16
    return (Words)_mm_mul_epu32((__m128i)a, (__m128i)words(factor));
#else
    return a * factor;
#endif
}

// In place; counters are words below 2^32.
ATTRACTOR_INLINE void philox(Words counter[4], uint64_t seed) {
    constexpr uint64_t low = 0xFFFFFFFF;
    uint64_t k0 = seed & low, k1 = seed >> 32;
#pragma GCC unroll 10
    for (int round = 0; round < 10; round++) {
        const Words first = product(counter[0], 0xD2511F53), second = product(counter[2], 0xCD9E8D57);
        counter[0] = (second >> 32) ^ counter[1] ^ k0;
        counter[2] = (first >> 32) ^ counter[3] ^ k1;
        counter[1] = second & low, counter[3] = first & low;
        k0 = (k0 + 0x9E3779B9) & low, k1 = (k1 + 0xBB67AE85) & low;
    }
}

// Sines and cosines of quarter turns. The Taylor series in a quarter turn r, |r| <= 1/2, have truncation errors below
// 6e-17 (relative) and 3e-18.
ATTRACTOR_INLINE void sines(Vector<double> quarters, Vector<double>& sine, Vector<double>& cosine) {
    constexpr double magic = 0x1.8p52;  // adding it rounds to an integer, in the low bits
    constexpr double odd[] = {6.688035109811468e-10,  5.692172921967927e-08, 3.598843235212085e-06,
                              1.6044118478735983e-04, 4.681754135318688e-03, 7.969262624616705e-02,
                              6.459640975062463e-01,  1.5707963267948966};
    constexpr double even[] = {6.565963114979473e-11, 6.386603083791852e-09, 4.710874778818172e-07,
                               2.5202042373060607e-05, 9.192602748394266e-04, 2.086348076335296e-02,
                               2.5366950790104803e-01, 1.2337005501361697,    1.0};
    const Vector<double> rounded = quarters + magic, r = quarters - (rounded - magic), square = r * r;
    Vector<double> s = splat(odd[0]), c = splat(even[0]);
#pragma GCC unroll 8
    for (int term = 1; term < 8; term++) s = odd[term] - s * square;
#pragma GCC unroll 8
    for (int term = 1; term < 9; term++) c = even[term] - c * square;
    s *= r;
    const Words turns = (Words)rounded;
    const auto swapped = (turns & 1) != 0;
    sine = (Vector<double>)((Words)(swapped ? c : s) ^ ((turns & 2) << 62));
    cosine = (Vector<double>)((Words)(swapped ? s : c) ^ (((turns + 1) & 2) << 62));
}

// Square roots; GCC has no operator for them.
ATTRACTOR_INLINE Vector<double> roots(Vector<double> a) {
#if defined(__AVX512F__) && ATTRACTOR_BYTES == 64
    return (Vector<double>)_mm512_sqrt_pd((__m512d)a);
#elif defined(__AVX2__) && ATTRACTOR_BYTES == 32
    return (Vector<double>)_mm256_sqrt_pd((__m256d)a);
#elif defined(__x86_64__) && ATTRACTOR_BYTES == 16
    return (Vector<double>)_mm_sqrt_pd((__m128d)a);
#else
    for (int lane = 0; lane < width<double>; lane++) a[lane] = __builtin_sqrt(a[lane]);
    return a;
#endif
}

// The four normal numbers of each lane's counter, which is overwritten.
ATTRACTOR_INLINE void normals(Words counter[4], uint64_t seed, Vector<double> z[4]) {
    philox(counter, seed);
    constexpr double magic = 0x1p52;  // a word in the low bits of the mantissa
    Vector<double> u[4];
    for (int word = 0; word < 4; word++)
        u[word] = ((Vector<double>)(counter[word] | 0x4330000000000000) - magic) + 0.5;
    for (int pair = 0; pair < 2; pair++) {
        const Vector<double> length = roots(-1.3862943611198906 * log2<double>(u[2 * pair] * 0x1p-32));  // 2 log 2
        Vector<double> sine, cosine;
        sines(u[2 * pair + 1] * 0x1p-30, sine, cosine);
        z[2 * pair] = length * cosine, z[2 * pair + 1] = length * sine;
    }
}

}  // namespace attractor::ATTRACTOR_ISA
