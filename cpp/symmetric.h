// Full attention whose queries are a multiple of the keys: the weights w_ij = 2^(s_ij - shift), with one shift for all
// rows, are symmetric, so each is computed once and serves row i and row j.
//
// Tokens are cut into blocks. A pair of blocks is computed for itself: rows of the first stand across the lanes, four
// vectors side by side, keys of the second are broadcast, and both sides collect their sums there. Then these are
// added, in a fixed order, to sums in float64. A key bias is a mass m_j = 2^bias_j, that multiplies the value and the
// one of the normaliser.
#pragma once

#include "exp2.h"
#include "log2.h"
#include "recognise.h"

namespace attractor::ATTRACTOR_ISA {

constexpr int across = 4;  // vectors of rows side by side
constexpr int below = 4;   // keys of a tile
constexpr int64_t narrow_block = 512;

// Numbers that a token has as a row, in vectors: its coordinates times a, its value times its mass, its mass. And as a
// key.
constexpr int row_numbers(int d) { return 2 * d + 1; }
constexpr int key_numbers(int d) { return 2 * d + 2; }

template <class T>
constexpr int64_t stretch = across* width<T>;  // rows side by side

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
        for (int c = 0; c < 2 * across; c++)
            pin(s[c / across][c % across]), w[j * across + c] = s[c / across][c % across];
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

// `stretch` rows against `count` keys, a multiple of four: sums of the rows, and if `both` those of the keys. Chains of
// the powers are long: while they run, the tile before is summed and the one behind is scored, so that the processor
// always finds something to do. If not `both` the keys are the rows themselves, and `skip_self` leaves each out of its
// own values.
template <class T, int D, bool weighted, bool both>
void meet(const Vector<T>* rows, const T* keys, int64_t count, T shift, bool skip_self, Vector<T>* row_sums,
          Vector<T>* key_sums) {
    constexpr int K = key_numbers(D), S = D + 1;
    const Powers<T> powers;
    const Vector<T> start = splat<T>(-shift);
    Tile<T, D, weighted> tiles[3];
    Tile<T, D, weighted>*before = tiles, *now = tiles + 1, *behind = tiles + 2;
    for (int j = 0; j < below; j += 2) now->score(rows, keys, j, start);
    for (int64_t first = 0; first < count; first += below) {
        const T *last = keys + (first - below) * K, *next = keys + (first + below) * K;
        Vector<T>* sums = both ? key_sums + (first - below) * S : nullptr;
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

template <class T, int D>
class Pairs {
    using V = Vector<T>;
    static constexpr int R = row_numbers(D), K = key_numbers(D), S = D + 1;
    const Symmetric& problem;
    V *row_sums, *key_sums;

    int64_t tokens(int64_t block) const { return least(narrow_block, problem.n - block * narrow_block); }
    static int64_t padded(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

public:
    Pairs(const Symmetric& problem_, void* scratch)
        : problem(problem_),
          row_sums((V*)scratch),
          key_sums(row_sums + padded(narrow_block, stretch<T>) / width<T> * S) {}

    static bool known(const Problem& whole, int64_t member, Symmetric* found) {
        return recognise<T, D>(whole, member, found);
    }
    // 24: below, too much of a tile would be padding
    static int64_t block_of(const Problem& whole) { return whole.n < 24 ? 0 : narrow_block; }
    static size_t row_bytes(const Symmetric& one) { return sizeof(T) * R * size_t(one.padded); }
    static size_t key_bytes(const Symmetric& one) { return sizeof(T) * K * size_t(one.padded); }
    static size_t scratch(const Symmetric&) {
        return sizeof(V) * S * size_t(padded(narrow_block, stretch<T>) / width<T> + narrow_block);
    }

    // The tokens of a block as rows and as keys; what is past the end is 0, and so is its mass.
    void pack(const Problem& whole, int64_t member, int64_t block) const {
        const T *k = locate<T>(whole, whole.k, member), *v = locate<T>(whole, whole.v, member);
        const T* bias = locate<T>(whole, whole.bias, member);
        const int64_t start = block * narrow_block, stop = least(start + narrow_block, problem.padded);
        Vector<T>* row = (Vector<T>*)problem.rows + start / width<T> * R;
        T* key = (T*)problem.keys + start * K;
        for (int64_t i = start; i < stop; i += width<T>, row += R, key += width<T> * K) {
            const int64_t count = least(width<T>, problem.n - i);
            Vector<T> numbers[R] = {};
            numbers[2 * D] = splat<T>(1);
            if (bias) numbers[2 * D] = masses(bias + i, count);
            if (count == width<T>) {
                fill<T, D, width<T>>(k + i * whole.k.row, whole.k.row, count, numbers);
                fill<T, D, width<T>>(v + i * whole.v.row, whole.v.row, count, numbers + D);
            } else {
                fill<T, D, 0>(k + i * whole.k.row, whole.k.row, count, numbers);
                fill<T, D, 0>(v + i * whole.v.row, whole.v.row, count, numbers + D);
                for (int lane = 0; lane < width<T>; lane++) ((T*)(numbers + 2 * D))[lane] *= lane < count;
            }
            for (int f = 0; f < D; f++) numbers[D + f] *= numbers[2 * D];
            for (int f = 0; f < R; f++) {
                row[f] = f < D ? T(problem.factor) * numbers[f] : numbers[f];
                for (int lane = 0; lane < width<T>; lane++) key[lane * K + f] = numbers[f][lane];
            }
        }
    }

    void clear(int64_t block) const {
        const int64_t start = block * narrow_block, stop = least(start + narrow_block, problem.padded);
        for (int f = 0; f < S; f++)
            for (int64_t i = start; i < stop; i++) problem.sums[f * problem.padded + i] = 0;
    }

    // All pairs of two blocks, into the scratch.
    void compute(int64_t one, int64_t two) const {
        const int64_t count = tokens(one), keys = padded(tokens(two), below);
        const T shift = T(problem.shift);
        for (int64_t index = 0; index < padded(count, stretch<T>) / width<T> * S; index++) row_sums[index] = V{};
        for (int64_t index = one == two ? stretch<T> * S : 0; index < keys * S; index++) key_sums[index] = V{};
        const V* rows = (const V*)problem.rows + one * narrow_block / width<T> * R;
        const T* others = (const T*)problem.keys + two * narrow_block * K;
        for (int64_t first = 0; first < count; first += stretch<T>, rows += across * R) {
            V* sums = row_sums + first / width<T> * S;
            const int64_t stop = least(first + stretch<T>, keys), from = one == two ? stop : 0;
            const bool plain = !problem.weighted && first + stretch<T> <= count && keys == tokens(two);
            const T* own = others + first * K;
            if (one == two)
                (plain ? meet<T, D, false, false> : meet<T, D, true, false>)(rows, own, stop - first, shift,
                                                                             problem.skip_self, sums, nullptr);
            if (from < keys)
                (plain ? meet<T, D, false, true> : meet<T, D, true, true>)(rows, others + from * K, keys - from, shift,
                                                                           false, sums, key_sums + from * S);
        }
    }

    // The sums in the scratch, to those of all pairs. Rows and keys of the padding have room there.
    void add(int64_t one, int64_t two) const {
        constexpr int W = width<T>;
        const int64_t count = padded(tokens(one), W), keys = padded(tokens(two), W), there = padded(tokens(two), below);
        // the keys of a block that meets itself get nothing from their own rows
        const int64_t from = one == two ? least(stretch<T>, keys) : 0;
        for (int f = 0; f < S; f++) {
            double *to = problem.sums + f * problem.padded + one * narrow_block,
                   *back = to + (two - one) * narrow_block;
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
            for (int f = 0; f < D; f++) sums[f] *= scale;
            sums[D] = T(ln2) * (T(problem.shift) + log2<T>(sums[D]));
            const int64_t count = problem.n - i;
            T* to = output + i * row;
            if (count >= W && row == D) {  // known beforehand
                spill<D, W>(sums, D, W, to);
                if (logsumexp) __builtin_memcpy(logsumexp + i, sums + D, sizeof(V));
            } else {
                spill<D, 0>(sums, row, least(W, count), to);
                if (logsumexp) __builtin_memcpy(logsumexp + i, sums + D, sizeof(T) * size_t(least(W, count)));
            }
        }
    }

    // Output and logsumexp of the tokens of a block.
    void write(const Problem& whole, int64_t member, int64_t block) const {
        T *output = locate<T>(whole, whole.output, member), *logsumexp = locate<T>(whole, whole.logsumexp, member);
        const int64_t start = block * narrow_block, stop = least(start + narrow_block, problem.n);
        auto sum = [&](int f, int64_t i) __attribute__((always_inline)) {
            const int64_t at = f * problem.padded + i;
            return problem.others ? problem.sums[at] + problem.others[at] : problem.sums[at];
        };
        const double factor = whole.mode == Mode::softmax ? 1.0 : __builtin_exp2(problem.shift);
        for (int64_t i = start; i < stop; i++) {
            const double scale = whole.mode == Mode::softmax ? 1 / sum(D, i) : factor;
            for (int f = 0; f < D; f++) output[i * whole.output.row + f] = T(scale * sum(f, i));
        }
        if (!logsumexp) return;
        for (int64_t i = start; i < stop; i += width<T>) {
            Vector<T> total;
            for (int lane = 0; lane < width<T>; lane++) total[lane] = T(sum(D, i + lane));
            const Vector<T> result = T(ln2) * (T(problem.shift) + log2<T>(total));
            for (int lane = 0; lane < least(width<T>, stop - i); lane++) logsumexp[i + lane] = result[lane];
        }
    }

private:
    // The numbers of `count` tokens, that stand across the lanes, one after the other; `known` of them if it is not 0.
    template <int F, int known>
    static ATTRACTOR_INLINE void spill(const V* numbers, int64_t row, int64_t count, T* to) {
#pragma GCC unroll 16
        for (int64_t lane = 0; lane < (known ? known : count); lane++)
#pragma GCC unroll 4
            for (int f = 0; f < F; f++) to[lane * row + f] = numbers[f][lane];
    }

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

}  // namespace attractor::ATTRACTOR_ISA
