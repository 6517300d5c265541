// Measures the optimizer phase: the update and the norm, each beside a loop with the same loads and
// stores and no arithmetic, timed in turn on the same memory. Returns figures, prints nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cpu_optim/dispatch.h"
#include "cpu_optim/optimizer.h"
#include "cpu_optim/state_schema.h"
#include "cpu_optim/threads.h"

namespace zinf::optim {

struct BenchRow {
  Format format;
  Isa isa = Isa::kScalar;
  int threads = 1;
  std::int64_t elements = 0;
  double bytes_per_element = 0;  // loaded and stored, gradient included
  double seconds = 0;            // median
  double limit_seconds = 0;      // median of the loop without arithmetic
  double elements_per_second = 0;
  double gb_per_second = 0;
  double share_of_bandwidth = 0;  // median over pairs of limit / seconds
  // Every repetition: the update's share, and the time of the whole phase, from the accumulated
  // gradient to the updated weight: norm, clip factor, update.
  std::vector<double> shares, phase_seconds;
  // With `checksums`: time of the update that also sums the pages it reads and writes, relative to
  // the one that does not, timed in turn.
  std::vector<double> checksum_ratios;
};

// The update of `elements` (rounded up to whole tiles) in this format; allocates the states.
// repetitions >= 1, after a warm-up of one.
BenchRow bench_update(const Format& format, Isa isa, Pool& pool, std::int64_t elements,
                      int repetitions, bool checksums = false);

// tile_sums over as many elements: 4 bytes an element. `format` in the row means nothing.
BenchRow bench_norm(Isa isa, Pool& pool, std::int64_t elements, int repetitions);

// "bf16/int8/split": weights, moments, master, as the formats of the rows are named on command
// lines.
std::string format_name(const Format& format);

// The formats that the documentation tables: AdamW in fp32, split, bf16 moments, int8 moments, with
// bf16-sr.
std::vector<Format> bench_formats();

// Bytes that bench_update allocates.
Bytes bench_bytes(const Format& format, std::int64_t elements);

}  // namespace zinf::optim
