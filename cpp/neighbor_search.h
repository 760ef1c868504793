// Which tokens are so close that they may become one. Points are (n, axes) with one to three axes; room for n / 2 pairs
// of tokens, the smaller number first, and no token in two of them. Returns how many there are, or -1 where cells do
// not serve: coordinates that are not finite, or so large beside the tolerance that there would be too many cells.
#pragma once

#include <cstdint>

namespace attractor {

// Tokens that share a cell whose diagonal is below the tolerance: the first with the second, and so on.
int64_t cell_mates(const double* points, int64_t n, int axes, double tolerance, int threads, int64_t* pairs);

// Pairs closer than the tolerance of which neither is part of a closer one; of equals the one with the smaller numbers
// counts.
int64_t mutual_pairs(const double* points, int64_t n, int axes, double tolerance, int threads, int64_t* pairs);

}  // namespace attractor
