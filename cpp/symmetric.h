// Full attention whose queries are a multiple of the keys: the weights w_ij = 2^(s_ij - shift), with one shift for all rows, are
// symmetric, so each is computed once and serves row i and row j.
//
// One shift is safe where every row has a weight that is not small. With s_ij = a <k_i, k_j> and a > 0 no score passes
// max_i s_ii (Cauchy and Schwarz), and that of row i is at least s_ii; so the shift is max_i s_ii, and max_i s_ii - min_i s_ii
// must stay below `leeway` powers of two. If a < 0 there is no shift, and all scores must be of that size. What a row lacks to a
// weight of 1 then costs no accuracy, because weights below the smallest number are further below it than rounding.
//
// Tokens are cut into blocks. A pair of blocks is computed for itself: rows of the first stand across the lanes, four vectors
// side by side, keys of the second are broadcast, and both sides collect their sums there. Then these are added, in a fixed order,
// to sums in float64. A key bias is a mass m_j = 2^bias_j, that multiplies the value and the one of the normaliser.
#pragma once

#include "exp2.h"
#include "forward.h"
#include "log2.h"

namespace attractor::ATTRACTOR_ISA {

constexpr int across = 4;  // vectors of rows side by side
constexpr int below = 4;   // keys of a tile

// Numbers that a token has as a row, in vectors: its coordinates times a, its value times its mass, its mass. And as a key.
constexpr int row_numbers(int d) { return 2 * d + 1; }
constexpr int key_numbers(int d) { return 2 * d + 2; }

template <class T>
constexpr int64_t stretch = across * width<T>;  // rows side by side

template <class T>
constexpr T leeway = sizeof(T) == 4 ? T(40) : T(400);
template <class T>
constexpr T reach = sizeof(T) == 4 ? T(0x1p30) : T(0x1p300);

// Tiles of `below` keys against `across` vectors of rows. If not `weighted`, masses are 1 and there is no padding.
template <class T, int D, bool weighted>
struct Tile {
    using V = Vector<T>;
    static constexpr int R = row_numbers(D), K = key_numbers(D), S = D + 1;
    V w[below * across];

    // scores of keys j and j + 1
    ATTRACTOR_INLINE void score(const V* rows, const T* key, int j, V start) {
        V s[2][across];
#pragma GCC unroll 8
        for (int f = 0; f < D; f++) {
            const V one = splat<T>(key[j * K + f]), two = splat<T>(key[(j + 1) * K + f]);
#pragma GCC unroll 8
            for (int c = 0; c < across; c++) {
                V q = rows[c * R + f];
                pin(q);
                s[0][c] = (f ? s[0][c] : start) + q * one;
                s[1][c] = (f ? s[1][c] : start) + q * two;
            }
        }
#pragma GCC unroll 8
        for (int c = 0; c < 2 * across; c++) pin(s[c / across][c % across]), w[j * across + c] = s[c / across][c % across];
    }

    // what four keys give to the rows of columns c and c + 1
    ATTRACTOR_INLINE void to_rows(const T* key, int c, V* sums) const {
        V a[2][S];
#pragma GCC unroll 8
        for (int j = 0; j < below; j++) {
            V one = w[j * across + c], two = w[j * across + c + 1];
            pin(one), pin(two);
#pragma GCC unroll 8
            for (int f = 0; f < D + weighted; f++) {
                V v = splat<T>(key[j * K + D + f]);
                pin(v);
                a[0][f] = j ? a[0][f] + one * v : one * v;
                a[1][f] = j ? a[1][f] + two * v : two * v;
            }
            if constexpr (!weighted) a[0][D] = j ? a[0][D] + one : one, a[1][D] = j ? a[1][D] + two : two;
        }
#pragma GCC unroll 16
        for (int f = 0; f < 2 * S; f++) pin(a[f / S][f % S]), sums[c * S + f] += a[f / S][f % S];
    }

    // what the rows give to keys j and j + 1, each lane by itself
    ATTRACTOR_INLINE void to_keys(const V* rows, int j, V* sums) const {
        V a[2][S];
#pragma GCC unroll 8
        for (int c = 0; c < across; c++) {
            V one = w[j * across + c], two = w[(j + 1) * across + c];
            pin(one), pin(two);
#pragma GCC unroll 8
            for (int f = 0; f < D + weighted; f++) {
                V v = rows[c * R + D + f];
                pin(v);
                a[0][f] = c ? a[0][f] + one * v : one * v;
                a[1][f] = c ? a[1][f] + two * v : two * v;
            }
            if constexpr (!weighted) a[0][D] = c ? a[0][D] + one : one, a[1][D] = c ? a[1][D] + two : two;
        }
#pragma GCC unroll 16
        for (int f = 0; f < 2 * S; f++) pin(a[f / S][f % S]), sums[j * S + f] += a[f / S][f % S];
    }

    // keys that are the rows from `first` on: their own weights go to the sums of weights alone
    void leave_out(const T* key, int64_t first, V* sums) {
        for (int64_t j = 0, i = first; j < below; j++, i++) {
            T& own = ((T*)(w + j * across))[i];
            ((T*)(sums + i / width<T> * S + D))[i % width<T>] += weighted ? own * key[j * K + 2 * D] : own;
            own = 0;
        }
    }

    ATTRACTOR_INLINE void power(const Powers<T>& powers, int j) { powers.template four<Domain::below>(w + j * across); }
};

// `stretch` rows against `count` keys, a multiple of four: sums of the rows, and if `both` those of the keys. Chains of the
// powers are long: while they run, the tile before is summed and the one behind is scored, so that the processor always finds
// something to do. If not `both` the keys are the rows themselves, and `skip_self` leaves each out of its own values.
template <class T, int D, bool weighted, bool both>
void meet(const Vector<T>* rows, const T* keys, int64_t count, T shift, bool skip_self, Vector<T>* row_sums, Vector<T>* key_sums) {
    constexpr int K = key_numbers(D), S = D + 1;
    const Powers<T> powers;
    const Vector<T> start = splat<T>(-shift);
    Tile<T, D, weighted> tiles[3];
    Tile<T, D, weighted>*before = tiles, *now = tiles + 1, *behind = tiles + 2;
    for (int j = 0; j < below; j += 2) now->score(rows, keys, j, start);
    for (int64_t first = 0; first < count; first += below) {
        const T *last = keys + (first - below) * K, *next = keys + (first + below) * K;
        Vector<T>* sums = key_sums + (first - below) * S;
        if (first && first + below < count) {
#pragma GCC unroll 1
            for (int j = 0; j < below; j += 2) {
                now->power(powers, j);
                before->to_rows(last, j, row_sums);
                now->power(powers, j + 1);
                if constexpr (both) before->to_keys(rows, j, sums);
                behind->score(rows, next, j, start);
            }
        } else {
            for (int j = 0; j < below; j++) now->power(powers, j);
            if (first)
                for (int j = 0; j < below; j += 2) {
                    before->to_rows(last, j, row_sums);
                    if constexpr (both) before->to_keys(rows, j, sums);
                }
            if (first + below < count)
                for (int j = 0; j < below; j += 2) behind->score(rows, next, j, start);
        }
        if (!both && skip_self) now->leave_out(keys + first * K, first, row_sums);
        Tile<T, D, weighted>* spare = before;
        before = now, now = behind, behind = spare;
    }
    for (int j = 0; j < below; j += 2) {
        before->to_rows(keys + (count - below) * K, j, row_sums);
        if constexpr (both) before->to_keys(rows, j, key_sums + (count - below) * S);
    }
}

template <class T, int D>
class Pairs {
    using V = Vector<T>;
    static constexpr int R = row_numbers(D), K = key_numbers(D), S = D + 1;
    const Symmetric& problem;
    V *row_sums, *key_sums;

    int64_t tokens(int64_t block) const { return least(Symmetric::block, problem.n - block * Symmetric::block); }
    static int64_t padded(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

public:
    Pairs(const Symmetric& problem_, void* scratch)
        : problem(problem_), row_sums((V*)scratch), key_sums(row_sums + padded(Symmetric::block, stretch<T>) / width<T> * S) {}

    static size_t scratch() {
        return sizeof(V) * S * size_t(padded(Symmetric::block, stretch<T>) / width<T> + Symmetric::block);
    }

    // All pairs of two blocks, into the scratch.
    void compute(int64_t one, int64_t two) const {
        const int64_t count = tokens(one), keys = padded(tokens(two), below);
        const T shift = T(problem.shift);
        for (int64_t index = 0; index < padded(count, stretch<T>) / width<T> * S; index++) row_sums[index] = V{};
        for (int64_t index = one == two ? stretch<T> * S : 0; index < keys * S; index++) key_sums[index] = V{};
        const V* rows = (const V*)problem.rows + one * Symmetric::block / width<T> * R;
        const T* others = (const T*)problem.keys + two * Symmetric::block * K;
        for (int64_t first = 0; first < count; first += stretch<T>, rows += across * R) {
            V* sums = row_sums + first / width<T> * S;
            const int64_t stop = least(first + stretch<T>, keys), from = one == two ? stop : 0;
            const bool plain = !problem.weighted && first + stretch<T> <= count && keys == tokens(two);
            const T* own = others + first * K;
            if (one == two)
                (plain ? meet<T, D, false, false> : meet<T, D, true, false>)(rows, own, stop - first, shift, problem.skip_self, sums,
                                                                             nullptr);
            if (from < keys)
                (plain ? meet<T, D, false, true> : meet<T, D, true, true>)(rows, others + from * K, keys - from, shift, false, sums,
                                                                           key_sums + from * S);
        }
    }

    // The sums in the scratch, to those of all pairs. Rows and keys of the padding have room there.
    void add(int64_t one, int64_t two) const {
        constexpr int W = width<T>;
        const int64_t count = padded(tokens(one), W), keys = padded(tokens(two), W), there = padded(tokens(two), below);
        // the keys of a block that meets itself get nothing from their own rows
        const int64_t from = one == two ? least(stretch<T>, keys) : 0;
        for (int f = 0; f < S; f++) {
            double *to = problem.sums + f * problem.padded + one * Symmetric::block, *back = to + (two - one) * Symmetric::block;
            for (int64_t i = 0; i < count; i += W) gain(to + i, row_sums[i / W * S + f]);
            for (int64_t j = from; j < keys; j += W) gain(back + j, of_keys(j, f, there));
        }
    }

    // The result of a member that is one block, straight from the scratch.
    void settle(const Problem& whole, int64_t member) const {
        constexpr int W = width<T>;
        T *output = locate<T>(whole, whole.output, member), *logsumexp = locate<T>(whole, whole.logsumexp, member);
        const int64_t row = whole.output.row, there = padded(problem.n, below);
        const T factor = T(__builtin_exp2(problem.shift));
        for (int64_t i = 0; i < problem.n; i += W) {
            V sums[S];
            for (int f = 0; f < S; f++) sums[f] = row_sums[i / W * S + f];
            if (i >= stretch<T>)  // those before are the keys of their own rows alone
                for (int f = 0; f < S; f++) sums[f] += of_keys(i, f, there);
            const V scale = whole.mode == Mode::softmax ? 1 / sums[D] : splat<T>(factor);
            const int64_t count = least(W, problem.n - i);
            for (int f = 0; f < D; f++) {
                const V result = scale * sums[f];
                for (int64_t lane = 0; lane < count; lane++) output[(i + lane) * row + f] = ((const T*)&result)[lane];
            }
            const V level = T(ln2) * (T(problem.shift) + log2<T>(sums[D]));
            if (logsumexp) __builtin_memcpy(logsumexp + i, &level, sizeof(T) * size_t(count));
        }
    }

private:
    // Number f of the keys from j on; there are `there`.
    ATTRACTOR_INLINE V of_keys(int64_t j, int f, int64_t there) const {
        V together[width<T>];
        const V* from = key_sums + j * S + f;
        if (j + width<T> <= there) {
#pragma GCC unroll 16
            for (int lane = 0; lane < width<T>; lane++) together[lane] = from[lane * S];
        } else {
            for (int lane = 0; lane < width<T>; lane++) together[lane] = j + lane < there ? from[lane * S] : V{};
        }
        return lane_sums<T>(together);
    }

    static ATTRACTOR_INLINE void gain(double* to, V sums) {
#pragma GCC unroll 16
        for (int lane = 0; lane < width<T>; lane++) to[lane] += sums[lane];
    }
};

// Rows of D numbers, transposed; `count` of them if it is not known before.
template <class T, int D, int known>
ATTRACTOR_INLINE void fill(const T* from, int64_t stride, int64_t count, Vector<T>* to) {
#pragma GCC unroll 4
    for (int f = 0; f < D; f++)
#pragma GCC unroll 16
        for (int64_t lane = 0; lane < (known ? known : count); lane++) to[f][lane] = from[lane * stride + f];
}

template <class T>
Vector<T> masses(const T* bias, int64_t count) {
    Vector<T> result = {};
    __builtin_memcpy(&result, bias, sizeof(T) * size_t(count > 0 ? count : 0));
    return exp2<Domain::any>(result);
}

// The tokens of a block as rows and as keys; what is past the end is 0, and so is its mass.
template <class T, int D>
void pack_tokens(const Problem& problem, int64_t member, const Symmetric& to, int64_t block) {
    constexpr int R = row_numbers(D), K = key_numbers(D);
    const T *k = locate<T>(problem, problem.k, member), *v = locate<T>(problem, problem.v, member);
    const T* bias = locate<T>(problem, problem.bias, member);
    const int64_t start = block * Symmetric::block, stop = least(start + Symmetric::block, to.padded);
    Vector<T>* row = (Vector<T>*)to.rows + start / width<T> * R;
    T* key = (T*)to.keys + start * K;
    for (int64_t i = start; i < stop; i += width<T>, row += R, key += width<T> * K) {
        const int64_t count = least(width<T>, to.n - i);
        Vector<T> numbers[R] = {};
        numbers[2 * D] = splat<T>(1);
        if (bias) numbers[2 * D] = masses(bias + i, count);
        if (count == width<T>) {
            fill<T, D, width<T>>(k + i * problem.k.row, problem.k.row, count, numbers);
            fill<T, D, width<T>>(v + i * problem.v.row, problem.v.row, count, numbers + D);
        } else {
            fill<T, D, 0>(k + i * problem.k.row, problem.k.row, count, numbers);
            fill<T, D, 0>(v + i * problem.v.row, problem.v.row, count, numbers + D);
            for (int lane = 0; lane < width<T>; lane++) ((T*)(numbers + 2 * D))[lane] *= lane < count;
        }
        for (int f = 0; f < D; f++) numbers[D + f] *= numbers[2 * D];
        for (int f = 0; f < R; f++) {
            row[f] = f < D ? T(to.factor) * numbers[f] : numbers[f];
            for (int lane = 0; lane < width<T>; lane++) key[lane * K + f] = numbers[f][lane];
        }
    }
}

// Output and logsumexp of the tokens of a block.
template <class T, int D>
void write_tokens(const Problem& problem, int64_t member, const Symmetric& from, int64_t block) {
    T *output = locate<T>(problem, problem.output, member), *logsumexp = locate<T>(problem, problem.logsumexp, member);
    const int64_t start = block * Symmetric::block, stop = least(start + Symmetric::block, from.n);
    const double *sums = from.sums, *totals = from.sums + D * from.padded;
    const double factor = problem.mode == Mode::softmax ? 1.0 : __builtin_exp2(from.shift);
    for (int64_t i = start; i < stop; i++) {
        const double scale = problem.mode == Mode::softmax ? 1 / totals[i] : factor;
        for (int f = 0; f < D; f++) output[i * problem.output.row + f] = T(scale * sums[f * from.padded + i]);
    }
    if (!logsumexp) return;
    for (int64_t i = start; i < stop; i += width<T>) {
        Vector<T> total;
        for (int lane = 0; lane < width<T>; lane++) total[lane] = T(totals[i + lane]);
        const Vector<T> result = T(ln2) * (T(from.shift) + log2<T>(total));
        for (int lane = 0; lane < least(width<T>, stop - i); lane++) logsumexp[i + lane] = result[lane];
    }
}

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

// One after the other would wait for each other: tokens in turn by chains of their own.
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

// Whether the queries of a member are a multiple of its keys whose scores one shift serves; if so, factor and shift.
template <class T, int D>
bool recognise(const Problem& problem, int64_t member, Symmetric* found) {
    const T *q = locate<T>(problem, problem.q, member), *k = locate<T>(problem, problem.k, member);
    const T *v = locate<T>(problem, problem.v, member), *bias = locate<T>(problem, problem.bias, member);
    auto square_of = [&](int64_t i) __attribute__((always_inline)) {
        T square = 0;
#pragma GCC unroll 4
        for (int f = 0; f < D; f++) square += k[i * problem.k.row + f] * k[i * problem.k.row + f];
        return square;
    };
    // what is no number, or infinite, shows in the sum
    T most = 0, fewest = infinity<T>, sum = 0, large = 0;
    {
        T high[chains] = {}, low[chains], sums[chains] = {};
        for (int c = 0; c < chains; c++) low[c] = infinity<T>;
        in_chains(problem.n, [&](int64_t i, int c) __attribute__((always_inline)) {
            const T square = square_of(i);
            high[c] = high[c] > square ? high[c] : square, low[c] = low[c] < square ? low[c] : square, sums[c] += square;
        });
        for (int c = 0; c < chains; c++)
            most = most > high[c] ? most : high[c], fewest = fewest < low[c] ? fewest : low[c], sum += sums[c];
    }
    if (bias)
        for (int64_t i = 0; i < problem.n; i++) large = large > T(__builtin_fabs(bias[i])) ? large : T(__builtin_fabs(bias[i]));
    if (!(sum > 0 && sum < infinity<T> && large <= leeway<T> / 2)) return false;
    // weights of `leeway` and masses of half of it must leave values above what is flushed, and below what is infinite
    T size = most > 1 ? T(__builtin_sqrt(most)) : T(__builtin_sqrt(most / D));  // of the keys, where they are the values: a bound
    if (v != k || problem.v.row != problem.k.row) {
        T sizes[chains] = {};
        in_chains(problem.n, [&](int64_t i, int c) __attribute__((always_inline)) {
#pragma GCC unroll 4
            for (int f = 0; f < D; f++) {
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
        for (int f = 0; f < D; f++) product += double(q[longest * problem.q.row + f]) * double(k[longest * problem.k.row + f]);
        const double first = product / double(square_of(longest));
        // one row carries its own rounding, which all of them together correct
        Products sums;
        if (problem.q.row == D && problem.k.row == D) {
            sums.add(q, k, problem.n * D, first);
        } else {
            for (int64_t i = 0; i < problem.n; i++) sums.add(q + i * problem.q.row, k + i * problem.k.row, D, first);
        }
        product = sums.of(sums.rest), squares = sums.of(sums.squares);
        multiple = T(first + product / squares);
        if (!proportional<T>(problem, q, k, multiple)) return false;
    }
    const double factor = log2e * double(multiple);
    found->factor = factor;
    found->shift = factor > 0 ? double(T(factor * double(most))) : 0;  // as the weights know it
    found->weighted = bias != nullptr;
    if (problem.mode == Mode::exponential && !(found->shift <= moderate<T>)) return false;
    return (factor > 0 ? factor * (double(most) - double(fewest)) : -factor * double(most)) <= leeway<T>;
}

template <class Run>
ATTRACTOR_INLINE void with_features(int64_t d, Run run) {
    switch (d) {
        case 2: return run(Count<2>{});
        case 3: return run(Count<3>{});
        case 4: return run(Count<4>{});
    }
}

}  // namespace attractor::ATTRACTOR_ISA
