// Output and logsumexp of one group of rows.
//
// Weights are 2^(s - shift) with a shift per row. It starts at the first peak and rises only when a score passes it by
// more than `headroom`: rare, so that the running maximum costs one comparison per score and almost never a rescaling.
#pragma once

#include "exp2.h"
#include "log2.h"
#include "member.h"
#include "tile.h"

namespace attractor::ATTRACTOR_ISA {

constexpr double log2e = 1.4426950408889634074;
constexpr double ln2 = 0.69314718055994530942;

template <class T>
constexpr T headroom = sizeof(T) == 4 ? T(24) : T(200);

// Scores of this size in units of log 2 need no shift at all: no weight overflows, and no sum of weights. Sums of
// weights times very large values may, which shows in the results; softmax is then computed again with a shift.
template <class T>
constexpr T moderate = sizeof(T) == 4 ? T(48) : T(400);

// Known range of the scores of a group of rows; `any` needs the running maximum.
enum class Scores { any, moderate };

// State of a group of rows between tiles. Sums have two levels: `recent` is flushed into `whole`.
template <class T, int NQ>
struct Sums {
    Vector<T>*recent, *whole;  // [feature * NQ + column]
    Vector<T> recent_total[NQ] = {}, total[NQ] = {};
    Vector<T> shift[NQ] = {}, limit[NQ];
    int64_t features, tiles = 0;

    Sums(Vector<T>* memory, int64_t features_) : recent(memory), whole(memory + features_ * NQ), features(features_) {
        for (int64_t index = 0; index < 2 * features * NQ; index++) memory[index] = Vector<T>{};
        for (int column = 0; column < NQ; column++)
            limit[column] = splat<T>(sizeof(T) == 4 ? -__FLT_MAX__ : -__DBL_MAX__);
    }

    bool finite() const {
        Vector<T> rest = {};
        for (int64_t index = 0; index < features * NQ; index++) rest += whole[index] - whole[index];
        for (int lane = 0; lane < width<T>; lane++)
            if (!(rest[lane] == 0)) return false;
        return true;
    }

    void flush() {
        for (int64_t index = 0; index < features * NQ; index++)
            whole[index] += recent[index], recent[index] = Vector<T>{};
        for (int column = 0; column < NQ; column++)
            total[column] += recent_total[column], recent_total[column] = Vector<T>{};
    }
};

// Raise the shift where the peak of the tile passes it too far, or where no key was seen before. `again` recomputes the
// scores of the tile: subtracting from scores that were rounded next to a far larger shift would keep their error. The
// peak is then taken from the new scores: for huge scores rounding changes it by many powers of two.
template <class T, int NQ, class Again>
void raise(Sums<T, NQ>& sums, const Vector<T>* peak, int64_t count, Vector<T>* tile, Again again) {
    Integers<T> passed = {}, stale = {};
    for (int column = 0; column < NQ; column++) {
        passed |= peak[column] > sums.limit[column];
        stale |= (peak[column] > sums.limit[column]) & (sums.limit[column] > 0);
    }
    if (__builtin_expect(!any<T>(passed), 1)) return;
    sums.flush();
    Integers<T> over[NQ];
    Vector<T> rises[NQ];
    for (int column = 0; column < NQ; column++) {
        over[column] = peak[column] > sums.limit[column];
        rises[column] = over[column] ? peak[column] : Vector<T>{};
        sums.shift[column] += rises[column];
    }
    const bool anew = any<T>(stale);
    if (anew) again();
    for (int column = 0; column < NQ; column++) {
        const Vector<T> more = !anew ? Vector<T>{} : over[column] ? peak[column] : Vector<T>{};
        const Vector<T> rise = rises[column] + more;
        const Integers<T> fresh = sums.limit[column] < 0;
        const Vector<T> factor = fresh ? Vector<T>{} + 1 : exp2<Domain::any>(-rise);
        for (int64_t feature = 0; feature < sums.features; feature++) sums.whole[feature * NQ + column] *= factor;
        sums.total[column] *= factor;
        sums.shift[column] += more;
        sums.limit[column] = over[column] ? Vector<T>{} + headroom<T> : sums.limit[column];
        for (int64_t j = 0; j < count; j++) tile[j * NQ + column] -= anew ? more : rise;
    }
}

template <class T, int NQ>
ATTRACTOR_INLINE void peaks(const Vector<T>* tile, int64_t count, Vector<T>* peak) {
    for (int column = 0; column < NQ; column++) peak[column] = splat<T>(-infinity<T>);
    for (int64_t j = 0; j < count; j++)
        for (int column = 0; column < NQ; column++) peak[column] = larger(peak[column], tile[j * NQ + column]);
}

// Scores become weights, in place.
template <class T, int NQ, Mode mode, Domain domain>
void weigh(Vector<T>* tile, int64_t count) {
    if constexpr (mode == Mode::linear) return;
    if constexpr (mode == Mode::softmax || mode == Mode::exponential) return exp2_all<T, domain>(tile, count * NQ);
    for (int64_t index = 0; index < count * NQ; index++) tile[index] = sigmoid2(tile[index]);
}

// Add some keys, from a whole number of tiles on, to the sums of a group of rows.
template <class T, int NQ, Mode mode, Scores known>
void sweep(const Problem& problem, int64_t member, Range rows, Range keys, const T* values, const Vector<T>* packed,
           Sums<T, NQ>& sums, Vector<T>* tile) {
    const T* k = locate<T>(problem, problem.k, member);
    const T* bias = locate<T>(problem, problem.bias, member);
    const uint8_t* visible = locate<uint8_t>(problem, problem.visible, member);
    constexpr bool shifted = mode == Mode::softmax && known == Scores::any;
    constexpr bool totals = mode == Mode::softmax || known == Scores::moderate;
    Vector<T> peak[NQ];
    for (int64_t start = keys.start; start < keys.stop; start += depth) {
        const Range here = {start, least(start + depth, keys.stop)};
        const int64_t count = here.stop - here.start;
        const bool clear = all_visible(problem, rows, here);
        auto score = [&] {
            scores<T, NQ, shifted>(packed, k + start * problem.k.row, problem.k.row, problem.e, count,
                                   bias ? bias + start : nullptr, sums.shift, tile, peak);
            if (!clear) hide<T, NQ>(problem, visible, rows, here, false, mode == Mode::linear ? 0 : -infinity<T>, tile);
        };
        auto meet = [&] {
            score();
            if (shifted && !clear) peaks<T, NQ>(tile, count, peak);
        };
        meet();
        if constexpr (shifted) raise(sums, peak, count, tile, meet);
        constexpr Domain domain = shifted || known == Scores::moderate ? Domain::below : Domain::any;
        if (known == Scores::moderate && clear)
            weigh<T, NQ, mode, Domain::inside>(tile, count);
        else
            weigh<T, NQ, mode, domain>(tile, count);
        // only a tile with keys of these rows has self terms to skip
        const Range self = placed(problem, rows);
        const bool own = problem.skip_self && self.start < here.stop && here.start < self.stop;
        if (values && problem.c && !own) {
            weighted_sum<T, NQ, totals>(tile, count, values + start * problem.v.row, problem.v.row, problem.c,
                                        sums.recent, sums.recent_total);
        } else {
            if (totals) plain_sum<T, NQ>(tile, count, sums.recent_total);
            if (values) {
                if (own) drop_self<T, NQ>(problem, rows, here, false, tile);
                weighted_sum<T, NQ>(tile, count, values + start * problem.v.row, problem.v.row, problem.c, sums.recent);
            }
        }
        if (++sums.tiles % tiles_per_flush == 0) sums.flush();
    }
}

// Write the rows of transposed sums, each divided by `total` if given (0 where it is 0: a row that sees no key).
template <class T, int NQ>
void unpack(const Vector<T>* sums, const Vector<T>* total, int64_t rows, int64_t features, T factor, int64_t stride,
            T* to) {
    for (int64_t row = 0; row < rows; row++) {
        T scale = factor;
        if (total) {
            const T sum = ((const T*)total)[row];
            scale = sum == 0 ? 0 : factor / sum;
        }
        for (int64_t feature = 0; feature < features; feature++)
            to[row * stride + feature] = scale * ((const T*)sums)[feature * NQ * width<T> + row];
    }
}

template <class T, int NQ>
void write_logsumexp(const Sums<T, NQ>& sums, int64_t rows, T* to) {
    Vector<T> result[NQ];
    for (int column = 0; column < NQ; column++)
        result[column] = T(ln2) * (sums.shift[column] + log2<T>(sums.total[column]));
    __builtin_memcpy(to, result, sizeof(T) * size_t(rows));
}

// Bounds on |k_j| and |bias_j| of a member; infinite if a number is not finite.
template <class T>
void measure(const Problem& problem, int64_t member, void* reach) {
    const T* k = locate<T>(problem, problem.k, member);
    const T* bias = locate<T>(problem, problem.bias, member);
    T square = 0, level = 0;
    for (int64_t j = 0; j < problem.m; j++) {
        T sum = 0;
        for (int64_t feature = 0; feature < problem.e; feature++)
            sum += k[j * problem.k.row + feature] * k[j * problem.k.row + feature];
        // NaN stays: then there is no bound
        if (!(sum <= square) && square == square) square = sum;
        if (bias && !(__builtin_fabs(bias[j]) <= level) && level == level) level = T(__builtin_fabs(bias[j]));
    }
    ((T*)reach)[0] = T(__builtin_sqrt(square));
    ((T*)reach)[1] = level;
}

// By Cauchy and Schwarz, |<q_i, k_j> + bias_j| <= |q_i| max |k_j| + max |bias_j|.
template <class T, int NQ>
Scores judge(const Problem& problem, int64_t member, const Vector<T>* packed) {
    if (!problem.reach) return Scores::any;
    const T* reach = (const T*)problem.reach + 2 * member;
    Vector<T> squares[NQ] = {};
    for (int64_t feature = 0; feature < problem.e; feature++)
        for (int column = 0; column < NQ; column++)
            squares[column] += packed[feature * NQ + column] * packed[feature * NQ + column];
    double most = 0;
    for (int row = 0; row < NQ * width<T>; row++) {
        const double square = ((const T*)squares)[row];
        if (!(square <= __DBL_MAX__)) return Scores::any;
        most = square > most ? square : most;
    }
    return __builtin_sqrt(most) * reach[0] + reach[1] < moderate<T> ? Scores::moderate : Scores::any;
}

// `logsumexp` alone if there are no values, and the other way round in the modes that have none. Returns false and
// writes nothing if the sums of softmax are not finite and a shift might help.
template <class T, int NQ, Mode mode, Scores known>
bool write_rows(const Problem& problem, int64_t member, Range rows, const T* values, T* logsumexp,
                const Vector<T>* packed, Vector<T>* tile, Vector<T>* outputs) {
    constexpr bool totals = mode == Mode::softmax || known == Scores::moderate;
    const int64_t count = rows.stop - rows.start;
    Sums<T, NQ> sums(outputs, values ? problem.c : 0);
    sweep<T, NQ, mode, known>(problem, member, rows, visible_keys(problem, rows), values, packed, sums, tile);
    sums.flush();
    if (mode == Mode::softmax && known == Scores::moderate && !sums.finite()) return false;
    if (values)
        unpack<T, NQ>(sums.whole, mode == Mode::softmax ? sums.total : nullptr, count, problem.c, T(1),
                      problem.output.row, locate<T>(problem, problem.output, member) + rows.start * problem.output.row);
    if (totals && logsumexp) write_logsumexp(sums, count, logsumexp + rows.start);
    return true;
}

template <class T, int NQ, Mode mode>
void forward_rows(const Problem& problem, int64_t member, Range rows, Vector<T>* memory) {
    const T* q = locate<T>(problem, problem.q, member) + rows.start * problem.q.row;
    const T* values = locate<T>(problem, problem.v, member);
    T* logsumexp = locate<T>(problem, problem.logsumexp, member);
    Vector<T>*packed = memory, *tile = packed + problem.e * NQ, *outputs = tile + depth * NQ;
    pack<T, NQ>(q, problem.q.row, rows.stop - rows.start, problem.e, mode == Mode::linear ? T(1) : T(log2e), packed);
    if constexpr (mode == Mode::softmax || mode == Mode::exponential)
        if (problem.calm || judge<T, NQ>(problem, member, packed) == Scores::moderate)
            if (write_rows<T, NQ, mode, Scores::moderate>(problem, member, rows, values, logsumexp, packed, tile,
                                                          outputs))
                return;
    if (values || mode == Mode::softmax)
        write_rows<T, NQ, mode, Scores::any>(problem, member, rows, values, logsumexp, packed, tile, outputs);
    // not from the sums of weights, which may overflow where the logsumexp is finite
    if (mode == Mode::exponential && logsumexp)
        write_rows<T, NQ, Mode::softmax, Scores::any>(problem, member, rows, nullptr, logsumexp, packed, tile, outputs);
}

// Groups of rows that use the same keys one after another while these are in the cache.
constexpr int gang = 4;
constexpr int64_t near = 1 << 17;  // bytes of keys and values: part of the cache of one core

// Softmax of `gang` whole groups of rows, without a window: keys and values are loaded into the cache once for all of
// them. Each group processes the same tiles in the same order as in `forward_rows`, so the bits are the same.
template <class T>
void forward_gang(const Problem& problem, int64_t member, int64_t first, Vector<T>* memory) {
    constexpr int NQ = columns;
    constexpr int64_t height = NQ * width<T>;
    const T *q = locate<T>(problem, problem.q, member), *values = locate<T>(problem, problem.v, member);
    T *output = locate<T>(problem, problem.output, member), *logsumexp = locate<T>(problem, problem.logsumexp, member);
    const int64_t each = (problem.e + 2 * problem.c) * NQ;
    Vector<T>*tile = memory, *groups = tile + depth * NQ;
    auto outputs = [&](int index) { return groups + index * each + problem.e * NQ; };
    auto rows = [&](int index) { return Range{first + index * height, first + (index + 1) * height}; };
    Sums<T, NQ> sums[gang] = {
        {outputs(0), problem.c}, {outputs(1), problem.c}, {outputs(2), problem.c}, {outputs(3), problem.c}};
    bool calm[gang];
    for (int index = 0; index < gang; index++) {
        Vector<T>* packed = groups + index * each;
        pack<T, NQ>(q + rows(index).start * problem.q.row, problem.q.row, height, problem.e, T(log2e), packed);
        calm[index] = problem.calm || judge<T, NQ>(problem, member, packed) == Scores::moderate;
    }
    const int64_t fit = near / int64_t(sizeof(T)) / (problem.e + problem.c) / depth, step = (fit > 1 ? fit : 1) * depth;
    for (int64_t start = 0; start < problem.m; start += step)
        for (int index = 0; index < gang; index++) {
            const Range keys = {start, least(start + step, visible_keys(problem, rows(index)).stop)};
            const auto meet =
                calm[index] ? sweep<T, NQ, Mode::softmax, Scores::moderate> : sweep<T, NQ, Mode::softmax, Scores::any>;
            meet(problem, member, rows(index), keys, values, groups + index * each, sums[index], tile);
        }
    for (int index = 0; index < gang; index++) {
        sums[index].flush();
        if (calm[index] && !sums[index].finite()) {
            write_rows<T, NQ, Mode::softmax, Scores::any>(problem, member, rows(index), values, logsumexp,
                                                          groups + index * each, tile, outputs(index));
            continue;
        }
        unpack<T, NQ>(sums[index].whole, sums[index].total, height, problem.c, T(1), problem.output.row,
                      output + rows(index).start * problem.output.row);
        if (logsumexp) write_logsumexp(sums[index], height, logsumexp + rows(index).start);
    }
}

template <class T, int NQ>
void forward_mode(const Problem& problem, int64_t member, Range rows, Vector<T>* memory) {
    switch (problem.mode) {
        case Mode::softmax: return forward_rows<T, NQ, Mode::softmax>(problem, member, rows, memory);
        case Mode::exponential: return forward_rows<T, NQ, Mode::exponential>(problem, member, rows, memory);
        case Mode::sigmoid: return forward_rows<T, NQ, Mode::sigmoid>(problem, member, rows, memory);
        case Mode::linear: return forward_rows<T, NQ, Mode::linear>(problem, member, rows, memory);
    }
}

}  // namespace attractor::ATTRACTOR_ISA
