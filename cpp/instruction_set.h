// The table of kernels of one instruction set; included once by each isa_*.cpp.
#pragma once

#include "backward.h"
#include "ceilings.h"
#include "columns.h"
#include "integration.h"
#include "reverse_sweep.h"
#include "symmetric.h"
#include "wide.h"
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
    const int64_t height = gang * group<T>, tasks = (problem.n + height - 1) / height,
                  groups = (problem.n + group<T> - 1) / group<T>;
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

// Call `run` with the kernels for this number of features.
template <class T, class Run>
ATTRACTOR_INLINE auto with_features(int64_t d, Run run) {
    switch (d) {
        case 2: return run(Type<Pairs<T, 2>>{});
        case 3: return run(Type<Pairs<T, 3>>{});
        case 4: return run(Type<Pairs<T, 4>>{});
        default: return run(Type<WidePairs<T>>{});
    }
}

template <class T>
constexpr SymmetricKernels symmetric_kernels() {
    return {[](const Problem& problem, int64_t member, Symmetric* found) {
                return with_features<T>(problem.e,
                                        [&](auto kind) { return decltype(kind)::Is::known(problem, member, found); });
            },
            [](const Problem& problem) {
                return with_features<T>(problem.e, [&](auto kind) { return decltype(kind)::Is::block_of(problem); });
            },
            [](const Symmetric& one) {
                return with_features<T>(one.d, [&](auto kind) { return decltype(kind)::Is::row_bytes(one); });
            },
            [](const Symmetric& one) {
                return with_features<T>(one.d, [&](auto kind) { return decltype(kind)::Is::key_bytes(one); });
            },
            [](const Symmetric& one) {
                return with_features<T>(one.d, [&](auto kind) { return decltype(kind)::Is::scratch(one); });
            },
            [](const Problem& problem, int64_t member, const Symmetric& one, int64_t block) {
                with_features<T>(
                    one.d, [&](auto kind) { typename decltype(kind)::Is(one, nullptr).pack(problem, member, block); });
            },
            [](const Symmetric& one, int64_t block) {
                with_features<T>(one.d, [&](auto kind) { typename decltype(kind)::Is(one, nullptr).clear(block); });
            },
            [](const Symmetric& one, int64_t first, int64_t second, void* scratch) {
                const FlushTiny guard;
                with_features<T>(one.d,
                                 [&](auto kind) { typename decltype(kind)::Is(one, scratch).compute(first, second); });
            },
            [](const Symmetric& one, int64_t first, int64_t second, void* scratch) {
                with_features<T>(one.d,
                                 [&](auto kind) { typename decltype(kind)::Is(one, scratch).add(first, second); });
            },
            [](const Problem& problem, int64_t member, const Symmetric& one, int64_t block) {
                with_features<T>(
                    one.d, [&](auto kind) { typename decltype(kind)::Is(one, nullptr).write(problem, member, block); });
            },
            [](const Problem& problem, int64_t member, const Symmetric& one, void* scratch) {
                const FlushTiny guard;
                with_features<T>(one.d, [&](auto kind) {
                    const typename decltype(kind)::Is pairs(one, scratch);
                    pairs.pack(problem, member, 0);
                    pairs.compute(0, 0);
                    pairs.settle(problem, member);
                });
            }};
}

template <class T>
constexpr Kernels kernels_of() {
    return {[] { return group<T>; },
            [] { return gang * group<T>; },
            scratch<T>,
            measure<T>,
            forward<T>,
            forward_ganged<T>,
            backward<T, false>,
            backward<T, true>,
            powers<T>,
            multiply_adds<T>,
            powers_of_two<T>,
            symmetric_kernels<T>()};
}

}  // namespace attractor::ATTRACTOR_ISA
