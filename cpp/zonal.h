// Sums over tokens of zonal kernels on the circle and the 2-sphere, by harmonics; attractor/engines/spectral has the
// mathematics.
//
// A harmonic is Q_lm(z) (x + iy)^m: no angles, no poles. On the sphere the polynomials of one m follow from each other
// by
//
//   Q_{l+1} = step_lm z Q_l - Q_{l-1},    Q_m = 1,  Q_{m-1} = 0,
//
// a scaling with one coefficient and one dependent fused multiply-add per (l, m); on the circle l
// = m only. Near the poles the polynomial grows as fast as the power falls, and both stay finite for all orders in use.
#pragma once

#include "exp2.h"
#include "member.h"

namespace attractor::ATTRACTOR_ISA {

using Doubles = Vector<double>;
constexpr int lanes = width<double>;

// Vectors of tokens beside each other in the two passes.
constexpr int gathered = 4;
constexpr int spread = 2;
constexpr int64_t tokens_per_flush = 4096;  // sums run over so many tokens, then over these

ATTRACTOR_INLINE int64_t place(const Harmonics& basis, int64_t m) {
    return basis.dim == 3 ? m * (basis.stride + 1) : m;
}
ATTRACTOR_INLINE int64_t places(const Harmonics& basis) {
    return basis.dim == 3 ? (basis.order + 1) * basis.stride : basis.order + 1;
}

// Unit vectors of `rows` tokens across the lanes; lanes past them hold the first axis.
template <int NV>
ATTRACTOR_INLINE void unit_vectors(const Harmonics& basis, int64_t start, int64_t rows, Doubles (&at)[3][NV]) {
    for (int axis = 0; axis < 3; axis++) {
        double* to = (double*)at[axis];
        for (int64_t row = 0; row < NV * lanes; row++) to[row] = axis == 0 && row >= rows ? 1.0 : 0.0;
        if (axis < basis.dim)
            for (int64_t row = 0; row < rows; row++)
                to[row] = basis.scale * basis.points[(start + row) * basis.row + axis];
    }
}

// sums[l][re, im] += sum of Q_lm weighted by `turned` = weight (x + iy)^m, two degrees at a time: they share their
// operands.
template <int NV>
ATTRACTOR_INLINE void gather_degrees(const double* step, int64_t count, const Doubles (&z)[NV], const Doubles (&re)[NV],
                                     const Doubles (&im)[NV], Doubles* sums) {
    Doubles now[NV], next[NV];
    for (int v = 0; v < NV; v++) now[v] = splat(1.0), next[v] = step[0] * z[v];
    int64_t l = 0;
    for (; l + 2 <= count; l += 2) {
        Doubles a = sums[2 * l], b = sums[2 * l + 1], c = sums[2 * l + 2], d = sums[2 * l + 3];
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) {
            a += now[v] * re[v], b += now[v] * im[v];
            c += next[v] * re[v], d += next[v] * im[v];
            now[v] = step[l + 1] * z[v] * next[v] - now[v];
            next[v] = step[l + 2] * z[v] * now[v] - next[v];
        }
        sums[2 * l] = a, sums[2 * l + 1] = b, sums[2 * l + 2] = c, sums[2 * l + 3] = d;
    }
    if (l < count)
        for (int v = 0; v < NV; v++) sums[2 * l] += now[v] * re[v], sums[2 * l + 1] += now[v] * im[v];
}

// Adds one group of tokens to the sums of one channel.
template <bool sphere>
void gather_group(const Harmonics& basis, const double* weights, int64_t start, int64_t rows, Doubles* sums) {
    constexpr int NV = gathered;
    Doubles at[3][NV], re[NV], im[NV];
    unit_vectors<NV>(basis, start, rows, at);
    double* to = (double*)re;
    for (int64_t row = 0; row < NV * lanes; row++) to[row] = row >= rows ? 0.0 : weights ? weights[start + row] : 1.0;
    for (int v = 0; v < NV; v++) im[v] = Doubles{};
    for (int64_t m = 0; m <= basis.order; m++) {
        Doubles* own = sums + 2 * place(basis, m);
        if constexpr (sphere) {
            gather_degrees<NV>(basis.steps + place(basis, m), basis.order - m + 1, at[2], re, im, own);
        } else {
            for (int v = 0; v < NV; v++) own[0] += re[v], own[1] += im[v];
        }
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) {
            const Doubles turned = re[v] * at[0][v] - im[v] * at[1][v];
            im[v] = re[v] * at[1][v] + im[v] * at[0][v];
            re[v] = turned;
        }
    }
}

// One task of the analysis: tokens from `start` to `stop` into `result` (channels, places, 2).
inline void gather(const Harmonics& basis, int64_t start, int64_t stop, double* result, void* memory) {
    const FlushTiny guard;
    constexpr int64_t group = gathered * lanes;
    const int64_t count = 2 * places(basis);
    Doubles* sums = (Doubles*)memory;
    for (int64_t channel = 0; channel < basis.channels; channel++, result += count) {
        const double* weights = basis.weights ? basis.weights + channel * basis.n : nullptr;
        for (int64_t index = 0; index < count; index++) result[index] = 0.0;
        for (int64_t first = start; first < stop; first += tokens_per_flush) {
            const int64_t last = least(first + tokens_per_flush, stop);
            for (int64_t index = 0; index < count; index++) sums[index] = Doubles{};
            for (int64_t token = first; token < last; token += group) {
                if (basis.dim == 3)
                    gather_group<true>(basis, weights, token, least(group, last - token), sums);
                else
                    gather_group<false>(basis, weights, token, least(group, last - token), sums);
            }
            for (int64_t index = 0; index < count; index++) {
                double total = 0.0;
                for (int lane = 0; lane < lanes; lane++) total += sums[index][lane];
                result[index] += total;
            }
        }
    }
}

// Values of C series at a group of tokens: value[channel] = sum_lm Q_lm (re_lm Re (x + iy)^m + im_lm Im (x + iy)^m).
template <bool sphere, int NV, int C>
void evaluate(const Harmonics& basis, const double* series, const Doubles (&at)[3][spread], int from, Doubles* value) {
    Doubles re[NV], im[NV], sum[C][NV];
    for (int v = 0; v < NV; v++) {
        re[v] = splat(1.0), im[v] = Doubles{};
        for (int c = 0; c < C; c++) sum[c][v] = Doubles{};
    }
    for (int64_t m = 0; m <= basis.order; m++) {
        const double* own = series + 2 * C * (sphere ? m * (basis.stride + 1) : m);
        if constexpr (sphere) {
            Doubles now[NV], before[NV], part[2 * C][NV];
            for (int v = 0; v < NV; v++) {
                now[v] = splat(1.0), before[v] = Doubles{};
                for (int c = 0; c < 2 * C; c++) part[c][v] = Doubles{};
            }
            const double* step = basis.steps + m * (basis.stride + 1);
            for (int64_t l = 0; l <= basis.order - m; l++, own += 2 * C) {
#pragma GCC unroll 8
                for (int v = 0; v < NV; v++) {
#pragma GCC unroll 8
                    for (int c = 0; c < 2 * C; c++) part[c][v] += now[v] * own[c];
                    const Doubles next = step[l] * at[2][from + v] * now[v] - before[v];
                    before[v] = now[v], now[v] = next;
                }
            }
            for (int v = 0; v < NV; v++)
#pragma GCC unroll 8
                for (int c = 0; c < C; c++) sum[c][v] += part[2 * c][v] * re[v] + part[2 * c + 1][v] * im[v];
        } else {
            for (int v = 0; v < NV; v++)
#pragma GCC unroll 8
                for (int c = 0; c < C; c++) sum[c][v] += own[2 * c] * re[v] + own[2 * c + 1] * im[v];
        }
        for (int v = 0; v < NV; v++) {
            const Doubles turned = re[v] * at[0][from + v] - im[v] * at[1][from + v];
            im[v] = re[v] * at[1][from + v] + im[v] * at[0][from + v];
            re[v] = turned;
        }
    }
    for (int c = 0; c < C; c++)
        for (int v = 0; v < NV; v++) value[c * spread + from + v] = sum[c][v];
}

// Registers: one vector of tokens and four channels, or two and one or two channels.
template <int C>
ATTRACTOR_INLINE void evaluate_both(const Harmonics& basis, const double* series, const Doubles (&at)[3][spread],
                                    Doubles* value) {
    static_assert(spread == 2, "the vectors of a group are two");
    if (basis.dim != 3) return evaluate<false, 2, C>(basis, series, at, 0, value);
    if constexpr (C <= 2) return evaluate<true, 2, C>(basis, series, at, 0, value);
    for (int v = 0; v < spread; v++) evaluate<true, 1, C>(basis, series, at, v, value);
}

// m_i e^{<q_i, k_i> - level}, the self term of a normaliser; 0 for a row without its own key.
ATTRACTOR_INLINE void own_terms(const Harmonics& basis, const Rows& rows, int64_t start, int64_t count,
                                Doubles (&own)[spread]) {
    double* to = (double*)own;
    for (int64_t row = 0; row < spread * lanes; row++) {
        const int64_t i = start + row;
        double score = -infinity<double>;
        if (row < count && i < rows.own) {
            score = -rows.level;
            for (int axis = 0; axis < basis.dim; axis++)
                score += basis.points[i * basis.row + axis] * rows.keys[i * rows.keys_row + axis];
        }
        to[row] = score * 1.4426950408889634;
    }
    for (int v = 0; v < spread; v++) own[v] = exp2<Domain::any>(own[v]);
    if (rows.masses)
        for (int64_t row = 0; row < count && start + row < rows.own; row++) to[row] *= rows.masses[start + row];
}

// From sums to results: drop the own terms, divide, and count the rows whose error bound is too large.
inline int64_t finish(const Harmonics& basis, const Rows& rows, int64_t start, int64_t count, const Doubles* value) {
    constexpr int64_t apart = spread * lanes;
    Doubles own[spread] = {}, factor[spread];
    const bool skip = rows.skip_self && rows.output;
    if (skip) own_terms(basis, rows, start, count, own);
    for (int v = 0; v < spread; v++) factor[v] = rows.divide ? 1.0 / value[v] : splat(rows.factor);
    int64_t poor = 0;
    for (int64_t row = 0; row < count; row++) {
        const int64_t i = start + row;
        const double* sums = (const double*)value + row;
        const double self = ((const double*)own)[row], times = ((const double*)factor)[row];
        bool good = sums[0] - self >= rows.limit;
        rows.logsumexp[i] = __builtin_log(sums[0]) + rows.logarithm;
        if (rows.first == 2) {
            double size = 0.0;
            for (int64_t c = 0; c < rows.columns && skip && i < rows.own; c++) {
                const double one = __builtin_fabs(rows.values[i * rows.values_row + c]);
                size = one > size ? one : size;
            }
            good = good && sums[apart] - self * size >= rows.size_limit;
        }
        for (int64_t c = 0; c < rows.columns; c++) {
            const double theirs = skip && i < rows.own ? self * rows.values[i * rows.values_row + c] : 0.0;
            rows.output[i * rows.columns + c] = (sums[(rows.first + c) * apart] * rows.stretch - theirs) * times;
        }
        rows.good[i] = good;
        poor += !good;
    }
    return poor;
}

// One task of the synthesis: a group of rows; returns the number of rows that are not accurate enough.
inline int64_t spread_out(const Harmonics& basis, const Rows& rows, int64_t task, void* memory) {
    const FlushTiny guard;
    constexpr int64_t group = spread * lanes;
    const int64_t start = task * group, count = least(group, basis.n - start);
    Doubles at[3][spread];
    unit_vectors<spread>(basis, start, count, at);
    Doubles* value = (Doubles*)memory;
    const double* series = basis.series;
    int64_t channel = 0;
    for (; channel + 4 <= basis.channels; channel += 4, series += 8 * places(basis))
        evaluate_both<4>(basis, series, at, value + channel * spread);
    switch (basis.channels - channel) {
        case 1: evaluate_both<1>(basis, series, at, value + channel * spread); break;
        case 2: evaluate_both<2>(basis, series, at, value + channel * spread); break;
        case 3: evaluate_both<3>(basis, series, at, value + channel * spread); break;
    }
    return finish(basis, rows, start, count, value);
}

inline size_t gather_bytes(const Harmonics& basis) { return sizeof(Doubles) * 2 * places(basis); }
inline size_t spread_bytes(const Harmonics& basis) { return sizeof(Doubles) * spread * basis.channels; }

constexpr Zonal zonal_kernels() {
    return {gathered * lanes, spread * lanes, gather_bytes, spread_bytes, gather, spread_out};
}

}  // namespace attractor::ATTRACTOR_ISA
