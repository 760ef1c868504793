// One member of the batch: its pointers and masks, and the range of keys visible to a group of rows.
#pragma once

#include "problem.h"
#include "simd.h"

namespace attractor::ATTRACTOR_ISA {

// The address of one member; the strides of broadcast axes are 0.
template <class T>
T* locate(const Problem& problem, const Operand& operand, int64_t member) {
    if (!operand.data) return nullptr;
    int64_t offset = 0;
    for (int axis = problem.axes - 1; axis >= 0; axis--) {
        offset += (member % problem.shape[axis]) * operand.batch[axis];
        member /= problem.shape[axis];
    }
    return (T*)operand.data + offset;
}

struct Range {
    int64_t start, stop;
};

// Positions of queries among the keys.
inline Range placed(const Problem& problem, Range rows) {
    return {rows.start + problem.offset, rows.stop + problem.offset};
}

// Keys that some query of `rows` sees, by the causal and window masks.
inline Range visible_keys(const Problem& problem, Range rows) {
    Range keys = {0, problem.m};
    rows = placed(problem, rows);
    if (problem.causal) keys.stop = least(keys.stop, rows.stop);
    if (problem.window) {
        keys.start = greatest(keys.start, rows.start - problem.window + 1);
        keys.stop = least(keys.stop, rows.stop - 1 + problem.window);
    }
    return keys;
}

// Queries that see some key of `keys`.
inline Range seeing_queries(const Problem& problem, Range keys) {
    Range rows = placed(problem, {0, problem.n});
    if (problem.causal) rows.start = greatest(rows.start, keys.start);
    if (problem.window) {
        rows.start = greatest(rows.start, keys.start - problem.window + 1);
        rows.stop = least(rows.stop, keys.stop - 1 + problem.window);
    }
    return {rows.start - problem.offset, rows.stop - problem.offset};
}

// Whether every query of `rows` sees every key of `keys`.
inline bool all_visible(const Problem& problem, Range rows, Range keys) {
    if (problem.visible.data) return false;
    rows = placed(problem, rows);
    if (problem.causal && keys.stop - 1 > rows.start) return false;
    if (problem.window &&
        (rows.stop - 1 - keys.start >= problem.window || keys.stop - 1 - rows.start >= problem.window))
        return false;
    return true;
}

inline bool sees(const Problem& problem, const uint8_t* visible, int64_t query, int64_t key) {
    const int64_t place = query + problem.offset;
    if (problem.causal && key > place) return false;
    if (problem.window && (place - key >= problem.window || key - place >= problem.window)) return false;
    return !visible || visible[query * problem.visible.row + key * problem.visible.column];
}

// Write `value` where a pair is hidden. Lanes are queries, or keys if `swapped`.
template <class T, int NQ>
void hide(const Problem& problem, const uint8_t* visible, Range lanes, Range others, bool swapped, T value,
          Vector<T>* tile) {
    T* entry = (T*)tile;
    constexpr int64_t stride = NQ * width<T>;
    for (int64_t other = others.start; other < others.stop; other++, entry += stride)
        for (int64_t lane = lanes.start; lane < lanes.stop; lane++)
            if (!(swapped ? sees(problem, visible, other, lane) : sees(problem, visible, lane, other)))
                entry[lane - lanes.start] = value;
}

// Write 0 where the key is the query itself. Lanes are queries, or keys if `swapped`.
template <class T, int NQ>
void drop_self(const Problem& problem, Range lanes, Range others, bool swapped, Vector<T>* tile) {
    T* entry = (T*)tile;
    (swapped ? others : lanes) = placed(problem, swapped ? others : lanes);
    for (int64_t own = greatest(lanes.start, others.start); own < least(lanes.stop, others.stop); own++)
        entry[(own - others.start) * NQ * width<T> + own - lanes.start] = 0;
}

// Flushes subnormal numbers to 0 in its scope: x86 processes them in slow microcode.
class FlushTiny {
#if defined(__x86_64__)
    unsigned before = _mm_getcsr();

public:
    FlushTiny() { _mm_setcsr(before | 0x8040); }
    ~FlushTiny() { _mm_setcsr(before); }
#else
public:
    FlushTiny() {}
#endif
};

}  // namespace attractor::ATTRACTOR_ISA
