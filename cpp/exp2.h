// 2^x on vectors, by x = n + r with |r| <= 1/2, a polynomial for 2^r that is exactly 1 at r = 0, and n put into the
// exponent.
//
// Largest relative error where the result is a normal number, measured by tests/engines/test_fused.py over the whole
// range: float32 2e-7 (degree 5, 9.3e-8 in exact arithmetic), float64 3e-16 (degree 11, 2.0e-17; with a table of 16
// entries degree 6, 1.5e-17). Below 2^-126 (2^-1022) the result goes to 0 with absolute error below the smallest normal
// number; 2^-inf = 0. Above the largest number it is infinity. Known bounds on x save comparisons: see `Domain`.
#pragma once

#include "simd.h"

namespace attractor::ATTRACTOR_ISA {

// `inside`: the result is a normal number; `below`: it does not overflow.
enum class Domain { any, below, inside };

template <class T>
struct Exponent;

template <>
struct Exponent<float> {
    static constexpr float magic = 0x1.8p23f;  // adding it rounds to an integer, in the low bits
    static constexpr float lowest = -127.0f, highest = 128.0f;
    static constexpr int mantissa = 23;
    static constexpr int degree = 5;
    static constexpr float coefficients[degree + 1] = {1.326953527e-03f, 9.671292268e-03f, 5.550710857e-02f,
                                                       2.402224690e-01f, 6.931470037e-01f, 1.0f};
};

template <>
struct Exponent<double> {
    static constexpr double magic = 0x1.8p52;
    static constexpr double lowest = -1023.0, highest = 1024.0;
    static constexpr int mantissa = 52;
    static constexpr int degree = 11;
    static constexpr double coefficients[degree + 1] = {
        4.45496059818651856e-10, 7.07258594926922339e-09, 1.01780624458457737e-07, 1.32154425879216893e-06,
        1.52527338298361192e-05, 1.54035304417360499e-04, 1.33335581464169356e-03, 9.61812910760688825e-03,
        5.55041086648215970e-02, 2.40226506959100972e-01, 6.93147180559945286e-01, 1.0};
};

template <class T>
ATTRACTOR_INLINE Vector<T> polynomial(Vector<T> r) {
    Vector<T> p = splat<T>(Exponent<T>::coefficients[0]);
#pragma GCC unroll 16
    for (int power = 1; power <= Exponent<T>::degree; power++) p = p * r + Exponent<T>::coefficients[power];
    return p;
}

#if defined(ATTRACTOR_HAS_SCALE)

// The scaling instruction handles overflow and underflow; only -inf, for which r is NaN, must be excluded.
template <Domain domain>
ATTRACTOR_INLINE Vector<float> exp2(Vector<float> x) {
    if constexpr (domain != Domain::inside) x = larger(splat<float>(-200.0f), x);
    if constexpr (domain == Domain::any) x = smaller(splat<float>(200.0f), x);
    Vector<float> n = (x + Exponent<float>::magic) - Exponent<float>::magic;
    return scale(polynomial<float>(x - n), n);
}

alignas(64) constexpr double sixteenths[16] = {
    0x1.0000000000000p+0, 0x1.0b5586cf9890fp+0, 0x1.172b83c7d517bp+0, 0x1.2387a6e756238p+0,
    0x1.306fe0a31b715p+0, 0x1.3dea64c123422p+0, 0x1.4bfdad5362a27p+0, 0x1.5ab07dd485429p+0,
    0x1.6a09e667f3bcdp+0, 0x1.7a11473eb0187p+0, 0x1.8ace5422aa0dbp+0, 0x1.9c49182a3f090p+0,
    0x1.ae89f995ad3adp+0, 0x1.c199bdd85529cp+0, 0x1.d5818dcfba487p+0, 0x1.ea4afa2a490dap+0};

template <Domain domain>
ATTRACTOR_INLINE Vector<double> exp2(Vector<double> x) {
    constexpr double magic = 0x1.8p48;  // rounds to sixteenths
    if constexpr (domain != Domain::inside) x = larger(splat<double>(-1200.0), x);
    if constexpr (domain == Domain::any) x = smaller(splat<double>(1200.0), x);
    Vector<double> rounded = x + magic, n = rounded - magic, r = x - n;
    Vector<double> p = r * 1.54037239807492565e-04 + 1.33337815767842682e-03;
    p = p * r + 9.61812910691953703e-03;
    p = p * r + 5.55041086566393019e-02;
    p = p * r + 2.40226506959100750e-01;
    p = p * r + 6.93147180559945730e-01;
    Vector<double> root = look_up(sixteenths, (Integers<double>)rounded);
    return scale(root + (p * r) * root, n);
}

#else

// At the bounds r = 0, so the polynomial is exactly 1, and adding n to its exponent gives exactly 0 or infinity.
template <class T, Domain domain>
ATTRACTOR_INLINE Vector<T> power(Vector<T> x) {
    using E = Exponent<T>;
    if constexpr (domain != Domain::inside) x = larger(splat<T>(E::lowest), x);
    if constexpr (domain == Domain::any) x = smaller(splat<T>(E::highest), x);
    Vector<T> rounded = x + E::magic;
    Vector<T> p = polynomial<T>(x - (rounded - E::magic));
    return (Vector<T>)((Bits<T>)p + ((Bits<T>)rounded << E::mantissa));
}

template <Domain domain>
ATTRACTOR_INLINE Vector<float> exp2(Vector<float> x) {
    return power<float, domain>(x);
}

template <Domain domain>
ATTRACTOR_INLINE Vector<double> exp2(Vector<double> x) {
    return power<double, domain>(x);
}

#endif

#if defined(__x86_64__) && !defined(ATTRACTOR_HAS_SCALE)

// 2^x of four vectors at a time, in place: the dependency chain of one vector is longer than the reorder window of the
// processor. The coefficients stay in memory, because there are only 16 registers.
template <class T>
class Powers {
    using E = Exponent<T>;
    Vector<T> coefficients[E::degree + 1];

public:
    Powers() {
        for (int power = 0; power <= E::degree; power++) coefficients[power] = splat<T>(E::coefficients[power]);
    }

    template <Domain domain>
    ATTRACTOR_INLINE void four(Vector<T>* x) const {
        const Vector<T>* table = coefficients;
        __asm__ volatile("" : "+r"(table) : : "memory");
        const Vector<T> magic = splat<T>(E::magic);
        Vector<T> rounded[4], r[4], p[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            r[i] = x[i];
            if constexpr (domain != Domain::inside) r[i] = larger(splat<T>(E::lowest), r[i]);
            if constexpr (domain == Domain::any) r[i] = smaller(splat<T>(E::highest), r[i]);
            rounded[i] = r[i] + magic;
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) p[i] = rounded[i] - magic;
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) pin(r[i] -= p[i]);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) pin(p[i] = table[0] * r[i] + table[1]);
#pragma GCC unroll 16
        for (int power = 2; power <= E::degree; power++)
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) pin(p[i] = p[i] * r[i] + table[power]);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) x[i] = (Vector<T>)((Bits<T>)p[i] + ((Bits<T>)rounded[i] << E::mantissa));
    }
};

#else

template <class T>
struct Powers {
    template <Domain domain>
    ATTRACTOR_INLINE void four(Vector<T>* x) const {
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) x[i] = exp2<domain>(x[i]);
    }
};

#endif

// 2^x of many vectors, in place.
template <class T, Domain domain>
ATTRACTOR_INLINE void exp2_all(Vector<T>* x, int64_t count) {
    const Powers<T> powers;
    for (; count >= 4; count -= 4, x += 4) powers.template four<domain>(x);
    for (; count > 0; count--, x++) *x = exp2<domain>(*x);
}

// 1 / (1 + 2^-x): 0 at -inf, 1 at +inf, and accurate relative to itself between.
template <class V>
ATTRACTOR_INLINE V sigmoid2(V x) {
    return 1 / (1 + exp2<Domain::any>(-x));
}

}  // namespace attractor::ATTRACTOR_ISA
