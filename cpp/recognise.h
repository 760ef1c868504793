// Whether the queries of a member are a multiple of its keys, and one shift serves all of its scores.
//
// One shift is safe where every row has a weight that is not small. With s_ij = a <k_i, k_j> and a > 0 no score passes
// max_i s_ii (Cauchy and Schwarz), and that of row i is at least s_ii; so the shift is max_i s_ii, and max_i s_ii -
// min_i s_ii must stay below `leeway` powers of two. If a < 0 there is no shift, and all scores must be of that size.
// Rows whose largest weight is below 1 then lose no accuracy, because weights that underflow are below their rounding
// error. Scores so large that their rounding could pass `slack` powers of two need the computed maximum of each row,
// and use the general kernels.
#pragma once

#include "forward.h"

namespace attractor::ATTRACTOR_ISA {

template <class T>
constexpr T leeway = sizeof(T) == 4 ? T(40) : T(400);
constexpr double slack = 8;
template <class T>
constexpr T reach = sizeof(T) == 4 ? T(0x1p30) : T(0x1p300);

// Whether all numbers of the queries are `multiple` times those of the keys, to rounding.
template <class T>
bool proportional(const Problem& problem, const T* q, const T* k, T multiple) {
    const T bound = (sizeof(T) == 4 ? T(0x1p-22) : T(0x1p-51)) * T(__builtin_fabs(multiple));
    int other = 0;
    auto look = [&](const T* query, const T* key, int64_t count) __attribute__((always_inline)) {
        for (int64_t index = 0; index < count; index++)
            other |= !(__builtin_fabs(query[index] - multiple * key[index]) <= bound * __builtin_fabs(key[index]));
    };
    if (problem.q.row == problem.e && problem.k.row == problem.e) {
        look(q, k, problem.n * problem.e);
    } else {
        for (int64_t i = 0; i < problem.n; i++) look(q + i * problem.q.row, k + i * problem.k.row, problem.e);
    }
    return !other;
}

// Independent accumulators for consecutive tokens, because one dependency chain would be slow.
constexpr int chains = 4;

template <class Step>
ATTRACTOR_INLINE void in_chains(int64_t n, Step step) {
    int64_t i = 0;
    for (; i + chains <= n; i += chains)
#pragma GCC unroll 4
        for (int c = 0; c < chains; c++) step(i + c, c);
    for (; i < n; i++) step(i, 0);
}

// Sums of (q - first k) k and of k k over numbers that lie side by side.
struct Products {
    static constexpr int lanes = 8;
    double rest[lanes] = {}, squares[lanes] = {};

    template <class T>
    ATTRACTOR_INLINE void add(const T* q, const T* k, int64_t count, double first) {
        auto one = [&](int64_t index, int lane) __attribute__((always_inline)) {
            const double key = double(k[index]);
            rest[lane] += __builtin_fma(-first, key, double(q[index])) * key, squares[lane] += key * key;
        };
        int64_t index = 0;
        for (; index + lanes <= count; index += lanes)
#pragma GCC unroll 8
            for (int lane = 0; lane < lanes; lane++) one(index + lane, lane);
        for (int lane = 0; index < count; index++, lane++) one(index, lane);
    }

    static double of(const double* sums) {
        double total = 0;
        for (int lane = 0; lane < lanes; lane++) total += sums[lane];
        return total;
    }
};

// The square of a vector of many numbers.
template <class T>
ATTRACTOR_INLINE T square_of(const T* numbers, int64_t count) {
    constexpr int lanes = 16;
    T sums[lanes] = {}, square = 0;
    int64_t index = 0;
    for (; index + lanes <= count; index += lanes)
#pragma GCC unroll 16
        for (int lane = 0; lane < lanes; lane++) sums[lane] += numbers[index + lane] * numbers[index + lane];
    for (; index < count; index++) square += numbers[index] * numbers[index];
    for (int lane = 0; lane < lanes; lane++) square += sums[lane];
    return square;
}

// Whether the first query is clearly not a multiple of its key, so that the others need no check.
template <class T>
bool unlike(const T* q, const T* k, int64_t d) {
    int64_t largest = 0;
    for (int64_t f = 1; f < d; f++)
        if (__builtin_fabs(k[f]) > __builtin_fabs(k[largest])) largest = f;
    if (k[largest] == 0) return false;
    const T multiple = q[largest] / k[largest];
    for (int64_t f = 0; f < d; f++)
        if (__builtin_fabs(q[f] - multiple * k[f]) > T(1e-3) * __builtin_fabs(q[largest])) return true;
    return false;
}

// Whether the queries of a member are a multiple of its keys whose scores one shift serves; if so, factor and shift. D
// is the number of features, or 0 if they are many.
template <class T, int D>
bool recognise(const Problem& problem, int64_t member, Symmetric* found) {
    const T *q = locate<T>(problem, problem.q, member), *k = locate<T>(problem, problem.k, member);
    const T *v = locate<T>(problem, problem.v, member), *bias = locate<T>(problem, problem.bias, member);
    const int64_t d = D ? D : problem.e;
    if (unlike(q, k, d)) return false;
    auto square_of = [&](int64_t i) __attribute__((always_inline)) {
        if constexpr (D == 0) return ATTRACTOR_ISA::square_of(k + i * problem.k.row, d);
        T square = 0;
#pragma GCC unroll 4
        for (int f = 0; f < D; f++) square += k[i * problem.k.row + f] * k[i * problem.k.row + f];
        return square;
    };
    // NaN and infinity show in the sum
    T most = 0, fewest = infinity<T>, sum = 0, large = 0;
    {
        T high[chains] = {}, low[chains], sums[chains] = {};
        for (int c = 0; c < chains; c++) low[c] = infinity<T>;
        in_chains(
            problem.n, [&](int64_t i, int c) __attribute__((always_inline)) {
                const T square = square_of(i);
                high[c] = high[c] > square ? high[c] : square, low[c] = low[c] < square ? low[c] : square,
                sums[c] += square;
            });
        for (int c = 0; c < chains; c++)
            most = most > high[c] ? most : high[c], fewest = fewest < low[c] ? fewest : low[c], sum += sums[c];
    }
    if (bias)
        for (int64_t i = 0; i < problem.n; i++)
            large = large > T(__builtin_fabs(bias[i])) ? large : T(__builtin_fabs(bias[i]));
    if (!(sum > 0 && sum < infinity<T> && large <= leeway<T> / 2)) return false;
    // weights of `leeway` and masses of half of it must leave values above what is flushed, and below what is infinite
    T size = most > 1 ? T(__builtin_sqrt(most))
                      : T(__builtin_sqrt(most / T(d)));  // of the keys, where they are the values: a bound
    found->same = v == k && problem.v.row == problem.k.row;
    if (!found->same) {
        T sizes[chains] = {};
        in_chains(
            problem.n, [&](int64_t i, int c) __attribute__((always_inline)) {
#pragma GCC unroll 4
                for (int f = 0; f < d; f++) {
                    const T value = T(__builtin_fabs(v[i * problem.v.row + f]));
                    sizes[c] = value <= sizes[c] ? sizes[c] : value;
                }
            });
        size = 0;
        for (int c = 0; c < chains; c++) size = sizes[c] <= size ? size : sizes[c];
    }
    if (!(size <= reach<T>) || (size > 0 && size < 1 / reach<T>)) return false;
    T multiple = 1;
    if (q != k || problem.q.row != problem.k.row) {
        int64_t longest = 0;
        while (square_of(longest) < most / 4) longest++;
        double product = 0, squares = 0;
        for (int f = 0; f < d; f++)
            product += double(q[longest * problem.q.row + f]) * double(k[longest * problem.k.row + f]);
        const double first = product / double(square_of(longest));
        // the factor of one row has its rounding error, which the sum over all rows corrects
        Products sums;
        if (problem.q.row == d && problem.k.row == d) {
            sums.add(q, k, problem.n * d, first);
        } else {
            for (int64_t i = 0; i < problem.n; i++) sums.add(q + i * problem.q.row, k + i * problem.k.row, d, first);
        }
        product = sums.of(sums.rest), squares = sums.of(sums.squares);
        multiple = T(first + product / squares);
        if (!proportional<T>(problem, q, k, multiple)) return false;
    }
    const double factor = log2e * double(multiple);
    found->factor = factor;
    found->shift = factor > 0 ? double(T(factor * double(most))) : 0;  // as the weights know it
    found->weighted = bias != nullptr;
    if (!(__builtin_fabs(factor) * double(most) * double(d) * (sizeof(T) == 4 ? 0x1p-24 : 0x1p-53) <= slack))
        return false;
    if (problem.mode == Mode::exponential && !(found->shift <= moderate<T>)) return false;
    return (factor > 0 ? factor * (double(most) - double(fewest)) : -factor * double(most)) <= leeway<T>;
}

}  // namespace attractor::ATTRACTOR_ISA
