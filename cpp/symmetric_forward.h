// Attention whose queries are a multiple of the keys (see symmetric.h), in an order that makes results independent of
// the number of threads. For any other problem the functions return false or nothing.
#pragma once

#include <vector>

#include "problem.h"
#include "shared_memory.h"

namespace attractor {

// Output and logsumexp.
bool symmetric_forward(const SymmetricKernels& kernels, const Problem& problem, int threads);

// For several processes: the sums over one part of the pairs, (d + 1) (n rounded up to a multiple of 64) numbers for
// each member; and the results from the total sums. With two parts the bits are those of `symmetric_forward`. Not for
// members of one block.
bool symmetric_partial_sums(const SymmetricKernels& kernels, const Problem& problem, int threads, int part, int parts,
                            double* sums);
void symmetric_finish(const SymmetricKernels& kernels, const Problem& problem, int threads, double* sums);

// For processes with shared memory: the description of all members, empty if they are not symmetric; the shared bytes
// for one of them; and the results, with the bits of `symmetric_forward` for any number of processes, or false if a
// process is lost.
std::vector<Symmetric> symmetric_members(const SymmetricKernels& kernels, const Problem& problem, int threads);
int64_t symmetric_shared_bytes(const Symmetric& one);
bool symmetric_shared(const SymmetricKernels& kernels, const Problem& problem, int threads,
                      const std::vector<Symmetric>& all, SharedMemory& shared);

}  // namespace attractor
