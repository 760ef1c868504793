// Vectors of one instruction set, by the vector extensions of GCC and Clang: the same text gives SSE2, NEON, AVX2,
// AVX-512.
//
// Every translation unit defines ATTRACTOR_ISA, a namespace of its own, and ATTRACTOR_BYTES, the width of a register.
// Nothing of the standard library that is not a constant may be used under it: the linker would keep one copy of a
// template for all instruction sets, and an old processor would meet new instructions.
#pragma once

#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define ATTRACTOR_INLINE inline __attribute__((always_inline))

namespace attractor::ATTRACTOR_ISA {

template <class T>
struct Lanes;

template <>
struct Lanes<float> {
    typedef float Vector __attribute__((vector_size(ATTRACTOR_BYTES), may_alias));
    typedef int32_t Integers __attribute__((vector_size(ATTRACTOR_BYTES), may_alias));
    typedef uint32_t Bits __attribute__((vector_size(ATTRACTOR_BYTES), may_alias));
    typedef int32_t Integer;
    static constexpr int width = ATTRACTOR_BYTES / 4;
};

template <>
struct Lanes<double> {
    typedef double Vector __attribute__((vector_size(ATTRACTOR_BYTES), may_alias));
    typedef int64_t Integers __attribute__((vector_size(ATTRACTOR_BYTES), may_alias));
    typedef uint64_t Bits __attribute__((vector_size(ATTRACTOR_BYTES), may_alias));
    typedef int64_t Integer;
    static constexpr int width = ATTRACTOR_BYTES / 8;
};

template <class T>
using Vector = typename Lanes<T>::Vector;
template <class T>
using Integers = typename Lanes<T>::Integers;
// The bits of numbers, for arithmetic that wraps around: overflow of signed integers would be undefined behaviour.
template <class T>
using Bits = typename Lanes<T>::Bits;
template <class T>
constexpr int width = Lanes<T>::width;

template <class T>
constexpr T infinity = static_cast<T>(__builtin_inf());

// Vectors of queries beside each other, so that a broadcast key serves several; and keys beside each other. Their
// product, the running sums of a block, and the operands must fit in the registers: 16 on AVX2 and SSE2, else 32.
#if defined(__x86_64__) && !defined(__AVX512F__) && !defined(ATTRACTOR_EMULATE_AVX512)
constexpr int columns = 2;
#else
constexpr int columns = 4;
#endif
constexpr int block = 6;

template <class T>
ATTRACTOR_INLINE Vector<T> splat(T value) {
    return value - Vector<T>{};
}

// The larger of two; where b is no number, b: so a NaN among the scores is never lost.
template <class V>
ATTRACTOR_INLINE V larger(V a, V b) {
    return a > b ? a : b;
}

template <class V>
ATTRACTOR_INLINE V smaller(V a, V b) {
    return a < b ? a : b;
}

// GCC does not see that the x86 instruction has just these semantics (the second operand where either is no number).
#if defined(__AVX512F__) && ATTRACTOR_BYTES == 64
template <>
ATTRACTOR_INLINE Vector<float> larger(Vector<float> a, Vector<float> b) {
    return (Vector<float>)_mm512_max_ps((__m512)a, (__m512)b);
}
template <>
ATTRACTOR_INLINE Vector<double> larger(Vector<double> a, Vector<double> b) {
    return (Vector<double>)_mm512_max_pd((__m512d)a, (__m512d)b);
}
#elif defined(__AVX2__) && ATTRACTOR_BYTES == 32
template <>
ATTRACTOR_INLINE Vector<float> larger(Vector<float> a, Vector<float> b) {
    return (Vector<float>)_mm256_max_ps((__m256)a, (__m256)b);
}
template <>
ATTRACTOR_INLINE Vector<double> larger(Vector<double> a, Vector<double> b) {
    return (Vector<double>)_mm256_max_pd((__m256d)a, (__m256d)b);
}
#elif defined(__x86_64__) && ATTRACTOR_BYTES == 16
template <>
ATTRACTOR_INLINE Vector<float> larger(Vector<float> a, Vector<float> b) {
    return (Vector<float>)_mm_max_ps((__m128)a, (__m128)b);
}
template <>
ATTRACTOR_INLINE Vector<double> larger(Vector<double> a, Vector<double> b) {
    return (Vector<double>)_mm_max_pd((__m128d)a, (__m128d)b);
}
#endif

// a 2^floor(n), with overflow to infinity and underflow to 0; and a table of 16 entries, read by the low four bits.
#if defined(__AVX512F__) && ATTRACTOR_BYTES == 64
#define ATTRACTOR_HAS_SCALE 1
ATTRACTOR_INLINE Vector<float> scale(Vector<float> a, Vector<float> n) {
    return (Vector<float>)_mm512_scalef_ps((__m512)a, (__m512)n);
}
ATTRACTOR_INLINE Vector<double> scale(Vector<double> a, Vector<double> n) {
    return (Vector<double>)_mm512_scalef_pd((__m512d)a, (__m512d)n);
}
ATTRACTOR_INLINE Vector<double> look_up(const double* table, Integers<double> index) {
    __m512d low = _mm512_loadu_pd(table), high = _mm512_loadu_pd(table + 8);
    return (Vector<double>)_mm512_permutex2var_pd(low, (__m512i)index, high);
}
#elif defined(ATTRACTOR_EMULATE_AVX512)  // the same logic on a machine without AVX-512, for tests
#define ATTRACTOR_HAS_SCALE 1
template <class V>
ATTRACTOR_INLINE V scale(V a, V n) {
    for (int lane = 0; lane < int(sizeof(V) / sizeof(a[0])); lane++)
        a[lane] = __builtin_ldexp(a[lane], int(__builtin_floor(n[lane])));
    return a;
}
ATTRACTOR_INLINE Vector<double> look_up(const double* table, Integers<double> index) {
    Vector<double> result = {};
    for (int lane = 0; lane < width<double>; lane++) result[lane] = table[index[lane] & 15];
    return result;
}
#endif

// Keeps a value in a register, and where it is in the order of the program.
template <class V>
ATTRACTOR_INLINE void pin(V& value) {
#if defined(__AVX512F__) && ATTRACTOR_BYTES == 64
    __asm__ volatile("" : "+v"(value));
#elif defined(__x86_64__) && (ATTRACTOR_BYTES == 16 || (defined(__AVX2__) && ATTRACTOR_BYTES == 32))
    __asm__ volatile("" : "+x"(value));
#else
    (void)value;
#endif
}

#if defined(__clang__) || __GNUC__ >= 12
#define ATTRACTOR_PICK(...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define ATTRACTOR_PICK(...) __builtin_shuffle(a, b, Integers<T>{__VA_ARGS__})
#endif

// Sums of neighbouring lanes, those of a and of b by turns, within 16 bytes: what a processor shuffles fastest.
template <class T>
ATTRACTOR_INLINE Vector<T> neighbours(Vector<T> a, Vector<T> b) {
    if constexpr (width<T> == 2 && sizeof(T) == 8) return ATTRACTOR_PICK(0, 2) + ATTRACTOR_PICK(1, 3);
    if constexpr (width<T> == 4 && sizeof(T) == 4) return ATTRACTOR_PICK(0, 2, 4, 6) + ATTRACTOR_PICK(1, 3, 5, 7);
    if constexpr (width<T> == 4 && sizeof(T) == 8) return ATTRACTOR_PICK(0, 4, 2, 6) + ATTRACTOR_PICK(1, 5, 3, 7);
    if constexpr (width<T> == 8 && sizeof(T) == 4)
        return ATTRACTOR_PICK(0, 2, 8, 10, 4, 6, 12, 14) + ATTRACTOR_PICK(1, 3, 9, 11, 5, 7, 13, 15);
    if constexpr (width<T> == 8 && sizeof(T) == 8)
        return ATTRACTOR_PICK(0, 8, 2, 10, 4, 12, 6, 14) + ATTRACTOR_PICK(1, 9, 3, 11, 5, 13, 7, 15);
    if constexpr (width<T> == 16 && sizeof(T) == 4)
        return ATTRACTOR_PICK(0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30) +
               ATTRACTOR_PICK(1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31);
}

// Sums of neighbouring 16 bytes, first of a and then of b.
template <class T>
ATTRACTOR_INLINE Vector<T> quarters(Vector<T> a, Vector<T> b) {
    if constexpr (width<T> == 4 && sizeof(T) == 8) return ATTRACTOR_PICK(0, 1, 4, 5) + ATTRACTOR_PICK(2, 3, 6, 7);
    if constexpr (width<T> == 8 && sizeof(T) == 4)
        return ATTRACTOR_PICK(0, 1, 2, 3, 8, 9, 10, 11) + ATTRACTOR_PICK(4, 5, 6, 7, 12, 13, 14, 15);
    if constexpr (width<T> == 8 && sizeof(T) == 8)
        return ATTRACTOR_PICK(0, 1, 4, 5, 8, 9, 12, 13) + ATTRACTOR_PICK(2, 3, 6, 7, 10, 11, 14, 15);
    if constexpr (width<T> == 16 && sizeof(T) == 4)
        return ATTRACTOR_PICK(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
               ATTRACTOR_PICK(4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    return a;
}
#undef ATTRACTOR_PICK

// The sum over the lanes of each of as many vectors as there are lanes.
template <class T>
ATTRACTOR_INLINE Vector<T> lane_sums(Vector<T>* vectors) {
    int count = width<T>;
#pragma GCC unroll 4
    for (int left = 16 / int(sizeof(T)); left > 1; left /= 2, count /= 2)
#pragma GCC unroll 8
        for (int index = 0; index < count / 2; index++)
            vectors[index] = neighbours<T>(vectors[2 * index], vectors[2 * index + 1]);
#pragma GCC unroll 4
    for (; count > 1; count /= 2)
#pragma GCC unroll 8
        for (int index = 0; index < count / 2; index++)
            vectors[index] = quarters<T>(vectors[2 * index], vectors[2 * index + 1]);
    return vectors[0];
}

template <class T>
ATTRACTOR_INLINE bool any(Integers<T> truth) {
    typename Lanes<T>::Integer seen = 0;
    for (int lane = 0; lane < width<T>; lane++) seen |= truth[lane];
    return seen != 0;
}

ATTRACTOR_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
ATTRACTOR_INLINE int64_t greatest(int64_t a, int64_t b) { return a > b ? a : b; }

}  // namespace attractor::ATTRACTOR_ISA
