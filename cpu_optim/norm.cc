#include "cpu_optim/norm.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "cpu_optim/float_mode.h"
#include "cpu_optim/kernel_table.h"

namespace zinf::optim {

std::int64_t tile_count(std::int64_t elements) { return (elements + kTile - 1) / kTile; }

bool tile_sums(Pool& pool, Gradient gradient, std::int64_t elements, double* sums, Isa isa) {
  const KernelTable& table = kernels(isa);
  std::atomic<bool> finite{true};
  pool.for_ranges(elements, [&](std::int64_t begin, std::int64_t end) {
    const DefaultFloatMode mode;
    alignas(64) float room[kTile];
    bool all = true;
    for (std::int64_t i = begin; i < end; i += kTile) {
      const std::int64_t tile = std::min(kTile, end - i);
      const double sum =
          table.sum_squares(gradient.values(i, tile, room, table.bf16_to_fp32), tile);
      sums[i / kTile] = sum;
      all = all && std::isfinite(sum);
    }
    if (!all) finite.store(false, std::memory_order_relaxed);
  });
  return finite.load();
}

double norm_from_sums(std::span<const double> sums) {
  double sum = 0.0;
  for (const double tile : sums) sum += tile;
  return std::sqrt(sum);
}

double clip_factor(double norm, double max_norm) {
  const double factor = max_norm / (norm + 1e-6);
  return factor > 1.0 ? 1.0 : factor;
}

}  // namespace zinf::optim
