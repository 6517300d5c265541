// train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x ranks.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/config/run_config.h"

namespace zinf::config {

struct Batch {
  std::int64_t world = 1;
  // nullopt: "auto", for the planner to choose; then exactly one of per_rank and accumulation is
  // set.
  std::optional<std::int64_t> micro;
  std::optional<std::int64_t> accumulation;
  std::optional<std::int64_t> per_rank;  // micro x accumulation
  std::optional<std::int64_t> total;     // per_rank x world
  // Whether the planner may choose this micro-batch: it divides per_rank where that is fixed.
  bool allows(std::int64_t candidate) const {
    return !per_rank || (candidate > 0 && *per_rank % candidate == 0);
  }
};

// Any two of the three determine the third; micro alone means accumulation 1; without total and
// accumulation the accumulation is 1. Throws Error(kUsage) with all four numbers and their origins
// when they do not agree.
Batch resolve_batch(const RunConfig& config, std::int64_t world);

// The same with the planner's choice of an "auto" micro-batch; all fields are then set.
Batch with_micro(const Batch& batch, std::int64_t micro);

}  // namespace zinf::config
