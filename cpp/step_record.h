// The accepted steps of a run, from which gradients are computed (reverse_sweep.h).
#pragma once

#include <cstdint>

namespace attractor {

// Steps of one member: their lengths, and points and slopes (2, n, d) at the start of every `stride`-th of them. `reads`
// are the states that the run returned, in the order of time: step and place within it, from 0 to 1. Step -1 is the
// start: there place 0 is a saved state, which was retracted, and place 1 a last state.
struct MemberSteps {
    int64_t steps = 0, stride = 1, kept = 0;
    const double *lengths = nullptr, *states = nullptr;
    int64_t reads = 0;
    const int64_t *read_step = nullptr, *read_row = nullptr;  // row of `read_grads`
    const double *read_place = nullptr, *read_grads = nullptr;
    int64_t buffer = 1, depth = 1;  // states of one level of recomputation, and levels
};

// Where gradients of the parameters of a member are added; null: not needed.
struct ParameterGradients {
    double *masses = nullptr, *query = nullptr, *key = nullptr, *value = nullptr;
    double *query_bias = nullptr, *key_bias = nullptr, *value_bias = nullptr, *output_bias = nullptr;
    double* scale = nullptr;  // times the scale
};

}  // namespace attractor
