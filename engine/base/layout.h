// How the elements of a piece lie in every state and gradient, whatever their type.
#pragma once

#include <cstdint>

namespace zinf {

// Hyper-parameters, quantisation blocks and random counters are per quantum; every tensor starts at
// a multiple of it.
constexpr std::int64_t kQuantum = 256;
// Partial sums of the norm are per tile; shards and the ranges that threads get are multiples of
// it, and a piece's element count is rounded up to it.
constexpr std::int64_t kTile = 4096;
// A page of checksums is so many elements (256 KiB in fp32), so that an update's chunks end with
// pages in every state and read and write none in part.
constexpr std::int64_t kPageElements = 65536;

}  // namespace zinf
