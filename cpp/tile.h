// A tile: the scores, then the weights, of up to `depth` keys against `NQ` vectors of queries. Roles swap in the backward pass
// over keys; so the side that lies across the lanes is called `lanes` and the other, which is broadcast, `others`.
#pragma once

#include "simd.h"

namespace attractor::ATTRACTOR_ISA {

// Sums run in registers over one tile, then over `tiles_per_flush` tiles, then over all: so rounding grows with the root of
// each level and not of the number of keys.
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

// tile[j] = offset_j + start + <packed, others_j> for KB others; `peak` collects the largest.
template <class T, int NQ, int KB, int E>
ATTRACTOR_INLINE void score_block(const Vector<T>* packed, const T* others, int64_t stride, int64_t features,
                                  const T* offset, const Vector<T>* start, Vector<T>* tile, Vector<T>* peak) {
    Vector<T> sum[KB][NQ];
#pragma GCC unroll 8
    for (int j = 0; j < KB; j++)
#pragma GCC unroll 8
        for (int column = 0; column < NQ; column++)
            sum[j][column] = offset ? start[column] + offset[j] : start[column];
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
            peak[column] = larger(peak[column], sum[j][column]);
            tile[j * NQ + column] = sum[j][column];
        }
}

template <class T, int NQ, int E>
void scores_of(const Vector<T>* packed, const T* others, int64_t stride, int64_t features, int64_t count, const T* offset,
               const Vector<T>* shift, Vector<T>* tile, Vector<T>* peak) {
    Vector<T> start[NQ], high[NQ];
    for (int column = 0; column < NQ; column++) start[column] = -shift[column], high[column] = splat<T>(-infinity<T>);
    int64_t j = 0;
    for (; j + block <= count; j += block)
        score_block<T, NQ, block, E>(packed, others + j * stride, stride, features, offset ? offset + j : nullptr, start,
                                     tile + j * NQ, high);
    for (; j < count; j++)
        score_block<T, NQ, 1, E>(packed, others + j * stride, stride, features, offset ? offset + j : nullptr, start,
                                 tile + j * NQ, high);
    for (int column = 0; column < NQ; column++) peak[column] = high[column];
}

template <class T, int NQ>
void scores(const Vector<T>* packed, const T* others, int64_t stride, int64_t features, int64_t count, const T* offset,
            const Vector<T>* shift, Vector<T>* tile, Vector<T>* peak) {
    switch (features) {
        case 1: return scores_of<T, NQ, 1>(packed, others, stride, features, count, offset, shift, tile, peak);
        case 2: return scores_of<T, NQ, 2>(packed, others, stride, features, count, offset, shift, tile, peak);
        case 3: return scores_of<T, NQ, 3>(packed, others, stride, features, count, offset, shift, tile, peak);
        case 4: return scores_of<T, NQ, 4>(packed, others, stride, features, count, offset, shift, tile, peak);
        default: return scores_of<T, NQ, 0>(packed, others, stride, features, count, offset, shift, tile, peak);
    }
}

template <class T, int NQ, int CB>
void sum_block(const Vector<T>* tile, int64_t count, const T* others, int64_t stride, Vector<T>* result) {
    Vector<T> sum[CB][NQ] = {};
    for (int64_t j = 0; j < count; j++) {
#pragma GCC unroll 8
        for (int feature = 0; feature < CB; feature++) {
            const T other = others[j * stride + feature];
#pragma GCC unroll 8
            for (int column = 0; column < NQ; column++) sum[feature][column] += tile[j * NQ + column] * other;
        }
    }
    for (int feature = 0; feature < CB; feature++)
        for (int column = 0; column < NQ; column++) result[feature * NQ + column] += sum[feature][column];
}

// result[feature] += sum_j tile[j] others[j][feature]
template <class T, int NQ>
void weighted_sum(const Vector<T>* tile, int64_t count, const T* others, int64_t stride, int64_t features,
                  Vector<T>* result) {
    int64_t feature = 0;
    for (; feature + block <= features; feature += block)
        sum_block<T, NQ, block>(tile, count, others + feature, stride, result + feature * NQ);
    others += feature;
    result += feature * NQ;
    switch (features - feature) {
        case 1: return sum_block<T, NQ, 1>(tile, count, others, stride, result);
        case 2: return sum_block<T, NQ, 2>(tile, count, others, stride, result);
        case 3: return sum_block<T, NQ, 3>(tile, count, others, stride, result);
        case 4: return sum_block<T, NQ, 4>(tile, count, others, stride, result);
        case 5: return sum_block<T, NQ, 5>(tile, count, others, stride, result);
        default: return;
    }
}

}  // namespace attractor::ATTRACTOR_ISA
