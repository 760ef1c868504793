// Search for pairs of close tokens by cells of a lattice. Points are (n, axes) with one to three axes; `pairs` has room
// for n / 2 pairs, each with the smaller index first; no token is in two pairs. Returns the number of pairs, or -1
// where cells do not apply: coordinates that are not finite, or so large relative to the tolerance that there would be
// too many cells.
#pragma once

#include <cstdint>

namespace attractor {

// Tokens that share a cell whose diagonal is below the tolerance: the first with the second, and so on.
int64_t cell_mates(const double* points, int64_t n, int axes, double tolerance, int threads, int64_t* pairs);

// Pairs closer than the tolerance of which neither token is part of a closer pair; ties go to the smaller indices.
int64_t mutual_pairs(const double* points, int64_t n, int axes, double tolerance, int threads, int64_t* pairs);

}  // namespace attractor
