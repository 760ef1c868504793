// Gradients of one group, with recomputed scores. With G_i the gradient of output i and g_ij = <G_i, v_j>
// (0 for j = i if the self term is skipped), w_ij the weight of v_j in output i and p_ij the softmax:
//
//   softmax       ds_ij = p_ij (g_ij + t_i)            t_i = (gradient of logsumexp i) - <G_i, output_i>
//   exponential   ds_ij = e^s_ij g_ij + p_ij t_i       t_i = gradient of logsumexp i
//   sigmoid       ds_ij = w_ij (1 - w_ij) g_ij
//   linear        ds_ij = g_ij
//
//   grad q_i = sum_j ds_ij k_j,  grad k_j = sum_i ds_ij q_i,  grad bias_j = sum_i ds_ij,  grad v_j = sum_i w_ij G_i.
//
// Sums over keys and sums over queries are two passes, so that no two threads add to the same row.
#pragma once

#include "forward.h"

namespace attractor::ATTRACTOR_ISA {

// One side of the pairs: rows of (q, G, log2 of the normaliser, t) or of (k, v, bias).
template <class T>
struct Side {
    const T* points;
    int64_t points_row;
    const T* values;
    int64_t values_row;
    const T* level;  // log2 of the normaliser, or the bias; null: 0
    const T* term;   // t, or null
};

template <class T>
Side<T> queries_of(const Problem& problem, int64_t member) {
    return {locate<T>(problem, problem.q, member),           problem.q.row,
            locate<T>(problem, problem.grad_output, member), problem.grad_output.row,
            locate<T>(problem, problem.log2sum, member),     locate<T>(problem, problem.row_term, member)};
}

template <class T>
Side<T> keys_of(const Problem& problem, int64_t member) {
    return {locate<T>(problem, problem.k, member),    problem.k.row,
            locate<T>(problem, problem.v, member),    problem.v.row,
            locate<T>(problem, problem.bias, member), nullptr};
}

// Scores become weights in `tile`, and <G, v> becomes ds in `slopes`. For the side of the queries, `level` and `term`
// are in lanes (`swapped` false) or broadcast.
template <class T, int NQ, Mode mode, bool swapped>
void slope(Vector<T>* tile, Vector<T>* slopes, int64_t count, const Vector<T>* lane_level, const Vector<T>* lane_term,
           const T* level, const T* term) {
    for (int64_t j = 0; j < count; j++)
        for (int column = 0; column < NQ; column++) {
            const Vector<T> x = tile[j * NQ + column], g = slopes[j * NQ + column];
            const Vector<T> t = swapped ? splat<T>(term ? term[j] : 0) : lane_term[column];
            if constexpr (mode == Mode::softmax) {
                tile[j * NQ + column] = exp2<Domain::any>(x);
                slopes[j * NQ + column] = tile[j * NQ + column] * (g + t);
            } else if constexpr (mode == Mode::exponential) {
                const Vector<T> normaliser = swapped ? splat<T>(level[j]) : lane_level[column];
                tile[j * NQ + column] = exp2<Domain::any>(x);
                // an infinite weight times a zero gradient is 0
                const Vector<T> asked = g == 0 ? Vector<T>{} : tile[j * NQ + column] * g;
                slopes[j * NQ + column] = asked + exp2<Domain::any>(x - normaliser) * t;
            } else if constexpr (mode == Mode::sigmoid) {
                const Vector<T> weight = sigmoid2(x);
                tile[j * NQ + column] = weight;
                slopes[j * NQ + column] = weight * (sigmoid2(-x) * g);
            }
        }
}

template <class T>
struct Gradients {
    T *points, *values, *bias;  // each may be null
    int64_t points_row, values_row;
};

// The gradients of the rows `lanes` of one side, summed over `reach` of the other.
template <class T, int NQ, Mode mode, bool swapped>
void backward_rows(const Problem& problem, const uint8_t* visible, const Side<T>& own, const Side<T>& other,
                   Range lanes, Range reach, const Gradients<T>& to, Vector<T>* memory) {
    const int64_t rows = lanes.stop - lanes.start, e = problem.e, c = problem.v.data ? problem.c : 0;
    constexpr bool shifted = mode == Mode::softmax;
    const T factor = mode == Mode::linear ? T(1) : T(log2e);
    Vector<T>*points = memory, *values = points + e * NQ, *tile = values + c * NQ, *slopes = tile + depth * NQ;
    Vector<T>* offsets = slopes + depth * NQ;
    Vector<T> level[NQ], term[NQ], zero[NQ] = {};
    pack<T, NQ>(own.points + lanes.start * own.points_row, own.points_row, rows, e, factor, points);
    if (c) pack<T, NQ>(own.values + lanes.start * own.values_row, own.values_row, rows, c, T(1), values);
    pack_column<T, NQ>(own.level ? own.level + lanes.start : nullptr, rows, swapped ? T(-1) : T(1), T(0), level);
    pack_column<T, NQ>(own.term ? own.term + lanes.start : nullptr, rows, T(1), T(0), term);
    // a score starts at (bias - log2 of the normaliser); one of the two lies in the lanes, the other in `offset`
    const Vector<T>* shift = swapped || shifted ? level : zero;
    Sums<T, NQ> point_sums(offsets + (depth + width<T> - 1) / width<T>, e);
    Sums<T, NQ> value_sums(point_sums.whole + e * NQ, swapped && to.values ? c : 0);
    int64_t tiles = 0;
    for (int64_t start = reach.start; start < reach.stop; start += depth) {
        const Range here = {start, least(start + depth, reach.stop)};
        const int64_t count = here.stop - here.start;
        const T* offset = other.level && (!swapped || shifted) ? other.level + start : nullptr;
        if (offset && swapped) {
            for (int64_t j = 0; j < count; j++) ((T*)offsets)[j] = -offset[j];
            offset = (const T*)offsets;
        }
        scores<T, NQ, false>(points, other.points + start * other.points_row, other.points_row, e, count, offset, shift,
                             tile, nullptr);
        scores<T, NQ, false>(values, c ? other.values + start * other.values_row : nullptr, other.values_row, c, count,
                             nullptr, zero, slopes, nullptr);
        if (!(swapped ? all_visible(problem, here, lanes) : all_visible(problem, lanes, here))) {
            hide<T, NQ>(problem, visible, lanes, here, swapped, mode == Mode::linear ? 0 : -infinity<T>, tile);
            hide<T, NQ>(problem, visible, lanes, here, swapped, 0, slopes);
        }
        if (problem.skip_self) drop_self<T, NQ>(problem, lanes, here, swapped, slopes);
        slope<T, NQ, mode, swapped>(tile, slopes, count, level, term, other.level ? other.level + start : nullptr,
                                    other.term ? other.term + start : nullptr);
        weighted_sum<T, NQ>(slopes, count, other.points + start * other.points_row, other.points_row, e,
                            point_sums.recent);
        if constexpr (swapped) {
            for (int64_t j = 0; j < count; j++)
                for (int column = 0; column < NQ; column++) point_sums.recent_total[column] += slopes[j * NQ + column];
            if (value_sums.features) {
                if (problem.skip_self) drop_self<T, NQ>(problem, lanes, here, swapped, tile);
                weighted_sum<T, NQ>(tile, count, other.values + start * other.values_row, other.values_row, c,
                                    value_sums.recent);
            }
        }
        if (++tiles % tiles_per_flush == 0) point_sums.flush(), value_sums.flush();
    }
    point_sums.flush(), value_sums.flush();
    if (to.points)
        unpack<T, NQ>(point_sums.whole, nullptr, rows, e, T(1), to.points_row, to.points + lanes.start * to.points_row);
    if (value_sums.features)
        unpack<T, NQ>(value_sums.whole, nullptr, rows, c, T(1), to.values_row, to.values + lanes.start * to.values_row);
    if (to.bias)
        for (int64_t row = 0; row < rows; row++) to.bias[lanes.start + row] = ((const T*)point_sums.total)[row];
}

template <class T, int NQ, Mode mode>
void backward_pass(const Problem& problem, int64_t member, Range lanes, bool swapped, Vector<T>* memory) {
    const Side<T> queries = queries_of<T>(problem, member), keys = keys_of<T>(problem, member);
    const uint8_t* visible = locate<uint8_t>(problem, problem.visible, member);
    if (swapped) {
        const Gradients<T> to = {locate<T>(problem, problem.grad_k, member), locate<T>(problem, problem.grad_v, member),
                                 locate<T>(problem, problem.grad_bias, member), problem.grad_k.row, problem.grad_v.row};
        backward_rows<T, NQ, mode, true>(problem, visible, keys, queries, lanes, seeing_queries(problem, lanes), to,
                                         memory);
    } else {
        const Gradients<T> to = {locate<T>(problem, problem.grad_q, member), nullptr, nullptr, problem.grad_q.row, 0};
        backward_rows<T, NQ, mode, false>(problem, visible, queries, keys, lanes, visible_keys(problem, lanes), to,
                                          memory);
    }
}

template <class T, int NQ>
void backward_mode(const Problem& problem, int64_t member, Range lanes, bool swapped, Vector<T>* memory) {
    switch (problem.mode) {
        case Mode::softmax: return backward_pass<T, NQ, Mode::softmax>(problem, member, lanes, swapped, memory);
        case Mode::exponential: return backward_pass<T, NQ, Mode::exponential>(problem, member, lanes, swapped, memory);
        case Mode::sigmoid: return backward_pass<T, NQ, Mode::sigmoid>(problem, member, lanes, swapped, memory);
        case Mode::linear: return backward_pass<T, NQ, Mode::linear>(problem, member, lanes, swapped, memory);
    }
}

}  // namespace attractor::ATTRACTOR_ISA
