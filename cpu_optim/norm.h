// The gradient norm and clipping: fp64 partial sums over fixed tiles, so that the norm's bits do
// not depend on chunks, threads, instruction set or placement.
#pragma once

#include <cstdint>
#include <span>

#include "cpu_optim/dispatch.h"
#include "cpu_optim/gradient.h"
#include "cpu_optim/threads.h"

namespace zinf::optim {

// Tiles of kTile elements that `elements` make; the last may be short.
std::int64_t tile_count(std::int64_t elements);

// sums[t] = sum of squares, in fp64, of the t-th tile of `gradient`. `gradient` starts at a tile's
// start, counted from its piece's start. Within a tile: lane j of 16 sums the elements j, j + 16,
// ... in order, then lanes are added pairwise (8, 4, 2, 1 apart). Returns whether all elements are
// finite (a square of a finite fp32 number never overflows fp64, so the sums tell). The sums of a
// bf16 gradient are those of the same numbers in fp32.
bool tile_sums(Pool& pool, Gradient gradient, std::int64_t elements, double* sums,
               Isa isa = best_isa());

// Square root of the sum in index order.
double norm_from_sums(std::span<const double> sums);

// The factor of torch.nn.utils.clip_grad_norm_: max_norm / (norm + 1e-6), at most 1.
double clip_factor(double norm, double max_norm);

}  // namespace zinf::optim
