// Attention whose queries are a multiple of the keys (see symmetric.h), in an order that makes its results the same for
// any number of threads. What is of another kind is refused, and nothing is done then.
#pragma once

#include <vector>

#include "problem.h"
#include "shared_memory.h"

namespace attractor {

// Output and logsumexp.
bool symmetric_forward(const SymmetricKernels& kernels, const Problem& problem, int threads);

// For several processes: what one part of the pairs gives to the sums, (d + 1) (n rounded up to whole 64) numbers for
// each member; and the results from all sums. With two parts they have the bits of `symmetric_forward`. Not for members
// of one block.
bool symmetric_partial_sums(const SymmetricKernels& kernels, const Problem& problem, int threads, int part, int parts,
                            double* sums);
void symmetric_finish(const SymmetricKernels& kernels, const Problem& problem, int threads, double* sums);

// For processes that share memory: facts of all members, or nothing if they are of another kind; the memory that one of
// them takes; and the results, with the bits of `symmetric_forward` whatever the number of processes, or false if one
// of them is gone.
std::vector<Symmetric> symmetric_members(const SymmetricKernels& kernels, const Problem& problem, int threads);
int64_t symmetric_shared_bytes(const Symmetric& one);
bool symmetric_shared(const SymmetricKernels& kernels, const Problem& problem, int threads,
                      const std::vector<Symmetric>& all, SharedMemory& shared);

}  // namespace attractor
