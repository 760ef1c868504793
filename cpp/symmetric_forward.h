// Attention whose queries are a multiple of the keys, in the order that makes its results the same for any number of threads.
#pragma once

#include "problem.h"

namespace attractor {

// Output and logsumexp, if all members are of that kind; false if not, and nothing was done. See symmetric.h.
bool symmetric_forward(const Kernels& kernels, const Problem& problem, int threads);

}  // namespace attractor
