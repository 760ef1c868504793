// The table of kernels of one instruction set; included once by each isa_*.cpp.
#pragma once

#include "backward.h"
#include "ceilings.h"
#include "columns.h"
#include "run.h"
#include "symmetric.h"
#include "zonal.h"

namespace attractor::ATTRACTOR_ISA {

template <class T>
struct Task {
    int64_t member;
    Range rows;
    Task(int64_t index, int64_t count) {
        const int64_t groups = (count + group<T> - 1) / group<T>;
        member = index / groups;
        rows.start = index % groups * group<T>;
        rows.stop = least(rows.start + group<T>, count);
    }
};

template <class T>
void forward(const Problem& problem, int64_t index, void* memory) {
    const FlushTiny guard;
    const Task<T> task(index, problem.n);
    with_columns<T>(task.rows.stop - task.rows.start, [&](auto count) {
        forward_mode<T, decltype(count)::value>(problem, task.member, task.rows, (Vector<T>*)memory);
    });
}

// Tasks of `gang` groups; the last of a member may be smaller.
template <class T>
void forward_ganged(const Problem& problem, int64_t index, void* memory) {
    const FlushTiny guard;
    const int64_t height = gang * group<T>, tasks = (problem.n + height - 1) / height, groups = (problem.n + group<T> - 1) / group<T>;
    const int64_t member = index / tasks, first = index % tasks;
    if ((first + 1) * height <= problem.n) return forward_gang<T>(problem, member, first * height, (Vector<T>*)memory);
    for (int64_t one = first * gang; one < groups; one++) forward<T>(problem, member * groups + one, memory);
}

template <class T, bool swapped>
void backward(const Problem& problem, int64_t index, void* memory) {
    const FlushTiny guard;
    const Task<T> task(index, swapped ? problem.m : problem.n);
    with_columns<T>(task.rows.stop - task.rows.start, [&](auto count) {
        backward_mode<T, decltype(count)::value>(problem, task.member, task.rows, swapped, (Vector<T>*)memory);
    });
}

template <class T>
size_t scratch(const Problem& problem) {
    static_assert(gang == 4, "the sums of a gang must have room");
    return sizeof(Vector<T>) * (columns * (4 * problem.e + 8 * problem.c + 2 * depth) + depth);
}

template <class T>
void powers(const void* from, void* to, int64_t count) {
    for (int64_t index = 0; index < count; index++) {
        const Vector<T> x = splat<T>(((const T*)from)[index]);
        ((T*)to)[index] = exp2<Domain::any>(x)[0];
    }
}

template <class T>
constexpr SymmetricKernels symmetric_kernels() {
    return {[](const Problem& problem, int64_t member, Symmetric* found) {
                bool fine = false;
                with_features(problem.e, [&](auto count) { fine = recognise<T, decltype(count)::value>(problem, member, found); });
                return fine;
            },
            [](int64_t d) { return sizeof(T) * size_t(row_numbers(int(d))); },
            [](int64_t d) { return sizeof(T) * size_t(key_numbers(int(d))); },
            [](int64_t d) {
                size_t bytes = 0;
                with_features(d, [&](auto count) { bytes = Pairs<T, decltype(count)::value>::scratch(); });
                return bytes;
            },
            [](const Problem& problem, int64_t member, const Symmetric& to, int64_t block) {
                with_features(to.d, [&](auto count) { pack_tokens<T, decltype(count)::value>(problem, member, to, block); });
            },
            [](const Symmetric& problem, int64_t one, int64_t two, void* scratch) {
                const FlushTiny guard;
                with_features(problem.d, [&](auto count) { Pairs<T, decltype(count)::value>(problem, scratch).compute(one, two); });
            },
            [](const Symmetric& problem, int64_t one, int64_t two, void* scratch) {
                with_features(problem.d, [&](auto count) { Pairs<T, decltype(count)::value>(problem, scratch).add(one, two); });
            },
            [](const Problem& problem, int64_t member, const Symmetric& from, int64_t block) {
                with_features(from.d, [&](auto count) { write_tokens<T, decltype(count)::value>(problem, member, from, block); });
            },
            [](const Problem& problem, int64_t member, const Symmetric& one, void* scratch) {
                const FlushTiny guard;
                with_features(one.d, [&](auto count) {
                    constexpr int D = decltype(count)::value;
                    pack_tokens<T, D>(problem, member, one, 0);
                    const Pairs<T, D> pairs(one, scratch);
                    pairs.compute(0, 0);
                    pairs.settle(problem, member);
                });
            }};
}

template <class T>
constexpr Kernels kernels_of() {
    return {[] { return group<T>; }, [] { return gang * group<T>; }, scratch<T>,       measure<T>,
            forward<T>,              forward_ganged<T>,              backward<T, false>, backward<T, true>,
            powers<T>,               multiply_adds<T>,               powers_of_two<T>, symmetric_kernels<T>()};
}

}  // namespace attractor::ATTRACTOR_ISA
