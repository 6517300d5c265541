// Made-up data: for benchmarks and for the examples that need no file. A row depends on (seed, row)
// only.
#pragma once

#include <memory>

#include "engine/data/row_source.h"

namespace zinf::data {

// Rows of seq_len uniform token ids; every position has a target. samples: rows per epoch, or
// RowSource::kEndless.
std::unique_ptr<RowSource> random_tokens(std::int64_t samples, int seq_len,
                                         std::uint64_t vocabulary, std::uint64_t seed);

// `width` standard normal features; the label is a fixed random linear function of them with unit
// variance, so that there is something to learn.
std::unique_ptr<RowSource> random_regression(std::int64_t samples, int width, std::uint64_t seed);

}  // namespace zinf::data
