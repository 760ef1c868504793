// Peak rates of the processor, by loops of only multiply-adds or only powers of two.
//
// `python -m benchmarks` reports speed as a share of the limit that follows from the two rates.
#pragma once

#include "exp2.h"

namespace attractor::ATTRACTOR_ISA {

// Independent sums, more than the latency of a multiply-add times the units that do them; they must fit in the
// registers.
constexpr int abreast = 12;

// `repeats` rounds of 1024 vector multiply-adds; returns the number of scalar ones.
template <class T>
double multiply_adds(int64_t repeats, void* result) {
    T start;
    __builtin_memcpy(&start, result, sizeof(T));  // a run-time value, so that the compiler computes nothing in advance
    const Vector<T> factor = splat<T>(T(0.999)) + start, term = splat<T>(T(0.001)) + start;
    Vector<T> sums[abreast];
    for (int i = 0; i < abreast; i++) sums[i] = splat<T>(start + T(i));
    constexpr int rounds = 1024 / abreast;
    for (int64_t repeat = 0; repeat < repeats; repeat++)
        for (int round = 0; round < rounds; round++)
#pragma GCC unroll 12
            for (int i = 0; i < abreast; i++) sums[i] = sums[i] * factor + term;
    Vector<T> total = sums[0];
    for (int i = 1; i < abreast; i++) total += sums[i];
    __builtin_memcpy(result, &total, sizeof(T));
    return double(repeats) * rounds * abreast * width<T>;
}

// `repeats` rounds over a tile in the first cache, refilled each time; returns the number of scalar powers.
template <class T>
double powers_of_two(int64_t repeats, void* result) {
    constexpr int tile = 64;
    T start;
    __builtin_memcpy(&start, result, sizeof(T));
    Vector<T> from[tile], to[tile];
    for (int i = 0; i < tile; i++) from[i] = splat<T>(start - T(i) / tile);
    for (int64_t repeat = 0; repeat < repeats; repeat++) {
        for (int i = 0; i < tile; i++) pin(to[i] = from[i]);  // not by a call that copies memory
        exp2_all<T, Domain::inside>(to, tile);
        __asm__ volatile("" : : "r"(to) : "memory");
    }
    __builtin_memcpy(result, to, sizeof(T));
    return double(repeats) * tile * width<T>;
}

}  // namespace attractor::ATTRACTOR_ISA
