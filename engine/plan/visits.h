// Private to the compiler: which stages are visited in which order, and what each visit needs.
#pragma once

#include <vector>

#include "engine/plan/placement.h"

namespace zinf::plan {

struct Visit {
  int stage = 0;
  bool backward = false;  // a head's visit is backward: forward, loss and backward in one
  int group = 0;
  int first = 0;  // micro-batches [first, last)
  int last = 0;
};

// What follows from the model alone.
struct ModelFacts {
  std::vector<bool> stage_needs_backward;  // it or a stage before it trains something
  std::vector<bool> wants_gradient;        // per activation: its producer needs backward
  std::vector<bool> saved;                 // per activation: a backward visit reads it
  std::vector<int> consumers;              // per activation
  std::vector<int> producer;               // per activation: stage, or -1
  std::vector<bool> from_lookup;           // per activation: made by the host
  std::vector<int> compute_stage;          // per piece: the block or head that uses it, or -1
  std::vector<int> lookup_stage;           // per piece: the lookup that uses it, or -1
};

// Checks what the compiler relies on: stages in topological order, a piece in at most one block or
// head (plus lookups), one head, last.
ModelFacts derive_facts(const model::ModelSpec& model);

// CompileSettings::early_updates counts it.
bool can_update_early(const CompileInput& input, const ModelFacts& facts, int piece);

// The head's table, where it comes in slices (CompileSettings::slice_rows); else -1.
int sliced_table(const CompileInput& input);

// The visits of one training step in order, cut in two: the forward segment (group 0), then the
// backward segment.
std::vector<Visit> forward_visits(const CompileInput& input, int group);
std::vector<Visit> backward_segment_visits(const CompileInput& input, const ModelFacts& facts);
int groups_of(const CompileSettings& settings);

}  // namespace zinf::plan
