// Division of a batch member into tasks: groups of rows of a few vectors.
#pragma once

#include "simd.h"

namespace attractor::ATTRACTOR_ISA {

template <class T>
constexpr int64_t group = columns* width<T>;

template <int N>
struct Count {
    static constexpr int value = N;
};

template <class T>
struct Type {
    using Is = T;
};

// Call `run` with as few vectors of lanes as the rows need: small systems are common.
template <class T, class Run>
ATTRACTOR_INLINE void with_columns(int64_t rows, Run run) {
    if (rows <= width<T>) return run(Count<1>{});
    if constexpr (columns > 2)
        if (rows <= 2 * width<T>) return run(Count<2>{});
    run(Count<columns>{});
}

}  // namespace attractor::ATTRACTOR_ISA
