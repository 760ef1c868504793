// A tile: the scores, then the weights, of up to `depth` keys against `NQ` vectors of queries. Roles swap in the
// backward pass over keys; so the side that lies across the lanes is called `lanes` and the other, which is broadcast,
// `others`.
#pragma once

#include "simd.h"

namespace attractor::ATTRACTOR_ISA {

// Sums run in registers over one tile, then over `tiles_per_flush` tiles, then over all: so rounding grows with the
// root of each level and not of the number of keys.
constexpr int64_t depth = 96;
constexpr int64_t tiles_per_flush = 8;

// Rows of the lanes' side, transposed: packed[feature * NQ + column], lanes past `rows` zero.
template <class T, int NQ>
void pack(const T* from, int64_t stride, int64_t rows, int64_t features, T factor, Vector<T>* packed) {
    T* to = (T*)packed;
    constexpr int64_t lanes = NQ * width<T>;
    for (int64_t feature = 0; feature < features; feature++) {
        for (int64_t row = 0; row < rows; row++) to[feature * lanes + row] = factor * from[row * stride + feature];
        for (int64_t row = rows; row < lanes; row++) to[feature * lanes + row] = 0;
    }
}

template <class T, int NQ>
ATTRACTOR_INLINE void pack_column(const T* from, int64_t rows, T factor, T absent, Vector<T>* packed) {
    T* to = (T*)packed;
    for (int64_t row = 0; row < NQ * width<T>; row++) to[row] = row < rows && from ? factor * from[row] : absent;
}

// tile[j] = offset_j + start + <packed, others_j> for KB others; `peak` collects the largest if `tracked`. Lanes of two
// others lie `pitch` vectors apart. If `late` what is added comes last: many products that are small beside it would
// each be rounded to its size.
template <class T, int NQ, int KB, int E, bool tracked, int pitch = NQ, bool late = false>
ATTRACTOR_INLINE void score_block(const Vector<T>* packed, const T* others, int64_t stride, int64_t features,
                                  const T* offset, const Vector<T>* start, Vector<T>* tile, Vector<T>* peak) {
    Vector<T> sum[KB][NQ];
#pragma GCC unroll 8
    for (int j = 0; j < KB; j++)
#pragma GCC unroll 8
        for (int column = 0; column < NQ; column++)
            sum[j][column] = late ? Vector<T>{} : offset ? start[column] + offset[j] : start[column];
    const int64_t count = E > 0 ? E : features;
    auto step = [&](int64_t feature) __attribute__((always_inline)) {
#pragma GCC unroll 8
        for (int j = 0; j < KB; j++) {
            const T other = others[j * stride + feature];
#pragma GCC unroll 8
            for (int column = 0; column < NQ; column++) sum[j][column] += packed[feature * NQ + column] * other;
        }
    };
    if constexpr (E > 0) {
#pragma GCC unroll 8
        for (int64_t feature = 0; feature < E; feature++) step(feature);
    } else {
        for (int64_t feature = 0; feature < count; feature++) step(feature);
    }
#pragma GCC unroll 8
    for (int j = 0; j < KB; j++)
#pragma GCC unroll 8
        for (int column = 0; column < NQ; column++) {
            if constexpr (late) sum[j][column] += offset ? start[column] + offset[j] : start[column];
            if constexpr (tracked) peak[column] = larger(peak[column], sum[j][column]);
            tile[j * pitch + column] = sum[j][column];
        }
}

template <class T, int NQ, int E, bool tracked>
void scores_of(const Vector<T>* packed, const T* others, int64_t stride, int64_t features, int64_t count,
               const T* offset, const Vector<T>* shift, Vector<T>* tile, Vector<T>* peak) {
    Vector<T> start[NQ], high[NQ];
    for (int column = 0; column < NQ; column++) start[column] = -shift[column], high[column] = splat<T>(-infinity<T>);
    constexpr bool late = E == 0;
    // few features stay in registers, which leaves room for the scores of few keys
    constexpr int abreast = E > 0 && columns == 2 ? 2 : block;
    int64_t j = 0;
    for (; j + abreast <= count; j += abreast)
        score_block<T, NQ, abreast, E, tracked, NQ, late>(packed, others + j * stride, stride, features,
                                                          offset ? offset + j : nullptr, start, tile + j * NQ, high);
    for (; j < count; j++)
        score_block<T, NQ, 1, E, tracked, NQ, late>(packed, others + j * stride, stride, features,
                                                    offset ? offset + j : nullptr, start, tile + j * NQ, high);
    if constexpr (tracked)
        for (int column = 0; column < NQ; column++) peak[column] = high[column];
}

template <class T, int NQ, bool tracked>
void scores(const Vector<T>* packed, const T* others, int64_t stride, int64_t features, int64_t count, const T* offset,
            const Vector<T>* shift, Vector<T>* tile, Vector<T>* peak) {
    switch (features) {
        case 1: return scores_of<T, NQ, 1, tracked>(packed, others, stride, features, count, offset, shift, tile, peak);
        case 2: return scores_of<T, NQ, 2, tracked>(packed, others, stride, features, count, offset, shift, tile, peak);
        case 3: return scores_of<T, NQ, 3, tracked>(packed, others, stride, features, count, offset, shift, tile, peak);
        case 4: return scores_of<T, NQ, 4, tracked>(packed, others, stride, features, count, offset, shift, tile, peak);
        default:
            return scores_of<T, NQ, 0, tracked>(packed, others, stride, features, count, offset, shift, tile, peak);
    }
}

// Sums of the tile weighted by CB features of the others; with `totals` the plain sum too.
template <class T, int NQ, int CB, bool totals>
void sum_block(const Vector<T>* tile, int64_t count, const T* others, int64_t stride, Vector<T>* result,
               Vector<T>* total) {
    // few sums wait for each other: those of even and of odd keys are then kept apart
    constexpr int ways = CB * NQ <= 4 ? 2 : 1;
    Vector<T> apart[ways][CB > 0 ? CB : 1][NQ], plain[NQ];
#pragma GCC unroll 8
    for (int column = 0; column < NQ; column++) {
        plain[column] = Vector<T>{};
#pragma GCC unroll 8
        for (int feature = 0; feature < CB; feature++)
#pragma GCC unroll 8
            for (int way = 0; way < ways; way++) apart[way][feature][column] = Vector<T>{};
    }
    auto add = [&](int64_t j, int way) __attribute__((always_inline)) {
#pragma GCC unroll 8
        for (int feature = 0; feature < CB; feature++) {
            const T other = others[j * stride + feature];
#pragma GCC unroll 8
            for (int column = 0; column < NQ; column++) apart[way][feature][column] += tile[j * NQ + column] * other;
        }
        if constexpr (totals)
#pragma GCC unroll 8
            for (int column = 0; column < NQ; column++) plain[column] += tile[j * NQ + column];
    };
    int64_t j = 0;
    for (; j + ways <= count; j += ways)
#pragma GCC unroll 8
        for (int way = 0; way < ways; way++) add(j + way, way);
    if (j < count) add(j, 0);
#pragma GCC unroll 8
    for (int column = 0; column < NQ; column++) {
        if constexpr (totals) total[column] += plain[column];
#pragma GCC unroll 8
        for (int feature = 0; feature < CB; feature++)
            result[feature * NQ + column] +=
                ways == 2 ? apart[0][feature][column] + apart[ways - 1][feature][column] : apart[0][feature][column];
    }
}

template <class T, int NQ>
void plain_sum(const Vector<T>* tile, int64_t count, Vector<T>* total) {
    sum_block<T, NQ, 0, true>(tile, count, nullptr, 0, nullptr, total);
}

// result[feature] += sum_j tile[j] others[j][feature], and total += sum_j tile[j] if asked for: on the way, since
// adding inside the pass that computes the powers would lengthen its chains.
template <class T, int NQ, bool totals = false>
void weighted_sum(const Vector<T>* tile, int64_t count, const T* others, int64_t stride, int64_t features,
                  Vector<T>* result, Vector<T>* total = nullptr) {
    if constexpr (totals) {
        // a block of four leaves registers for the totals
        if (features >= 4) {
            sum_block<T, NQ, 4, true>(tile, count, others, stride, result, total);
            return weighted_sum<T, NQ>(tile, count, others + 4, stride, features - 4, result + 4 * NQ);
        }
    }
    int64_t feature = 0;
    for (; feature + block <= features; feature += block)
        sum_block<T, NQ, block, false>(tile, count, others + feature, stride, result + feature * NQ, total);
    others += feature;
    result += feature * NQ;
    switch (features - feature) {
        case 0: return;
        case 1: return sum_block<T, NQ, 1, totals>(tile, count, others, stride, result, total);
        case 2: return sum_block<T, NQ, 2, totals>(tile, count, others, stride, result, total);
        case 3: return sum_block<T, NQ, 3, totals>(tile, count, others, stride, result, total);
    }
    if constexpr (!totals) {
        if (features - feature == 4) return sum_block<T, NQ, 4, false>(tile, count, others, stride, result, total);
        sum_block<T, NQ, 5, false>(tile, count, others, stride, result, total);
    }
}

}  // namespace attractor::ATTRACTOR_ISA
