// As symmetric.h, for tokens of many features: tiles of `side` tokens each way, whose weights are computed once and
// multiply the values of both sides. Features are across the lanes, so both products use the same code.
#pragma once

#include "columns.h"
#include "log2.h"
#include "recognise.h"

namespace attractor::ATTRACTOR_ISA {

constexpr int64_t side = 48;
// Vectors of rows side by side in the scores: as many as leave whole tiles.
constexpr int wide_columns = ATTRACTOR_BYTES == 64 ? 3 : ATTRACTOR_BYTES == 32 ? 2 : columns;
constexpr int64_t most_numbers = 1 << 25;  // of the tokens: their sums in float64 are kept twice
constexpr int64_t nearby =
    1 << 19;  // bytes of the keys of a block and of their sums: some of the cache of one processor

constexpr int64_t up(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

// result[a] += sum_b weights[a down + b along] values[b] for A tokens and F vectors of features.
template <class T, int A, int F>
ATTRACTOR_INLINE void multiply_block(const T* weights, int64_t down, int64_t along, int64_t count, const T* values,
                                     int64_t stride, T* result, int64_t pitch) {
    using V = Vector<T>;
    V sum[A][F];
#pragma GCC unroll 32
    for (int a = 0; a < A; a++)
#pragma GCC unroll 8
        for (int f = 0; f < F; f++) sum[a][f] = V{};
    for (int64_t b = 0; b < count; b++) {
        const V* value = (const V*)(values + b * stride);
#pragma GCC unroll 32
        for (int a = 0; a < A; a++) {
            const V weight = splat<T>(weights[a * down + b * along]);
#pragma GCC unroll 8
            for (int f = 0; f < F; f++) sum[a][f] += weight * value[f];
        }
    }
#pragma GCC unroll 32
    for (int a = 0; a < A; a++)
#pragma GCC unroll 8
        for (int f = 0; f < F; f++) ((V*)(result + a * pitch))[f] += sum[a][f];
}

// The same for `tokens` of them, A side by side.
template <class T, int A, int F>
void multiply_features(const T* weights, int64_t down, int64_t along, int64_t tokens, int64_t count, const T* values,
                       int64_t stride, T* result, int64_t pitch) {
    int64_t a = 0;
    for (; a + A <= tokens; a += A)
        multiply_block<T, A, F>(weights + a * down, down, along, count, values, stride, result + a * pitch, pitch);
    for (; a < tokens; a++)
        multiply_block<T, 1, F>(weights + a * down, down, along, count, values, stride, result + a * pitch, pitch);
}

// And for all features: so that sums fill the registers.
template <class T>
void multiply(const T* weights, int64_t down, int64_t along, int64_t tokens, int64_t count, const T* values,
              int64_t stride, T* result, int64_t pitch) {
    int64_t left = pitch / width<T>;
    auto take = [&](auto abreast, auto vectors) __attribute__((always_inline)) {
        constexpr int A = decltype(abreast)::value, F = decltype(vectors)::value;
        multiply_features<T, A, F>(weights, down, along, tokens, count, values, stride, result, pitch);
        values += F * width<T>, result += F * width<T>, left -= F;
    };
    if constexpr (columns == 2) {
        while (left > 3 || left == 2) take(Count<6>{}, Count<2>{});
        if (left == 3) take(Count<4>{}, Count<3>{});
        if (left == 1) take(Count<12>{}, Count<1>{});
    } else {
        while (left >= 4) take(Count<6>{}, Count<4>{});
        if (left == 3) take(Count<8>{}, Count<3>{});
        if (left == 2) take(Count<12>{}, Count<2>{});
        if (left == 1) take(Count<24>{}, Count<1>{});
    }
}

template <class T>
class WidePairs {
    using V = Vector<T>;
    static constexpr int64_t W = width<T>, height = wide_columns * W, pitch_of_tile = side / W;
    static_assert(side % height == 0, "tiles hold whole groups of rows");

    // Rows: groups of `height` tokens, transposed, the coordinates times the factor and then the masses. Keys:
    // coordinates, values times masses from `values_at` on, and the mass behind them; if the values are the keys they
    // stand there once.
    const Symmetric& problem;
    const int64_t d, pitch, values_at, stride;
    V* weights;                  // [key * pitch_of_tile + row / W]
    T *row_sums, *key_sums;      // [token * pitch + feature]
    V *row_totals, *key_totals;  // [token / W], and of every key a vector to be added up

    int64_t start(int64_t block) const { return block * problem.block; }
    int64_t tokens(int64_t block) const { return least(problem.block, problem.n - start(block)); }
    const V* rows_of(int64_t token) const { return (const V*)problem.rows + token / height * (d + 1) * wide_columns; }
    T* key_of(int64_t token) const { return (T*)problem.keys + token * stride; }

public:
    WidePairs(const Symmetric& problem_, void* scratch)
        : problem(problem_),
          d(problem_.d),
          pitch(up(d, W)),
          values_at(single() ? 0 : pitch),
          stride(values_at + up(d + 1, W)),
          weights((V*)scratch),
          row_sums((T*)(weights + side * pitch_of_tile)),
          key_sums(row_sums + problem.block * pitch),
          row_totals((V*)(key_sums + problem.block * pitch)),
          key_totals(row_totals + up(problem.block, W) / W) {}

    static bool known(const Problem& whole, int64_t member, Symmetric* found) {
        return recognise<T, 0>(whole, member, found);
    }
    // Tokens of a block: as many as fit in the cache if threads take whole members; else few enough for all threads to
    // have blocks. 0 where it does not pay off: too many pairs within one tile, too few blocks, vectors mostly unused,
    // or keys too wide for the cache.
    static int64_t block_of(const Problem& whole) {
        const int64_t fit = least(nearby / (2 * whole.e * int64_t(sizeof(T))), 20 * side) / side * side;
        const bool members = whole.members >= many_members && whole.n <= fit, single = sizeof(T) == 4;
        const int64_t fewest = members ? (single ? 400 : 192) : single ? 800 : 512;
        if (whole.n < fewest || whole.n > most_numbers / (whole.e + 1) || fit < 2 * side) return 0;
        if (single && 8 * whole.e < 7 * up(whole.e, W)) return 0;
        return members ? fit : greatest(2 * side, least(fit, up(whole.n / 8, side)));
    }
    static size_t row_bytes(const Symmetric& one) { return sizeof(T) * size_t(up(one.n, side) * (one.d + 1)); }
    static size_t key_bytes(const Symmetric& one) {
        return sizeof(T) * size_t(up(one.n, side) * (up(one.d, W) + up(one.d + 1, W)));
    }
    static size_t scratch(const Symmetric& one) {
        return sizeof(T) * size_t(side * side + 2 * one.block * up(one.d, W) + up(one.block, W) + one.block * W);
    }

    // The tokens of a block as rows and as keys; zero past the end, with mass 0.
    void pack(const Problem& whole, int64_t member, int64_t block) const {
        const T *k = locate<T>(whole, whole.k, member), *v = locate<T>(whole, whole.v, member);
        const T* bias = locate<T>(whole, whole.bias, member);
        const int64_t first = start(block), stop = up(first + tokens(block), side);
        for (int64_t i = first; i < stop; i++) {
            const bool there = i < problem.n;
            T *key = key_of(i), *row = (T*)rows_of(i) + i % height;
            for (int64_t index = 0; index < stride; index++) key[index] = 0;
            const T mass = !there ? 0 : bias ? exp2<Domain::any>(splat<T>(bias[i]))[0] : 1;
            for (int64_t f = 0; f < d; f++) {
                const T coordinate = there ? k[i * whole.k.row + f] : 0;
                key[f] = coordinate, row[f * height] = T(problem.factor) * coordinate;
            }
            if (there && values_at)
                for (int64_t f = 0; f < d; f++) key[values_at + f] = mass * v[i * whole.v.row + f];
            key[values_at + d] = row[d * height] = mass;
        }
    }

    void clear(int64_t block) const {
        double* sums = problem.sums + start(block) * (d + 1);
        for (int64_t index = 0; index < tokens(block) * (d + 1); index++) sums[index] = 0;
    }

    // All pairs of two blocks, into the scratch.
    void compute(int64_t one, int64_t two) const {
        const int64_t count = tokens(one), others = tokens(two), here = start(one), there = start(two);
        for (int64_t index = 0; index < count * pitch; index++) row_sums[index] = 0;
        for (int64_t index = 0; index < others * pitch; index++) key_sums[index] = 0;
        for (int64_t index = 0; index < up(count, W) / W; index++) row_totals[index] = V{};
        for (int64_t index = 0; index < others; index++) key_totals[index] = V{};
        for (int64_t i = 0; i < count; i += side)
            for (int64_t j = one == two ? i : 0; j < others; j += side) {
                const int64_t rows = least(side, count - i), keys = least(side, others - j);
                const bool own = one == two && i == j;
                weigh(here + i, rows, there + j, keys);
                if (own)
                    total<false>(here + i, rows, there + j, keys, row_totals + i / W, nullptr);
                else
                    total<true>(here + i, rows, there + j, keys, row_totals + i / W, key_totals + j);
                if (own && problem.skip_self)
                    for (int64_t token = 0; token < rows; token++) ((T*)weights)[token * side + token] = 0;
                multiply<T>((const T*)weights, 1, side, rows, keys, key_of(there + j) + values_at, stride,
                            row_sums + i * pitch, pitch);
                if (!own)
                    multiply<T>((const T*)weights, side, 1, keys, rows, key_of(here + i) + values_at, stride,
                                key_sums + j * pitch, pitch);
            }
    }

    // Add the sums in the scratch to those of all pairs: d + 1 numbers for each token.
    void add(int64_t one, int64_t two) const {
        for (int64_t i = 0; i < tokens(one); i++) gain(start(one) + i, row_sums + i * pitch, ((const T*)row_totals)[i]);
        for (int64_t j = 0; j < tokens(two); j++) gain(start(two) + j, key_sums + j * pitch, together(key_totals[j]));
    }

    // The result of a member of one block, directly from the scratch.
    void settle(const Problem& whole, int64_t member) const {
        results<T>(
            whole, member, 0, problem.n, [&](int64_t i, int64_t f) __attribute__((always_inline)) {
                if (f == d) return ((const T*)row_totals)[i] + together(key_totals[i]);
                return row_sums[i * pitch + f] + key_sums[i * pitch + f];
            });
    }

    // Output and logsumexp of the tokens of a block.
    void write(const Problem& whole, int64_t member, int64_t block) const {
        results<double>(
            whole, member, start(block),
            start(block) + tokens(block), [&](int64_t i, int64_t f) __attribute__((always_inline)) {
                const int64_t at = i * (d + 1) + f;
                return problem.others ? problem.sums[at] + problem.others[at] : problem.sums[at];
            });
    }

private:
    bool single() const { return problem.same && !problem.weighted; }

    template <int KB>
    ATTRACTOR_INLINE void score(const V* packed, int64_t other, const V* start, V* tile) const {
        score_block<T, wide_columns, KB, 0, false, int(pitch_of_tile), true>(packed, key_of(other), stride, d, nullptr,
                                                                             start, tile, nullptr);
    }

    void weigh(int64_t first, int64_t rows, int64_t other, int64_t keys) const {
        V start[wide_columns];
        for (int column = 0; column < wide_columns; column++) start[column] = splat<T>(-T(problem.shift));
        const int64_t used = up(rows, height);
        for (int64_t i = 0; i < used; i += height) {
            const V* packed = rows_of(first + i);
            V* tile = weights + i / W;
            int64_t j = 0;
            for (; j + block <= keys; j += block) score<block>(packed, other + j, start, tile + j * pitch_of_tile);
            for (; j < keys; j++) score<1>(packed, other + j, start, tile + j * pitch_of_tile);
        }
        if (used == side) return exp2_all<T, Domain::below>(weights, keys * pitch_of_tile);
        for (int64_t j = 0; j < keys; j++) exp2_all<T, Domain::below>(weights + j * pitch_of_tile, used / W);
    }

    // Sums of masses for rows and, if `both`, for keys.
    template <bool both>
    void total(int64_t first, int64_t rows, int64_t other, int64_t keys, V* of_rows, V* of_keys) const {
        for (int64_t i = 0; i < rows; i += height) {
            V sums[wide_columns], masses[wide_columns];
            for (int column = 0; column < wide_columns; column++)
                sums[column] = V{}, masses[column] = rows_of(first + i)[d * wide_columns + column];
            for (int64_t j = 0; j < keys; j++) {
                const T mass = key_of(other + j)[values_at + d];
                const V* weight = weights + j * pitch_of_tile + i / W;
                V sum = {};
                for (int column = 0; column < wide_columns; column++) {
                    sums[column] += mass * weight[column];
                    if constexpr (both) sum += masses[column] * weight[column];
                }
                if constexpr (both) of_keys[j] += sum;
            }
            for (int64_t column = 0; column < wide_columns && i + column * W < rows; column++)
                of_rows[i / W + column] += sums[column];
        }
    }

    static T together(V sums) {
        T total = 0;
        for (int lane = 0; lane < W; lane++) total += sums[lane];
        return total;
    }

    ATTRACTOR_INLINE void gain(int64_t token, const T* numbers, T total) const {
        double* to = problem.sums + token * (d + 1);
        for (int64_t f = 0; f < d; f++) to[f] += double(numbers[f]);
        to[d] += double(total);
    }

    // `sum` gives number f of token i: values, and then the weights.
    template <class Number, class Sum>
    ATTRACTOR_INLINE void results(const Problem& whole, int64_t member, int64_t first, int64_t stop, Sum sum) const {
        T *output = locate<T>(whole, whole.output, member), *logsumexp = locate<T>(whole, whole.logsumexp, member);
        const Number factor = Number(__builtin_exp2(problem.shift));
        for (int64_t i = first; i < stop; i += W) {
            V totals = splat<T>(1);
            const int64_t count = least(W, stop - i);
            for (int64_t lane = 0; lane < count; lane++) {
                const Number total = sum(i + lane, d), scale = whole.mode == Mode::softmax ? 1 / total : factor;
                for (int64_t f = 0; f < d; f++) output[(i + lane) * whole.output.row + f] = T(scale * sum(i + lane, f));
                ((T*)&totals)[lane] = T(total);
            }
            const V level = T(ln2) * (T(problem.shift) + log2<T>(totals));
            if (logsumexp) __builtin_memcpy(logsumexp + i, &level, sizeof(T) * size_t(count));
        }
    }
};

}  // namespace attractor::ATTRACTOR_ISA
